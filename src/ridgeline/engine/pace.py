"""How steps are paced while prompts and answers share them: limits of a step, and how long it will take, the cost model's shape scaled by
what steps really took. The scheduler asks before each.

Knows a cost model and measured seconds. Refuses to know requests; the ceilings it starts from need not be this machine's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ridgeline.engine.traffic import Traffic
from ridgeline.graph.step import Span, Step
from ridgeline.planner.cost import GraphCost
from ridgeline.planner.hardware import assumed
from ridgeline.planner.linear import Numbers
from ridgeline.planner.predictor import StepPredictor
from ridgeline.scheduler.budget import Budget

# Time of a step with prompt tokens over one without, and prompt tokens that a step carries beside an inter-token target out of reach.
ITL_SLACK, MIN_CHUNK = 2.0, 16
_WEIGHT = 0.3  # of a new measurement
_JUMP = 2.0  # one step says no more than this much more or less: others may have had the processor


class Shape(Protocol):
    """A cost model of steps: what it must know of one, and from that seconds of attention and of all else."""

    def numbers(self, spans: Sequence[Span]) -> Numbers: ...

    def upper_parts(self, numbers: Numbers) -> tuple[float, float]: ...


class Pace:
    """Mutable: two factors, measured over predicted seconds, of attention and of all else. They hold for decodes and chunks alike.

    A step moves each factor as far as its part weighs in the step. Shared walks are left out on both sides.
    traffic: is told of every step; its costs are those of the shape.
    """

    def __init__(self, shape: Shape, traffic: Traffic | None = None) -> None:
        self._shape, self.traffic = shape, traffic
        self._attention = self._rest = 1.0
        self._known = False

    def __call__(self, step: Step) -> float:
        """Seconds of a step, as far as is known."""
        attention, rest = self._parts(self._shape.numbers(step.spans))
        return attention + rest

    def learn(self, step: Step, seconds: float) -> None:
        """A step took so long."""
        numbers = self._shape.numbers(step.spans)
        if self.traffic is not None:
            self.traffic.add(numbers, step.shared, seconds)
        attention, rest = self._parts(numbers)
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

    def _parts(self, numbers: Numbers) -> tuple[float, float]:
        attention, rest = self._shape.upper_parts(numbers)
        return attention * self._attention, rest * self._rest


def pace_of(costs: GraphCost, threads: int, isa: str) -> Pace:
    """A new pace of an engine on this machine, which keeps account of its traffic too."""
    shape = StepPredictor(costs, assumed(threads, isa))
    return Pace(shape, Traffic(shape.costs))


def paced_budget(tokens: int, sequences: int, itl_target: float | None = None, prompt_rows: int | None = None) -> Budget:
    """Limits of a server's steps: prompts go on beside answers, which keep `itl_target` seconds a token, or else about twice what they take
    alone. A target that cannot be kept still lets prompts advance; the relative one can always be kept."""
    least = MIN_CHUNK if itl_target is not None else 1
    return Budget(tokens, sequences, itl_target, ITL_SLACK, least, prompt_rows=prompt_rows)
