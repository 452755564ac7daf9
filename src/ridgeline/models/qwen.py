"""Qwen2 and Qwen2.5 (biases on queries, keys and values) and Qwen3 (norms on query and key heads): the Llama shape otherwise."""

from __future__ import annotations

import ridgeline.models.gguf_keys as gguf_keys
import ridgeline.models.hf_keys as hf_keys
from ridgeline.models.decoder import Layer
from ridgeline.models.facts import Facts
from ridgeline.models.llama import LlamaConfig, uniform_layers
from ridgeline.models.scaling import gguf_rotary, hf_rotary
from ridgeline.models.store import Store


def _hf(facts: Facts, store: Store, max_model_len: int | None, head_dim: int | None) -> tuple[hf_keys.Shape, tuple[Layer, ...], bool]:
    shape = hf_keys.read_shape(facts, store, max_model_len, acts=hf_keys.SILU, head_dim=head_dim)
    rotary = hf_rotary(facts, shape.sizes.head_dim, shape.sizes.context_len, shape.sizes.max_model_len)
    full = facts.whole("max_window_layers", 28, low=0)
    windows = hf_keys.windows(facts, shape.layers, lambda i: i >= full, switch="use_sliding_window")
    return shape, uniform_layers(facts, shape, rotary, windows), hf_keys.tied(facts, store, False)


def qwen2_from_hf(facts: Facts, store: Store, max_model_len: int | None) -> LlamaConfig:
    """Biases are not in the config: every Qwen2 has them on q, k, v and nowhere else."""
    facts.must_be("use_mrope", False)
    shape, layers, tied = _hf(facts, store, max_model_len, None)
    return LlamaConfig(shape.name, shape.sizes, layers, tied, qkv_bias=True)


def qwen3_from_hf(facts: Facts, store: Store, max_model_len: int | None) -> LlamaConfig:
    """head_dim defaults to 128, whatever hidden_size / heads is."""
    shape, layers, tied = _hf(facts, store, max_model_len, 128)
    bias = facts.flag("attention_bias", False)
    return LlamaConfig(shape.name, shape.sizes, layers, tied, qkv_bias=bias, o_bias=bias, qk_norm=True)


def _gguf(facts: Facts, store: Store, max_model_len: int | None, qk_norm: bool) -> LlamaConfig:
    shape = gguf_keys.read_shape(facts, store, max_model_len)
    dims = facts.whole("rope.dimension_count", shape.sizes.head_dim, high=shape.sizes.head_dim)
    rotary = gguf_rotary(facts, store, dims, shape.sizes.context_len, shape.sizes.max_model_len)
    layers = tuple(Layer(h, k, f, rotary) for h, k, f in shape.per_layer)
    return LlamaConfig(
        facts.prefix.rstrip("."), shape.sizes, layers, gguf_keys.tied(store),
        qkv_bias=store.has("blk.0.attn_q.bias"), o_bias=store.has("blk.0.attn_output.bias"), qk_norm=qk_norm,
    )  # fmt: skip


def qwen2_from_gguf(facts: Facts, store: Store, max_model_len: int | None) -> LlamaConfig:
    return _gguf(facts, store, max_model_len, qk_norm=False)


def qwen3_from_gguf(facts: Facts, store: Store, max_model_len: int | None) -> LlamaConfig:
    return _gguf(facts, store, max_model_len, qk_norm=True)
