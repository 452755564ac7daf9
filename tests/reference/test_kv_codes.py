"""What the KV dtypes made of codes do to a row, against their words: one scale per row, groups of 32 with a step and a least."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.backends.reference.pool import round_to


def rows(dim: int, count: int = 200) -> np.ndarray:
    rng = np.random.default_rng(dim)
    x = rng.standard_normal((count, 3, dim)) * rng.uniform(0.01, 30, (count, 3, 1)) + rng.uniform(-5, 5, (count, 1, 1))
    return x.astype(np.float32)


@pytest.mark.parametrize("dim", [1, 20, 32, 64, 72])
def test_int8_is_off_by_half_a_step_of_its_row_at_most(dim: int) -> None:
    x = rows(dim)
    step = np.abs(x).max(-1, keepdims=True) / 127
    error = np.abs(round_to(x, "int8") - x)
    assert (error <= step * (0.5 + 1e-4)).all() and (dim == 1 or error.max() > 0.3 * step.max())


@pytest.mark.parametrize("dim", [1, 20, 32, 64, 72])
def test_int4_is_off_by_half_a_step_of_its_group_and_the_rounding_of_the_halves_at_most(dim: int) -> None:
    x = rows(dim)
    got = round_to(x, "int4")
    for first in range(0, dim, 32):
        part = x[..., first : first + 32]
        low, high = part.min(-1, keepdims=True), part.max(-1, keepdims=True)
        step = (high - low) / 15
        halves = 2.0**-11 * (15 * step + np.abs(low)) + 2.0**-24
        assert (np.abs(got[..., first : first + 32] - part) <= 0.5 * step + halves * 1.01).all()
        assert len(np.unique(got[0, 0, first : first + 32])) <= 16


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_rows_know_nothing_of_each_other(dtype: str) -> None:
    x = rows(64)
    whole = round_to(x, dtype)
    assert all((round_to(x[i, j], dtype) == whole[i, j]).all() for i in (0, 17) for j in range(3))


def test_zeros_and_broken_numbers() -> None:
    x = np.zeros((4, 64), np.float32)
    x[1, 3], x[2, 40], x[3] = np.nan, -np.inf, 1e-35
    int8, int4 = round_to(x, "int8"), round_to(x, "int4")
    assert (int8[0] == 0).all() and (int4[0] == 0).all() and np.isnan(int8[1:3]).all() and (int8[3] == 0).all()
    assert np.isnan(int4[1, :32]).all() and (int4[1, 32:] == 0).all() and np.isnan(int4[2, 32:]).all()
    assert np.isfinite(round_to(np.array([[3e38, -3e38]], np.float32), "int4")).all()
