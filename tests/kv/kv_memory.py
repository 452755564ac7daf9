"""A KV pool that stores, instead of numbers, which prefix each slot was computed for: any wrong sharing shows as a wrong name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from ridgeline.graph.step import BlockCopy, Int32Array
from ridgeline.kv.layout import first_needed


def names(space: bytes, tokens: Int32Array, known: list[bytes] | None = None) -> list[bytes]:
    """The name of each position: a digest of namespace and all tokens up to it. `known` is a list of the first ones, extended in place."""
    out = [] if known is None else known
    last = out[-1] if out else space
    for token in tokens[len(out) :].tolist():
        last = hashlib.blake2b(last + token.to_bytes(4, "little"), digest_size=12).digest()
        out.append(last)
    return out if len(out) == len(tokens) else out[: len(tokens)]


class Memory:
    def __init__(self, windows: Sequence[int | None], blocks: Sequence[int], block_size: int) -> None:
        self.windows, self.size = tuple(windows), block_size
        self.slots: list[list[list[bytes | None]]] = [[[None] * block_size for _ in range(n)] for n in blocks]

    def copy(self, copies: Iterable[BlockCopy]) -> None:
        """All sources are read before any destination is written, or the other way round: both must do, so they may not meet."""
        items = list(copies)
        written = [(c.group, c.dst) for c in items]
        assert len(set(written)) == len(written) and not set(written) & {(c.group, c.src) for c in items}, "copies race"
        for c in items:
            self.slots[c.group][c.dst] = list(self.slots[c.group][c.src])

    def write(self, group: int, table: Sequence[int] | Int32Array, past: int, wanted: Sequence[bytes]) -> None:
        for p in range(past, len(wanted)):
            self.slots[group][int(table[p // self.size])][p % self.size] = wanted[p]

    def read(self, group: int, table: Sequence[int] | Int32Array, past: int, wanted: Sequence[bytes]) -> None:
        """Every key that queries past .. len(wanted)-1 read is the one computed for exactly this prefix."""
        for p in range(first_needed(self.windows[group], past), len(wanted)):
            block = int(table[p // self.size])
            assert block >= 0 and self.slots[group][block][p % self.size] == wanted[p], f"group {group} position {p}: stale or foreign KV"


def random_prompt(rng: np.random.Generator, stems: Sequence[Int32Array], vocab: int, longest: int) -> Int32Array:
    stem = stems[int(rng.integers(len(stems)))]
    head = stem[: int(rng.integers(0, len(stem) + 1))]
    tail = rng.integers(0, vocab, int(rng.integers(1, longest)))
    return np.concatenate((head, tail)).astype(np.int32)
