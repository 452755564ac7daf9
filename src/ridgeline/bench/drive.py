"""A workload on one engine in process: requests at their times, steps until all are answered, when each token came.

The clock is the engine's own: real seconds on a real backend, virtual ones on `backends/clock`, so that what is predicted and what is
measured go through the same lines. Knows no percentiles.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ridgeline.bench.replica import Live
from ridgeline.bench.workloads import Job, Workload
from ridgeline.engine.core import EngineCore
from ridgeline.engine.request import EngineRequest, prepare
from ridgeline.engine.words import TextSource
from ridgeline.types import SamplingParams

Sleep = Callable[[float], None]


@dataclass(slots=True)
class Driven:
    """Requests in order of arrival with their times in seconds from the start; seconds: until the last answer; steps of the engine."""

    lives: list[Live] = field(default_factory=list)
    seconds: float = 0.0
    steps: int = 0


def drive(core: EngineCore, text: TextSource, workload: Workload, sleep: Sleep, on_step: Callable[[], None] = lambda: None) -> Driven:
    """Until all is answered. sleep: lets the engine's clock pass so many seconds. Answers have the workload's lengths, end tokens or not.

    Token ids of the workload are folded into the model's vocabulary. Raises like `EngineCore.submit` for what does not fit.
    """
    begun, done, order = core.clock(), Driven(), 0
    waiting: list[tuple[float, int, Job]] = []
    lives: dict[str, Live] = {}

    def later(job: Job) -> None:
        nonlocal order
        order += 1
        heapq.heappush(waiting, (job.arrival_s, order, job))

    for job in workload.start():
        later(job)
    while waiting or core.busy:
        now = core.clock() - begun
        while waiting and waiting[0][0] <= now:
            job = heapq.heappop(waiting)[2]
            live = lives[job.id] = Live(job, 0)
            done.lives.append(live)
            core.submit(prepare(_request(job, core.limits.vocab), core.limits, text))
        if not core.busy:
            sleep(waiting[0][0] - now)
            continue
        on_step()
        touched = core.step()
        done.steps += 1
        at = core.clock() - begun
        for choice in touched:
            live = lives[choice.request_id]
            if live.admitted_s < 0 and choice.times.admitted:
                live.admitted_s, live.hit = choice.times.admitted - begun, choice.cached_tokens
            live.token_s += [at] * (len(choice.token_ids) - len(live.token_s))
            if choice.finish is not None:
                live.end_s, live.reason, live.preemptions = at, choice.finish, choice.times.preemptions
                following = workload.after(live.job, at, np.array(choice.token_ids, np.int32))
                if following is not None:
                    later(following)
        done.seconds = at
    return done


def _request(job: Job, vocab: int) -> EngineRequest:
    params = SamplingParams(max_tokens=job.output, temperature=0.0, ignore_eos=True, detokenize=False)
    return EngineRequest(job.id, job.prompt % vocab, params)  # type: ignore[arg-type]
