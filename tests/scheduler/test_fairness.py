"""SC-04: nobody starves. The bound: a request ends no later than if everybody served before it, and it, ran one after another."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
from tests.scheduler.null_backend import Harness

from ridgeline.scheduler.budget import Budget
from ridgeline.scheduler.state import Request, SchedulerConfig

MIN_CHUNK = 16


def alone_steps(request: Request, cap: int) -> int:
    """Steps a request takes at most when it is the oldest: all its tokens by smallest chunks once, its output token by token."""
    return request.n * (ceil(cap / MIN_CHUNK) + cap - len(request.prompt) + 1)


class Load:
    """Two long prompts that do not fit together, and a stream of short requests for 10,000 virtual steps."""

    def __init__(self, harness: Harness, seed: int, priorities: bool) -> None:
        self.h, self.rng, self.priorities = harness, np.random.default_rng(seed), priorities
        self.arrived: dict[str, int] = {}
        self.idle = 0

    def submit(self, length: int, output: int, priority: int) -> None:
        request = self.h.submit(self.rng.integers(4, 1000, length), output, priority=priority)
        self.arrived[request.id] = self.h.state.steps

    def run(self, steps: int) -> None:
        for i in range(steps):
            if i % 700 == 0:
                for _ in range(2):
                    self.submit(600, 40, 1 if self.priorities else 0)
            elif self.rng.random() < 0.12 and len(self.h.state.waiting) < 40:
                self.submit(int(self.rng.integers(5, 40)), int(self.rng.integers(1, 12)), 0)
            step = self.h.step()
            assert step.rows > 0 or not self.h.state.alive
        self.h.run()

    def check(self, later_allowed: float = 0.0, overtakes: int = 0) -> float:
        """Every request within its bound; returns the worst ratio of steps taken to steps alone."""
        h, worst = self.h, 0.0
        for rid, request in h.requests.items():
            cap = h.caps[rid, 0]
            ahead = [
                other
                for oid, other in h.requests.items()
                if oid != rid and other.arrival <= request.arrival + later_allowed and h.finished_step[oid, 0] >= self.arrived[rid]
            ]
            later = sorted((alone_steps(o, h.caps[o.id, 0]) for o in h.requests.values() if o.arrival > request.arrival), reverse=True)
            bound = alone_steps(request, cap) + sum(alone_steps(o, h.caps[o.id, 0]) for o in ahead) + sum(later[:overtakes])
            took = h.finished_step[rid, 0] - self.arrived[rid]
            assert took <= bound, f"{rid} took {took} steps, bound {bound}"
            worst = max(worst, took / alone_steps(request, cap))
        return worst


def harness(policy: str, blocks: int = 48, **config: object) -> Harness:
    """KV for 1.2 of the long prompts: 768 tokens."""
    return Harness(
        blocks=[blocks], budget=Budget(64, 16, itl_slack=None, max_chunk=MIN_CHUNK * 2), check_every=500, contents=False,
        seconds=lambda step: 1.0, config=SchedulerConfig(policy=policy, **config),  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize("cache", [True, False])
def test_fcfs_over_ten_thousand_steps(cache: bool) -> None:
    load = Load(harness("fcfs"), 1, priorities=False)
    if not cache:
        load.h = harness("fcfs")
        load.h.kv.index = None
    load.run(10_000)
    load.check()
    assert load.h.state.steps >= 10_000 and len(load.h.finished) > 800
    assert all(reason == "length" for reason in load.h.finished.values())
    load.h.drained()


def test_priority_with_aging_over_ten_thousand_steps() -> None:
    """The long ones are less urgent, yet after aging_s seconds per step of priority they are served like the others."""
    load = Load(harness("priority", aging_s=150.0), 2, priorities=True)
    load.run(10_000)
    load.check(later_allowed=150.0)
    short = [load.h.finished_step[r, 0] - load.arrived[r] for r, q in load.h.requests.items() if q.priority == 0]
    long = [load.h.finished_step[r, 0] - load.arrived[r] for r, q in load.h.requests.items() if q.priority == 1]
    assert np.median(short) * 3 < np.median(long)
    load.h.drained()


def test_priority_is_served_first() -> None:
    h = Harness(budget=Budget(64, 1, itl_slack=None), config=SchedulerConfig(policy="priority", aging_s=1e6))
    for priority in (2, 1, 0, 1):
        h.submit([5, 6, 7], 3, priority=priority)
    h.run()
    order = sorted(h.requests, key=lambda r: h.finished_step[r, 0])
    assert order == ["r2", "r1", "r3", "r0"]
    h.verify()


def test_waiting_outweighs_priority_after_aging_s() -> None:
    """One slot, urgent requests arriving faster than they are served: the other is passed only by those of its first 30 seconds."""
    h = Harness(
        budget=Budget(64, 1, itl_slack=None), seconds=lambda step: 1.0, config=SchedulerConfig(policy="priority", aging_s=30.0)
    )  # fmt: skip
    h.submit([5, 6], 3)
    h.step()
    patient = h.submit([7, 8, 9], 3, priority=1)
    while (patient.id, 0) not in h.finished:
        if h.state.steps % 2 == 0:
            h.submit([5, 6, h.state.steps], 3, priority=0)
        h.step()
        assert h.state.steps < 400
    before = [r for r, _ in h.finished if h.requests[r].priority == 0]
    assert all(h.requests[r].arrival <= patient.arrival + 30.0 for r in before) and len(before) > 10
    h.run()
    h.verify()


def test_lpm_over_ten_thousand_steps_overtakes_a_bounded_number_of_times() -> None:
    load = Load(harness("lpm", max_overtakes=8), 3, priorities=False)
    load.run(10_000)
    load.check(overtakes=8 * 2)
    load.h.drained()


def test_lpm_serves_the_longest_cached_prefix_first_but_not_for_ever() -> None:
    rng = np.random.default_rng(4)
    h = Harness(budget=Budget(64, 1, itl_slack=None), config=SchedulerConfig(policy="lpm", max_overtakes=3))
    stem = rng.integers(4, 1000, 40).astype(np.int32)
    h.submit(stem, 2)
    h.run()
    h.submit(rng.integers(4, 1000, 20), 2)
    for i in range(6):
        h.submit(np.append(stem[: 20 + 2 * i], i), 2)
    h.run()
    order = sorted(h.requests, key=lambda r: h.finished_step[r, 0])
    assert order == ["r0", "r7", "r6", "r5", "r1", "r2", "r3", "r4"]
    h.verify()


def test_two_prompts_that_do_not_fit_together_run_one_after_the_other() -> None:
    """The second is not admitted into room that the first has a claim on, however small the chunks: nothing is computed twice."""
    for windows in ((None,), (None, 100)):
        h = Harness(windows, [48] * len(windows), budget=Budget(64, 16, itl_slack=None, max_chunk=32), check_every=10)
        for i in range(3):
            h.submit(np.random.default_rng(i).integers(4, 1000, 600), 40)
        h.run()
        assert h.state.counts["preemptions"] == 0 and sum(h.computed.values()) == 3 * 639
        h.verify()


@pytest.mark.parametrize("cache", ["radix", "off"])
def test_preemptions_of_a_request_are_bounded(cache: str) -> None:
    """Twenty growing sequences on a pool for three: each return needs twice the room of the one before."""
    h = Harness(blocks=[64], block_size=4, policy=cache, budget=Budget(64, 20, itl_slack=None), check_every=50)  # type: ignore[arg-type]
    rng = np.random.default_rng(9)
    for _ in range(20):
        h.submit(rng.integers(4, 1000, 12), 70)
    seqs = list(h.state.sequences.values())
    h.run()
    assert h.state.counts["preemptions"] > 5
    assert max(s.preemptions for s in seqs) <= 7  # log2(64) + 1
    h.verify()


@pytest.mark.parametrize("preemptions", [0, 1, 2, 4, 9])
def test_the_margin_doubles_with_each_preemption_and_never_locks_out(preemptions: int) -> None:
    """Beside a sequence with a claim on two blocks, one of three (its block of growth included) enters with 2^p - 1 to spare."""
    margin = 2**preemptions - 1
    for spare, enters in ((margin - 1, False), (margin, True)):
        h = Harness(blocks=[min(2 + 3 + spare, 64)], block_size=4)
        h.submit([5, 6, 7], 8)
        h.step()
        h.submit(range(10, 17), 5)
        h.state.waiting[0].preemptions = preemptions
        h.step()
        assert bool(h.state.record.admitted) == (enters and 2 + 3 + margin <= 64)
        h.run()
        h.verify()


def test_a_short_request_that_joins_late_finishes_before_a_long_earlier_one() -> None:
    h = Harness()
    h.submit(range(100, 140), 60)
    for _ in range(5):
        h.step()
    h.submit([7, 8, 9], 4)
    h.run()
    assert h.finished_step["r1", 0] == 5 + 4 and h.finished_step["r0", 0] == 60
    h.verify()
