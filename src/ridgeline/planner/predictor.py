"""Predictions for a scheduler that asks before every step: a graph's costs as one small matrix, same answers as `roofline.predict`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ridgeline.graph.step import SharedWalk, Span
from ridgeline.planner.cost import GraphCost, Work
from ridgeline.planner.hardware import Machine
from ridgeline.planner.roofline import times
from ridgeline.planner.tally import numbers


class StepPredictor:
    """Seconds of a step at the roofline. Costs are linear in a step's rows, wanted rows, and pairs and keys per window, so each op is
    a row of numbers, found by asking `GraphCost` about unit steps."""

    def __init__(self, book: GraphCost, machine: Machine) -> None:
        self.book = book
        zero = dict.fromkeys(book.windows, 0)
        once, twice = (Work(n, n, zero, zero) for n in (1, 2))
        units = [Work(1, 1, zero | {w: 1}, zero) for w in book.windows] + [Work(1, 1, zero, zero | {w: 1}) for w in book.windows]
        memory, math = [], []
        for op in book.graph.ops:
            at = [times(book.op(op, step), machine) for step in (once, twice, *units)]
            late = book.rows(op, Work(1, 0, zero, zero)) == 0
            memory.append(self._row([t.memory_s for t in at], late))
            math.append(self._row([t.math_s for t in at], late))
        self._memory, self._math = np.array(memory), np.array(math)
        self._both = (self._memory + self._math).sum(axis=0)

    @staticmethod
    def _row(at: list[float], late: bool) -> list[float]:
        """Seconds per (any row, row, any wanted row, wanted row, pairs.., keys..)."""
        slope = at[1] - at[0]
        own = [at[0] - slope, slope]
        return [*([0.0, 0.0, *own] if late else [*own, 0.0, 0.0]), *(value - at[0] for value in at[2:])]

    def __call__(self, spans: Sequence[Span], shared: Sequence[SharedWalk] = ()) -> float:
        """Lower bound in seconds of one step."""
        step = numbers(self.book, spans, shared)
        return float(np.maximum(self._memory @ step, self._math @ step).sum())

    def upper_parts(self, spans: Sequence[Span], shared: Sequence[SharedWalk] = ()) -> tuple[float, float]:
        """Upper bound, memory and arithmetic one after the other: seconds of attention's pairs and keys, and of all else.

        Linear in what a step asks, without a kink at the ridge, so that it fits other machines when its parts are scaled."""
        parts = self._both * numbers(self.book, spans, shared)
        return float(parts[4:].sum()), float(parts[:4].sum())
