"""Row 36: waiting at an arrival rate, by closed formulas, against textbook values and against arrivals drawn one by one."""

from __future__ import annotations

import random
from decimal import Decimal
from math import inf

import pytest

from ridgeline.planner.catalog import find_model
from ridgeline.planner.formats import WEIGHT_FORMATS, kv_format_named
from ridgeline.planner.hardware import devices, find_device
from ridgeline.planner.load import Traffic, erlang_wait, queue_seconds, steady
from ridgeline.planner.parallel import Layout
from ridgeline.planner.report import Asked, plan_document
from ridgeline.planner.search import Goal, judge
from ridgeline.planner.setup import Setup


def setup(model: str = "Llama-3.1-8B", **more: object) -> Setup:
    base = Setup(find_model(model), find_device("H100 SXM", devices()), WEIGHT_FORMATS["bf16"], kv_format_named("bf16"), Layout())
    return base.change(**more)


def test_erlang() -> None:
    """M/M/1: rho / (1 - rho) x service; M/M/2 at rho 0.5: a third of the arrivals wait one service time each."""
    assert erlang_wait(0.5, 2.0, 1) == pytest.approx(2.0)
    assert erlang_wait(1.0, 3.0, 2) == pytest.approx(1 / 3 * 3.0)
    assert erlang_wait(2.0, 1.0, 2) == inf and erlang_wait(10.0, 1.0, 1 << 40) == 0.0
    assert erlang_wait(0.0, 1.0, 4) == 0.0


def test_prompts_wait_for_prompts() -> None:
    """M/D/1: half of M/M/1's wait; without load only half a step."""
    assert queue_seconds(0.5, 1.0, 0.0, 0.1, 1000) == pytest.approx(0.5)
    assert queue_seconds(1e-9, 1.0, 0.02, 0.1, 1000) == pytest.approx(0.01)
    assert queue_seconds(1.0, 1.0, 0.0, 0.1, 1000) == inf


def test_against_arrivals_drawn_one_by_one() -> None:
    """A server that reads prompts of 1 s first and takes steps of 0.3 s otherwise, 60,000 Poisson arrivals at 0.6/s."""
    rng = random.Random(7)
    at, free, waited = 0.0, 0.0, 0.0
    for _ in range(60_000):
        at += rng.expovariate(0.6)
        if at > free:
            free += -(-(at - free) // 0.3) * 0.3  # whole steps until one ends behind the arrival
        waited += free - at
        free += 1.0
    assert waited / 60_000 == pytest.approx(queue_seconds(0.6, 1.0, 0.3, 1e-6, 1000), rel=0.05)


def test_a_plan_shows_it() -> None:
    """The wait grows with the rate, TTFT under load is queue and prompt, and what cannot be served has no number."""
    found = []
    for rate in (1.0, 6.0, 10.0):
        p = plan_document(setup(), Asked(Goal(2048, batch=8, traffic=Traffic(rate, 2048, 128)), 128))
        assert p["labels"]["queue_ms"].startswith("assumed: Poisson") and "ridgeline simulate" in p["labels"]["queue_ms"]
        found.append(p["load"])
    assert 0 < found[0]["queue_ms"] < found[1]["queue_ms"] < found[2]["queue_ms"]
    for load in found:
        assert load["ttft_ms"] == pytest.approx(load["queue_ms"] + setup().deployment().ttft(2048) * 1e3)
    over = plan_document(setup(), Asked(Goal(2048, batch=8, traffic=Traffic(1000.0, 2048, 128)), 128))["load"]
    assert not over["stable"] and over["queue_ms"] is None and over["ttft_ms"] is None


def test_a_promise_of_ttft_counts_the_queue() -> None:
    """Replicas are added until queue and prompt together keep it; what no replica can help keeps its reason."""
    d, rate = setup().deployment(), Traffic(8.0, 2048, 128)
    alone = d.ttft(2048)
    one = steady(d, rate)
    assert one is not None and one.stable
    loose = judge(setup(), Goal(2048, ttft_s=alone + 2 * one.queue_s, traffic=rate, price=Decimal(1)))
    tight = judge(setup(), Goal(2048, ttft_s=alone + one.queue_s / 2, traffic=rate, price=Decimal(1)))
    assert loose.passes and tight.passes and tight.setup.layout.replicas > loose.setup.layout.replicas
    never = judge(setup(), Goal(2048, ttft_s=alone / 2, traffic=rate, price=Decimal(1)), advise=False)
    assert never.reason.startswith("TTFT ") and "in the queue" in never.reason
