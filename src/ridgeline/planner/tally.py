"""What many steps moved and computed: sums of the few numbers that costs are linear in, worked out when somebody asks. Knows no time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import numpy.typing as npt

from ridgeline.graph.step import SharedWalk, Span
from ridgeline.planner.cost import Cost, GraphCost, Work

Numbers = npt.NDArray[np.float64]


def numbers(book: GraphCost, spans: Sequence[Span], shared: Sequence[SharedWalk] = ()) -> Numbers:
    """(any row, rows, any wanted row, wanted rows, pairs per window.., keys per window..) of a step."""
    step = book.work(spans, shared)
    return np.array([float(step.rows > 0), step.rows, float(step.wanted > 0), step.wanted, *step.pairs.values(), *step.keys.values()])


class CostTally:
    """Mutable, one writer; others may read at any time. Costs per op are found by asking `GraphCost` about unit steps."""

    def __init__(self, book: GraphCost) -> None:
        self._book = book
        zero = dict.fromkeys(book.windows, 0)
        once, twice, unwanted = Work(1, 1, zero, zero), Work(2, 2, zero, zero), Work(1, 0, zero, zero)
        units = [Work(1, 1, zero | {w: 1}, zero) for w in book.windows] + [Work(1, 1, zero, zero | {w: 1}) for w in book.windows]
        early, late = Cost(), Cost()
        early_row, late_row = np.zeros(len(fields(Cost))), np.zeros(len(fields(Cost)))
        for op in book.graph.ops:
            first, second = book.op(op, once), book.op(op, twice)
            if book.rows(op, unwanted):
                early, early_row = early + first, early_row + _array(second) - _array(first)
            else:
                late, late_row = late + first, late_row + _array(second) - _array(first)
        alone = _array(book.total(once))
        own = [_array(early) - early_row, early_row, _array(late) - late_row, late_row]
        self._each = np.array([*own, *(_array(book.total(unit)) - alone for unit in units)])  # [numbers, fields of Cost]
        self._sum: Numbers = np.zeros(len(self._each))

    def add(self, spans: Sequence[Span], shared: Sequence[SharedWalk] = ()) -> Cost:
        """A step was run; its cost. Shared walks read their keys once."""
        step = numbers(self._book, spans, shared)
        self._sum = self._sum + step
        return self._cost(step)

    def total(self) -> Cost:
        """Of all steps so far."""
        return self._cost(self._sum)

    def _cost(self, step: Numbers) -> Cost:
        return Cost(*(int(v) for v in (step @ self._each).round().tolist()))


def _array(cost: Cost) -> Numbers:
    return np.array([getattr(cost, f.name) for f in fields(Cost)], np.float64)
