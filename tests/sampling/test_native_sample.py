"""The native sampler equals the numpy definition bit for bit: tokens, failures and log-probabilities, for any settings and threads."""

from __future__ import annotations

import numpy as np
import pytest
from tests.sampling.logit_stub import NativeLogits, assert_same, random_logits, random_row

from ridgeline.sampling.plan import SamplePlan, SampleRow
from ridgeline.sampling.transforms import sample_rows

WIDTHS = [1, 2, 15, 16, 17, 63, 64, 65, 100, 1000, 1030, 5000, 16384, 16385, 20000]


@pytest.mark.parametrize("seed", range(10))
def test_equals_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    checked = failures = 0
    while checked < 300:
        width = int(rng.choice(WIDTHS))
        vocab = max(1, width - int(rng.choice([0, 0, 1, 5])))
        rows = random_logits(rng, int(rng.integers(1, 6)), width)
        stub = NativeLogits(rows, threads=int(rng.integers(1, 3)))
        for _ in range(3):
            asked = tuple(random_row(rng, int(rng.integers(0, len(rows))), vocab) for _ in range(int(rng.integers(1, 12))))
            plan = SamplePlan(asked, vocab)
            want = sample_rows(rows, plan)
            assert_same(stub.sample(plan), want, plan)
            checked += len(plan.rows)
            failures += int(want.failed.sum())
    assert 0 < failures < checked / 2  # the rows are worth drawing from


def test_large_vocabulary() -> None:
    """262,144 ids with plain, cut and flat draws: the bound that skips ids must skip none that could win."""
    rng = np.random.default_rng(5)
    rows = (rng.standard_normal((2, 262144)) * 2).astype(np.float32)
    kinds = [{}, {"temperature": 100.0}, {"top_p": 0.9}, {"top_k": 50, "top_p": 0.9}, {"min_p": 0.01}, {"top_p": 0.99, "temperature": 30.0}]
    plan = SamplePlan(tuple(SampleRow(i % 2, seed=s, logprobs=3, **k) for s in range(2) for i, k in enumerate(kinds)), 262144)  # type: ignore[arg-type]
    assert_same(NativeLogits(rows).sample(plan), sample_rows(rows, plan))


def test_threads_and_order_change_nothing() -> None:
    rng = np.random.default_rng(3)
    rows = random_logits(rng, 8, 20000)
    plan = SamplePlan(tuple(random_row(rng, i % 8, 20000) for i in range(40)), 20000)
    one = NativeLogits(rows, threads=1).sample(plan)
    assert_same(NativeLogits(rows, threads=2).sample(plan), one)
    order = rng.permutation(40)
    shuffled = NativeLogits(rows).sample(SamplePlan(tuple(plan.rows[i] for i in order), 20000))
    np.testing.assert_array_equal(shuffled.tokens, one.tokens[order])
    np.testing.assert_array_equal(shuffled.logprobs, one.logprobs[order])


def test_a_row_that_does_not_exist_fails_alone() -> None:
    rows = np.zeros((2, 8), np.float32)
    plan = SamplePlan((SampleRow(0, temperature=0), SampleRow(2), SampleRow(-1), SampleRow(1, temperature=0)), 8)
    found = NativeLogits(rows).sample(plan)
    assert_same(found, sample_rows(rows, plan))
    assert found.tokens.tolist() == [0, -1, -1, 0]
    assert found.failed.tolist() == [False, True, True, False]


def test_a_given_id_outside_the_vocabulary_fails_alone() -> None:
    """Negative ids are no "nothing was given", and padding of the head is no id."""
    rows = np.random.default_rng(0).normal(size=(1, 8)).astype(np.float32)
    given = (-1, -2, -(2**40), 0, 6, 7, 8, 2**40)
    plan = SamplePlan(tuple(SampleRow(0, given=id, logprobs=1) for id in given), 7)
    found = NativeLogits(rows).sample(plan)
    assert_same(found, sample_rows(rows, plan))
    assert found.tokens.tolist() == [-1, -1, -1, 0, 6, -1, -1, -1] and found.failed.tolist() == [t < 0 for t in found.tokens]


def test_all_equal_logits_of_the_largest_mass() -> None:
    """Every weight is the largest one: sums must not overflow."""
    rows = np.zeros((1, 300_000), np.float32)
    plan = SamplePlan((SampleRow(0, top_p=0.5, seed=1, logprobs=2), SampleRow(0, seed=2, logprobs=0)), 300_000)
    found = NativeLogits(rows).sample(plan)
    assert_same(found, sample_rows(rows, plan))
    assert found.logprobs[0] == pytest.approx(-np.log(300_000), rel=1e-6)
    assert found.tokens[0] < 150_000  # ties are kept from the lowest id
