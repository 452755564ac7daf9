"""Bytes of KV against golden numbers (facts/formulas.md section 6, facts/models.csv)."""

from __future__ import annotations

import pytest

from ridgeline.errors import UserError
from ridgeline.graph.caches import Cache, Paged, State, cache_groups
from ridgeline.kv.layout import (
    KvFormat,
    bf16_pairs,
    block_bytes,
    blocks_needed,
    bytes_per_token,
    group_block_bytes,
    peak_blocks,
    sequence_bytes,
    state_bytes,
    window_bytes,
)


def dense(layers: int, heads: int, dim: int, windowed: int = 0, window: int | None = None) -> list[Cache]:
    full: list[Cache] = [Paged(f"full{i}", heads, dim, dim) for i in range(layers)]
    return full + [Paged(f"win{i}", heads, dim, dim, window) for i in range(windowed)]


def latent(layers: int, rank: int, rope: int) -> list[Cache]:
    return [Paged(f"mla{i}", 1, rank + rope, rank, None, True) for i in range(layers)]


# model -> caches, bf16 bytes per token at long context, fixed bytes of windows, state elements
GOLDEN = {
    "Llama-2-13B": (dense(40, 40, 128), 819_200, 0),
    "Llama-3.1-8B": (dense(32, 8, 128), 131_072, 0),
    "Llama-3.1-405B": (dense(126, 8, 128), 516_096, 0),
    "Mistral-7B-v0.1": (dense(0, 8, 128, 32, 4096), 0, 536_870_912),
    "SmolLM2-135M": (dense(30, 3, 64), 23_040, 0),
    "Qwen2.5-7B": (dense(28, 4, 128), 57_344, 0),
    "Qwen3-0.6B": (dense(28, 8, 128), 114_688, 0),
    "Phi-3-mini-4k": (dense(32, 32, 96), 393_216, 0),
    "Gemma-2-9B": (dense(21, 8, 256, 21, 4096), 172_032, 704_643_072),
    "Gemma-3-270M": (dense(3, 1, 256, 15, 512), 3_072, 7_864_320),
    "Gemma-3-27B": (dense(10, 16, 128, 52, 1024), 81_920, 436_207_616),
    "gpt-oss-120b": (dense(18, 8, 64, 18, 128), 36_864, 4_718_592),
    "DeepSeek-V2": (latent(60, 512, 64), 69_120, 0),
    "DeepSeek-V3": (latent(61, 512, 64), 70_272, 0),
    "DeepSeek-V3.2": ([*latent(61, 512, 64), *(Paged(f"index{i}", 1, 128, 0) for i in range(61))], 85_888, 0),
    "Gemma-4-26B-A4B": ([*(Paged(f"g{i}", 2, 512, 512, None, True) for i in range(5)), *dense(0, 1, 1, 25, 1024)], 10_240, None),
    "Qwen3-Next-80B": ([*dense(12, 2, 256), State("delta", (19_759_104,))], 24_576, 0),
    "Jamba-v0.1": ([*dense(4, 8, 128), State("mamba", (4_587_520,))], 16_384, 0),
    "Falcon-Mamba-7B": ([State(f"s{i}", (8192, 20)) for i in range(64)], 0, 0),
}


def test_which_numbers_are_multiplied_in_pairs_of_bfloat16() -> None:
    plain, odd, mla = Paged("a", 2, 64, 64), Paged("b", 2, 7, 7), Paged("c", 1, 576, 512, v_aliases_k=True)
    assert [bf16_pairs(c, "bf16") for c in (plain, odd, mla)] == [(True, True), (False, True), (True, False)]
    assert [bf16_pairs(c, "int8") for c in (plain, odd, mla)] == [(True, True), (False, True), (True, False)]
    assert (bf16_pairs(plain, "bf16/int4"), bf16_pairs(plain, "f16/int8")) == ((True, False), (False, True))
    assert {bf16_pairs(plain, d) for d in ("f32", "f16", "int4")} == {(False, False)}
    assert bf16_pairs(plain, KvFormat("bf16", 16)) == (True, True) and bf16_pairs(plain, KvFormat("fp8", 8)) == (False, False)


