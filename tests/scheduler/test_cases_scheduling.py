"""Scheduling cases: SC-01, SC-02, SC-03, SP-06, CX-01, aborts anywhere, faults of a backend."""

from __future__ import annotations

import numpy as np
import pytest
from tests.scheduler.null_backend import Harness

from ridgeline.errors import ContextLengthError, UserError
from ridgeline.graph.step import Int32Array
from ridgeline.scheduler.apply import apply, undo
from ridgeline.scheduler.budget import Budget
from ridgeline.scheduler.policy import decide
from ridgeline.scheduler.state import Policy, SchedulerConfig

POLICIES: list[Policy] = ["fcfs", "priority", "lpm"]


def prompt(length: int, seed: int = 0) -> Int32Array:
    return np.random.default_rng(seed).integers(4, 1000, length).astype(np.int32)


# SC-01: larger than the pool.


@pytest.mark.parametrize("policy", POLICIES)
def test_sc_01_a_prompt_that_can_never_fit_is_refused_with_the_true_capacity(policy: Policy) -> None:
    h = Harness(blocks=[64], config=SchedulerConfig(policy=policy, max_model_len=8192))
    with pytest.raises(ContextLengthError) as refused:
        h.submit(prompt(2000))
    assert (refused.value.value, refused.value.limit) == (2000, 1024)
    assert "2000" in str(refused.value) and "1024" in str(refused.value) and refused.value.remedy
    h.submit(prompt(10), 5)
    assert h.run() == 5
    h.verify()


@pytest.mark.parametrize("length", [1023, 1024])
def test_sc_01_the_largest_prompts_that_fit_are_served(length: int) -> None:
    h = Harness(blocks=[64], config=SchedulerConfig(max_model_len=8192), check_every=0)
    h.submit(prompt(length), 9)
    h.submit(prompt(10), 5)
    h.run()
    assert len(h.outputs["r0", 0]) == 1025 - length and h.finished["r0", 0] == "length"
    h.verify()


def test_sc_01_what_cannot_finish_runs_until_memory_ends() -> None:
    h = Harness(blocks=[64], config=SchedulerConfig(max_model_len=8192), check_every=50)
    h.submit(prompt(1000), 500)
    for i in range(3):
        h.submit(prompt(20, i), 30)
    h.run()
    assert h.finished["r0", 0] == "length" and len(h.outputs["r0", 0]) == 25
    h.verify()


def test_sc_01_small_window_pools_limit_the_capacity_too() -> None:
    h = Harness((None, 64), (64, 3), 16)
    assert h.state.limit() == 48
    assert Harness((64,), (5,), 16).kv.capacity_tokens is None
    with pytest.raises(ContextLengthError, match="48"):
        h.submit(prompt(49))
    h.submit(prompt(48), 10)
    h.run()
    h.verify()


@pytest.mark.parametrize("cache", ["radix", "off"])
def test_sc_01_a_window_pool_of_just_its_peak_serves_any_length(cache: str) -> None:
    h = Harness((8,), (3,), 4, cache)  # type: ignore[arg-type]
    h.submit(prompt(11), 100)
    h.submit(prompt(21, 1), 50)
    h.run()
    assert [len(h.outputs[r, 0]) for r in ("r0", "r1")] == [100, 50]
    h.verify()


# SC-02: the last one cannot grow.


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_sc_02_four_blocks(policy: Policy, count: int) -> None:
    h = Harness(blocks=[4], config=SchedulerConfig(policy=policy))
    for i in range(count):
        h.submit(prompt(40, i), 200)
    h.run()
    assert all(h.finished[f"r{i}", 0] == "length" and len(h.outputs[f"r{i}", 0]) == 25 for i in range(count))
    h.verify()


def test_sc_02_the_waiting_one_is_admitted_in_the_next_step() -> None:
    h = Harness(blocks=[4])
    h.submit(prompt(40), 200)
    h.submit(prompt(60, 1), 2)
    while not h.finished:
        h.step()
    assert [s.seq for s in h.step().spans] == [1]
    h.run()
    h.verify()


