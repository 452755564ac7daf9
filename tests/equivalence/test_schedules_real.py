"""Promise 1 on real models: the random schedules of `test_schedules`, on SmolLM2 and Gemma 3 as they are served."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("ridgeline.backends.cpu.native._native", reason="the native backend is not built")

from tests.equivalence.schedules import Schedule

from ridgeline.formats.pull import find_cached

pytestmark = pytest.mark.real_model


@pytest.mark.parametrize(
    ("family", "count"),
    [("smollm2", 20), pytest.param("smollm2", 500, marks=pytest.mark.long), pytest.param("gemma3-270m", 500, marks=pytest.mark.long)],
)
def test_any_schedule_gives_each_request_what_it_gets_alone(family: str, count: int) -> None:
    if find_cached(family) is None:
        pytest.skip(f"{family} is not in the cache: ridgeline pull {family}")
    events: Counter[str] = Counter()
    bad = {seed: wrong for seed in range(count) if (wrong := Schedule(seed, families=(family,)).run(events))}
    assert bad == {}
    wanted = ("hits_inside_block", "copies_on_write", "preemptions", "forks", "ended_length", "prefix_complete", "prefix_never_seen")
    wanted = (*wanted, "shared_walks", "ended_abort", "evictions") if count > 20 else wanted
    assert all(events[name] > 0 for name in wanted), {name: events[name] for name in wanted}
