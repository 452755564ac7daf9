"""The predictor that the engine hands to its scheduler: it learns a machine from its steps, and chunks then keep the promised time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from tests.planner import planner_shapes as shapes
from tests.scheduler.null_backend import Harness

from ridgeline.engine.pace import Pace, pace_of, paced_budget
from ridgeline.graph.manifest import manifest
from ridgeline.graph.step import SharedWalk, Span, Step
from ridgeline.planner.cost import Cost, GraphCost
from ridgeline.planner.hardware import Machine, assumed
from ridgeline.planner.predictor import StepPredictor

TRUE = Machine("true", 3.0, 40.0, 25.0, 1, "avx2", "assumed")
GRAPH = shapes.llama(49152, 576, 1536, 30, 9, 3, 64, tied=True)
BYTES = {name: prod(shape) * 5 // 8 for name, shape in manifest(GRAPH).items()}


def predictor(machine: Machine) -> StepPredictor:
    return StepPredictor(GraphCost(GRAPH, BYTES), machine)


def step(decodes: int, past: int, chunk: int = 0, at: int = 0) -> Step:
    spans = [Span(i, past, 1, 1) for i in range(decodes)] + ([Span(99, at, chunk, 1)] if chunk else [])
    return Step(tuple(spans), np.zeros(0, np.int32), ())


def truth(noise: float = 0.0, attention_factor: float = 1.0) -> Callable[[Step], float]:
    """A machine whose attention is slower than the model's shape says, and whose other ops overlap memory and arithmetic."""
    real, rng = predictor(TRUE), np.random.default_rng(0)

    def seconds(one: Step) -> float:
        attention, _ = real.upper_parts(real.numbers(one.spans))
        return float((real(one.spans) + (attention_factor - 1) * attention) * (1 + noise * rng.standard_normal()))

    return seconds


@pytest.mark.parametrize("attention_factor", [0.7, 1.0, 3.0])
def test_it_learns_attention_and_the_rest_apart(attention_factor: float) -> None:
    pace, seconds = Pace(predictor(assumed(2, "avx2"))), truth(attention_factor=attention_factor)
    for i in range(60):
        for one in (step(8, 100 + i), step(8, 100 + i, 64, 64 * (i % 40)), step(8, 600 + i)):
            pace.learn(one, seconds(one))
    for one in (step(8, 130), step(8, 700), step(8, 130, 64, 128), step(8, 130, 32, 2000), step(6, 200, 100, 100)):
        assert pace(one) == pytest.approx(seconds(one), rel=0.3)


@pytest.mark.parametrize("first", [step(0, 0, 64), step(4, 50), step(4, 50, 64)])
def test_one_step_of_any_kind_gives_the_scale(first: Step) -> None:
    pace, seconds = Pace(predictor(assumed(2, "avx2"))), truth()
    pace.learn(first, seconds(first))
    assert pace(first) == pytest.approx(seconds(first), rel=1e-6)
    assert pace(step(4, 50, 32)) == pytest.approx(seconds(step(4, 50, 32)), rel=1.0)


def test_noise_and_steps_shorter_than_decoding_never_make_it_free() -> None:
    pace, seconds = Pace(predictor(assumed(2, "avx2"))), truth(noise=0.3)
    for _ in range(60):
        for one in (step(8, 100), step(8, 100, 32, 64)):
            pace.learn(one, max(1e-9, seconds(one)))
    pace.learn(step(8, 100, 32, 64), 1e-9)
    pace.learn(step(8, 100, 32, 64), 1e9)
    clean = truth()
    assert 0.3 * clean(step(8, 100, 64)) < pace(step(8, 100, 64)) < 3 * clean(step(8, 100, 64))


