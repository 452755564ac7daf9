"""How long a step will take on this machine: the cost model's shape, scaled by what steps really took. The scheduler asks before each.

Knows the cost model and measured seconds. Refuses to know requests; the ceilings it starts from need not be this machine's.
"""

from __future__ import annotations

from ridgeline.engine.traffic import Traffic
from ridgeline.graph.step import Step
from ridgeline.planner.predictor import StepPredictor

_WEIGHT = 0.3  # of a new measurement
_JUMP = 2.0  # one step says no more than this much more or less: others may have had the processor


class Pace:
    """Mutable: two factors, measured over predicted seconds, of attention and of all else. They hold for decodes and chunks alike.

    A step moves each factor as far as its part weighs in the step. Shared walks are left out on both sides.
    traffic: what the steps it was told of moved and computed.
    """

    def __init__(self, predictor: StepPredictor) -> None:
        self._predictor = predictor
        self.traffic = Traffic(predictor.book)
        self._attention = self._rest = 1.0
        self._known = False

    def __call__(self, step: Step) -> float:
        """Seconds of a step, as far as is known."""
        attention, rest = self._predictor.upper_parts(step.spans)
        return attention * self._attention + rest * self._rest

    def learn(self, step: Step, seconds: float) -> None:
        """A step took so long."""
        self.traffic.add(step, seconds)
        attention, rest = self._predictor.upper_parts(step.spans)
        attention, rest = attention * self._attention, rest * self._rest
        whole = attention + rest
        if whole <= 0 or seconds <= 0:
            return
        ratio = seconds / whole
        if not self._known:
            self._known = True
            self._attention = self._rest = ratio
            return
        change = _WEIGHT * (min(max(ratio, 1 / _JUMP), _JUMP) - 1)
        self._attention *= 1 + change * attention / whole
        self._rest *= 1 + change * rest / whole
