"""The exact arithmetic and the statistical quality of the counter-based noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ridgeline.sampling import exact

IDS = np.arange(200_000, dtype=np.int32)


def uniforms(seed: int = 0, choice: int = 0, position: int = 0, ids: np.ndarray = IDS) -> np.ndarray:
    """The Gumbel distribution function of the noise: uniform in (0, 1) if the noise is standard Gumbel."""
    return np.exp(-np.exp(-exact.gumbel(exact.noise_key(seed, choice, position), ids)))


def chi_square(counts: np.ndarray) -> float:
    """Standardized chi-square of counts that should be equal: about normal(0, 1)."""
    expected = counts.mean()
    cells = len(counts) - 1
    return float((((counts - expected) ** 2 / expected).sum() - cells) / math.sqrt(2 * cells))


def test_weights_are_exp() -> None:
    x = -np.random.default_rng(0).uniform(0, 31, 100_000).astype(np.float32)
    found, want = exact.weights(x), np.exp(x.astype(np.float64)) * 2.0**43
    inside = x >= -30
    assert (np.abs(found - want)[inside] <= 2e-7 * want[inside] + 0.5).all()
    assert (found[~inside] == 0).all()
    edges = np.array([0, -30, np.nextafter(np.float32(-30), np.float32(-31)), -np.inf], np.float32)
    assert exact.weights(edges).tolist() == [2**43, 1, 0, 0]


def test_log_is_log() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(0, 1, 50_000), 1 - rng.uniform(0, 1e-12, 1000), 2.0 ** rng.uniform(-53, 60, 50_000)])
    x = x[(x > 0) & (x != 1)]
    assert (np.abs(exact.log(x) - np.log(x)) <= 4e-16 * np.abs(np.log(x))).all()
    assert exact.log(np.array([1.0]))[0] == 0


def test_noise_is_a_known_function() -> None:
    """Golden values: a change here changes every seeded answer of every user."""
    assert exact._mix(exact._GOLDEN) == 0xE220A8397B1DCDAF  # the first number of SplitMix64 from state 0, as published
    assert exact.noise_key(0, 0, 0) == 15325599209691900401
    assert exact.noise_key(42, 1, 7) == exact.noise_key(42 + 2**64, 1, 7)
    first = exact.gumbel(exact.noise_key(42, 0, 7), np.arange(3, dtype=np.int32))
    h = exact._mix(exact.noise_key(42, 0, 7) + exact._GOLDEN)
    assert first[0] == pytest.approx(-math.log(-math.log(((h >> 12) + 0.5) / 2**52)), rel=1e-14)


@pytest.mark.parametrize("seed", [0, 1, 42, -1, 2**63, 2**64 - 2])
def test_noise_is_gumbel_over_ids(seed: int) -> None:
    u = uniforms(seed)
    assert abs(chi_square(np.bincount((u * 500).astype(int), minlength=500))) < 5
    g = exact.gumbel(exact.noise_key(seed, 0, 0), IDS)
    assert g.mean() == pytest.approx(0.57722, abs=5 * 1.2825 / math.sqrt(len(IDS)))
    assert g.std() == pytest.approx(math.pi / math.sqrt(6), rel=0.01)
    assert g.max() < 37 and g.min() > -4


def test_noise_is_uniform_over_each_key_part() -> None:
    """One id, counters 0, 1, 2, ... in one of the three key parts: neighbours must not resemble one another."""
    one = np.array([17], np.int32)
    for part in ("seed", "choice", "position"):
        u = np.array([uniforms(**{part: i}, ids=one)[0] for i in range(5000)])
        assert abs(chi_square(np.bincount((u * 50).astype(int), minlength=50))) < 5
        assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 5 / math.sqrt(len(u))


@pytest.mark.parametrize("other", [{"seed": 1}, {"choice": 1}, {"position": 1}, {"position": -1}, {"seed": 2**63}])
def test_streams_are_independent(other: dict[str, int]) -> None:
    """Two keys that differ in one part: uncorrelated, jointly uniform, at equal ids and at shifted ids."""
    a, b = uniforms(), uniforms(**other)
    for shift in (0, 1, 7):
        x, y = a[shift:], b[: len(b) - shift]
        assert abs(np.corrcoef(x, y)[0, 1]) < 5 / math.sqrt(len(x))
        cells = (x * 20).astype(int) * 20 + (y * 20).astype(int)
        assert abs(chi_square(np.bincount(cells, minlength=400))) < 5


def test_consecutive_ids_are_independent() -> None:
    u = uniforms(3)
    for lag in (1, 2, 3, 16, 64, 4096):
        cells = (u[lag:] * 20).astype(int) * 20 + (u[:-lag] * 20).astype(int)
        assert abs(chi_square(np.bincount(cells, minlength=400))) < 5


def test_swapped_key_parts_differ() -> None:
    keys = {exact.noise_key(*parts) for parts in [(1, 2, 3), (2, 1, 3), (3, 2, 1), (1, 3, 2), (0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]}
    assert len(keys) == 8
