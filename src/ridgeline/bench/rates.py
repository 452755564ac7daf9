"""Seconds of a step from kernel rates measured on this machine with this model, and from them the time of a workload.

Layers without attention are timed at a few row counts and read off in between; attention has a rate per query-key pair of each kind:
in chunks, in decodes, and in decodes that walk a shared prefix together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline.backends.base import KEY_SEGMENT
from ridgeline.bench.engine_run import prompts
from ridgeline.bench.runner import timed_ops
from ridgeline.engine.loader import LoadedModel
from ridgeline.graph.caches import cache_groups
from ridgeline.graph.ops import Attend
from ridgeline.graph.step import SharedWalk, Span, Step
from ridgeline.planner.cost import GraphCost, Work

Floats = npt.NDArray[np.float64]
ROWS = (1, 4, 16, 32, 64, 128, 256, 512)
_REPEAT = 5


@dataclass(frozen=True, eq=False)
class Rates:
    """body_s, head_s: seconds of everything but attention for ROWS rows, before and behind the choice of wanted rows.
    attend_s: seconds per FLOP of attention in chunks, in decodes alone and over shared prefixes."""

    book: GraphCost
    body_s: Floats
    head_s: Floats
    attend_s: Floats

    @classmethod
    def measure(cls, model: LoadedModel, say: Callable[[str], None] = lambda line: None) -> Rates:
        """About as long as thirty steps take. Needs a backend that times its ops."""
        say("measuring kernel rates")
        book = model.costs()
        probe = _Probe(model, book)
        plain = [probe.times([Span(0, 0, rows, rows)], ()) for rows in ROWS]
        body, head = np.array([p[0] for p in plain]), np.array([p[1] for p in plain])
        shared = 3 * KEY_SEGMENT
        walk = SharedWalk(tuple(range(32)), shared)
        cases: list[tuple[list[Span], tuple[SharedWalk, ...]]] = [
            ([Span(0, 0, 512, 1)], ()), ([Span(0, 500, 500, 1)], ()), ([Span(i, 1000, 64, 1) for i in range(8)], ()),
            ([Span(i, 300, 1, 1) for i in range(32)], ()), ([Span(i, 1100, 1, 1) for i in range(32)], ()),
            ([Span(i, 1100, 1, 1) for i in range(32)], (walk,)),
        ]  # fmt: skip
        work, took = [], []
        for spans, walks in cases:
            work.append(_attention_flops(book, spans, walks))
            took.append(probe.times(spans, walks)[2])
        return cls(book, body, head, _fit(np.array(work), np.array(took)))

    def seconds(self, spans: Sequence[Span], shared: tuple[SharedWalk, ...] = ()) -> float:
        """One step."""
        step = self.book.work(spans, shared)
        attention = float(np.dot(self.attend_s, _attention_flops(self.book, spans, shared)))
        return _between(step.rows, self.body_s) + _between(step.wanted, self.head_s) + attention


def _attention_flops(book: GraphCost, spans: Sequence[Span], walks: Sequence[SharedWalk]) -> Floats:
    """FLOPs of attention in chunks, in decodes apart from shared walks, and in decodes over shared prefixes."""

    def flops(part: Sequence[Span]) -> float:
        step = book.work(part)
        return float(sum(book.op(op, step).flops for op in book.graph.ops if isinstance(op, Attend)))

    shared = {i: walk.tokens for walk in walks for i in walk.spans}
    decodes = [(i, s) for i, s in enumerate(spans) if s.new == 1]
    whole = flops([s for _, s in decodes])
    private = flops([replace(s, past=s.past - shared.get(i, 0)) for i, s in decodes])
    return np.array([flops([s for s in spans if s.new > 1]), private, whole - private])


def _fit(work: Floats, seconds: Floats) -> Floats:
    """Seconds per FLOP of each kind, none below zero: one kind after the other, from the steps where it is the only new one."""
    rates = np.zeros(3)
    for kind in range(3):
        rows = [i for i, w in enumerate(work) if w[kind] > 0 and not w[kind + 1 :].any()]
        rest = [max(0.0, seconds[i] - float(np.dot(work[i], rates))) / work[i][kind] for i in rows]
        rates[kind] = median(rest) if rest else 0.0
    return rates


def _between(rows: int, seconds: Floats) -> float:
    """Linear between measured row counts, in proportion beyond the largest."""
    if rows == 0:
        return 0.0
    if rows > ROWS[-1]:
        return float(seconds[-1]) * rows / ROWS[-1]
    return float(np.interp(rows, ROWS, seconds))


class _Probe:
    """Steps on made-up tables: all sequences read the same first blocks and write their own last ones."""

    def __init__(self, model: LoadedModel, book: GraphCost) -> None:
        self._program: Any = model.program
        self._size, self._blocks = model.plan.block_size, model.plan.blocks
        self._groups = len(cache_groups(model.program.graph.caches))
        self._tokens = prompts(1, 4096, model.limits.vocab, 9)[0]
        zero = dict.fromkeys(book.windows, 0)
        self._late = [book.rows(op, Work(1, 0, zero, zero)) == 0 for op in book.graph.ops]
        self._ops = list(book.graph.ops)

    def times(self, spans: list[Span], walks: tuple[SharedWalk, ...]) -> tuple[float, float, float]:
        """Median seconds of (body, head, attention)."""
        step = self._step(spans, walks)
        self._program.forward(step)
        found = []
        for _ in range(_REPEAT):
            found.append(self._parts(timed_ops(self._program, lambda: self._program.forward(step))))
        return tuple(median(f[i] for f in found) for i in range(3))  # type: ignore[return-value]

    def _parts(self, times: list[Any]) -> tuple[float, float, float]:
        parts = [0.0, 0.0, 0.0]
        for t in times:
            late = all(self._late[self._ops.index(op)] for op in t.ops)
            parts[2 if any(isinstance(op, Attend) for op in t.ops) else int(late)] += t.seconds
        return parts[0], parts[1], parts[2]

    def _step(self, spans: list[Span], walks: tuple[SharedWalk, ...]) -> Step:
        tables = []
        for g in range(self._groups):
            group = []
            for i, span in enumerate(spans):
                whole = -(-(span.past + span.new) // self._size)
                mine = span.past // self._size
                table = np.arange(whole, dtype=np.int32)
                table[mine:] = mine + i * (whole - mine) + np.arange(whole - mine, dtype=np.int32)
                group.append((table % self._blocks[g]).astype(np.int32))
            tables.append(tuple(group))
        total = sum(s.new for s in spans)
        return Step(tuple(spans), self._tokens[:total], tuple(tables), (), walks)


def branch_seconds(rates: Rates, chunk: int, shared: int, branches: int, own: int, gen: int) -> float:
    """Time of `branches` answers of `gen` tokens to prompts of `own` tokens after `shared` common ones that are computed once."""
    total = 0.0
    for past in range(0, shared, chunk):
        new = min(chunk, shared - past)
        total += rates.seconds([Span(0, past, new, 0)])
    walk = shared // KEY_SEGMENT * KEY_SEGMENT
    per_step = max(1, chunk // own)
    for first in range(0, branches, per_step):
        together = list(range(first, min(first + per_step, branches)))
        walks = (SharedWalk(tuple(range(len(together))), walk),) if walk and len(together) > 1 else ()
        total += rates.seconds([Span(i, shared, own, 1) for i in together], walks)
    walks = (SharedWalk(tuple(range(branches)), walk),) if walk and branches > 1 else ()
    for made in range(1, gen):
        total += rates.seconds([Span(i, shared + own + made - 1, 1, 1) for i in range(branches)], walks)
    return total
