"""Random operations on pools, tables and prefix index, every invariant recomputed after each, contents followed slot by slot (PC-06)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from tests.kv.kv_memory import Memory, names, random_prompt

from ridgeline.graph.step import Int32Array
from ridgeline.kv.manager import CachePolicy, Hit, KvCache, Table

STEMS = [np.random.default_rng(7 + i).integers(0, 3, 40).astype(np.int32) for i in range(5)]


@dataclass
class Live:
    table: Table
    space: bytes
    tokens: Int32Array
    computed: int


class Driver:
    """Opens, grows, forks, preempts and closes sequences at random, as a scheduler would, each operation one step."""

    def __init__(self, seed: int, windows: tuple[int | None, ...], blocks: tuple[int, ...], size: int, policy: CachePolicy) -> None:
        self.rng = np.random.default_rng(seed)
        self.kv = KvCache(windows, blocks, size, policy, ghost_blocks=20)
        self.memory = Memory(windows, blocks, size)
        self.live: list[Live] = []
        self.events: Counter[str] = Counter()

    def run(self, operations: int) -> None:
        names_ = ["open", "grow", "grow", "grow", "fork", "close", "evict"]
        for i in range(operations):
            self.kv.now = i / 10
            getattr(self, names_[int(self.rng.integers(len(names_)))])()
            self.kv.settle()
            self.kv.check()

    def pick(self) -> Live | None:
        return self.live[int(self.rng.integers(len(self.live)))] if self.live else None

    def open(self) -> None:
        space = [b"a", b"b"][int(self.rng.integers(2))]
        tokens = random_prompt(self.rng, STEMS, 3, 20)
        hit = self.kv.lookup(space, tokens, len(tokens) - 1)
        assert hit.tokens <= len(tokens) - 1
        fits = [h for h in (hit, self.kv.shorten(hit), Hit(0)) if self.affordable(h, len(tokens))]
        if not fits or len(self.live) >= 8:
            return
        table = self.kv.open(space, fits[0])
        self.live.append(Live(table, space, tokens, fits[0].tokens))
        self.events["hits"] += fits[0].tokens > 0
        self.compute(self.live[-1], int(self.rng.integers(1, len(tokens) - fits[0].tokens + 1)))

    def affordable(self, hit: Hit, tokens: int) -> bool:
        return all(self.kv.cost(hit, g, tokens, 0) <= pool.available for g, pool in enumerate(self.kv.pools))

    def compute(self, seq: Live, want: int) -> None:
        new = self.kv.room(seq.table, seq.computed, want)
        if not new:
            self.close_one(seq)
            return
        self.kv.grow(seq.table, seq.computed, new)
        self.memory.copy(self.kv.copies)
        end = seq.computed + new
        wanted = names(seq.space, seq.tokens[:end])
        for group in range(len(self.kv.windows)):
            table = seq.table.array(group)
            self.memory.write(group, table, seq.computed, wanted)
            self.memory.read(group, table, seq.computed, wanted)
        seq.computed = end
        self.kv.commit(seq.table, seq.tokens, end)

    def grow(self) -> None:
        if (seq := self.pick()) is None:
            return
        if seq.computed == len(seq.tokens):
            more = self.rng.integers(0, 3, int(self.rng.integers(1, 4))).astype(np.int32)
            seq.tokens = np.concatenate((seq.tokens, more))
        self.compute(seq, int(self.rng.integers(1, len(seq.tokens) - seq.computed + 1)))

    def fork(self) -> None:
        if (seq := self.pick()) is not None and len(self.live) < 8:
            self.live.append(Live(self.kv.fork(seq.table), seq.space, seq.tokens, seq.computed))
            self.events["forks"] += 1

    def close(self) -> None:
        if (seq := self.pick()) is not None:
            self.close_one(seq)

    def close_one(self, seq: Live) -> None:
        keep_until = self.kv.now + 20 * float(self.rng.integers(0, 2))
        rank = int(self.rng.integers(0, 3))
        self.kv.close(seq.table, seq.tokens, seq.computed, keep=self.rng.random() < 0.9, rank=rank, keep_until=keep_until)
        self.live.remove(seq)

    def evict(self) -> None:
        if self.rng.random() < 0.5:
            self.kv.evict(1 if self.rng.random() < 0.9 else None)

    def drain(self) -> None:
        while self.live:
            self.close_one(self.live[0])
            self.kv.check()
        assert all(used == 0 for _, _, used in self.kv.usage())
        self.kv.evict()
        self.kv.check()
        assert [free for free, _, _ in self.kv.usage()] == [p.size for p in self.kv.pools]


SHAPES: list[tuple[tuple[int | None, ...], tuple[int, ...], int, CachePolicy]] = [
    ((None,), (64,), 4, "radix"),
    ((None,), (90,), 1, "radix"),
    ((None, 6), (48, 30), 4, "radix"),
    ((None, 4, 9), (40, 20, 30), 3, "radix"),
    ((5,), (24,), 4, "radix"),
    ((1,), (12,), 4, "radix"),
    ((None,), (64,), 4, "hash"),
    ((None, 6), (48, 30), 4, "hash"),
    ((5,), (24,), 4, "hash"),
    ((None, 6), (48, 30), 4, "off"),
]


@pytest.mark.parametrize(("windows", "blocks", "size", "policy"), SHAPES)
def test_twenty_thousand_operations_lose_nothing(
    windows: tuple[int | None, ...], blocks: tuple[int, ...], size: int, policy: CachePolicy
) -> None:
    driver = Driver(1, windows, blocks, size, policy)
    driver.run(2000)
    driver.drain()
    counts = driver.kv.counts
    assert driver.events["forks"] > 20 and counts["copies_on_write"] > (20 if size > 1 else -1)
    if policy != "off":
        assert counts["evictions"] > 20 and driver.events["hits"] > 20
    if policy == "radix" and size > 1:
        assert counts["hits_inside_block"] > 10
    if windows[-1] is not None:
        assert counts["window_releases"] > 20
