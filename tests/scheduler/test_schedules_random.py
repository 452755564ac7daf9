"""Random schedules on tiny pools: every sequence gives the tokens it gives alone, whatever happened around it (promise 1 for integers)."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kv.kv_memory import random_prompt
from tests.scheduler.null_backend import Harness

from ridgeline.kv.manager import CachePolicy
from ridgeline.scheduler.budget import Budget
from ridgeline.scheduler.state import Faults, Policy, SchedulerConfig

STEMS = [np.random.default_rng(70 + i).integers(4, 8, 40).astype(np.int32) for i in range(3)]
WINDOWS: list[tuple[int | None, ...]] = [(None,), (None, 6), (5,), (None, 4, 11)]


def random_run(seed: int) -> Harness:
    rng = np.random.default_rng(seed)
    windows = WINDOWS[int(rng.integers(len(WINDOWS)))]
    size = int(rng.choice([1, 2, 3, 4, 8]))
    tokens = int(rng.integers(70, 150))
    blocks = [-(-tokens // size) if w is None else -(-(tokens // 2) // size) + 3 for w in windows]
    policy: CachePolicy = ["radix", "radix", "hash", "off"][int(rng.integers(4))]  # type: ignore[assignment]
    order: Policy = ["fcfs", "priority", "lpm"][int(rng.integers(3))]  # type: ignore[assignment]
    slots = int(rng.integers(1, 7))
    budget = Budget(
        tokens=slots + int(rng.integers(0, 40)), sequences=slots, min_chunk=int(rng.integers(1, 5)),
        itl_slack=[None, 1.5, 3.0][int(rng.integers(3))], alone_every=[None, 2, 5][int(rng.integers(3))],
        max_chunk=[None, 1, 3, 7][int(rng.integers(4))],
    )  # fmt: skip
    faults = Faults(preempt_every=int(rng.choice([0, 3, 7])), evict_every=int(rng.choice([0, 0, 5])))
    config = SchedulerConfig(policy=order, max_model_len=90, aging_s=0.3, max_overtakes=3, key_segment=8)
    harness = Harness(windows, blocks, size, policy, budget, config, faults, stop=lambda token: token % 29 == 0, check_every=7)
    for _ in range(int(rng.integers(20, 60))):
        if rng.random() < 0.4:
            prompt = random_prompt(rng, STEMS, 8, 20)
            if len(prompt) <= min(89, harness.kv.capacity_tokens or 89):
                space = b"" if rng.random() < 0.8 else b"other"
                n = int(rng.choice([1, 1, 1, 2, 3, 6]))
                harness.submit(
                    prompt, int(rng.integers(1, 25)), n=n, space=space, priority=int(rng.integers(0, 3)),
                    cache=bool(rng.random() < 0.9), prompt_rows=bool(rng.random() < 0.1), cache_ttl_s=float(rng.integers(0, 2)),
                )  # fmt: skip
        if rng.random() < 0.07 and harness.state.by_request:
            alive = list(harness.state.by_request)
            harness.state.abort(alive[int(rng.integers(len(alive)))])
            harness.events["aborts"] += 1
        harness.step()
    harness.state.faults = Faults()  # preempting every third step for ever may leave a chunk of one token no progress
    harness.run()
    harness.verify()
    harness.events.update({k: v for k, v in harness.state.counts.items() if isinstance(v, int)})
    harness.events.update(harness.kv.counts)
    return harness


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.long)])
def test_schedules_equal_each_request_alone(count: int) -> None:
    events: Counter[str] = Counter()
    for seed in range(count):
        events.update(random_run(seed).events)
    wanted = ["aborts", "preemptions", "forks", "walks", "hits_inside_block", "copies_on_write", "evictions"]
    wanted += ["window_evictions", "window_releases"]
    assert all(events[name] >= 30 for name in wanted), dict(events)
    assert all(events[f"prefix_{reason}"] >= 3 for reason in ("complete", "never_seen", "evicted", "ineligible")), dict(events)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(min_value=1000, max_value=10**9))
def test_any_schedule_equals_each_request_alone(seed: int) -> None:
    random_run(seed)


@pytest.mark.parametrize("seed", range(5))
def test_the_same_arrivals_give_the_same_steps(seed: int) -> None:
    a, b = random_run(seed), random_run(seed)
    assert [s.spans for s in a.steps] == [s.spans for s in b.steps]
    assert [s.copies for s in a.steps] == [s.copies for s in b.steps]
    for x, y in zip(a.steps, b.steps, strict=True):
        assert all(np.array_equal(p, q) for g, h in zip(x.tables, y.tables, strict=True) for p, q in zip(g, h, strict=True))
