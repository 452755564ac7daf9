"""A fleet on virtual time: events in order, each replica the real scheduler over a clock. What went in and what came out, in figures.

The same workload and seed give the same steps, on any machine. Step times are the planner's, so every time here is a prediction.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ridgeline.backends.clock import StepSeconds
from ridgeline.bench.replica import Batching, Live, Replica, Seconds, StepLog
from ridgeline.bench.routing import RouterName, router
from ridgeline.bench.workloads import Job, Workload
from ridgeline.engine.pace import Pace, pace_of
from ridgeline.errors import InternalError, UserError, within
from ridgeline.graph.step import Int32Array
from ridgeline.kv.manager import CachePolicy, KvCache
from ridgeline.planner.pool import kv_pool
from ridgeline.planner.setup import Setup
from ridgeline.scheduler.budget import Budget
from ridgeline.scheduler.state import SchedulerConfig, SchedulerState

_ARRIVAL, _DONE = 0, 1
DEFAULT_BUDGET = Budget()


@dataclass(frozen=True, slots=True)
class Fleet:
    """Equal replicas. windows and blocks as `planner.pool.kv_pool` gives them; pace: makes each replica's own; max_model_len in tokens."""

    windows: tuple[int | None, ...]
    blocks: tuple[int, ...]
    seconds: Seconds
    budget: Budget = DEFAULT_BUDGET
    replicas: int = 1
    route: RouterName = "round-robin"
    prefix_cache: CachePolicy = "radix"
    batching: Batching = "continuous"
    max_model_len: int = 1 << 30
    block_size: int = 16
    cascade: bool = True
    pace: Callable[[], Pace] | None = None


def fleet_of(setup: Setup, budget: Budget, longest: int, blocks: int | None = None, **more: Any) -> Fleet:
    """A plan's replicas, paced like servers: sequences of at most `longest` tokens in what its memory leaves for KV, or in so many blocks.

    Raises `UserError` when not even one fits. more: fields of `Fleet`."""
    d = replace(setup.deployment(), chunk=budget.tokens)
    windows, pool = kv_pool(d, longest, budget.sequences, blocks)
    calibration, costs, fitted = setup.calibration, setup.costs(), d.calibrated
    if fitted is not None and calibration is not None and costs is not None:
        return Fleet(windows, pool, fitted, budget, pace=lambda: pace_of(costs, calibration.threads, calibration.isa), **more)
    seconds = StepSeconds(d)
    return Fleet(windows, pool, seconds, budget, pace=lambda: Pace(seconds), **more)


@dataclass(slots=True)
class Run:
    """Everything that happened. refused: (request id, why). steps: per replica, thinned evenly when there are too many."""

    fleet: Fleet
    workload: str
    lives: list[Live] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    replicas: list[Replica] = field(default_factory=list)
    logs: list[list[StepLog]] = field(default_factory=list)
    end_s: float = 0.0


class Simulation:
    """Mutable: replicas, what is to happen, and what has. `on_step` sees every step before it is timed, for tests and progress."""

    def __init__(
        self, fleet: Fleet, workload: Workload, *, keep_steps: int = 20_000, on_step: Callable[[Replica, float], None] | None = None
    ) -> None:
        within("--replicas", fleet.replicas, 1, 4096)
        self._workload, self._on_step = workload, on_step
        self._route = router(fleet.route)
        self._replicas = [_replica(i, fleet) for i in range(fleet.replicas)]
        self._events: list[tuple[float, int, int, Job | Replica]] = []
        self._order = 0
        self._logs = [_Thinned(max(64, keep_steps // fleet.replicas)) for _ in self._replicas]
        self.run = Run(fleet, workload.name, replicas=self._replicas)

    def go(self) -> Run:
        """Until nothing is left to happen."""
        for job in self._workload.start():
            self._push(job.arrival_s, _ARRIVAL, job)
        now = 0.0
        while self._events:
            now, _, _, what = heapq.heappop(self._events)
            if isinstance(what, Replica):
                for live, output in what.finish(now):
                    self._follow(live.job, now, output)
                ready = [what, *self._take_arrivals(now)]
                what.busy = False
            else:
                ready = [*self._arrive(what, now), *self._take_arrivals(now)]
            for replica in dict.fromkeys(ready):
                if not replica.busy:
                    self._begin(replica, now)
        self.run.end_s = now
        self.run.logs = [log.kept for log in self._logs]
        for replica in self._replicas:
            if replica.load:
                raise InternalError(f"replica {replica.index} still has {replica.load} requests and nothing to do")
        return self.run

    def _take_arrivals(self, now: float) -> list[Replica]:
        """Who arrives at this very moment is there when the next step is decided. Returns the replicas that got somebody."""
        ready = []
        while self._events and self._events[0][0] <= now and self._events[0][1] == _ARRIVAL:
            _, _, _, what = heapq.heappop(self._events)
            if not isinstance(what, Replica):
                ready += self._arrive(what, now)
        return ready

    def _arrive(self, job: Job, now: float) -> list[Replica]:
        replica = self._route(self._replicas, job)
        live = Live(job, replica.index)
        try:
            replica.add(live, now)
        except UserError as error:
            self.run.refused.append((job.id, str(error)))
            self._follow(job, now, job.prompt[:0])
            return []
        self.run.lives.append(live)
        return [replica]

    def _begin(self, replica: Replica, now: float) -> None:
        log = replica.begin(now)
        if log is None:
            return
        if self._on_step is not None:
            self._on_step(replica, now)
        self._logs[replica.index].add(log)
        self._push(now + log.seconds, _DONE, replica)

    def _follow(self, job: Job, now: float, output: Int32Array) -> None:
        following = self._workload.after(job, now, output)
        if following is not None:
            self._push(following.arrival_s, _ARRIVAL, following)

    def _push(self, at: float, kind: int, what: Job | Replica) -> None:
        self._order += 1
        heapq.heappush(self._events, (at, kind, self._order, what))


def _replica(index: int, fleet: Fleet) -> Replica:
    kv = KvCache(fleet.windows, fleet.blocks, fleet.block_size, fleet.prefix_cache)
    state = SchedulerState(kv, SchedulerConfig(max_model_len=fleet.max_model_len, cascade=fleet.cascade))
    return Replica(index, state, fleet.budget, fleet.seconds, fleet.batching, None if fleet.pace is None else fleet.pace())


class _Thinned:
    """Keeps every 2^k-th step, so that a long run has at most `most` of them."""

    def __init__(self, most: int) -> None:
        self.kept: list[StepLog] = []
        self._most, self._stride, self._seen = most, 1, 0

    def add(self, log: StepLog) -> None:
        if self._seen % self._stride == 0:
            self.kept.append(log)
            if len(self.kept) > self._most:
                self.kept = self.kept[::2]
                self._stride *= 2
        self._seen += 1


def simulate(fleet: Fleet, workload: Workload, **more: Any) -> Run:
    """Run a workload on a fleet until it is served."""
    return Simulation(fleet, workload, **more).go()
