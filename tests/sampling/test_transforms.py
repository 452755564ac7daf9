"""What a draw means: cases SP-01, SP-02, SP-03, QN-03, LP-03, and the laws of each transform, on both samplers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.sampling.logit_stub import NativeLogits, random_logits, random_row

from ridgeline.sampling.plan import Sampled, SamplePlan, SampleRow
from ridgeline.sampling.transforms import adjusted, kept, sample_rows

Sampler = Callable[[np.ndarray, SamplePlan], Sampled]
SAMPLERS: dict[str, Sampler] = {"numpy": sample_rows, "native": lambda rows, plan: NativeLogits(rows).sample(plan)}
both = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS.keys())


def f32(*values: float) -> np.ndarray:
    return np.array([values], np.float32)


def bits(vocab: int, ids: list[int]) -> np.ndarray:
    words = np.zeros((vocab + 31) // 32, np.uint32)
    for i in ids:
        words[i // 32] |= np.uint32(1 << (i % 32))
    return words


@both
@pytest.mark.parametrize("temperature", [0.0, 1e-4, 1e-7, 1e-30, 5e-324])
@pytest.mark.parametrize("top_p", [1.0, 1e-9])
def test_sp01_tiny_temperatures_are_greedy(sampler: Sampler, temperature: float, top_p: float) -> None:
    for row in (f32(60000, 59999, -60000), f32(-1e38, 3e38, -3e38), f32(1, 2, 3, 2.99), f32(0, 0, 0)):
        plan = SamplePlan(tuple(SampleRow(0, temperature=temperature, top_p=top_p, seed=s) for s in range(8)), row.shape[1])
        found = sampler(row, plan)
        # At 1e-4 equal logits stay equal, and the noise decides between them.
        if temperature == 1e-4 and top_p == 1.0 and len(set(row[0])) == 1:
            continue
        assert set(found.tokens.tolist()) == {int(np.argmax(row))}
        assert not found.failed.any()


@both
def test_sp01_top_k_one_is_greedy(sampler: Sampler) -> None:
    rows = random_logits(np.random.default_rng(1), 4, 500)
    rows = np.nan_to_num(rows, nan=0, posinf=0, neginf=-1)
    plan = SamplePlan(tuple(SampleRow(i, temperature=5.0, top_k=1, seed=9) for i in range(4)), 500)
    np.testing.assert_array_equal(sampler(rows, plan).tokens, rows.argmax(1))


@both
def test_sp02_greedy_and_random_rows_do_not_touch(sampler: Sampler) -> None:
    """A greedy row with a banned id, or nearly everything masked, alone and beside sampled rows."""
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((2, 1000)).astype(np.float32)
    best = int(rows[0].argmax())
    ban = SampleRow(0, temperature=0, bias_ids=np.array([best], np.int32), bias_values=f32(-100)[0])
    grammar = SampleRow(0, temperature=0, allowed=bits(1000, [3, 999]), logprobs=2)
    sampled = SampleRow(1, temperature=0.8, top_p=0.9, seed=5)
    alone = [sampler(rows, SamplePlan((row,), 1000)) for row in (ban, grammar, sampled)]
    mixed = sampler(rows, SamplePlan((sampled, ban, sampled, grammar), 1000))
    assert mixed.tokens.tolist() == [int(alone[i].tokens[0]) for i in (2, 0, 2, 1)]
    assert mixed.tokens[1] == np.argsort(-rows[0], kind="stable")[1]
    assert mixed.tokens[3] == (3 if rows[0, 3] >= rows[0, 999] else 999)
    assert mixed.logprobs[3] == alone[1].logprobs[0]
    assert np.isfinite(mixed.logprobs[3])
    assert not mixed.failed.any()


@both
def test_sp03_a_seed_does_not_see_its_neighbours(sampler: Sampler) -> None:
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((6, 2000)).astype(np.float32)
    a = SampleRow(0, temperature=0.8, seed=42, position=10)
    alone = sampler(rows, SamplePlan((a,), 2000)).tokens[0]
    for slot in range(6):
        mates = [replace(random_row(rng, i, 2000), row=i) for i in range(6)]
        mates[slot] = a
        assert sampler(rows, SamplePlan(tuple(mates), 2000)).tokens[slot] == alone
    # On another row of equal logits, as after a preemption, the draw is the same.
    moved = np.concatenate([rows[1:], rows[:1]])
    assert sampler(moved, SamplePlan((replace(a, row=5),), 2000)).tokens[0] == alone


@both
def test_sp03_choices_positions_and_seeds_differ(sampler: Sampler) -> None:
    rows = np.zeros((1, 5000), np.float32)
    draws = {
        part: sampler(rows, SamplePlan(tuple(SampleRow(0, **{"seed": 42, part: i}) for i in range(20)), 5000)).tokens
        for part in ("seed", "choice", "position")
    }
    for tokens in draws.values():
        assert len(set(tokens.tolist())) > 15
    extremes = SamplePlan(tuple(SampleRow(0, seed=s) for s in (0, -1, 2**63, 2**64 - 1)), 5000)
    tokens = sampler(rows, extremes).tokens
    assert tokens[1] == tokens[3]  # seeds count modulo 2^64
    assert len(set(tokens.tolist())) == 3


@both
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_qn03_a_broken_row_fails_alone(sampler: Sampler, bad: float) -> None:
    rows = np.random.default_rng(4).standard_normal((4, 3000)).astype(np.float32)
    fine = rows.copy()
    rows[2, 1234] = bad
    kinds = [{"temperature": 0}, {}, {"top_k": 5}, {"top_p": 0.5, "logprobs": 3}]
    plan = SamplePlan(tuple(SampleRow(i, seed=1, **k) for k in kinds for i in range(4)), 3000)
    found, want = sampler(rows, plan), sampler(fine, plan)
    broken = np.array([row.row == 2 for row in plan.rows])
    assert (found.failed == broken).all()
    assert (found.tokens[broken] == -1).all() and np.isnan(found.logprobs[broken]).all()
    np.testing.assert_array_equal(found.tokens[~broken], want.tokens[~broken])
    np.testing.assert_array_equal(found.logprobs[~broken], want.logprobs[~broken])
    # Behind the vocabulary nothing counts.
    rows[2, 1234], rows[2, 2999] = 0, bad
    assert not sampler(rows, SamplePlan((SampleRow(2), SampleRow(2, temperature=0)), 2999)).failed.any()


@both
def test_nothing_allowed_fails(sampler: Sampler) -> None:
    rows = np.zeros((2, 40), np.float32)
    rows[1] = -np.inf
    nothing = SampleRow(0, allowed=np.zeros(2, np.uint32))
    plan = SamplePlan((nothing, SampleRow(1), SampleRow(1, temperature=0, logprobs=2), SampleRow(0)), 40)
    found = sampler(rows, plan)
    assert found.failed.tolist() == [True, True, True, False]
    assert found.top[2] is not None and len(found.top[2].ids) == 0


@both
def test_padding_of_the_head_is_never_drawn(sampler: Sampler) -> None:
    rows = np.zeros((1, 64), np.float32)
    rows[0, 50:] = 100
    plan = SamplePlan(tuple(SampleRow(0, temperature=t, seed=s, logprobs=60) for t in (0, 1.0) for s in range(50)), 50)
    found = sampler(rows, plan)
    assert found.tokens.max() < 50
    assert found.top[0] is not None and found.top[0].ids.tolist() == list(range(50))
    assert found.top[0].values[0] == pytest.approx(-math.log(50))


@both
def test_order_and_exact_k(sampler: Sampler) -> None:
    """Ties: exactly k ids are kept, the lowest first."""
    rows = np.zeros((1, 1000), np.float32)
    rows[0, 900] = 1
    plan = SamplePlan(tuple(SampleRow(0, temperature=100.0, top_k=3, seed=s) for s in range(200)), 1000)
    assert set(sampler(rows, plan).tokens.tolist()) == {900, 0, 1}
    halves = SamplePlan(tuple(SampleRow(0, temperature=1e6, top_p=0.0035, seed=s) for s in range(200)), 1000)
    assert set(sampler(rows, halves).tokens.tolist()) == {900, 0, 1, 2}


def test_top_p_is_the_smallest_set_that_reaches_p() -> None:
    row = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))
    for p, want in ((0.05, [1]), (0.39, [1]), (0.41, [1, 3]), (0.69, [1, 3]), (0.71, [1, 3, 2]), (0.95, [1, 3, 2, 0]), (1.0, [1, 3, 2, 0])):
        assert kept(row, SampleRow(0, top_p=p))[0].tolist() == want
    # After top-k the mass is that of what is left: 0.4 of 0.7.
    assert kept(row, SampleRow(0, top_k=2, top_p=0.56))[0].tolist() == [1]
    assert kept(row, SampleRow(0, top_k=2, top_p=0.58))[0].tolist() == [1, 3]


def test_min_p_is_relative_to_the_best() -> None:
    row = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))
    for p, want in ((0.0, 4), (0.24, 4), (0.26, 3), (0.6, 2), (0.76, 1), (1.0, 1)):
        assert len(kept(row, SampleRow(0, min_p=p))[0]) == want
    assert kept(np.zeros(3, np.float32), SampleRow(0, min_p=1.0))[0].tolist() == [0, 1, 2]


def test_penalties_follow_vllm() -> None:
    row = np.array([2, -2, 3, -3, 1, 0], np.float32)
    ids = {"prompt_ids": np.array([0, 1, 1, 7, -1], np.int32), "output_ids": np.array([2, 3, 2, 3, 3], np.int32)}
    assert adjusted(row, SampleRow(0, repetition_penalty=2.0, **ids)).tolist() == [1, -4, 1.5, -6, 1, 0]
    assert adjusted(row, SampleRow(0, frequency_penalty=0.5, **ids)).tolist() == [2, -2, 2, -4.5, 1, 0]
    assert adjusted(row, SampleRow(0, presence_penalty=0.5, **ids)).tolist() == [2, -2, 2.5, -3.5, 1, 0]
    everything = SampleRow(0, repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25, **ids)
    assert adjusted(row, everything).tolist() == [1, -4, 0.25, -7.75, 1, 0]
    biased = SampleRow(0, bias_ids=np.array([4, 4, 99, -1], np.int32), bias_values=np.array([1, 2, 50, 50], np.float32))
    assert adjusted(row, biased).tolist() == [2, -2, 3, -3, 4, 0]
    assert adjusted(row, replace(biased, allowed=bits(6, [0, 4]))).tolist() == [2, -np.inf, -np.inf, -np.inf, 4, -np.inf]


@both
def test_lp03_logprobs_do_not_depend_on_settings(sampler: Sampler) -> None:
    """Raw log-softmax, whatever the temperature, penalties, masks and the number asked for."""
    row = np.random.default_rng(6).standard_normal((1, 3000)).astype(np.float32) * 3
    want = row[0].astype(np.float64) - np.log(np.exp(row[0].astype(np.float64)).sum())
    order = np.argsort(-row[0], kind="stable")
    settings = [
        {"temperature": 0}, {"top_p": 0.1}, {"temperature": 3.0, "top_k": 7}, {"min_p": 0.2}, {"allowed": bits(3000, [5, 6, 7])},
        {"repetition_penalty": 1.7, "presence_penalty": 1.0, "output_ids": order[:50].astype(np.int32)},
        {"bias_ids": order[:3].astype(np.int32), "bias_values": np.full(3, -100, np.float32)},
    ]  # fmt: skip
    plan = SamplePlan(tuple(SampleRow(0, seed=i, logprobs=k, **s) for i, s in enumerate(settings) for k in (None, 0, 1, 5, 20)), 3000)
    found = sampler(row, plan)
    for i, asked in enumerate(plan.rows):
        top = found.top[i]
        if asked.logprobs is None:
            assert top is None and np.isnan(found.logprobs[i])
            continue
        assert found.logprobs[i] == pytest.approx(want[found.tokens[i]], abs=2e-6)
        assert top is not None and top.ids.tolist() == order[: asked.logprobs].tolist()
        np.testing.assert_allclose(top.values, want[top.ids], atol=2e-6)


@both
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.5}, {"top_k": 6}, {"top_p": 0.8}, {"min_p": 0.1, "temperature": 1.5}])
def test_draws_follow_the_distribution(sampler: Sampler, settings: dict[str, float]) -> None:
    """Chi-square of many draws over positions against the softmax of what is kept."""
    row = np.random.default_rng(7).standard_normal((1, 12)).astype(np.float32)
    count = 4_000 if sampler is sample_rows else 40_000
    template = SampleRow(0, seed=11, **settings)  # type: ignore[arg-type]
    tokens = sampler(row, SamplePlan(tuple(replace(template, position=p) for p in range(count)), 12)).tokens
    ids, x = kept(row[0], template)
    p = np.exp(x.astype(np.float64))
    expected = count * p / p.sum()
    counts = np.bincount(tokens, minlength=12)
    assert counts.sum() == counts[ids].sum()
    cells = len(ids) - 1
    statistic = ((counts[ids] - expected) ** 2 / expected).sum()
    assert (statistic - cells) / math.sqrt(2 * cells) < 5
