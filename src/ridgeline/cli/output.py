"""What goes to which stream, and in which form: words on stdout, everything about them on stderr, `--json` as one document."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ridgeline.errors import RidgelineError, UserError


def note(line: str) -> None:
    """One line about the work, on stderr."""
    print(line, file=sys.stderr, flush=True)


def print_json(document: Mapping[str, Any]) -> None:
    """The one JSON document of a command, on stdout. Numbers stay numbers; what is not finite becomes null."""
    print(json.dumps(_plain(document), ensure_ascii=False, indent=2, allow_nan=False), flush=True)


def print_report(report: Any, document: Callable[[Any, str], Any], render: Callable[[Any], str], *, as_json: bool) -> None:
    """A benchmark's result: `render`ed for people, or all of it as JSON with its report `document` (of the result and our version)."""
    if not as_json:
        print(render(report))
        return
    from ridgeline import __version__
    from ridgeline.bench.report_json import to_json

    print_json(report.as_json() | {"report": to_json(document(report, __version__))})


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, str):
        return value.encode("utf8", "replace").decode("utf8")  # a lone surrogate is not JSON that others can read
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes):
        return [_plain(v) for v in value]
    if hasattr(value, "item") and not isinstance(value, bool | int | float):
        return _plain(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def error_line(error: Exception) -> str:
    """One plain line. What we did not raise on purpose is called what it is."""
    if isinstance(error, RidgelineError):
        return str(error)
    if isinstance(error, MemoryError):
        return "out of memory; use a smaller --max-model-len or a smaller model"
    return f"internal error: {type(error).__name__}: {error} (RIDGELINE_DEBUG=1 shows where)"


def error_document(error: Exception) -> dict[str, Any]:
    if not isinstance(error, UserError):
        return {"message": error_line(error), "type": type(error).__name__}
    limit = error.limit if isinstance(error.limit, int | float | str | list | tuple | None) else str(error.limit)
    value = error.value if isinstance(error.value, int | float | str | None) else str(error.value)
    found = {"field": error.field, "value": value, "limit": limit, "remedy": error.remedy}
    return {"message": str(error), "type": type(error).__name__, **found}


def writable(path: Path) -> Path:
    """Raises `UserError` for a file that cannot be written, before the work begins that it would hold."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        why = "is a folder" if path.is_dir() else "no such folder"
        raise UserError(f"{path}: {why}", field=str(path), value=str(path), remedy="name a file in a folder that exists")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise UserError(f"{path}: may not be written", field=str(path), value=str(path), remedy="check its permissions")
    return path


def table(rows: Sequence[Sequence[object]], header: Sequence[str]) -> str:
    """Columns aligned with spaces, numbers to the right: plain text that pipes and greps well."""
    cells = [[str(c) for c in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    right = [all(_numeric(row[i]) for row in cells[1:]) for i in range(len(header))]
    lines = ("  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)).rstrip() for row in cells)
    return "\n".join(lines)


def _numeric(cell: str) -> bool:
    return cell in ("", "-") or cell.replace(",", "").replace(".", "", 1).replace("-", "", 1).rstrip("%x").isdigit()


def printable(text: str) -> str:
    """One line of a file's own text, with nothing in it that a terminal would obey."""
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))


def size(count: float) -> str:
    """Bytes for people, decimal: 98.4 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
