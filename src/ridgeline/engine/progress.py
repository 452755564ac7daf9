"""A bar for a load's work, shown only to a person and only when it takes long enough to be wondered about. Knows no weights."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

PATIENCE_S = 1.0


@contextmanager
def packing_bar(name: str, doing: str = "packing") -> Iterator[Callable[[int, int], None]]:
    """A function (done, in all), of bytes or anything else. It draws one line on stderr after `PATIENCE_S`, and clears it at the end."""
    start, shown, person = perf_counter(), False, sys.stderr.isatty()

    def report(done: int, total: int) -> None:
        nonlocal shown
        if person and total and perf_counter() - start > PATIENCE_S:
            shown = True
            filled = 30 * done // total
            sys.stderr.write(f"\r{doing} {name} [{'#' * filled}{'.' * (30 - filled)}] {100 * done // total:3d}%")
            sys.stderr.flush()

    try:
        yield report
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
