"""An engine core under a stopwatch: jobs in, one row per step out. Knows what a step costs and what of it was native; not what it means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from time import perf_counter
from typing import Any

import numpy as np

from ridgeline.bench.runner import Ids
from ridgeline.engine.loader import LoadedModel, make_core
from ridgeline.engine.request import EngineRequest, RequestState, prepare
from ridgeline.engine.trace import Trace
from ridgeline.graph.step import Step as GraphStep
from ridgeline.kv.manager import CachePolicy
from ridgeline.sampling.plan import Sampled, SamplePlan
from ridgeline.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt that is answered with exactly `gen` tokens."""

    prompt: Ids
    gen: int


@dataclass(frozen=True, slots=True)
class Step:
    """decodes: sequences that decoded; chunk: prompt tokens computed; native_s: of `seconds`, spent in the backend's two calls."""

    decodes: int
    chunk: int
    seconds: float
    native_s: float


class _Timed:
    """A program whose two calls are timed. Everything else is the program's."""

    def __init__(self, program: Any) -> None:
        self._program = program
        self.graph, self.plan = program.graph, program.plan
        self.native_s = 0.0

    def forward(self, step: GraphStep) -> None:
        start = perf_counter()
        self._program.forward(step)
        self.native_s += perf_counter() - start

    def sample(self, plan: SamplePlan) -> Sampled:
        start = perf_counter()
        drawn: Sampled = self._program.sample(plan)
        self.native_s += perf_counter() - start
        return drawn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)


class Runner:
    """A fresh engine on a loaded model. prefix_cache off: shared prefixes are walked apart, too. paced: as a server, which keeps an
    inter-token time; otherwise prompts are read as fast as they fit. blocks: per cache group, fewer than the model's plan has."""

    def __init__(
        self, model: LoadedModel, *, prefix_cache: CachePolicy = "radix", paced: bool = False, traced: bool = False,
        blocks: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        self.model = model
        self.core = make_core(model, prefix_cache=prefix_cache, cascade=prefix_cache != "off", paced=paced, blocks=blocks)
        self._timed = _Timed(model.program)
        self.core.program = self._timed
        self.core.trace = Trace() if traced else None
        self.steps = 0
        self._numbers = count()

    def submit(self, job: Job, *, rank: int = 0, ttl_s: float = 0.0, **sampling: Any) -> RequestState:
        """Greedy, where `sampling` does not say otherwise. rank, ttl_s: how long its prefix is worth keeping."""
        params = SamplingParams(max_tokens=job.gen, ignore_eos=True, detokenize=False, **{"temperature": 0.0, **sampling})
        request = EngineRequest(f"b{next(self._numbers)}", job.prompt.tolist(), params, cache_rank=rank, cache_ttl_s=ttl_s)
        asked = prepare(request, self.core.limits, self.model.text)
        self.core.submit(asked)
        return asked

    def step(self) -> Step:
        native, start = self._timed.native_s, perf_counter()
        self.core.step()
        seconds = perf_counter() - start
        self.steps += 1
        record = self.core.state.record
        return Step(record.decodes, record.chunk_tokens, seconds, self._timed.native_s - native)

    def run(self, jobs: list[Job]) -> list[Step]:
        """All jobs at once, to the end."""
        for job in jobs:
            self.submit(job)
        steps = []
        while self.core.busy:
            steps.append(self.step())
        return steps

    def answer(self, job: Job) -> RequestState:
        """A job that is alone, to its end."""
        asked = self.submit(job)
        while self.core.busy:
            self.step()
        return asked


def ttft_s(asked: RequestState) -> float:
    """Arrival to first token."""
    return asked.times.first_token - asked.times.arrival


def prompts(count: int, length: int, vocab: int, seed: int) -> list[Ids]:
    """Random prompts that share nothing, int32 [length] each: the cost of a forward does not depend on what they say."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab, length).astype(np.int32) for _ in range(count)]
