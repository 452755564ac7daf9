"""Time from cost and ceilings: the roofline's bounds of an op, a step, a prompt and a generation. Knows no backend and measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ridgeline.graph.step import Span
from ridgeline.planner.cost import Cost, GraphCost
from ridgeline.planner.hardware import Machine, Provenance

Bound = Literal["memory", "compute", "none"]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds that memory alone and arithmetic alone would take. Activations are not memory traffic: they stay in the caches."""

    memory_s: float
    math_s: float

    @property
    def lower_s(self) -> float:
        """Perfect overlap."""
        return max(self.memory_s, self.math_s)

    @property
    def upper_s(self) -> float:
        """No overlap at all, each at its ceiling."""
        return self.memory_s + self.math_s

    @property
    def bound(self) -> Bound:
        if self.upper_s == 0:
            return "none"
        return "memory" if self.memory_s >= self.math_s else "compute"


@dataclass(frozen=True, slots=True)
class Prediction:
    """lower_s: every op at its roofline, one after another (no run is faster); upper_s: without overlap of memory and arithmetic."""

    lower_s: float
    upper_s: float
    cost: Cost
    provenance: Provenance
    bound: Bound = "none"  # what most of the lower bound waits for


def times(cost: Cost, machine: Machine) -> Times:
    """Each kind of product at its own peak."""
    math_s = cost.int8_flops / (machine.int8_gops * 1e9) + cost.f32_flops / (machine.f32_gflops * 1e9)
    return Times(cost.memory_bytes / (machine.read_gb_s * 1e9), math_s + cost.bf16_flops / (machine.bf16_gflops * 1e9))


def predict(book: GraphCost, spans: Sequence[Span], machine: Machine) -> Prediction:
    """Bounds of one step. The label is the machine's: a prediction is as good as its ceilings."""
    step = book.work(spans)
    lower = upper = memory = 0.0
    total = Cost()
    for _, cost in book.ops(step):
        t = times(cost, machine)
        lower, upper, total = lower + t.lower_s, upper + t.upper_s, total + cost
        memory += t.lower_s if t.bound == "memory" else 0.0
    return Prediction(lower, upper, total, machine.provenance, _verdict(memory, lower))


def predict_prompt(book: GraphCost, tokens: int, machine: Machine, *, past: int = 0, chunk: int | None = None) -> Prediction:
    """Bounds of computing `tokens` prompt tokens, logits of the last only, at most `chunk` tokens a step."""
    size = tokens if chunk is None else chunk
    parts = []
    for first in range(0, tokens, size):
        new = min(size, tokens - first)
        parts.append(predict(book, [Span(0, past + first, new, int(first + new == tokens))], machine))
    return _joined(parts, machine)


def predict_generation(book: GraphCost, past: int, tokens: int, machine: Machine, *, sequences: int = 1) -> Prediction:
    """Bounds of `tokens` decode steps of `sequences` sequences that hold `past` tokens each."""
    steps = ([Span(s, past + i, 1, 1) for s in range(sequences)] for i in range(tokens))
    return _joined([predict(book, spans, machine) for spans in steps], machine)


def _joined(parts: Sequence[Prediction], machine: Machine) -> Prediction:
    total = sum((p.cost for p in parts), Cost())
    lower = sum(p.lower_s for p in parts)
    memory = sum(p.lower_s for p in parts if p.bound == "memory")
    return Prediction(lower, sum(p.upper_s for p in parts), total, machine.provenance, _verdict(memory, lower))


def _verdict(memory_s: float, whole_s: float) -> Bound:
    if whole_s == 0:
        return "none"
    return "memory" if 2 * memory_s >= whole_s else "compute"
