"""The clock as a backend of the real engine: `forward` moves time, `sample` reads the next token from a script.

Knows step times and a script. Refuses to know logits: who asks for them asked the wrong backend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ridgeline.backends.base import LoadPlan
from ridgeline.errors import InternalError
from ridgeline.graph.graph import Graph
from ridgeline.graph.step import SharedWalk, Span, Step
from ridgeline.sampling.plan import Sampled, SamplePlan, SampleRow

Seconds = Callable[[Sequence[Span], Sequence[SharedWalk]], float]


class ClockProgram:
    """`now` in seconds from 0; `script(row)` is the token that a row draws. An `EngineCore` whose clock is `read` runs on virtual time."""

    def __init__(self, graph: Graph, plan: LoadPlan, seconds: Seconds, script: Callable[[SampleRow], int]) -> None:
        self.graph, self.plan = graph, plan
        self.now = 0.0
        self._seconds, self._script = seconds, script

    def read(self) -> float:
        return self.now

    def forward(self, step: Step) -> None:
        self.now += self._seconds(step.spans, step.shared)

    def sample(self, plan: SamplePlan) -> Sampled:
        count = len(plan.rows)
        tokens = np.fromiter((self._script(row) for row in plan.rows), np.int32, count)
        return Sampled(tokens, np.zeros(count, np.bool_), np.full(count, np.nan, np.float32), (None,) * count)

    def logits(self) -> npt.NDArray[np.float32]:
        raise InternalError("the clock backend computes no logits")

    def tap(self, name: str) -> npt.NDArray[np.float32]:
        raise InternalError(f"the clock backend computes no values, {name!r} was asked for")
