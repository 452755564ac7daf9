"""Golden numbers of the lecture and the workshop: acceptance rows 18-21, 27-31, 34, 35, 39-44."""

from __future__ import annotations

import pytest

from ridgeline.planner import formulas as f

H100 = 3.35e12
# V, D, F, L, N, K, H, tied, published total in billions: every dense row of the shared models.csv whose layers are all attention + MLP
DENSE = {
    "Llama-2-7B": (32000, 4096, 11008, 32, 32, 32, 128, False, 6.738),
    "Llama-2-13B": (32000, 5120, 13824, 40, 40, 40, 128, False, 13.015),
    "Llama-2-70B": (32000, 8192, 28672, 80, 64, 8, 128, False, 68.975),
    "Llama-3.2-1B": (128256, 2048, 8192, 16, 32, 8, 64, True, 1.236),
    "Llama-3.2-3B": (128256, 3072, 8192, 28, 24, 8, 128, True, 3.213),
    "Llama-3.1-8B": (128256, 4096, 14336, 32, 32, 8, 128, False, 8.03),
    "Llama-3.1-70B": (128256, 8192, 28672, 80, 64, 8, 128, False, 70.552),
    "Llama-3.1-405B": (128256, 16384, 53248, 126, 128, 8, 128, False, 405.849),
    "Mistral-7B-v0.1": (32000, 4096, 14336, 32, 32, 8, 128, False, 7.241),
    "Mistral-7B-v0.3 (no window)": (32768, 4096, 14336, 32, 32, 8, 128, False, 7.248),
    "Qwen2.5-0.5B": (151936, 896, 4864, 24, 14, 2, 64, True, 0.494),
    "Qwen2.5-1.5B": (151936, 1536, 8960, 28, 12, 2, 128, True, 1.544),
    "Qwen2.5-3B": (151936, 2048, 11008, 36, 16, 2, 128, True, 3.086),
    "Qwen2.5-7B": (152064, 3584, 18944, 28, 28, 4, 128, False, 7.615),
    "Qwen2.5-14B": (152064, 5120, 13824, 48, 40, 8, 128, False, 14.769),
    "Qwen2.5-32B": (152064, 5120, 27648, 64, 40, 8, 128, False, 32.763),
    "Qwen2.5-72B": (152064, 8192, 29568, 80, 64, 8, 128, False, 72.704),
    "Qwen3-0.6B": (151936, 1024, 3072, 28, 16, 8, 128, True, 0.596),
    "Qwen3-1.7B": (151936, 2048, 6144, 28, 16, 8, 128, True, 1.72),
    "Qwen3-4B": (151936, 2560, 9728, 36, 32, 8, 128, True, 4.022),
    "Qwen3-8B": (151936, 4096, 12288, 36, 32, 8, 128, False, 8.19),
    "Qwen3-14B": (151936, 5120, 17408, 40, 40, 8, 128, False, 14.768),
    "Qwen3-32B": (151936, 5120, 25600, 64, 64, 8, 128, False, 32.761),
    "Gemma-2-2B": (256000, 2304, 9216, 26, 8, 4, 256, True, 2.614),
    "Gemma-2-9B": (256000, 3584, 14336, 42, 16, 8, 256, True, 9.241),
    "Gemma-2-27B": (256000, 4608, 36864, 46, 32, 16, 128, True, 27.226),
    "Gemma-3-270M": (262144, 640, 2048, 18, 4, 1, 256, True, 0.268),
    "Gemma-3-1B": (262144, 1152, 6912, 26, 4, 1, 256, True, 1.0),
    "Gemma-3-4B": (262144, 2560, 10240, 34, 8, 4, 256, True, 3.88),
    "Gemma-3-12B": (262144, 3840, 15360, 48, 16, 8, 256, True, 11.765),
    "Gemma-3-27B": (262144, 5376, 21504, 62, 32, 16, 128, True, 27.008),
    "Phi-3-mini-4k": (32064, 3072, 8192, 32, 32, 32, 96, False, 3.821),
    "Phi-3-medium": (32064, 5120, 17920, 40, 40, 10, 128, False, 13.96),
    "Phi-4": (100352, 5120, 17920, 40, 40, 10, 128, False, 14.659),
    "SmolLM2-135M": (49152, 576, 1536, 30, 9, 3, 64, True, 0.134),
    "SmolLM2-360M": (49152, 960, 2560, 32, 15, 5, 64, True, 0.362),
    "SmolLM2-1.7B": (49152, 2048, 8192, 24, 32, 32, 64, True, 1.711),
    "SmolLM3-3B": (128256, 2048, 11008, 36, 16, 4, 128, True, 3.075),
}


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
    V, D, F, L, N, K, H, tied, billions = DENSE[model]
    assert f.dense_parameters(V, D, F, L, N, K, H, tied=tied) / 1e9 == pytest.approx(billions, rel=1e-3, abs=6e-4)


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
