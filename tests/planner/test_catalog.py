"""Every row of the models table: parameters, caches, states. Rows 24, 34, 35, 51, 52, 55, 57, 58, 63, 75 of the acceptance table."""

from __future__ import annotations

import pytest

from ridgeline.errors import FileFormatError, UserError
from ridgeline.graph.caches import CacheGroup, cache_groups
from ridgeline.kv import layout
from ridgeline.kv.manager import NO_HIT, KvCache
from ridgeline.planner import formulas
from ridgeline.planner.catalog import find_model, model_of, models
from ridgeline.planner.demand import weight_bytes
from ridgeline.planner.formats import WEIGHT_FORMATS, kv_format_named

ROWS = models()
FACTS = {name: model_of(row) for name, row in ROWS.items()}
GRAPHS = [name for name, facts in FACTS.items() if facts.graph is not None]
GIB = 2**30


def test_the_whole_table() -> None:
    assert len(FACTS) == 70 and len(GRAPHS) == 38
    assert {f.counted for f in FACTS.values()} == {"graph", "config", "cited"}


@pytest.mark.parametrize("name", [n for n, r in ROWS.items() if r.text("params_dense_formula_B")])
def test_dense_parameters(name: str) -> None:
    """Row 35: counted from the graph, within 0.1% of the published total (which is rounded to a million)."""
    published = float(ROWS[name].text("params_dense_formula_B"))
    facts = FACTS[name]
    assert facts.params / 1e9 == pytest.approx(published, rel=1e-3, abs=6e-4)
    assert facts.formula_params is not None
    assert facts.formula_params / 1e9 == pytest.approx(published, rel=1e-3, abs=6e-4)
    assert facts.formula_params <= facts.params <= facts.formula_params * 1.002


def test_parameters_exactly() -> None:
    """Rows 34 and 39. The lecture's number leaves the norms out."""
    assert find_model("Mistral-7B-v0.1").params == 7_241_732_096
    assert find_model("llama-2-13b").formula_params == 13_015_449_600
    assert find_model("llama-2-13b", 8).formula_params == 11_337_728_000
    assert find_model("llama-2-13b").idealized().params == 13_015_449_600


@pytest.mark.parametrize("name", FACTS)
def test_cache_bytes_per_token(name: str) -> None:
    """Rows 24 and 57: what the table says, for every kind of cache."""
    facts, row = FACTS[name], ROWS[name]
    assert facts.kv_bytes_per_token("bf16", beyond_windows=True) == float(row.text("kv_bytes_per_token_bf16_longctx"))
    fixed = sum(k.entries(1 << 40) * k.bytes_per_entry("bf16") for k in facts.kept if k.cache.window is not None)
    assert fixed == float(row.text("kv_bytes_fixed_bf16_(windows)") or 0)
    assert facts.state_elems == int(row.text("state_elems_per_seq") or 0)


@pytest.mark.parametrize("name", [n for n, f in FACTS.items() if f.counted == "config"])
def test_counted_parameters_meet_published_ones(name: str) -> None:
    """What the facts leave out (vision, prediction heads, biases) is under 1.5%."""
    facts = FACTS[name]
    total, active = facts.published
    if total is not None:
        assert facts.params / 1e9 == pytest.approx(total, rel=0.015)
    if active is not None:
        assert facts.active_params / 1e9 == pytest.approx(active, rel=0.2)


def test_golden_caches() -> None:
    """Rows 40, 128, 129; PL-01."""
    mistral = find_model("Mistral-7B-v0.3")
    assert mistral.kv_bytes_per_token("bf16") == 131_072
    assert [mistral.sequence_bytes(t, "bf16") for t in (4096, 8192, 16384)] == [536_870_912, GIB, 2_147_483_648]
    assert 80 * mistral.sequence_bytes(4096, "bf16") / 1e9 == pytest.approx(42.95, abs=0.005)
    assert mistral.kv_bytes_per_token(kv_format_named("q8_0")) == 69_632
    assert mistral.kv_bytes_per_token("int8") == 2 * 32 * 8 * (128 + 4)
    assert find_model("llama-2-13b").sequence_bytes(1024, "bf16") == 838_860_800
    assert find_model("llama-2-13b", 8).sequence_bytes(1024, "bf16") == 167_772_160
    gpt_oss = find_model("gpt-oss-20b")
    assert gpt_oss.without_windows().kv_bytes_per_token("bf16") == 49_152
    # C27: a window keeps v0.1 at 4096 tokens, whatever the context.
    windowed = find_model("Mistral-7B-v0.1")
    assert windowed.sequence_bytes(16384, "bf16") == 536_870_912
    assert windowed.without_windows().sequence_bytes(16384, "bf16") == 2_147_483_648


def test_latent_ratios() -> None:
    """Row 52, contradiction C12: layers cancel; the question is against which heads."""
    v2 = find_model("DeepSeek-V2")
    if v2.name != "DeepSeek-V2":
        pytest.fail("an equal name must win over longer ones")
    assert v2.kept[0].cache.k_dim == 576 and v2.kv_bytes_per_token("bf16") == 69_120
    assert formulas.latent_ratio(128, 128, 576) == pytest.approx(56.9, abs=0.05)
    assert formulas.latent_ratio(32, 128, 576) == pytest.approx(14.2, abs=0.05)
    assert formulas.latent_ratio(8, 128, 576) == pytest.approx(3.56, abs=0.005)
    assert 32 * 576 * 2 == 36_864  # C12: correct MLA at 32 layers


