"""Configs: every value that is not understood is refused by key and value; RoPE rules by hand; lengths; windows; per-layer arrays."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.models.encode import vector
from tests.models.memory import gguf, hf, model

import ridgeline.models.rope as rope
from ridgeline.errors import FileFormatError, UnsupportedError, UserError
from ridgeline.graph.caches import Paged
from ridgeline.graph.ops import Rope
from ridgeline.models.registry import ModelSpec, load_spec


def spec_of(family: str, kind: str = "hf", length: int | None = None, extra: dict[str, Any] | None = None, **keys: Any) -> ModelSpec:
    _, tensors = model(family)
    checkpoint = (hf if kind == "hf" else gguf)(family, tensors, **keys)
    return load_spec(replace(checkpoint, tensors={**checkpoint.tensors, **(extra or {})}), length)


def ropes(spec: ModelSpec) -> list[Rope]:
    return [op for op in spec.graph.ops if isinstance(op, Rope)]


HF_REFUSED: dict[str, tuple[str, dict[str, Any], type[UserError], str]] = {
    "unknown key": ("llama", {"attention_sinks": 4}, UnsupportedError, "attention_sinks not understood"),
    "quantized by others": ("llama", {"quantization_config": {"bits": 4}}, UnsupportedError, "quantization_config not understood"),
    "activation": ("llama", {"hidden_act": "gelu"}, UnsupportedError, "hidden_act is 'gelu', supported: silu"),
    "gemma activation": ("gemma2", {"hidden_activation": "gelu"}, UnsupportedError, "hidden_activation is 'gelu'"),
    "mlp bias": ("llama", {"mlp_bias": True}, UnsupportedError, "mlp_bias is True"),
    "rope type": ("llama", {"rope_scaling": {"type": "ntk-by-parts", "factor": 2}}, UnsupportedError, "type is 'ntk-by-parts', supported"),
    "rope key": ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0, "wave": 1}}, UnsupportedError, "rope_scaling: wave not under"),
    "rope factor missing": ("llama", {"rope_scaling": {"type": "linear"}}, FileFormatError, "rope_scaling: factor is missing"),
    "rope factor": ("llama", {"rope_scaling": {"type": "linear", "factor": 0}}, FileFormatError, "factor is 0, must be a number above 0"),
    "rope object": ("llama", {"rope_scaling": "linear"}, FileFormatError, "rope_scaling is 'linear', must be an object"),
    "rope partial": ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, UnsupportedError, "partial_rotary_factor is 0.5"),
    "theta nan": ("llama", {"rope_theta": math.nan}, FileFormatError, "rope_theta is nan"),
    "theta text": ("llama", {"rope_theta": "1e4"}, FileFormatError, "rope_theta is '1e4'"),
    "layers": ("llama", {"num_hidden_layers": 10**9}, FileFormatError, "num_hidden_layers is 1000000000, must be a whole"),
    "no layers": ("llama", {"num_hidden_layers": 0}, FileFormatError, "num_hidden_layers is 0"),
    "negative": ("llama", {"intermediate_size": -1}, FileFormatError, "intermediate_size is -1"),
    "bool as number": ("llama", {"vocab_size": True}, FileFormatError, "vocab_size is True"),
    "fraction": ("llama", {"hidden_size": 64.5}, FileFormatError, "hidden_size is 64.5"),
    "missing": ("llama", {"hidden_size": None}, FileFormatError, "hidden_size is missing"),
    "heads do not divide": ("llama", {"num_key_value_heads": 3}, UserError, "layer 0 has 4 query heads, which 3 KV heads cannot share"),
    "head_dim odd": ("llama", {"head_dim": 33}, UserError, "head_dim is 33, must be even"),
    "head_dim unknowable": ("llama", {"head_dim": None, "num_attention_heads": 5}, FileFormatError, "num_attention_heads is 5"),
    "eps": ("llama", {"rms_norm_eps": 0.0}, FileFormatError, "rms_norm_eps is 0.0"),
    "tie": ("llama", {"tie_word_embeddings": "yes"}, FileFormatError, "tie_word_embeddings is 'yes', must be true or false"),
    "shape against file": ("llama", {"vocab_size": 200}, FileFormatError, r"embed_tokens.weight is \[199, 64\], must be \[200, 64\]"),
    "window": ("mistral", {"sliding_window": 0}, FileFormatError, "sliding_window is 0"),
    "layer types": ("qwen2", {"layer_types": ["full_attention"]}, FileFormatError, "layer_types is .* must be a list of 2"),
    "layer kind": ("qwen2", {"layer_types": ["full_attention", "linear_attention"]}, FileFormatError, "layer_types"),
    "no window for local": ("qwen2", {"layer_types": ["sliding_attention"] * 2}, FileFormatError, "sliding_window is None"),
    "no rope list": ("smollm3", {"no_rope_layers": [1]}, FileFormatError, "no_rope_layers is"),
    "bidirectional": ("gemma3", {"use_bidirectional_attention": True}, UnsupportedError, "use_bidirectional_attention is True"),
    "gemma bias": ("gemma2", {"attention_bias": True}, UnsupportedError, "attention_bias is True"),
    "mrope": ("qwen2", {"use_mrope": True}, UnsupportedError, "use_mrope is True"),
}  # fmt: skip


@pytest.mark.parametrize("case", HF_REFUSED)
def test_config_json_is_refused_by_key_and_value(case: str) -> None:
    family, keys, error, message = HF_REFUSED[case]
    with pytest.raises(error, match=message) as caught:
        spec_of(family, **keys)
    assert str(caught.value).startswith("memory") or caught.value.field in ("num_key_value_heads", "head_dim")
    assert "\n" not in str(caught.value)


GGUF_REFUSED: dict[str, tuple[str, dict[str, Any], type[UserError], str]] = {
    "unknown key": ("llama", {"attention.clamp_kqv": 8.0}, UnsupportedError, "llama.attention.clamp_kqv not understood"),
    "scales": ("llama", {"logit_scale": 0.5}, UnsupportedError, "llama.logit_scale not understood"),
    "experts": ("llama", {"expert_count": 8}, UnsupportedError, "llama.expert_count is 8"),
    "not causal": ("llama", {"attention.causal": False}, UnsupportedError, "llama.attention.causal is False"),
    "rope type": ("llama", {"rope.scaling.type": "mystery"}, UnsupportedError, "llama.rope.scaling.type is 'mystery'"),
    "partial rope": ("llama", {"rope.dimension_count": 16}, FileFormatError, "rope.dimension_count is 16, must be 32"),
    "yarn ext": ("llama", {"rope.scaling.type": "yarn", "rope.scaling.yarn_ext_factor": 0.5}, UnsupportedError, "yarn_ext_factor is 0.5"),
    "blocks": ("llama", {"block_count": 2**40}, FileFormatError, "llama.block_count is 1099511627776"),
    "heads": ("llama", {"attention.head_count_kv": 0}, FileFormatError, "head_count_kv is 0"),
    "heads array": ("llama", {"attention.head_count_kv": [2, 1, 1]}, FileFormatError, r"_kv is \[2, 1, 1\], must be .* 2 of them"),
    "heads array entry": ("llama", {"attention.head_count_kv": [2, 0]}, FileFormatError, r"head_count_kv is \[2, 0\]"),
    "heads do not divide": ("llama", {"attention.head_count_kv": 3}, UserError, "3 KV heads cannot share"),
    "heads text": ("llama", {"attention.head_count": "4"}, FileFormatError, "head_count is '4'"),
    "head_dim unknowable": ("llama", {"attention.key_length": None, "attention.head_count": 5}, FileFormatError, "be a divisor of"),
    "missing": ("llama", {"context_length": None}, FileFormatError, "llama.context_length is missing"),
    "eps": ("qwen2", {"attention.layer_norm_rms_epsilon": math.inf}, FileFormatError, "rms_epsilon is inf"),
    "pattern": ("gemma3", {"attention.sliding_window_pattern": [True]}, FileFormatError, "sliding_window_pattern is"),
}  # fmt: skip


@pytest.mark.parametrize("case", GGUF_REFUSED)
def test_gguf_metadata_is_refused_by_key_and_value(case: str) -> None:
    family, keys, error, message = GGUF_REFUSED[case]
    with pytest.raises(error, match=message):
        spec_of(family, "gguf", more=keys)


def test_ar04_one_kv_head_count_per_layer() -> None:
    _, tensors = model("llama3")
    spec = load_spec(gguf("llama", tensors, more={"attention.head_count_kv": [2, 1]}))
    assert [c.kv_heads for c in spec.graph.caches if isinstance(c, Paged)] == [2, 1]


def test_ar04_absent_kv_heads_means_all_heads_and_absent_key_length_divides() -> None:
    config, _ = model("llama")
    sizes = replace(config.sizes, head_dim=16, v_dim=16)
    layers = tuple(replace(la, kv_heads=4, rotary=rope.rotary(rope.frequencies(16, 1e4))) for la in config.layers)
    _, tensors = model("llama", sizes=sizes, layers=layers)
    keys = {"attention.head_count_kv": None, "attention.key_length": None, "attention.value_length": None, "rope.dimension_count": 16}
    checkpoint = gguf("llama", {}, more=keys)
    spec = load_spec(replace(checkpoint, tensors=gguf("qwen2", tensors).tensors))
    assert {(c.kv_heads, c.k_dim, c.v_dim) for c in spec.graph.caches if isinstance(c, Paged)} == {(4, 16, 16)}


def test_values_narrower_than_keys_from_gguf() -> None:
    config, _ = model("qwen3")
    _, tensors = model("qwen3", sizes=replace(config.sizes, v_dim=24))
    spec = load_spec(gguf("qwen3", tensors, more={"attention.value_length": 24}))
    assert {(c.k_dim, c.v_dim) for c in spec.graph.caches if isinstance(c, Paged)} == {(32, 24)}


def test_length_beyond_the_model_is_refused_and_scaling_extends_it() -> None:
    with pytest.raises(UserError, match="max-model-len is 4097, the model allows 1 to 4096; use --max-model-len 4096"):
        spec_of("llama", length=4097)
    with pytest.raises(UserError, match="max-model-len is 0"):
        spec_of("llama", length=0)
    assert spec_of("llama", length=100).max_model_len == 100
    scaled = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}}
    assert spec_of("llama", length=16384, **scaled).max_model_len == 16384
    assert spec_of("llama", **scaled).max_model_len == 4096
    more = {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}
    assert spec_of("llama", "gguf", 8192, more=more).max_model_len == 8192


def test_dynamic_rope_is_fixed_for_the_maximum_length() -> None:
    scaled = {"rope_scaling": {"type": "dynamic", "factor": 2.0}}
    plain = ropes(spec_of("llama"))[0].inv_freq
    assert ropes(spec_of("llama", **scaled))[0].inv_freq == plain
    longer = ropes(spec_of("llama", length=8192, **scaled))[0].inv_freq
    theta = 10000.0 * (2.0 * 8192 / 4096 - 1.0) ** (32 / 30)
    assert longer == pytest.approx([theta ** (-2 * i / 32) for i in range(16)], rel=1e-6)


def test_old_and_new_spellings_of_rope_agree() -> None:
    old = spec_of("llama", rope_theta=5e5, rope_scaling={"type": "linear", "factor": 4.0})
    new = spec_of("llama", rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5})
    assert ropes(old) == ropes(new)
    nested = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    gemma = spec_of("gemma3", rope_parameters=nested)
    flat = spec_of("gemma3", rope_theta=1e6, rope_local_base_freq=1e4, rope_scaling={"rope_type": "linear", "factor": 8.0})
    assert ropes(gemma) == ropes(flat)
    local, everywhere = ropes(gemma)[0].inv_freq, ropes(gemma)[2].inv_freq
    assert local[1] == pytest.approx(1e4 ** (-1 / 16), rel=1e-6)
    assert everywhere[1] == pytest.approx(1e6 ** (-1 / 16) / 8, rel=1e-6)


def test_gguf_rope_tensors_are_turned_into_frequencies() -> None:
    factors = np.linspace(1, 8, 16).astype(np.float32)
    plain = np.asarray(ropes(spec_of("llama", "gguf"))[0].inv_freq)
    spec = spec_of("llama", "gguf", extra={"rope_freqs.weight": vector("rope_freqs.weight", factors)})
    assert ropes(spec)[0].inv_freq == pytest.approx(plain / factors, rel=1e-6)
    assert "rope_freqs.weight" not in spec.tensors
    both = {n: vector(n, factors * k) for n, k in (("rope_factors_long.weight", 4), ("rope_factors_short.weight", 1))}
    more = {"rope.scaling.type": "longrope", "rope.scaling.original_context_length": 512, "rope.scaling.attn_factor": 1.25}
    long = spec_of("llama", "gguf", 513, extra=both, more=more)
    short = spec_of("llama", "gguf", 512, extra=both, more=more)
    assert ropes(long)[0].inv_freq == pytest.approx(plain / factors / 4, rel=1e-6)
    assert ropes(short)[0].inv_freq == pytest.approx(plain / factors, rel=1e-6)
    assert {op.scale for op in ropes(long)} == {1.25}


@pytest.mark.parametrize("values", [[0.0] * 16, [math.nan] * 16, [1.0] * 15])
def test_bad_rope_tensors_are_refused(values: list[float]) -> None:
    with pytest.raises(FileFormatError, match=r"rope_freqs.weight (holds a number that is not positive|has 15 numbers, must have 16)"):
        spec_of("llama", "gguf", extra={"rope_freqs.weight": vector("rope_freqs.weight", np.asarray(values, np.float32))})


def test_llama3_and_yarn_rules_at_their_ends() -> None:
    base = rope.frequencies(64, 10000.0)
    slowed = rope.llama3(base, 8.0, 1.0, 4.0, 8192)
    assert slowed[0] == base[0]
    assert slowed[-1] == pytest.approx(base[-1] / 8)
    assert (np.diff(slowed) < 0).all()
    turned = rope.yarn(base, 10000.0, 4.0, 2048)
    assert turned[0] == base[0]
    assert turned[-1] == pytest.approx(base[-1] / 4)
    assert rope.yarn_scale(4.0) == pytest.approx(0.1 * math.log(4) + 1)
    assert rope.yarn_scale(0.5) == rope.longrope_scale(1.0, 4096) == 1.0
    assert rope.longrope_scale(32.0, 4096) == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))


def test_which_layers_have_windows_and_rope() -> None:
    def windows(spec: ModelSpec) -> list[int | None]:
        return [c.window for c in spec.graph.caches if isinstance(c, Paged)]

    assert windows(spec_of("mistral")) == [6, 6]
    assert windows(spec_of("mistral", sliding_window=None)) == [None, None]
    assert windows(spec_of("qwen2", sliding_window=9)) == [None, None]
    assert windows(spec_of("qwen2", sliding_window=9, use_sliding_window=True, max_window_layers=1)) == [None, 9]
    assert windows(spec_of("gemma2")) == [6, None]
    assert windows(spec_of("gemma3", layer_types=["full_attention", "sliding_attention"])) == [None, 6]
    assert windows(spec_of("gemma3", "gguf", more={"attention.sliding_window_pattern": [False, True]})) == [None, 6]
    assert windows(spec_of("gemma3", "gguf", more={"attention.sliding_window": 0})) == [None, None]
    assert [op.out for op in ropes(spec_of("smollm3"))] == ["layers.0.q_rope", "layers.0.k_rope"]


def test_gemma3_pattern_defaults_to_every_sixth() -> None:
    config, _ = model("gemma3")
    _, tensors = model("gemma3", layers=(config.layers[0],) * 7)
    spec = load_spec(gguf("gemma3", tensors, more={"block_count": 7, "attention.sliding_window_pattern": None}))
    assert [c.window for c in spec.graph.caches if isinstance(c, Paged)] == [6] * 5 + [None, 6]


@pytest.mark.parametrize(("layers", "scale"), [(2, 32**-0.5), (62, 16**-0.5)])
def test_gemma3_query_scale_from_gguf(layers: int, scale: float) -> None:
    """key_length for all but the 62-layer model, whose scalar is embedding / heads."""
    config, _ = model("gemma3")
    _, tensors = model("gemma3", layers=(config.layers[0],) * layers)
    spec = load_spec(gguf("gemma3", tensors, more={"block_count": layers}))
    assert spec.config.query_scale == scale


def test_harmless_keys_are_accepted() -> None:
    spec_of("llama", torch_dtype="bfloat16", use_cache=True, pretraining_tp=1, rope_interleaved=False, is_llama_config=True, mlp_bias=False)
    spec_of("gemma2", cache_implementation="hybrid", hidden_act="gelu_pytorch_tanh", sliding_window_size=6)
    spec_of("llama", "gguf", more={"vocab_size": 199, "expert_count": 0, "rope.scaling.type": "none", "rope.scaling.finetuned": False})


def test_the_name_that_transformers_keeps_of_a_gguf_file_is_no_setting() -> None:
    """`save_pretrained` after `from_pretrained(gguf_file=...)` writes general.name so."""
    assert spec_of("llama", _model_name_or_path="Smollm2 135M 8k").graph == spec_of("llama").graph
