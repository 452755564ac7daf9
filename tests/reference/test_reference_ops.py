"""The op definitions against small numbers worked out by hand, and their edges (AR-05: no NaN from large values)."""

from __future__ import annotations

import math

import numpy as np
import pytest

import ridgeline.backends.reference.ops as f
from ridgeline.backends.reference.pool import KvPool, round_to
from ridgeline.graph.caches import Paged


def rows(*values: list[float]) -> f.Array:
    return np.asarray(values, np.float32)


@pytest.mark.parametrize("cap", [30.0, 50.0])
def test_softcap_tends_to_the_cap_and_never_to_nan(cap: float) -> None:
    x = rows([0.0, 100.0, 4399.0, 4401.0, 1e4, -1e4, 65504.0, math.inf, -math.inf])[0]
    y = f.softcap(x, cap)
    assert not np.isnan(y).any()
    assert y[0] == 0
    assert y[1] == pytest.approx(cap * math.tanh(100 / cap), rel=1e-6)
    assert list(y[2:]) == [cap, cap, cap, -cap, cap, cap, -cap]


def test_rms_norm_by_hand_and_per_group() -> None:
    x = rows([3.0, 4.0, 0.0, 1.0])
    whole = f.rms_norm(x, rows([1.0, 2.0, 3.0, 4.0])[0], 0.0)
    assert whole[0] == pytest.approx(np.array([3, 8, 0, 4]) / math.sqrt(26 / 4), rel=1e-6)
    grouped = f.rms_norm(x, rows([1.0, 2.0])[0], 0.0, groups=2)
    assert grouped[0] == pytest.approx([3 / math.sqrt(12.5), 8 / math.sqrt(12.5), 0, 2 / math.sqrt(0.5)], rel=1e-6)


def test_rms_norm_survives_large_and_zero_rows() -> None:
    y = f.rms_norm(rows([1e30, -1e30], [0.0, 0.0]), rows([1.0, 1.0])[0], 1e-6)
    assert y.tolist() == [[1.0, -1.0], [0.0, 0.0]]


def test_rope_turns_pairs_i_and_i_plus_r_and_passes_the_rest() -> None:
    x = rows([1.0, 2.0, 0.0, 0.0, 9.0], [1.0, 2.0, 0.0, 0.0, 9.0])
    y = f.rope(x, np.array([0, 3]), 1, (0.5, 0.25), 2.0)
    assert y[0].tolist() == [2.0, 4.0, 0.0, 0.0, 9.0]
    assert y[1] == pytest.approx([2 * math.cos(1.5), 4 * math.cos(0.75), 2 * math.sin(1.5), 4 * math.sin(0.75), 9.0], rel=1e-6)


def test_rope_scores_depend_on_distance_only() -> None:
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 1, 8)).astype(np.float32)
    freq = (1.0, 0.3, 0.1, 0.03)
    near = f.rope(q, np.array([7]), 1, freq, 1.0) @ f.rope(k, np.array([4]), 1, freq, 1.0).T
    far = f.rope(q, np.array([107]), 1, freq, 1.0) @ f.rope(k, np.array([104]), 1, freq, 1.0).T
    assert near == pytest.approx(far, abs=1e-4)


@pytest.mark.parametrize(("kind", "at_one"), [("silu", 0.7310586), ("gelu", 0.8413447), ("gelu_tanh", 0.8411920), ("relu", 1.0)])
def test_activations(kind: f.ActivationKind, at_one: float) -> None:
    with np.errstate(over="raise", invalid="raise"):
        y = f.activation(rows([1.0, 0.0, -1e4, 1e4, 3e38, -3e38]), kind)
    assert y[0, 0] == pytest.approx(at_one, rel=1e-6)
    assert y[0, 1:].tolist() == [0.0, 0.0, 1e4, np.float32(3e38), 0.0]
    assert y.dtype == np.float32


def test_attend_by_hand_with_a_mask_and_a_cap() -> None:
    q, k = rows([1.0, 0.0]), rows([2.0, 0.0], [0.0, 5.0], [100.0, 0.0])
    v = rows([1.0, 0.0], [0.0, 1.0], [7.0, 7.0])
    seen = np.array([[True, True, False]])
    share = math.exp(1.0) / (math.exp(1.0) + 1)
    assert f.attend(q, k, v, seen, 0.5, None)[0] == pytest.approx([share, 1 - share], rel=1e-6)
    capped = math.exp(3 * math.tanh(1 / 3))
    assert f.attend(q, k, v, seen, 0.5, 3.0)[0] == pytest.approx([capped / (capped + 1), 1 / (capped + 1)], rel=1e-6)


def test_embed_and_select_rows() -> None:
    weight = rows([0.0, 1.0], [2.0, 3.0], [4.0, 5.0])
    x = f.embed(np.array([2, 0, 1, 2], np.int32), weight, 2.0)
    assert x.tolist() == [[8, 10], [0, 2], [4, 6], [8, 10]]
    assert f.select_rows(x, [(1, 1), (2, 0), (1, 1)]).tolist() == [[8, 10], [8, 10]]
    assert f.select_rows(x, [(4, 3)]).tolist() == x[1:].tolist()
    assert f.select_rows(x, [(4, 0)]).shape == (0, 2)


def test_rounding_to_bf16_is_to_nearest_even_and_keeps_specials() -> None:
    x = rows([1.0, 1.00390625, 1.01171875, -1.0039065, 3.4e38, math.inf, math.nan, 0.0])[0]
    y = round_to(x, "bf16")
    assert y[:4].tolist() == [1.0, 1.0, 1.015625, -1.0078125]
    assert y[4] == math.inf  # above the largest bf16 by more than half a step
    assert y[5] == math.inf
    assert np.isnan(y[6])
    assert not np.isinf(round_to(rows([math.nan]), "bf16")).any()


def test_rounding_to_f16_and_f32() -> None:
    assert round_to(rows([1.0004883, 70000.0]), "f16").tolist() == [[1.0, math.inf]]
    assert round_to(rows([1.0000001]), "f32").tolist() == rows([1.0000001]).tolist()


def test_pool_starts_as_nan_copies_blocks_and_aliases_values() -> None:
    pool = KvPool(Paged("kv", 1, 3, 2, v_aliases_k=True), blocks=4, block_size=2, dtype="f32")
    assert np.isnan(pool.keys).all()
    table = np.array([3, 1], np.int32)
    pool.write(table, np.array([1, 2]), rows([1, 2, 3], [4, 5, 6]), rows([0, 0], [0, 0]))
    keys, values = pool.read(table, np.array([1, 2]))
    assert keys[:, 0].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert values[:, 0].tolist() == [[1, 2], [4, 5]]
    pool.copy_block(3, 0)
    assert pool.read(np.array([0], np.int32), np.array([1]))[0].tolist() == [[[1, 2, 3]]]
    assert np.isnan(pool.keys[0, 0]).all()