def test_traffic_is_what_the_steps_moved_and_computed() -> None:
    """Shared walks are read once, though the pace leaves them out; rates are those of the seconds in which steps ran."""
    book = GraphCost(GRAPH, BYTES)
    pace, total = pace_of(book, 2, "avx2"), Cost()
    assert pace.traffic is not None and set(pace.traffic.figures().values()) == {0}
    for one in (step(4, 600), step(4, 600, 64, 128), replace(step(4, 600), shared=(SharedWalk((0, 1, 2, 3), 512),))):
        pace.learn(one, 1e-3)
        total = total + book.total(book.work(one.spans, one.shared))
    found = pace.traffic.figures()
    assert found["bytes_kv_read"] == total.kv_read_bytes and found["bytes_weights"] == pytest.approx(total.weight_bytes, rel=1e-6)
    assert found["flops_float"] == pytest.approx(total.f32_flops, rel=1e-6) and found["flops_integer"] == total.int8_flops > 0
    assert found["flops_bfloat16"] == pytest.approx(total.bf16_flops, rel=1e-6) and total.bf16_flops > 0
    assert found["recent_flops_bfloat16_per_s"] == pytest.approx(total.bf16_flops / 3e-3, rel=1e-3)
    assert found["recent_memory_bytes_per_s"] == pytest.approx(total.memory_bytes / 3e-3, rel=1e-3)


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_a_long_prompt_among_answers_keeps_their_pace(noise: float) -> None:
    """Issue 3: ITL p99 at most 3 times the steady one, just before and after, TTFT at most 2.5 times alone, with slow attention."""
    pace, seconds = Pace(predictor(assumed(2, "avx2"))), truth(noise, attention_factor=1.5)

    def run(running: int) -> tuple[list[float], list[float], float]:
        budget = paced_budget(512, 16)
        h = Harness(blocks=[1000], budget=budget, seconds=timed, predict=pace, check_every=0, contents=False)
        rng = np.random.default_rng(1)
        for _ in range(running):
            h.submit(rng.integers(4, 1000, 30), 3000)
        steady = [after - before for before, after in _clock(h, 30)][10:]
        start, request = h.state.now, h.submit(rng.integers(4, 1000, 2000), 4)
        gaps = []
        while not h.outputs[request.id, 0]:
            gaps += [after - before for before, after in _clock(h, 1)]
        ttft = h.state.now - start
        if running:
            steady += [after - before for before, after in _clock(h, 30)][10:]
        return steady, gaps, ttft

    def timed(one: Step) -> float:
        took = seconds(one) if one.spans else 1e-6
        if one.spans:
            pace.learn(one, took)
        return took

    alone = run(0)[2]
    steady, gaps, ttft = run(8)
    assert np.quantile(gaps, 0.99) <= 3 * np.median(steady) and ttft <= 2.5 * alone and len(gaps) > 10


def test_what_decodes_take_is_known_whatever_a_chunk_takes_beyond_its_prediction() -> None:
    """A chunk's attention costs more and more, decodes' less than the shape says, and contexts grow: the aim stays what decodes take, and
    steps keep to it from the first to the last of the prompt."""
    pace, real, rng = Pace(predictor(assumed(2, "avx2"))), predictor(TRUE), np.random.default_rng(0)
    budget = replace(paced_budget(512, 16), itl_floor=0.0)
    assert budget.itl_slack is not None

    def seconds(one: Step) -> float:
        decodes, chunks = [s for s in one.spans if s.want == s.new], [s for s in one.spans if s.want != s.new]
        attention, rest = real.upper_parts(real.numbers(one.spans))
        own, _ = real.upper_parts(real.numbers(decodes))
        return rest + 0.4 * own + (attention - own) * (1 + sum(s.past for s in chunks) / 2000)

    def timed(one: Step) -> float:
        took = seconds(one) if one.spans else 1e-6
        if one.spans:
            seen.append((one, took, pace(Step(tuple(s for s in one.spans if s.want == s.new), one.tokens, ()))))
            pace.learn(one, took)
        return took

    seen: list[tuple[Step, float, float]] = []
    h = Harness(blocks=[1000], budget=budget, seconds=timed, predict=pace, check_every=0, contents=False)
    for _ in range(8):
        h.submit(rng.integers(4, 1000, 30), 3000)
    for _ in range(30):
        h.step()
    seen.clear()
    request = h.submit(rng.integers(4, 1000, 2000), 4)
    while not h.outputs[request.id, 0]:
        h.step()
    beside = [(one, took, base) for one, took, base in seen if len(one.spans) > 8]
    assert len(beside) > 100 and len(seen) == pytest.approx(len(beside) * 16 / 15, abs=2)
    for one, took, base in beside[:-1]:
        alone = seconds(Step(one.spans[:8], one.tokens, ()))
        assert base == pytest.approx(alone, rel=0.05)
        assert took <= 1.15 * budget.itl_slack * alone
    assert np.mean([took for _, took, _ in beside]) >= 0.9 * budget.itl_slack * np.mean([base for _, _, base in beside])


def _clock(h: Harness, steps: int) -> list[tuple[float, float]]:
    found = []
    for _ in range(steps):
        before = h.state.now
        h.step()
        found.append((before, h.state.now))
    return found
