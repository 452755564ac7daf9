"""Honest statistics: percentiles, bootstrap intervals of a ratio, and the plain sentence that may be said about it. Knows no metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
PERCENTILES = (50, 90, 95, 99)
RESAMPLES = 4000
MIN_ROUNDS = 3
# Two-sided 95% quantiles of Student's t for 1, 2, ... degrees of freedom; the normal's beyond.
_T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101,
         2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Summary:
    """Of a list of numbers, in their unit. Percentiles interpolate linearly between the two nearest values."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


def summary(values: Sequence[float] | Floats) -> Summary | None:
    """None of nothing."""
    if len(values) == 0:
        return None
    found = np.asarray(values, np.float64)
    p50, p90, p95, p99 = (float(c) for c in np.percentile(found, PERCENTILES))
    return Summary(len(found), float(found.mean()), p50, p90, p95, p99, float(found.max()))


def rate(count: float, seconds: float) -> float | None:
    """None where no time passed."""
    return count / seconds if seconds > 0 else None


def quantiles(values: Sequence[float] | Floats, most: int) -> tuple[float, ...]:
    """All values in order; of more than `most` so many evenly spaced quantiles, the least and the greatest among them."""
    found = np.sort(np.asarray(values, np.float64)) if len(values) <= most else np.quantile(values, np.linspace(0.0, 1.0, most))
    return tuple(float(v) for v in found)


@dataclass(frozen=True, slots=True)
class Ratio:
    """A over B with its 95% interval, from `rounds` pairs."""

    value: float
    low: float
    high: float
    rounds: int

    @property
    def significant(self) -> bool:
        return self.rounds >= MIN_ROUNDS and not self.low <= 1.0 <= self.high


def paired_ratio(a: Sequence[float], b: Sequence[float], seed: int = 0) -> Ratio:
    """Geometric mean of a[i] / b[i] and its bootstrap interval. a[i], b[i] > 0: one metric in turn i of two systems.

    Rounds are resampled in pairs, so that what both sides suffered in a turn cancels. With few rounds a percentile interval is too
    narrow: its tails are widened as far as Student's t is wider than the normal (Hesterberg 2015, "expanded percentile"), and since no
    resample can leave the range of what was seen, the t interval is taken where it is wider still.
    """
    logs = np.log(np.asarray(a, np.float64) / np.asarray(b, np.float64))
    count = len(logs)
    if count == 0:
        raise ValueError("no pairs")
    center = float(logs.mean())
    if count == 1:
        return Ratio(math.exp(center), 0.0, math.inf, 1)
    rng = np.random.default_rng(seed)
    means = logs[rng.integers(0, count, (RESAMPLES, count))].mean(axis=1)
    t = _t975(count - 1)
    tail = NormalDist().cdf(-t * math.sqrt(count / (count - 1)))
    low, high = np.quantile(means, (tail, 1 - tail))
    reach = t * float(logs.std(ddof=1)) / math.sqrt(count)
    return Ratio(math.exp(center), math.exp(min(float(low), center - reach)), math.exp(max(float(high), center + reach)), count)


def interval_of_median(values: Sequence[float] | Floats, seed: int = 0) -> tuple[float, float] | None:
    """95% bootstrap interval of the median; None below 5 values."""
    found = np.asarray(values, np.float64)
    if len(found) < 5:
        return None
    rng = np.random.default_rng(seed)
    medians = np.median(found[rng.integers(0, len(found), (1000, len(found)))], axis=1)
    low, high = np.quantile(medians, (0.025, 0.975))
    return float(low), float(high)


def interval_of_mean(values: Sequence[float] | Floats, run: int = 1) -> tuple[float, float] | None:
    """95% interval of the mean of a series whose neighbours are alike: Student's t on the means of runs of at least `run` values ("batch
    means"), which are nearly independent where runs are longer than the likeness reaches. None below 4 runs."""
    found = np.asarray(values, np.float64)
    count = len(found) // max(1, run)
    if count < 4:
        return None
    parts = np.array_split(found, count)
    means, sizes = np.array([part.mean() for part in parts]), np.array([len(part) for part in parts])
    center = float(found.mean())
    variance = float((sizes * np.square(means - center)).sum()) / (count - 1) / len(found)
    reach = _t975(count - 1) * math.sqrt(variance)
    return center - reach, center + reach


def _t975(freedom: int) -> float:
    return _T975[freedom - 1] if freedom <= len(_T975) else 1.96


def sentence(a: str, b: str, ratio: Ratio, *, higher_is_better: bool) -> str:
    """What may be said: `A is 2.1x B, 95% 1.9-2.3`, or `no significant difference` where 1 is inside."""
    numbers = f"95% {_times(ratio.low)}-{_times(ratio.high)}"
    if ratio.rounds < MIN_ROUNDS:
        return f"{ratio.rounds} rounds are too few to tell ({a} / {b} = {_times(ratio.value)})"
    if not ratio.significant:
        return f"no significant difference ({a} / {b} = {_times(ratio.value)}, {numbers})"
    better = (ratio.value > 1) == higher_is_better
    return f"{a} is {_times(ratio.value)}x {b}, {numbers}, {ratio.rounds} rounds: {a if better else b} is better"


def _times(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}"
