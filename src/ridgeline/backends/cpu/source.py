"""Gives back the pages of a mapped model file once its bytes are packed. Knows no file format."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt


def drop_pages(data: npt.NDArray[np.uint8]) -> None:
    """Drop the resident pages that lie wholly inside `data` when it is a read-only view of a mapped file; else nothing.

    The pages are read from the file again if touched. Memory of other kinds would lose its content, so it is left alone.
    """
    source = _mapping(data)
    if source is None or data.size == 0 or not data.flags.c_contiguous or not hasattr(mmap, "MADV_DONTNEED"):
        return
    whole = np.frombuffer(source, dtype=np.uint8)
    start = data.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if not whole.flags.writeable and last > first:
        source.madvise(mmap.MADV_DONTNEED, first, last - first)


def _mapping(data: npt.NDArray[np.uint8]) -> mmap.mmap | None:
    """The mapping at the end of a chain of views."""
    base: Any = data
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, mmap.mmap) else None
