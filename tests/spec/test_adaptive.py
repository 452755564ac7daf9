"""Draft lengths: never worse than none by the model's own arithmetic, as many as pay, and what is seen is learned."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from ridgeline.spec.adaptive import Acceptance, StepCost, bucket, expected, lengths


@pytest.mark.parametrize(("rate", "value"), [(0.6, 2.31), (0.7, 2.77), (0.8, 3.36), (0.9, 4.10), (1.0, 5.0)])
def test_expected_tokens_are_those_of_the_paper(rate: float, value: float) -> None:
    """Leviathan et al. (2211.17192), g = 4: facts/formulas.md 2.6."""
    assert expected(rate, 4) == pytest.approx(value, abs=0.006)


def speed(rates: list[float], counts: list[int], cost: StepCost, extra: int) -> float:
    seconds = cost.wide_s + cost.row_s * sum(counts) if any(counts) else cost.plain_s
    return (extra + sum(expected(r, k) for r, k in zip(rates, counts, strict=True))) / seconds


def alike(rate: float, count: int) -> list[float]:
    return [rate**k for k in range(1, count + 1)]


@pytest.mark.parametrize("seed", range(40))
def test_lengths_are_the_best_there_are(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rates = [float(r) for r in rng.uniform(0.02, 0.98, int(rng.integers(1, 4)))]
    most, extra = [int(rng.integers(0, 5)) for _ in rates], int(rng.integers(0, 3))
    cost = StepCost(1.0, float(rng.uniform(0.95, 1.3)), float(rng.uniform(0.02, 0.6)))
    chosen = lengths([alike(r, m) for r, m in zip(rates, most, strict=True)], cost, extra)
    best = max(speed(rates, list(counts), cost, extra) for counts in product(*(range(m + 1) for m in most)))
    assert all(0 <= c <= m for c, m in zip(chosen, most, strict=True))
    assert speed(rates, chosen, cost, extra) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(40))
def test_lengths_are_the_best_there_are_where_guesses_differ(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    chances = [np.cumprod(rng.uniform(0.1, 1, int(rng.integers(0, 5)))).tolist() for _ in range(int(rng.integers(1, 4)))]
    extra, cost = int(rng.integers(0, 3)), StepCost(1.0, float(rng.uniform(0.95, 1.3)), float(rng.uniform(0.02, 0.6)))

    def per_second(counts: list[int]) -> float:
        seconds = cost.wide_s + cost.row_s * sum(counts) if any(counts) else cost.plain_s
        return (extra + len(chances) + sum(sum(c[:k]) for c, k in zip(chances, counts, strict=True))) / seconds

    best = max(per_second(list(counts)) for counts in product(*(range(len(c) + 1) for c in chances)))
    assert per_second(lengths(chances, cost, extra)) == pytest.approx(best)


def test_a_guess_that_was_copied_is_as_strong_as_those_before_it_make_it() -> None:
    """Two tokens agree, then three if the first guess is right: (3/4)(4/5).. by the rule, not (3/4)(3/4).. ."""
    seen = Acceptance()
    assert seen.chances(1, 2, 3, rising=True) == pytest.approx([3 / 4, 3 / 4 * 4 / 5, 3 / 4 * 4 / 5 * 5 / 6])
    assert seen.chances(1, 2, 3) == pytest.approx([3 / 4, 9 / 16, 27 / 64])
    for _ in range(60):  # what is copied fails at once or goes on
        seen.tried(1, 2, 0, 8, rising=True)
        seen.tried(1, 2, 8, 8, rising=True)
    first, second, *_, last = seen.chances(2, 2, 8, rising=True)
    assert 0.4 < first < 0.6 and last > 0.85 * first and second > 0.9 * first
    assert seen.chances(2, 2, 8)[-1] < 0.01 and seen.chances(2, 2, 0) == []


def test_each_copied_guess_teaches_of_its_own_strength() -> None:
    seen, one_by_one = Acceptance(), Acceptance()
    seen.tried(1, 3, 2, 8, rising=True)
    for strength, hit in ((3, 1), (4, 1), (5, 0)):
        one_by_one.tried(1, strength, hit, 1)
    assert [seen.rate(1, s) for s in range(9)] == [one_by_one.rate(1, s) for s in range(9)]


def test_rows_that_a_block_of_the_kernel_holds_anyway_are_filled() -> None:
    """Steps of 4 and of 8 rows cost little more than those of 3 and of 6: what was learned of a number of rows goes before the line."""
    blocks = {1: 1.2, 2: 1.1, 3: 0.8, 4: 1.4, 5: 1.3, 6: 1.2, 7: 0.9}
    cost = StepCost(1.0, 1.0, 0.2, blocks)
    assert lengths([alike(0.7, 7)], cost) == [3] and lengths([alike(0.97, 7)], cost) == [7]
    assert lengths([alike(0.7, 2)], StepCost(1.0, 1.0, 0.2, {1: 2.0, 2: 2.0})) == [0]
    assert lengths([alike(0.9, 7)] * 2, StepCost(1.0, 1.0, 0.1, {6: 0.5})) == [3, 3]


def test_off_where_the_predicted_gain_is_below_one() -> None:
    assert lengths([alike(0.1, 8)], StepCost(1.0, 1.0, 0.13)) == [0]
    assert lengths([alike(0.9, 8)], StepCost(1.0, 1.0, 0.13)) == [8]
    assert lengths([alike(0.9, 8)] * 64, StepCost(1.0, 1.0, 1 / 64)) == [0] * 64  # a batch that computes already: a row costs a token
    assert lengths([alike(0.9, 8)], StepCost(1.0, 9.0, 0.1)) == [0]  # wide steps that turned out slow


def test_a_record_outweighs_what_others_did_and_strengths_are_apart() -> None:
    seen = Acceptance()
    for _ in range(40):
        seen.tried(1, 2, 0, 4)
        seen.tried(2, 16, 4, 4)
    assert seen.rate(1, 2) < 0.1 and seen.rate(2, 16) > 0.9
    assert seen.rate(3, 2) < 0.2 and seen.rate(3, 16) > 0.9  # newcomers
    before = seen.rate(1, 2)
    for _ in range(10):
        seen.tried(1, 2, 4, 4)
    assert seen.rate(1, 2) > 0.6 > before
    seen.forget(1)
    assert 0 < seen.rate(1, 2) < 1


def test_only_guesses_up_to_the_first_wrong_one_count() -> None:
    """One right of eight is one right and one wrong: six others were behind a wrong one."""
    seen, twin, wrong = Acceptance(), Acceptance(), Acceptance()
    seen.tried(1, 0, 1, 8)
    twin.tried(1, 0, 1, 2)
    wrong.tried(1, 0, 0, 8)
    assert seen.rate(1, 0) == twin.rate(1, 0) > wrong.rate(1, 0)


def test_before_anything_was_seen_a_rule_speaks_and_no_measurement() -> None:
    """Laplace's rule of succession: s agreements out of s, hence (s + 1) / (s + 2); a bucket begins at its least strength."""
    seen = Acceptance()
    starts = {s: min(t for t in range(s + 1) if bucket(t) == bucket(s)) for s in (0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 99, 1 << 20)}
    assert starts[8] == 5 and starts[1 << 20] == 17
    assert all(seen.rate(1, s) == pytest.approx((least + 1) / (least + 2)) for s, least in starts.items())


def test_a_sequence_that_is_worse_than_others_is_so_at_every_strength() -> None:
    seen = Acceptance()
    for _ in range(6):
        seen.tried(1, 2, 0, 4)
    assert seen.rate(1, 16) < seen.rate(2, 16) and seen.rate(1, 2) < seen.rate(2, 2)


def test_buckets_of_strength() -> None:
    assert [bucket(s) for s in (0, 1, 2, 3, 4, 5, 8, 9, 16, 17, 64, 10**6)] == [0, 1, 2, 3, 4, 5, 5, 6, 6, 7, 7, 7]


def test_what_was_measured_of_a_draft_stands_for_the_rule() -> None:
    seen = Acceptance(0.83)
    assert seen.rate(1, 0) == pytest.approx(0.83) and seen.rate(1, 2) == pytest.approx(3 / 4)
