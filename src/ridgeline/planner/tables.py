"""Tables of facts: CSV files of the package or of the user, read strictly, and how a name finds its row. Knows no column's meaning.

An empty cell is unknown and stays unknown. Lines that begin with # are remarks.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

from ridgeline.errors import FileFormatError, UserError

MAX_FILE_BYTES = 4 << 20
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table. Getters raise `FileFormatError` naming file, line and column; None is an empty cell."""

    cells: Mapping[str, str]
    origin: str
    line: int

    def text(self, column: str) -> str:
        return (self.cells.get(column) or "").strip()

    def number(self, column: str) -> float | None:
        """A finite number, not negative."""
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < 0:
            raise self.bad(column, "a number that is not negative, or nothing for unknown")
        return value

    def whole(self, column: str, default: int = 0) -> int:
        value = self.number(column)
        if value is None:
            return default
        if value != int(value):
            raise self.bad(column, "a whole number")
        return int(value)

    def money(self, column: str) -> Decimal | None:
        text = self.text(column)
        if not text:
            return None
        try:
            value = Decimal(text)
        except InvalidOperation:
            value = Decimal("nan")
        if not value.is_finite() or value < 0:
            raise self.bad(column, "an amount that is not negative, or nothing for unknown")
        return value

    def bad(self, column: str, limit: str) -> FileFormatError:
        value = self.text(column)
        return FileFormatError(
            f"{self.origin}, line {self.line}: {column} is {value!r}, must be {limit}", field=column, value=value, limit=limit
        )


def package_rows(name: str, key: str) -> list[Row]:
    """Rows of one of our own tables in `planner/data`."""
    return parse((files("ridgeline.planner") / "data" / name).read_text("utf8"), name, key)


def user_rows(path: Path, key: str) -> list[Row]:
    """Rows of the user's file. Raises `FileFormatError` for a file that cannot be read as a table with a column `key`."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise FileFormatError(f"{path}: over {MAX_FILE_BYTES} bytes, not a table of facts", field=str(path), limit=MAX_FILE_BYTES)
        text = path.read_text("utf8")
    except OSError as error:
        raise FileFormatError(f"{path}: {error.strerror or error}", field=str(path), value=str(path), remedy="check the path") from None
    except UnicodeDecodeError:
        raise FileFormatError(f"{path}: not UTF-8 text", field=str(path), value=str(path), remedy="save it as CSV in UTF-8") from None
    return parse(text, str(path), key)


def parse(text: str, origin: str, key: str) -> list[Row]:
    """Lines of CSV under one header; `key` names the column that every line must fill, each with another name."""
    numbered = [(i, line) for i, line in enumerate(text.splitlines(), 1) if line.strip() and not line.lstrip().startswith("#")]
    header = next(csv.reader([numbered[0][1]]), []) if numbered else []
    header = [h.strip() for h in header]
    if key not in header:
        raise FileFormatError(f"{origin}: the first line has no column {key!r}", field=key, value=header[:_SHOWN], limit=key)
    found: list[Row] = []
    seen: set[str] = set()
    for line, content in numbered[1:]:
        cells = next(csv.reader([content]))
        if len(cells) > len(header):
            raise FileFormatError(f"{origin}, line {line}: {len(cells)} cells under {len(header)} columns", field=origin, value=len(cells))
        row = Row(dict(zip(header, cells, strict=False)), origin, line)
        name = folded(row.text(key))
        if not name or name in seen:
            raise row.bad(key, "a name of its own")
        seen.add(name)
        found.append(row)
    return found


def folded(name: str) -> str:
    """A name without regard to case, and with -, _ and blanks alike."""
    return " ".join(name.casefold().replace("-", " ").replace("_", " ").split())


def match(name: str, names: Collection[str], what: str, option: str) -> str:
    """The one of `names` that is meant: equal, or the only one that begins so. Raises `UserError` with the candidates otherwise.

    what: "device" or "model", for the message."""
    wanted = folded(name)
    equal = [n for n in names if folded(n) == wanted]
    begins = equal or [n for n in names if wanted and folded(n).startswith(wanted)]
    if len(begins) == 1:
        return begins[0]
    if begins:
        listed = ", ".join(begins[:_SHOWN]) + (f" and {len(begins) - _SHOWN} more" if len(begins) > _SHOWN else "")
        raise UserError(f"{what} {name!r} may be {listed}", field=option, value=name, limit=tuple(begins), remedy="give more of the name")
    near = [n for n in names if wanted and wanted in folded(n)]
    by_fold = {folded(n): n for n in names}
    near = near or [by_fold[f] for f in get_close_matches(wanted, by_fold, 5, 0.5)]
    command = "hardware" if what == "device" else "models"
    hint = f"near it: {', '.join(near[:_SHOWN])}" if near else f"`ridgeline {command}` lists what is known"
    raise UserError(f"{what} {name!r} is not known", field=option, value=name, limit=tuple(near), remedy=hint)