def test_a_million_tokens() -> None:
    """Row 63: V4-Pro and V4-Flash beside V3.2."""
    at = {n: find_model(n).sequence_bytes(1 << 20, "bf16") for n in ("DeepSeek-V3.2", "DeepSeek-V4-Pro", "DeepSeek-V4-Flash")}
    assert at["DeepSeek-V3.2"] / GIB == pytest.approx(83.9, abs=0.05)
    assert at["DeepSeek-V4-Pro"] / GIB == pytest.approx(9.6, abs=0.05)
    assert at["DeepSeek-V4-Pro"] / at["DeepSeek-V3.2"] == pytest.approx(0.115, abs=5e-4)
    assert at["DeepSeek-V4-Flash"] / at["DeepSeek-V3.2"] == pytest.approx(0.080, abs=5e-4)


def test_gpt_oss_sizes() -> None:
    """Row 75. The published 65.1 GB rounds its terms first; the facts give 65.2."""
    facts = find_model("gpt-oss-120b")
    sizes = [weight_bytes(facts, WEIGHT_FORMATS[f]).total / 1e9 for f in ("bf16", "fp8", "mxfp4")]
    assert sizes[0] == pytest.approx(233.6, abs=0.05)
    assert sizes[1] == pytest.approx(116.8, abs=0.05)
    assert sizes[2] == pytest.approx(65.1, abs=0.1)


def test_four_bit_mistral() -> None:
    """Row 73, C29: scales and 16-bit embeddings count."""
    facts = find_model("Mistral-7B-v0.1")
    for name in ("nf4", "int4"):
        assert 4.0 <= weight_bytes(facts, WEIGHT_FORMATS[name]).total / 1e9 <= 4.5
    assert weight_bytes(facts, WEIGHT_FORMATS["int8"]).total / 1e9 == pytest.approx(7.24, abs=0.01)
    assert weight_bytes(facts, WEIGHT_FORMATS["bf16"]).total == 2 * facts.params


def test_states() -> None:
    """Row 58: constant in the context; test vector 6: the crossover of Qwen3-Next lies at 3.2K tokens."""
    facts = find_model("Qwen3-Next")
    assert facts.state_elems == pytest.approx(19.76e6, rel=1e-3)
    assert facts.state_bytes() / facts.kv_bytes_per_token("bf16") == pytest.approx(3216, abs=1)
    mamba = find_model("Falcon-Mamba")
    assert mamba.sequence_bytes(10, "bf16") == mamba.sequence_bytes(1 << 20, "bf16") == 4 * 10_485_760
    assert find_model("Qwen3.5-27B").state_unknown and not facts.state_unknown


ALLOCATED = (
    "Llama-3.2-1B", "Qwen2.5-0.5B", "Qwen3-0.6B", "Gemma-2-2B", "Gemma-3-270M", "Gemma-3-1B", "Phi-3-mini-4k", "SmolLM2-135M",
    "SmolLM3-3B", "Mistral-7B-v0.1", "Mistral-7B-v0.3 (no window)",
)  # fmt: skip


@pytest.mark.parametrize("name", ALLOCATED)
@pytest.mark.parametrize("dtype", ["bf16", "f32", "int8"])
def test_sequence_bytes_are_the_allocators(name: str, dtype: str) -> None:
    """Row 24: byte for byte what the engine's own block tables hold when a block was just taken; later a window may lag by one block."""
    facts = FACTS[name]
    assert facts.graph is not None
    groups = cache_groups(facts.graph.caches)
    lag = sum(layout.group_block_bytes(g, 16, dtype) for g in groups if g.window is not None)
    for tokens in (1, 15, 16, 17, 511, 512, 513, 1024, 5001, 8193):
        held = facts.sequence_bytes(tokens, dtype, 16)
        assert held == layout.sequence_bytes(facts.graph.caches, dtype, 16, tokens)
        assert held >= facts.sequence_bytes(tokens, dtype)
        allocated = _allocated(groups, dtype, tokens)
        assert allocated == held if tokens % 16 == 1 else held <= allocated <= held + lag


def _allocated(groups: tuple[CacheGroup, ...], dtype: str, tokens: int) -> int:
    """Blocks in use after a prompt in chunks and some decodes, times the bytes of a block of each group."""
    kv = KvCache([g.window for g in groups], [2048] * len(groups), 16, "off")
    table = kv.open(b"", NO_HIT)
    prompt = max(0, tokens - 40)
    for past in (*range(0, prompt, 100), *range(prompt, tokens)):
        kv.grow(table, past, min(100, prompt - past) if past < prompt else 1)
        kv.settle()
    used = [u for _, _, u in kv.usage()]
    return sum(n * layout.group_block_bytes(g, 16, dtype) for n, g in zip(used, groups, strict=True))


def test_kv_heads_may_be_replaced() -> None:
    """Row 46; C22: Llama-2-13B has 40 KV heads, 8 is a what-if."""
    assert find_model("Llama-2-13B").kv_heads == 40
    assert find_model("Llama-2-13B", 8).kv_bytes_per_token("bf16") * 5 == find_model("Llama-2-13B").kv_bytes_per_token("bf16")
    with pytest.raises(FileFormatError, match="multiple of the KV heads"):
        find_model("Llama-2-13B", 7)


def test_names_of_models() -> None:
    with pytest.raises(UserError, match=r"may be Mistral-7B-v0\.1, Mistral-7B-v0\.3"):
        find_model("mistral-7b")
    with pytest.raises(UserError, match="not known"):
        find_model("gpt-5")
    assert find_model("QWEN3-30B").name == "Qwen3-30B-A3B"