@pytest.mark.parametrize("model", GOLDEN)
def test_bytes_per_token_and_windows_equal_the_fact_sheet(model: str) -> None:
    caches, per_token, windows = GOLDEN[model]
    assert bytes_per_token(caches, "bf16", beyond_windows=True) == per_token
    assert bytes_per_token(caches, "f32", beyond_windows=True) == 2 * per_token
    if windows is not None:
        assert window_bytes(caches, "bf16") == windows


@pytest.mark.parametrize("model", [m for m in GOLDEN if GOLDEN[m][2] is not None])
@pytest.mark.parametrize("tokens", [1, 127, 4096, 20_000])
def test_a_sequence_is_its_tokens_with_windows_saturated(model: str, tokens: int) -> None:
    caches = GOLDEN[model][0]
    expected = state_bytes(caches)
    expected += sum(
        2 * c.kv_heads * (c.k_dim + (0 if c.v_aliases_k else c.v_dim)) * (tokens if c.window is None else min(tokens, c.window))
        for c in caches
        if isinstance(c, Paged)
    )
    assert sequence_bytes(caches, "bf16", 1, tokens) == expected
    rounding = sum(2 * group_block_bytes(g, 16, "bf16") for g in cache_groups(caches))
    assert expected <= sequence_bytes(caches, "bf16", 16, tokens) <= expected + rounding


def test_golden_numbers_of_the_formula_sheet() -> None:
    mistral = dense(32, 8, 128)
    assert sequence_bytes(mistral, "bf16", 16, 4096) == 536_870_912
    assert 80 * sequence_bytes(mistral, "f16", 16, 4096) == pytest.approx(42.95e9, rel=1e-4)
    assert int((80e9 - 22.5e9) / sequence_bytes(mistral, "bf16", 16, 4096)) == 107
    assert bytes_per_token(latent(1, 512, 64), "bf16") == 576 * 2
    ratios = [bytes_per_token(dense(1, heads, 128), "bf16") / bytes_per_token(latent(1, 512, 64), "bf16") for heads in (128, 32, 8)]
    assert ratios == [pytest.approx(r, rel=1e-2) for r in (56.9, 14.2, 3.56)]
    assert sequence_bytes(dense(40, 40, 128), "bf16", 16, 8192) == pytest.approx(6.7e9, rel=2e-3)
    assert state_bytes([State("delta", (36, 32, 128, 128))]) == 4 * 36 * 32 * 128 * 128
    crossover = state_bytes(GOLDEN["Qwen3-Next-80B"][0]) / 24_576
    assert crossover == pytest.approx(3_200, rel=0.02)


def test_quantized_formats_pay_for_their_scales() -> None:
    cache = Paged("layer", 8, 128, 128)
    assert block_bytes(cache, 16, "bf16") == 16 * 8 * 256 * 2
    assert block_bytes(cache, 16, "int8") == 16 * 8 * 2 * (128 + 4)
    assert block_bytes(cache, 16, "int4") == 16 * 8 * 2 * (64 + 4 * 4)  # a step and a least number, as halves, for each group of 32
    assert block_bytes(cache, 16, "int8/int4") == 16 * 8 * ((128 + 4) + (64 + 4 * 4))
    latent = Paged("mla", 1, 576, 512, None, True)
    assert block_bytes(latent, 1, "int8/int4") == 576 + 4
    assert block_bytes(Paged("mla", 1, 576, 512, None, True), 16, "int8") == 16 * (576 + 4)
    with pytest.raises(UserError, match="fp3"):
        block_bytes(cache, 16, "fp3")


def test_windows_hold_exactly_the_blocks_they_read() -> None:
    for window in (None, 1, 2, 4, 5, 16, 33):
        for block_size in (1, 2, 4, 16):
            for past in range(70):
                for new in (1, 3, 17):
                    read = {p for q in range(past, past + new) for p in range(0 if window is None else max(0, q - window + 1), q + 1)}
                    blocks = {p // block_size for p in read}
                    assert blocks_needed(window, block_size, past, new) == len(blocks) == max(blocks) - min(blocks) + 1
                    assert peak_blocks(window, block_size, past + new, new) >= len(blocks)


def test_peak_is_reached() -> None:
    for window, block_size, chunk in [(4, 4, 1), (5, 4, 3), (16, 16, 32), (1, 16, 1), (33, 16, 7)]:
        reached = max(blocks_needed(window, block_size, past, chunk) for past in range(200))
        assert reached == peak_blocks(window, block_size, 1000, chunk)
