"""Percentiles, intervals and what may be said of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ridgeline.bench.stats import Ratio, interval_of_mean, interval_of_median, paired_ratio, quantiles, sentence, summary


def test_percentiles_interpolate() -> None:
    found = summary([4.0, 1.0, 3.0, 2.0, 5.0])
    assert found is not None
    assert (found.count, found.mean, found.p50, found.max) == (5, 3.0, 3.0, 5.0)
    assert found.p90 == pytest.approx(4.6) and found.p99 == pytest.approx(4.96)
    assert summary([]) is None


def test_few_values_stay_as_they_are_and_many_become_quantiles() -> None:
    assert quantiles([3.0, 1.0, 2.0], 3) == (1.0, 2.0, 3.0) and quantiles([], 3) == ()
    assert quantiles(np.arange(101.0), 5) == (0.0, 25.0, 50.0, 75.0, 100.0)


def test_a_clear_difference() -> None:
    ratio = paired_ratio([21.0, 20.0, 22.0, 21.0, 20.5], [10.0, 10.0, 10.5, 10.0, 10.2])
    assert ratio.significant and ratio.low < ratio.value < ratio.high
    assert ratio.value == pytest.approx(2.063, abs=0.01)
    text = sentence("ours", "theirs", ratio, higher_is_better=True)
    assert text.startswith("ours is 2.06x theirs, 95% 2.0") and text.endswith("ours is better")
    assert sentence("ours", "theirs", ratio, higher_is_better=False).endswith("theirs is better")


def test_no_difference_is_said_to_be_none() -> None:
    ratio = paired_ratio([1.0, 1.1, 0.9, 1.05, 0.97], [1.02, 1.0, 1.0, 0.98, 1.03])
    assert not ratio.significant
    assert "no significant difference (a / b = " in sentence("a", "b", ratio, higher_is_better=True)


def test_what_disturbs_both_sides_cancels() -> None:
    machine = np.array([1.0, 0.4, 0.9, 0.2, 0.7])
    ratio = paired_ratio(list(30 * machine), list(20 * machine))
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.5, 1.5, 1.5))


@pytest.mark.parametrize("rounds", [1, 2])
def test_too_few_rounds_prove_nothing(rounds: int) -> None:
    ratio = paired_ratio([2.0] * rounds, [1.0] * rounds)
    assert not ratio.significant
    assert "too few to tell" in sentence("a", "b", ratio, higher_is_better=True)


def test_one_inside_the_interval_is_no_difference() -> None:
    assert not Ratio(1.2, 1.0, 1.4, 9).significant
    assert Ratio(1.2, 1.001, 1.4, 9).significant and Ratio(0.8, 0.7, 0.999, 9).significant


@pytest.mark.parametrize("rounds", [3, 5, 8])
def test_intervals_cover_the_truth_as_often_as_they_say(rounds: int) -> None:
    """1,000 experiments with no difference at all: false alarms near 5%, where a bootstrap alone has 27% with 3 rounds."""
    rng = np.random.default_rng(3)
    alarms = 0
    for i in range(1000):
        noise = rng.lognormal(0.0, 0.1, (2, rounds))
        alarms += paired_ratio(list(noise[0]), list(noise[1]), seed=i).significant
    assert alarms / 1000 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1000)


def test_median_intervals() -> None:
    assert interval_of_median([1.0, 2.0]) is None
    found = interval_of_median(np.arange(101.0))
    assert found is not None and 30 < found[0] < 50 < found[1] < 70


@pytest.mark.parametrize("like", [1, 40])
def test_intervals_of_a_mean_cover_it_where_neighbours_are_alike(like: int) -> None:
    """Moving averages of `like` numbers: single values would promise an interval that is several times too narrow."""
    rng = np.random.default_rng(like)
    hits = narrow = 0
    for _ in range(300):
        noise = rng.standard_normal(1600 + like - 1)
        series = np.convolve(noise, np.ones(like) / like, "valid") + 2.0
        found, naive = interval_of_mean(series, 64), interval_of_mean(series)
        assert found is not None and naive is not None
        hits += found[0] <= 2.0 <= found[1]
        narrow += naive[0] <= 2.0 <= naive[1]
    assert 0.87 < hits / 300 < 0.99
    assert (narrow / 300 < 0.5) == (like > 1)


def test_intervals_of_a_mean_need_four_runs() -> None:
    assert interval_of_mean(np.ones(255), 64) is None and interval_of_mean(np.ones(256), 64) == (1.0, 1.0) and interval_of_mean([]) is None
