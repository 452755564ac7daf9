"""Files by their names: what headings, rows and sentences of a report say in place of paths of the machine that measured.

Commands stay as they ran, and where a log lies is still told.
"""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from typing import Any

from ridgeline.bench.report_schema import ReportDocument

_PATH = re.compile(r"(?<![\w.:/~])~?/(?:[^\s/,;:'\"()]+/)+([^\s/,;:'\"()]+)")
_FILE = re.compile(r"(?<![\w.:/~])~?/(?:[^\s/,;:'\"()]+/)+([^\s/,;:'\"()]+\.(?:gguf|safetensors))")
_KEPT = frozenset(("commands", "command", "sources", "definitions", "kind", "label"))
_NOTES = frozenset(("notes", "sentence", "why"))


def named(words: str) -> str:
    """Absolute paths as the names of their files."""
    return _PATH.sub(r"\1", words)


def with_names(document: ReportDocument) -> ReportDocument:
    """The same document without folders; notes keep paths that are not models', such as a log's."""
    found: ReportDocument = _walk(document, _PATH)
    return found


def _walk(value: Any, path: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        return path.sub(r"\1", value) if "/" in value else value
    if is_dataclass(value) and not isinstance(value, type):
        given = {f.name: getattr(value, f.name) for f in fields(value) if f.name not in _KEPT}
        changed = {name: _walk(v, _FILE if name in _NOTES else path) for name, v in given.items()}
        different = {name: v for name, v in changed.items() if v is not given[name]}
        return replace(value, **different) if different else value
    if isinstance(value, tuple):
        made = tuple(_walk(v, path) for v in value)
        return value if all(a is b for a, b in zip(made, value, strict=True)) else made
    if isinstance(value, dict):
        return {k: v if k == "url" else _walk(v, path) for k, v in value.items()}
    return value
