"""One sequence through a loaded program: its logits, or the time of a prompt and of one token a step. Knows no file, no text, no peer."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline.backends.base import Program
from ridgeline.graph.caches import cache_groups
from ridgeline.graph.ops import Embed
from ridgeline.graph.step import Span, Step
from ridgeline.sampling.plan import SamplePlan, SampleRow

Ids = npt.NDArray[np.int32]
Array = npt.NDArray[np.float32]


class OneSequence:
    """A sequence that owns the whole KV pool. Blocks of a group are used in a ring: those behind a window are written again.

    Needs `plan.blocks[g]` blocks for the longest span of the group, as `engine.resolve` plans them for one full-length sequence.
    vocab: ids that the graph embeds.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self.vocab = next(op.vocab for op in program.graph.ops if isinstance(op, Embed))
        self._groups = len(cache_groups(program.graph.caches))

    def step(self, past: int, tokens: Ids, want: int) -> Step:
        plan = self._program.plan
        blocks = np.arange(-(-(past + len(tokens)) // plan.block_size), dtype=np.int32)
        tables = tuple((blocks % plan.blocks[g],) for g in range(self._groups))
        return Step((Span(0, past, len(tokens), want),), tokens, tables)

    def logits(self, past: int, tokens: Ids, want: int) -> Array:
        """float32 [want, vocab] of the last `want` tokens behind `past`; past 0 begins a new context."""
        self._program.forward(self.step(past, tokens, want))
        return self._program.logits()

    def prompt_seconds(self, tokens: Ids, chunk: int) -> float:
        """Time from nothing to the logits of the last token."""
        start = perf_counter()
        for first in range(0, len(tokens), chunk):
            part = tokens[first : first + chunk]
            self._program.forward(self.step(first, part, int(first + len(part) == len(tokens))))
        return perf_counter() - start

    def generate_seconds(self, first: int, count: int) -> float:
        """Time of `count` forwards and greedy draws, one token each, from an empty context, as llama-bench's `tg` counts them."""
        token = first
        start = perf_counter()
        for position in range(count):
            self._program.forward(self.step(position, np.array([token], np.int32), 1))
            drawn = self._program.sample(SamplePlan((SampleRow(0, temperature=0.0, position=position + 1),), self.vocab))
            token = max(0, int(drawn.tokens[0]))
        return perf_counter() - start


def random_tokens(count: int, vocab: int, seed: int = 1) -> Ids:
    """Ids without meaning: the cost of a forward does not depend on them."""
    return np.random.default_rng(seed).integers(0, vocab, count).astype(np.int32)


def timed_ops(program: Any, work: Any) -> list[Any]:
    """The native account of every instruction while `work()` runs; empty for a backend that keeps none."""
    if not hasattr(program, "op_times"):
        work()
        return []
    program.timing(True)
    try:
        work()
        return list(program.op_times())
    finally:
        program.timing(False)
