"""A small world for the equivalence suite: known sequences run through one program in any schedule, and events are counted.

Blocks are handed out in random order from pools full of NaN; blocks behind a window are taken away and filled with NaN again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ridgeline.backends import cpu
from ridgeline.backends.base import KEY_SEGMENT, LoadPlan
from ridgeline.backends.cpu.program import Fault
from ridgeline.formats.tensors import Tensors
from ridgeline.graph.caches import cache_groups
from ridgeline.graph.graph import Graph
from ridgeline.graph.step import BlockCopy, SharedWalk, Span, Step
from ridgeline.types import Isa

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
# A step of a schedule: (sequence, new tokens), in batch order.
Work = Sequence[tuple[int, int]]


@dataclass
class Running:
    """A sequence in the world: computed tokens, block tables by cache group, and the logits of every position so far."""

    tokens: Ints
    past: int = 0
    tables: list[list[int]] = field(default_factory=list)
    logits: list[Floats] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)


class World:
    def __init__(
        self,
        graph: Graph,
        tensors: Tensors,
        sequences: Sequence[Ints],
        *,
        isa: Isa | None = None,
        threads: int = 2,
        block_size: int = 16,
        kv: str = "bf16",
        faults: Sequence[Fault] = (),
        seed: int = 0,
        evict: bool = True,
    ) -> None:
        self.size, self.evict, self.events = block_size, evict, Counter[str]()
        self.windows = [group.window for group in cache_groups(graph.caches)]
        total = sum(-(-len(s) // block_size) + 1 for s in sequences) + 1
        self.program = cpu.load(graph, tensors, LoadPlan((total,) * len(self.windows), block_size, kv, threads), isa, faults=faults)
        self.program.native.fill_kv(0xFF)
        rng = np.random.default_rng(seed)
        self.free = [list(map(int, rng.permutation(total))) for _ in self.windows]
        self.running = [Running(s, tables=[[] for _ in self.windows]) for s in sequences]

    def run(self, schedule: Iterable[Work], shared: tuple[SharedWalk, ...] = ()) -> list[Floats]:
        """Logits of every position, [tokens, vocab] per sequence, after all steps. `shared` goes with every step that it fits."""
        for work in schedule:
            self.step(work, shared)
        assert all(r.past == len(r.tokens) for r in self.running), "the schedule does not finish every sequence"
        return self.results()

    def results(self) -> list[Floats]:
        return [np.concatenate(r.logits) for r in self.running]

    def fork(self, child: int, parent: int, tokens: int) -> None:
        """`child` takes over the parent's first `tokens` tokens: whole blocks are shared, a part block is copied in its next step."""
        a, b = self.running[parent], self.running[child]
        assert b.past == 0 and a.past >= tokens and (a.tokens[:tokens] == b.tokens[:tokens]).all()
        whole, rest = divmod(tokens, self.size)
        for g in range(len(self.windows)):
            b.tables[g] = a.tables[g][:whole]
            if rest:
                b.tables[g].append(self.free[g].pop())
                b.copies.append(BlockCopy(g, a.tables[g][whole], b.tables[g][whole]))
        self.events["copy_on_write"] += len(b.copies)
        self.events["mid_block_hit" if rest else "block_hit"] += 1
        b.past = tokens
        b.logits = [np.concatenate(a.logits)[:tokens]]

    def step(self, work: Work, shared: tuple[SharedWalk, ...] = ()) -> None:
        spans, tokens, copies = [], [], []
        for seq, new in work:
            r = self.running[seq]
            self._count(r.past, new)
            for g, table in enumerate(r.tables):
                while len(table) * self.size < r.past + new:
                    table.append(self.free[g].pop())
            spans.append(Span(seq, r.past, new, new))
            tokens.append(r.tokens[r.past : r.past + new])
            copies += r.copies
            r.copies = []
        self.events["mixed_step"] += len(work) > 1 and len({new == 1 for _, new in work}) == 2
        self.events["shared_walk"] += len(shared)
        tables = tuple(tuple(np.array(self.running[seq].tables[g], np.int32) for seq, _ in work) for g in range(len(self.windows)))
        self.program.forward(Step(tuple(spans), np.concatenate(tokens).astype(np.int32), tables, tuple(copies), shared))
        logits, row = self.program.logits(), 0
        for seq, new in work:
            r = self.running[seq]
            r.logits.append(logits[row : row + new].copy())
            r.past += new
            row += new
            if self.evict:
                self._evict(r)

    def _count(self, past: int, new: int) -> None:
        end = past + new
        self.events["chunk_inside_block"] += past % self.size != 0
        self.events["chunk_inside_segment"] += past % KEY_SEGMENT != 0
        self.events["segment_crossed"] += past // KEY_SEGMENT != (end - 1) // KEY_SEGMENT
        self.events["one_token"] += new == 1 and past > 0
        self.events["window_crossed"] += any(w is not None and past < w < end for w in self.windows)

    def _evict(self, r: Running) -> None:
        """Blocks that no later query reads: the next one, at r.past, reads from r.past - window + 1 on."""
        for g, window in enumerate(self.windows):
            if window is None:
                continue
            for i in range(max(0, r.past - window + 1) // self.size):
                if r.tables[g][i] >= 0:
                    self.program.native.fill_block(g, r.tables[g][i], 0xFF)
                    self.free[g].insert(0, r.tables[g][i])
                    r.tables[g][i] = -1
                    self.events["window_eviction"] += 1


def sequences(vocab: int, lengths: Sequence[int], seed: int = 1) -> list[Ints]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab, n).astype(np.int32) for n in lengths]


def whole(lengths: Sequence[int]) -> list[Work]:
    return [[(i, n)] for i, n in enumerate(lengths)]


def one_step(lengths: Sequence[int], order: Sequence[int]) -> list[Work]:
    return [[(i, lengths[i]) for i in order]]


def chunked(lengths: Sequence[int], sizes: Sequence[int]) -> list[Work]:
    """Each sequence by itself, in chunks of `sizes` over and over."""
    work: list[Work] = []
    for i, n in enumerate(lengths):
        done = k = 0
        while done < n:
            new = min(sizes[k % len(sizes)], n - done)
            work.append([(i, new)])
            done, k = done + new, k + 1
    return work


def mixed(lengths: Sequence[int], seed: int) -> list[Work]:
    """Random subsets, orders and chunk sizes, one token about half of the time."""
    rng = np.random.default_rng(seed)
    left, work = list(lengths), []
    while any(left):
        alive = [i for i, n in enumerate(left) if n]
        chosen = rng.permutation(alive)[: rng.integers(1, len(alive) + 1)]
        step = []
        for i in map(int, chosen):
            new = 1 if rng.random() < 0.4 else int(rng.integers(1, 60))
            step.append((i, min(new, left[i])))
            left[i] -= step[-1][1]
        work.append(step)
    return work


def differing(got: Sequence[Floats], want: Sequence[Floats]) -> int:
    """Rows that are not the same bit for bit (NaN counts as a difference)."""
    bad = 0
    for a, b in zip(got, want, strict=True):
        same = (a.view(np.uint32) == b.view(np.uint32)).all(axis=1) & np.isfinite(a).all(axis=1)
        bad += int(len(a) != len(b)) + int((~same).sum())
    return bad
