"""A graph's costs as one array, linear in the few numbers of a step that they depend on. Knows no time.

The array is found by asking `GraphCost` about unit steps: its rules stay the only ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import numpy.typing as npt

from ridgeline.graph.ops import Op
from ridgeline.graph.step import SharedWalk, Span
from ridgeline.planner.cost import Cost, GraphCost, Work

Numbers = npt.NDArray[np.float64]


class LinearCosts:
    """each: [ops, numbers of a step, fields of `Cost`]."""

    def __init__(self, book: GraphCost) -> None:
        self._book = book
        self.each: Numbers = np.array([self._op(op) for op in book.graph.ops])
        self._whole: Numbers = self.each.sum(axis=0)
        self._nothing: Numbers = np.zeros(4 + 2 * len(book.windows))
        # Only full layers read a shared prefix once for all.
        self._full_keys = 4 + len(book.windows) + book.windows.index(None) if None in book.windows else None

    def _op(self, op: Op) -> list[Numbers]:
        book = self._book
        zero = dict.fromkeys(book.windows, 0)
        pairs = [Work(1, 1, zero | {w: 1}, zero) for w in book.windows]
        keys = [Work(1, 1, zero, zero | {w: 1}) for w in book.windows]
        one, two, *units = (_array(book.op(op, step)) for step in (Work(1, 1, zero, zero), Work(2, 2, zero, zero), *pairs, *keys))
        own, nothing = [2 * one - two, two - one], [np.zeros_like(one)] * 2
        late = book.rows(op, Work(1, 0, zero, zero)) == 0
        return [*((*nothing, *own) if late else (*own, *nothing)), *(unit - one for unit in units)]

    def numbers(self, spans: Sequence[Span], shared: Sequence[SharedWalk] = ()) -> Numbers:
        """(any row, rows, any wanted row, wanted rows, pairs per window.., keys per window..) of a step."""
        step = self._book.work(spans)
        found = np.array([float(step.rows > 0), step.rows, float(step.wanted > 0), step.wanted, *step.pairs.values(), *step.keys.values()])
        return found - self.saved(shared) if shared else found

    def saved(self, shared: Sequence[SharedWalk]) -> Numbers:
        """What of a step's numbers is not asked because walks are shared."""
        found = self._nothing.copy()
        if self._full_keys is not None:
            found[self._full_keys] = sum((len(walk.spans) - 1) * walk.tokens for walk in shared)
        return found

    def cost(self, numbers: Numbers) -> Cost:
        """Of a step, or of many whose numbers were added up."""
        return Cost(*(int(v) for v in (numbers @ self._whole).round().tolist()))


def _array(cost: Cost) -> Numbers:
    return np.array([getattr(cost, f.name) for f in fields(Cost)], np.float64)
