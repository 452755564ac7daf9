"""Ctrl-C while a command starts: modules are imported, a model is loaded. Knows signals and no command."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def starting() -> Iterator[None]:
    """Inside, Ctrl-C ends the process there and then, with 130: nothing is under way that would need an end.

    An exception would not do: the import system may print and forget it, and a thread that loads would be waited for.
    """
    try:
        before = signal.signal(signal.SIGINT, _leave)
    except ValueError:  # not the main thread: there Ctrl-C means nothing
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _leave(number: int, frame: Any) -> None:
    if sys.stderr.isatty():
        os.write(2, b"\r\x1b[K\x1b[?25h")  # a progress bar and the cursor that it hid
    os._exit(130)
