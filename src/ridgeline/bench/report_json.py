"""`report_schema` documents to JSON and back, strictly: what does not fit is refused with the file's name and the key.

Knows dataclasses of plain values, tuples, mappings and unions; knows no figure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ridgeline.bench import report_schema
from ridgeline.bench.report_other import other
from ridgeline.bench.report_schema import LABELS, VERSION, ReportDocument
from ridgeline.errors import FileFormatError

MAX_BYTES = 256 << 20


def to_json(document: ReportDocument) -> dict[str, Any]:
    """Plain values, in the order of the schema."""
    return asdict(document)


def read_documents(path: Path) -> list[ReportDocument]:
    """All documents of one JSON file. Raises `FileFormatError` naming the file and what is wrong in it."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise FileFormatError(f"{path}: over {MAX_BYTES} bytes, not a result", field=str(path), limit=MAX_BYTES)
        found = json.loads(path.read_text("utf8"), parse_constant=lambda text: math.nan)
    except OSError as error:
        raise FileFormatError(f"{path}: {error.strerror or error}", field=str(path), value=str(path), remedy="check the path") from None
    except (ValueError, RecursionError):
        raise FileFormatError(f"{path}: not JSON", field=str(path), remedy="give what a bench command wrote with --json") from None
    return documents_of(found, str(path))


def documents_of(found: Any, origin: str) -> list[ReportDocument]:
    """Documents of a parsed JSON value: under the key "report", or the value itself. origin: the file, for messages."""
    found = other(found) or found
    inner = found.get("report", found) if isinstance(found, dict) else found
    listed = inner if isinstance(inner, list) else [inner]
    if not listed or not all(isinstance(d, dict) and "kind" in d and "title" in d for d in listed):
        remedy = "give what a bench command or simulate wrote with --json, where it has a key \"report\""
        raise FileFormatError(f"{origin}: holds no report", field=origin, remedy=remedy)
    for d in listed:
        if d.get("version", VERSION) != VERSION:
            text = f"{origin}: report of version {d['version']!r}, this program reads {VERSION}"
            raise FileFormatError(text, field="version", value=d["version"], limit=VERSION)
    made = [_read(ReportDocument, d, origin, "") for d in listed]
    for d in made:
        for i, t in enumerate(d.tables):
            short = next((j for j, row in enumerate(t.rows) if len(row) != len(t.columns)), None)
            if short is not None:
                raise _wrong(origin, f"tables[{i}].rows[{short}]", list(t.rows[short]), f"a list of {len(t.columns)}, as there are columns")
            if t.sources and [len(texts) for texts in t.sources] != [len(row) for row in t.rows]:
                raise _wrong(origin, f"tables[{i}].sources", len(t.sources), "one text for each cell, or nothing")
    return made


def _read(kind: Any, value: Any, origin: str, at: str) -> Any:
    """`value` as `kind`. at: the path of keys so far, for messages."""
    where = get_origin(kind)
    if is_dataclass(kind):
        return _record(kind, value, origin, at)
    if where is tuple:
        return _items(kind, value, origin, at)
    if where in (dict, Mapping):
        if not isinstance(value, dict):
            raise _wrong(origin, at, value, "an object")
        inner = get_args(kind)[1]
        return {k: _read(inner, v, origin, f"{at}.{k}") for k, v in value.items()}
    if where is Literal:
        if value not in get_args(kind):
            raise _wrong(origin, at, value, "one of " + ", ".join(map(str, get_args(kind))))
        return value
    if where is UnionType or isinstance(kind, UnionType):
        return _one_of(kind, value, origin, at)
    return _plain(kind, value, origin, at)


def _record(kind: Any, value: Any, origin: str, at: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(origin, at, value, "an object")
    known = {f.name: f for f in fields(kind)}
    hints = get_type_hints(kind, vars(report_schema))
    for name in value:
        if name not in known:
            raise FileFormatError(f"{origin}: {at}.{name} is not known".replace(": .", ": "), field=f"{at}.{name}", limit=tuple(known))
    for name, f in known.items():
        if name not in value and f.default is MISSING and f.default_factory is MISSING:
            raise FileFormatError(f"{origin}: {at}.{name} is missing".replace(": .", ": "), field=f"{at}.{name}")
    given = {name: _read(hints[name], v, origin, f"{at}.{name}") for name, v in value.items()}
    label = given.get("label")
    if isinstance(label, str) and label.partition(":")[0] not in LABELS:
        raise _wrong(origin, f"{at}.label", label, "one of " + ", ".join(LABELS) + ", with ': ' and words after it")
    return kind(**given)


def _items(kind: Any, value: Any, origin: str, at: str) -> tuple[Any, ...]:
    args = get_args(kind)
    if not isinstance(value, list | tuple):
        raise _wrong(origin, at, value, "a list")
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_read(args[0], v, origin, f"{at}[{i}]") for i, v in enumerate(value))
    if len(value) != len(args):
        raise _wrong(origin, at, value, f"a list of {len(args)}")
    return tuple(_read(a, v, origin, f"{at}[{i}]") for i, (a, v) in enumerate(zip(args, value, strict=True)))


def _one_of(kind: Any, value: Any, origin: str, at: str) -> Any:
    kinds = get_args(kind)
    if value is None and NoneType in kinds:
        return None
    records = [k for k in kinds if is_dataclass(k)]
    if records:
        return _read(records[0], value, origin, at)
    for k in kinds:
        if k is not NoneType and isinstance(value, bool) == (k is bool) and isinstance(value, (int, float) if k is float else k):
            found = _plain(k, value, origin, at)
            return value if int in kinds else found  # a cell keeps 2 apart from 2.0
    raise _wrong(origin, at, value, "text, a number, true, false or null" if str in kinds else "a number or null")


def _plain(kind: Any, value: Any, origin: str, at: str) -> Any:
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise _wrong(origin, at, str(value), "a finite number, or null where there is none")
        return float(value)
    if kind is int and isinstance(value, float) and math.isfinite(value) and value == int(value):
        return int(value)
    if isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
        return value
    raise _wrong(origin, at, value, {str: "text", int: "a whole number", float: "a number", bool: "true or false"}.get(kind, str(kind)))


def _wrong(origin: str, at: str, value: Any, limit: str) -> FileFormatError:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    name = at.lstrip(".") or "the report"
    return FileFormatError(f"{origin}: {name} is {shown}, must be {limit}", field=name, value=shown, limit=limit)
