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
ITL_SLACK, MIN_CHUNK = 2.3, 16
# Seconds of a step beside answers that nobody notices, however quick they are alone: 50 tokens a second are read by no one. It still is
# under 2.5 times what 8 answers take here (8 to 12 ms); by the calibrated clock 16 users of 1024/128 get 12% more tokens, 128/128 the same.
ITL_FLOOR = 0.02
ALONE_EVERY = 16  # a fortieth of a prompt's pace, and decodes' own time is a measured one
# Relative: of a measured step, of a factor nothing is known of, and what a factor may change by from step to step.
_NOISE, _UNSURE, _DRIFT = 0.1, 0.7, 0.03
_JUMP = 2.0  # one step says no more than this much more or less, and moves no factor further: others may have had the processor

Parts = tuple[float, float]  # of attention, of all else


class Shape(Protocol):
    """A cost model of steps: what it must know of one, and from that seconds of attention and of all else."""

    def numbers(self, spans: Sequence[Span]) -> Numbers: ...

    def upper_parts(self, numbers: Numbers) -> tuple[float, float]: ...


class _Factors:
    """Mutable: measured over predicted seconds of attention and of all else, and how unsure both are: a Kalman filter of two numbers.

    It moves most what weighs much in a step and is known little, so that steps of unlike mixtures tell the two apart."""

    def __init__(self, both: float = 1.0) -> None:
        self.values = (both, both)
        self._unsure = (_UNSURE**2, 0.0, _UNSURE**2)  # of relative errors: variance, covariance, variance

    def learn(self, parts: Parts, whole: float, error: float) -> None:
        """A step of `whole` predicted seconds, of which `parts` are these factors', took `error` x whole longer."""
        x, y = parts[0] / whole, parts[1] / whole
        a, b, c = self._unsure
        a, c = min(a + _DRIFT**2, _UNSURE**2), min(c + _DRIFT**2, _UNSURE**2)
        p, q = a * x + b * y, b * x + c * y
        seen = p * x + q * y + _NOISE**2
        first, second = (min(max(1 / _JUMP, 1 + gain / seen * error), _JUMP) for gain in (p, q))
        self.values = self.values[0] * first, self.values[1] * second
        self._unsure = a - p * p / seen, b - p * q / seen, c - q * q / seen


class Pace:
    """Mutable: factors of decodes, and of what chunks add to them.

    Those of decodes are learned from steps of decodes only: what they may take beside prompts is reckoned from what they take alone, and
    would follow whatever a chunk takes beyond its prediction. Shared walks are left out on both sides.
    traffic: is told of every step; its costs are those of the shape.
    """

    def __init__(self, shape: Shape, traffic: Traffic | None = None) -> None:
        self._shape, self.traffic = shape, traffic
        self._decodes, self._chunks = _Factors(), _Factors()
        self._known = False

    def __call__(self, step: Step) -> float:
        """Seconds of a step, as far as is known."""
        decodes, chunks = self._parts(step, self._shape.numbers(step.spans))
        return sum(decodes) + sum(chunks)

    def learn(self, step: Step, seconds: float) -> None:
        """A step took so long."""
        numbers = self._shape.numbers(step.spans)
        if self.traffic is not None:
            self.traffic.add(numbers, step.shared, seconds)
        decodes, chunks = self._parts(step, numbers)
        whole = sum(decodes) + sum(chunks)
        if whole <= 0 or seconds <= 0:
            return
        error = min(max(seconds / whole, 1 / _JUMP), _JUMP) - 1
        if not self._known:
            self._known = True
            self._decodes, self._chunks = _Factors(seconds / whole), _Factors(seconds / whole)
        elif sum(chunks) > 0:
            self._chunks.learn(chunks, whole, error)
        else:
            self._decodes.learn(decodes, whole, error)

    def _parts(self, step: Step, numbers: Numbers) -> tuple[Parts, Parts]:
        """Seconds of decodes, and what chunks add."""
        attention, rest = self._shape.upper_parts(numbers)
        a, r = self._decodes.values
        going = [s for s in step.spans if s.want == s.new]  # answers, with drafts or without: they want a row of every token
        if len(going) == len(step.spans):
            return (attention * a, rest * r), (0.0, 0.0)
        own, other = self._shape.upper_parts(self._shape.numbers(going)) if going else (0.0, 0.0)
        more_a, more_r = self._chunks.values
        return (own * a, other * r), ((attention - own) * more_a, (rest - other) * more_r)


def pace_of(costs: GraphCost, threads: int, isa: str) -> Pace:
    """A new pace of an engine on this machine, which keeps account of its traffic too."""
    shape = StepPredictor(costs, assumed(threads, isa))
    return Pace(shape, Traffic(shape.costs))


def paced_budget(tokens: int, sequences: int, itl_target: float | None = None, prompt_rows: int | None = None) -> Budget:
    """Limits of a server's steps: prompts go on beside answers, which keep `itl_target` seconds a token, or else ITL_SLACK times what they
    take alone, or ITL_FLOOR if that is more. A target that cannot be kept still lets prompts advance; the others can always be kept."""
    least = MIN_CHUNK if itl_target is not None else 1
    return Budget(tokens, sequences, itl_target, ITL_SLACK, ITL_FLOOR, ALONE_EVERY, least, prompt_rows=prompt_rows)
