"""Golden numbers of the lecture and the workshop: acceptance rows 18-21, 27-31, 34, 35, 39-44."""

from __future__ import annotations

import pytest

from ridgeline.planner import formulas as f
from ridgeline.planner.catalog import models

H100 = 3.35e12
DENSE = {name: row for name, row in models().items() if row.text("params_dense_formula_B")}
SHAPE = ("vocab", "d_model", "ff_dense", "layers", "n_heads", "n_kv_heads", "head_dim")


def test_matmul_is_exact() -> None:
    assert f.matmul(3, 5, 7) == f.Formula(2 * 3 * 5 * 7, 2 * (3 * 5 + 5 * 7 + 3 * 7))
    # Row 22: a matrix-vector product does one FLOP per byte.
    assert f.matmul(1, 4096, 14336).intensity == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("B, intensity", [(1, 1.0), (8, 8.0), (64, 62.8), (295, 270.0), (4096, 1792.0)])
def test_intensity_tends_to_the_batch(B: int, intensity: float) -> None:
    D, F = 4096, 14336
    found = f.matmul(B, D, F).intensity
    assert found == pytest.approx(1 / (1 / B + 1 / D + 1 / F))
    assert found == pytest.approx(intensity, rel=3e-3)
    assert found < B


def test_ridges() -> None:
    assert f.ridge(989e12, H100) == pytest.approx(295.2, abs=0.05)
    assert f.ridge(312e12, 2.039e12) == pytest.approx(153, abs=0.05)


def test_gated_mlp() -> None:
    B, T, D, F = 2, 3, 64, 256
    assert f.gated_mlp(B, T, D, F) == f.Formula(6 * B * T * D * F, 4 * B * T * D + 4 * B * T * F + 6 * D * F)
    assert f.gated_mlp(1, 1, 4096, 14336).intensity == pytest.approx(1, rel=1e-3)  # -> BT


@pytest.mark.parametrize("B", [1, 7, 256])
def test_attention_intensity_knows_no_batch(B: int) -> None:
    S, D = 1024, 5120
    prefill, decode = f.attention(B, S, S, 40, 40, 128), f.attention(B, S, 1, 40, 40, 128)
    assert prefill == f.Formula(4 * B * S * S * D, 4 * B * S * D + 4 * B * S * D)
    assert prefill.intensity == S / 2
    assert decode.intensity == pytest.approx(S / (S + 1))
    assert decode.intensity < 1


def test_attention_intensity_that_does_rise() -> None:
    """Contradiction C4: grouped queries give about G, absorbed latent attention about 242."""
    assert f.attention(1, 8192, 1, 64, 8, 128).intensity == pytest.approx(8, rel=2e-3)
    assert f.latent_attention(4096, 128, 512, 64).intensity == pytest.approx(241.8, abs=0.05)


@pytest.mark.parametrize("model", DENSE)
def test_parameter_formula(model: str) -> None:
    row = DENSE[model]
    found = f.dense_parameters(*(row.whole(column) for column in SHAPE), tied=row.text("tied_emb") == "Y")
    assert found / 1e9 == pytest.approx(row.number("params_dense_formula_B"), rel=1e-3, abs=6e-4)


LLAMA13 = {40: (13_015_449_600, 838_860_800), 8: (11_337_728_000, 167_772_160)}
# K, B -> memory in GB, step in ms, tokens per second
TABLE = [
    (40, 1, 26.87, 8.02, 124.7), (40, 64, 79.72, 23.80, 2689), (40, 256, 240.78, 71.87, 3562),
    (8, 1, 22.84, 6.82, 146.7), (8, 64, 33.41, 9.97, 6417), (8, 256, 65.63, 19.59, 13068),
]  # fmt: skip


@pytest.mark.parametrize("K", LLAMA13)
def test_llama_13b_sizes(K: int) -> None:
    assert f.dense_parameters(32000, 5120, 13824, 40, 40, K, 128) == LLAMA13[K][0]
    assert f.kv_bytes(1024, K, 128, 40) == LLAMA13[K][1]


@pytest.mark.parametrize("K, B, gigabytes, ms, rate", TABLE)
def test_llama_13b_decode(K: int, B: int, gigabytes: float, ms: float, rate: float) -> None:
    params, kv = LLAMA13[K]
    assert (2 * params + B * kv) / 1e9 == pytest.approx(gigabytes, abs=0.006)
    seconds = f.decode_seconds(2 * params, kv, B, H100)
    assert seconds * 1e3 == pytest.approx(ms, abs=0.006)
    assert B / seconds == pytest.approx(rate, rel=4e-4)


def test_decode_asymptote() -> None:
    assert f.decode_asymptote(838_860_800, H100) == pytest.approx(3993.5, abs=0.05)
    assert f.decode_asymptote(167_772_160, H100) == pytest.approx(19967.6, abs=0.05)


def test_naive_decode_grows_with_the_square() -> None:
    """Row 23: without a cache every token recomputes the sequence."""
    assert f.naive_decode_rows(3, 4) == 3 + 4 + 5 + 6
    assert f.naive_decode_rows(0, 2000) / f.naive_decode_rows(0, 1000) == pytest.approx(4, rel=2e-3)
