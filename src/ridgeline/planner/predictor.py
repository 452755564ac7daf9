"""Predictions for a scheduler that asks before every step: a graph's costs as one small matrix, same answers as `roofline.predict`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from ridgeline.graph.step import SharedWalk, Span
from ridgeline.planner.cost import Cost, GraphCost
from ridgeline.planner.hardware import Machine
from ridgeline.planner.linear import LinearCosts, Numbers
from ridgeline.planner.roofline import times


class StepPredictor:
    """Seconds of a step at the roofline. Times are linear in costs, and `costs` are linear in a step's numbers."""

    def __init__(self, book: GraphCost, machine: Machine) -> None:
        self.costs = LinearCosts(book)
        units = [times(Cost(**{f.name: 1}), machine) for f in fields(Cost)]
        self._memory: Numbers = self.costs.each @ np.array([t.memory_s for t in units])  # [ops, numbers]
        self._math: Numbers = self.costs.each @ np.array([t.math_s for t in units])
        self._both: Numbers = (self._memory + self._math).sum(axis=0)

    def __call__(self, spans: Sequence[Span], shared: Sequence[SharedWalk] = ()) -> float:
        """Lower bound in seconds of one step."""
        step = self.costs.numbers(spans, shared)
        return float(np.maximum(self._memory @ step, self._math @ step).sum())

    def numbers(self, spans: Sequence[Span]) -> Numbers:
        """What `upper_parts` must know of a step."""
        return self.costs.numbers(spans)

    def upper_parts(self, numbers: Numbers) -> tuple[float, float]:
        """Upper bound, memory and arithmetic one after the other: seconds of attention's pairs and keys, and of all else.

        Linear in what a step asks, without a kink at the ridge, so that it fits other machines when its parts are scaled."""
        parts = self._both * numbers
        return float(parts[4:].sum()), float(parts[:4].sum())