@pytest.mark.parametrize("at", [1, 2, 7])
def test_sc_02_a_failing_sequence_ends_alone(at: int) -> None:
    h = Harness(blocks=[12], budget=Budget(64, 2, itl_slack=None))
    for i in range(4):
        h.submit(prompt(40, i), 12)
    failing = h.state.by_request["r0"][0].id
    forward = h.forward
    draws = 0

    def broken(step: object) -> list[int]:
        nonlocal draws
        out = forward(step)  # type: ignore[arg-type]
        for i, draw in enumerate(h.state.draws):
            if draw.seq == failing:
                draws += 1
                if draws == at:
                    out[i] = -1
        return out

    h.forward = broken  # type: ignore[method-assign]
    while h.state.alive:
        step = decide(h.state, h.budget)
        tokens = h.forward(step)
        for draw, token in zip(h.state.draws, tokens, strict=True):
            seq = h.state.sequences[draw.seq]
            if token >= 0:
                h.outputs[seq.request.id, 0].append(token)
        apply(h.state, step, tokens)
        h.kv.check()
        h.collect()
    assert h.finished["r0", 0] == "error" and len(h.outputs["r0", 0]) == at - 1
    assert all(h.finished[f"r{i}", 0] == "length" and len(h.outputs[f"r{i}", 0]) == 12 for i in range(1, 4))
    h.verify()


# SC-03: preempted and resumed.


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cache", ["radix", "off"])
@pytest.mark.parametrize("max_chunk", [None, 7])
def test_sc_03_a_pool_for_four_of_eight(policy: Policy, cache: str, max_chunk: int | None) -> None:
    budget, config = Budget(128, 8, itl_slack=None, max_chunk=max_chunk), SchedulerConfig(policy=policy)
    h = Harness(blocks=[24], policy=cache, budget=budget, config=config)  # type: ignore[arg-type]
    for i in range(8):
        h.submit(prompt(30, i), 60, n=1 + (i in (5, 6)), prompt_rows=i in (2, 6), priority=i % 3)
    leaders = [h.state.by_request[f"r{i}"][0] for i in range(8)]
    h.run()
    assert h.state.counts["preemptions"] > 0
    assert all(len(out) == 60 for out in h.outputs.values())
    assert all(seq.prompt_len == 30 for seq in leaders)
    assert all(s.want <= 1 for step in h.steps for s in step.spans if s.seq not in {q.id for q in leaders})
    rows = {seq.id: 0 for seq in leaders}
    for step in h.steps:
        for span in step.spans:
            if span.seq in rows:
                rows[span.seq] += span.want
    for i, seq in enumerate(leaders):  # 60 draws; the rows of the prompt besides the last exactly once, however often it was preempted
        assert rows[seq.id] == 60 + (29 if i in (2, 6) else 0)
    h.verify()


# SP-06: n > 1.


