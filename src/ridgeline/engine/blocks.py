"""KV blocks for the plain loop: a free list per cache group and a promise per sequence, so that nobody runs dry half way.

Knows integers only. It shares nothing between sequences and never takes a block back early: that is the scheduler's (`kv/`, `scheduler/`).
"""

from __future__ import annotations

import numpy as np

from ridgeline.engine.sequence import Int32Array, Sequence
from ridgeline.graph.caches import CacheGroup
from ridgeline.kv.layout import first_needed, peak_blocks


class BlockPool:
    """Mutable: which blocks are free. A table entry wholly behind a window goes back to the free list and becomes -1."""

    def __init__(self, groups: tuple[CacheGroup, ...], blocks: tuple[int, ...], block_size: int, chunk: int) -> None:
        self._windows = [g.window for g in groups]
        self._free = [list(range(n - 1, -1, -1)) for n in blocks]
        self._unpromised = list(blocks)
        self._block_size, self._chunk = block_size, chunk

    def reserve(self, seq: Sequence) -> bool:
        """Promise all the blocks that the sequence can need at once; False when they are not there now."""
        need = self._needs(seq)
        if any(n > left for n, left in zip(need, self._unpromised, strict=True)):
            return False
        self._unpromised = [left - n for n, left in zip(need, self._unpromised, strict=True)]
        columns = -(-seq.limit_len // self._block_size)
        seq.tables, seq.columns = [np.full(columns, -1, np.int32) for _ in need], 0
        return True

    def grow(self, seq: Sequence, tokens: int) -> None:
        """Blocks for positions up to `tokens` (excluded), and back with those that no later token can see."""
        columns = -(-tokens // self._block_size)
        for table, free, window in zip(seq.tables, self._free, self._windows, strict=True):
            if window is not None:
                _drop(table, free, first_needed(window, seq.past) // self._block_size)
            for i in range(seq.columns, columns):
                table[i] = free.pop()
        seq.columns = max(seq.columns, columns)

    def release(self, seq: Sequence) -> None:
        """The only way back: every block, and the promise."""
        for table, free in zip(seq.tables, self._free, strict=True):
            _drop(table, free, seq.columns)
        self._unpromised = [left + n for n, left in zip(self._needs(seq), self._unpromised, strict=True)]
        seq.tables = []

    def free(self) -> tuple[int, ...]:
        return tuple(len(f) for f in self._free)

    def _needs(self, seq: Sequence) -> list[int]:
        return [peak_blocks(w, self._block_size, seq.limit_len, self._chunk) for w in self._windows]


def _drop(table: Int32Array, free: list[int], end: int) -> None:
    """Entries before `end` go back and become -1; a gap of -1 means that all before it went earlier."""
    for i in range(min(end, len(table)) - 1, -1, -1):
        if table[i] < 0:
            break
        free.append(int(table[i]))
        table[i] = -1
