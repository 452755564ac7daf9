"""A Step: the only thing that varies between two forward passes. Made by the scheduler, read by every backend.

There is no prefill and no decode: a chunk, a prefix hit, a resumed sequence and a draft are all "`new` tokens after `past` tokens".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Span:
    """`new` tokens of sequence `seq`, at positions past .. past + new - 1; logits are wanted for the last `want` of them."""

    seq: int
    past: int
    new: int
    want: int = 0


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Before the step's writes, copy the whole block `src` of cache group `group` onto `dst` (copy-on-write)."""

    group: int
    src: int
    dst: int


KEY_PART = 16  # tokens: a shared walk ends at a multiple of as many


@dataclass(frozen=True, slots=True)
class SharedWalk:
    """Spans (indices) whose first `tokens` positions lie in the same blocks; their walk over those keys may be shared (cascade).

    `tokens` is a multiple of KEY_PART. Of the key segment in which they part ways a backend shares what it can without changing the
    order of a sum: all of it or nothing, and nothing where a span has several new tokens.
    """

    spans: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass.

    tokens: int32 [sum of new], span after span.
    tables[g][i]: int32 block ids of span i in cache group g (see `graph.caches.cache_groups`); position p lies in block
    tables[g][i][p // block_size]. Entries wholly behind a group's window may be -1.
    """

    spans: tuple[Span, ...]
    tokens: Int32Array
    tables: tuple[tuple[Int32Array, ...], ...]
    copies: tuple[BlockCopy, ...] = ()
    shared: tuple[SharedWalk, ...] = ()

    @property
    def rows(self) -> int:
        """T: rows of every value before `SelectRows`."""
        return sum(s.new for s in self.spans)

    @property
    def wanted(self) -> int:
        """Rows of the logits."""
        return sum(s.want for s in self.spans)