@pytest.mark.parametrize(("n", "slots"), [(4, 8), (64, 8), (3, 1), (9, 4)])
@pytest.mark.parametrize("length", [16, 32, 37])
@pytest.mark.parametrize("cache", ["radix", "off"])
def test_sp_06_samples_share_the_prompt_and_run_in_waves(n: int, slots: int, length: int, cache: str) -> None:
    h = Harness(blocks=[60], policy=cache, budget=Budget(64, slots, itl_slack=None), check_every=3)  # type: ignore[arg-type]
    h.submit(prompt(length), 6, n=n)
    h.submit(prompt(20, 1), 6)
    h.run()
    assert sorted(index for rid, index in h.finished if rid == "r0") == list(range(n))
    waves = -(-n // slots)
    prompts = length + (waves - 1) * (1 if cache == "radix" else length)
    assert h.computed["r0"] == prompts + 5 * n, "the prompt is computed once per wave at most, once and a token with the cache"
    assert h.state.counts["forks"] >= n - waves
    h.verify()


def test_sp_06_the_prompt_is_stored_once() -> None:
    h = Harness(blocks=[60], budget=Budget(64, 8, itl_slack=None))
    h.submit(prompt(48), 20, n=8)
    h.step()
    assert h.kv.usage()[0][2] == 3
    h.step()
    assert h.kv.usage()[0][2] == 3 + 8
    h.run()
    h.verify()


def test_sp_06_one_sample_stops_at_once() -> None:
    stops = set()

    def stop(token: int) -> bool:
        return token in stops

    h = Harness(stop=stop)
    h.submit(prompt(20), 12, n=4)
    h.step()
    h.run()
    stops.add(h.outputs["r0", 2][0])
    again = Harness(stop=stop)
    again.submit(prompt(20), 12, n=4)
    again.run()
    assert again.finished["r0", 2] == "stop" and len(again.outputs["r0", 2]) == 1
    assert [again.finished["r0", i] for i in (0, 1, 3)] == ["length"] * 3
    again.verify()


# CX-01: context limits.


def test_cx_01_a_prompt_over_the_model_length_is_refused_never_cut() -> None:
    h = Harness(config=SchedulerConfig(max_model_len=512))
    for length in (512, 2011):
        with pytest.raises(ContextLengthError) as refused:
            h.submit(prompt(length))
        assert (refused.value.value, refused.value.limit) == (length, 511)
    h.submit(prompt(511), 50)
    h.submit(prompt(500, 1), None)
    h.run()
    assert len(h.outputs["r0", 0]) == 1 and len(h.outputs["r1", 0]) == 12
    assert sum(s.new for s in h.steps[0].spans + h.steps[1].spans if s.seq == 0) == 511
    h.verify()


def test_an_empty_prompt_and_a_second_use_of_an_id_are_refused() -> None:
    h = Harness()
    with pytest.raises(UserError, match="no tokens"):
        h.submit([])
    h.submit([5, 6], id="same")
    with pytest.raises(UserError, match="same"):
        h.submit([5, 6], id="same")
    h.run()
    h.verify()


def test_a_budget_that_cannot_serve_its_slots_is_refused() -> None:
    for wrong in ({"tokens": 7, "sequences": 8}, {"sequences": 0}, {"max_chunk": 0}, {"min_chunk": 0}):
        with pytest.raises(UserError):
            Budget(**wrong)  # type: ignore[arg-type]


# Aborts and faults.


@pytest.mark.parametrize("n", [1, 3])
def test_an_abort_at_every_point_of_life_gives_everything_back(n: int) -> None:
    """Waiting, deferred, in the middle of the prompt, forked, decoding, preempted, between decide and apply: 300 and more."""
    count = 0
    for inside in (False, True):
        for at in range(80):
            h = Harness(blocks=[18], block_size=4, budget=Budget(24, 4, itl_slack=None, max_chunk=8), check_every=0)
            for i in range(5):
                h.submit(np.concatenate((prompt(13), prompt(4, i))), 14, n=n)
            target, when = f"r{at % 5}", at // 5 * 2
            for number in range(400):
                if not h.state.alive:
                    break
                if not inside and number == when:
                    count += h.state.abort(target)
                    h.kv.check()
                step = decide(h.state, h.budget)
                h.collect()
                tokens = h.forward(step)
                if inside and number == when:
                    count += h.state.abort(target)
                    h.kv.check()
                for draw, token in zip(h.state.draws, tokens, strict=True):
                    seq = h.state.sequences.get(draw.seq)
                    if seq is not None:
                        h.outputs[seq.request.id, seq.index].append(token)
                apply(h.state, step, tokens)
                assert target not in h.state.by_request or number < when
                h.collect()
            h.verify()
    assert count > 90


def test_an_unknown_request_is_not_aborted() -> None:
    assert Harness().state.abort("nobody") is False


def test_a_step_that_did_not_run_is_undone() -> None:
    """A backend that fails every fourth time, having copied and written nothing: all is computed again, nothing is lost or doubled."""
    h = Harness(blocks=[24], block_size=4, budget=Budget(40, 5, itl_slack=None, max_chunk=9))
    for i in range(9):
        h.submit(np.concatenate((prompt(13), prompt(5, i))), 14, n=1 + i % 2)
    failures = 0
    while h.state.alive:
        if h.state.steps % 4 == 3:
            step = decide(h.state, h.budget)
            undo(h.state, step)
            h.kv.check()
            h.collect()
            failures += 1
        else:
            h.step()
    assert failures > 5
    h.verify()
