"""Row-wise kernels against float64: a few units in the last place, no NaN for large inputs, the same for every lane and tail."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from tests.cpu.rowwise import Floats, run

from ridgeline.backends.cpu import _native
from ridgeline.backends.cpu.program import ISAS
from ridgeline.graph.ops import Activation, ActivationKind, Add, GatedActivation, Mul, Op, RmsNorm, Scale, Softcap
from ridgeline.types import Isa

HERE: tuple[Isa, ...] = ISAS[: _native.best_isa() + 1]
Doubles = npt.NDArray[np.float64]


def erfc(x: Doubles) -> Doubles:
    return np.vectorize(math.erfc, otypes=[np.float64])(x)


EXACT: dict[ActivationKind, Callable[[Doubles], Doubles]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu_tanh": lambda x: x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu": lambda x: 0.5 * x * erfc(-x / math.sqrt(2)),
    "relu": lambda x: np.maximum(x, 0),
}


def ulps(got: Floats, want: Doubles, size: Doubles | Floats | None = None) -> float:
    """Largest error in units of the last place of the true value, or of `size` where that is larger."""
    unit = np.spacing(np.maximum(np.abs(want), 1e-30 if size is None else np.abs(size)).astype(np.float32)).astype(np.float64)
    return float((np.abs(got - want) / unit).max())


def spread(low: float, high: float, n: int = 7001) -> Floats:
    return np.concatenate([np.linspace(low, high, n), np.linspace(-1e-3, 1e-3, 101)]).astype(np.float32)[None]


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("kind", ["silu", "gelu_tanh", "gelu", "relu"])
def test_activations(kind: ActivationKind, isa: Isa) -> None:
    """Two units of the result; of x for gelu, whose negative tail is a product with a number that cancels to almost nothing."""
    x = spread(-8, 12)
    got = run(x, lambda out, v: Activation(out, v, kind), isa)
    want = EXACT[kind](x.astype(np.float64))
    assert ulps(got, want, x if kind.startswith("gelu") else None) <= 2


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("kind", ["silu", "gelu_tanh", "gelu", "relu"])
def test_activations_of_large_numbers(kind: ActivationKind, isa: Isa) -> None:
    x = np.array([[-3e38, -65504, -1e4, -200, -88, -0.0, 0.0, 88, 200, 1e4, 65504]], np.float32)
    got = run(x, lambda out, v: Activation(out, v, kind), isa)
    with np.errstate(over="ignore"):
        want = np.where(x > 0, x, 0)
    assert np.allclose(got, want, atol=1e-30, rtol=1e-6)


@pytest.mark.parametrize("isa", HERE)
def test_softcap(isa: Isa) -> None:
    """AR-05: tends to +-cap, never NaN, and is the same function for scores of any size."""
    x = np.array([[0, 100, 4399, 4401, 1e4, -1e4, 65504, np.inf, -np.inf, 3e38, -0.0]], np.float32)
    got = run(x, lambda out, v: Softcap(out, v, 50.0), isa)
    assert np.abs(got - 50 * np.tanh(x.astype(np.float64) / 50)).max() <= 50 * 2**-22
    assert got[0, 7] == 50 and got[0, 8] == -50
    wide = spread(-200, 200)
    assert ulps(run(wide, lambda out, v: Softcap(out, v, 30.0), isa), 30 * np.tanh(wide.astype(np.float64) / 30)) <= 5


@pytest.mark.parametrize("isa", HERE)
def test_nan_stays_nan(isa: Isa) -> None:
    """QN-03: a broken row must be seen, and must not spread to other rows."""
    x = np.ones((3, 21), np.float32)
    x[1, 20] = np.nan
    ops: list[Callable[[str, str], Op]] = [
        lambda out, v: Softcap(out, v, 30.0),
        lambda out, v: Activation(out, v, "silu"),
        lambda out, v: Activation(out, v, "gelu_tanh"),
        lambda out, v: Activation(out, v, "gelu"),
        lambda out, v: RmsNorm(out, v, "w", 21, 1e-5),
    ]
    for op in ops:
        got = run(x, op, isa, {"w": np.ones(21, np.float32)})
        assert np.isnan(got[1, 20]) and np.isfinite(got[[0, 2]]).all()


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("width", [1, 7, 8, 15, 16, 17, 64, 96, 129])
def test_any_width_and_lane(isa: Isa, width: int) -> None:
    """A value gives the same bits in every lane, tails included."""
    x = np.random.default_rng(0).standard_normal((3, width)).astype(np.float32) * 4
    for op in (
        lambda out, v: Activation(out, v, "silu"),
        lambda out, v: GatedActivation(out, v, v, "gelu_tanh"),
        lambda out, v: Softcap(out, v, 2.0),
        lambda out, v: Mul(out, v, v),
        lambda out, v: Add(out, v, v),
        lambda out, v: Scale(out, v, 0.3),
    ):
        alone = run(x.reshape(-1, 1), op, isa)
        assert (run(x, op, isa).reshape(-1, 1).view(np.uint32) == alone.view(np.uint32)).all()


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize(("dim", "groups"), [(576, 1), (5, 3), (64, 4), (33, 2)])
def test_norm(isa: Isa, dim: int, groups: int) -> None:
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((4, dim * groups)).astype(np.float32) * 3, rng.standard_normal(dim).astype(np.float32)
    got = run(x, lambda out, v: RmsNorm(out, v, "w", dim, 1e-6, groups), isa, {"w": w})
    parts = x.astype(np.float64).reshape(4, groups, dim)
    want = parts / np.sqrt((parts**2).mean(axis=-1, keepdims=True) + 1e-6) * w
    assert ulps(got, want.reshape(4, -1)) <= 4


@pytest.mark.parametrize("threads", [1, 3])
def test_many_rows_on_threads(threads: int) -> None:
    x = np.random.default_rng(2).standard_normal((257, 40)).astype(np.float32)
    got = run(x, lambda out, v: Scale(out, v, 2.0), HERE[-1], threads=threads)
    assert (got == x * 2).all()
