"""Phi-3, Phi-3.5 and Phi-4-mini: the Llama shape with queries, keys and values in one stored tensor, gate and up in another,
rotation of a part of each head, and LongRoPE. The tensors are split by rows at load."""

from __future__ import annotations

import ridgeline.models.gguf_keys as gguf_keys
import ridgeline.models.hf_keys as hf_keys
from ridgeline.models.decoder import Layer
from ridgeline.models.facts import Facts
from ridgeline.models.llama import LlamaConfig, uniform_layers
from ridgeline.models.scaling import PHI3_RULES, gguf_rotary, hf_rotary
from ridgeline.models.store import Store


def _rotated(facts: Facts, head_dim: int, share: float) -> int:
    """Rotated dimensions of a head: an even part of it."""
    dims = int(head_dim * share)
    if not 0 < dims <= head_dim or dims % 2:
        raise facts.bad("partial_rotary_factor", share, f"a share of {head_dim} that is even and not 0")
    return dims


def from_hf(facts: Facts, store: Store, max_model_len: int | None) -> LlamaConfig:
    shape = hf_keys.read_shape(facts, store, max_model_len, acts=hf_keys.SILU)
    for key in ("attention_bias", "mlp_bias", "lm_head_bias"):
        facts.must_be(key, False)
    for key in ("full_attn_mod", "interpolate_factor"):
        facts.must_be(key, 1)
    share = facts.real("partial_rotary_factor", 1.0)
    section = facts.section("rope_scaling") or facts.section("rope_parameters")
    if section is not None:
        share = section.real("partial_rotary_factor", share)
    dims = _rotated(facts, shape.sizes.head_dim, share)
    rotary = hf_rotary(facts, dims, shape.sizes.context_len, shape.sizes.max_model_len, rules=PHI3_RULES, partial=True)
    window = facts.whole("sliding_window") if facts.has("sliding_window") else None
    layers = uniform_layers(facts, shape, rotary, (window,) * shape.layers)
    return LlamaConfig(shape.name, shape.sizes, layers, hf_keys.tied(facts, store, False))


def from_gguf(facts: Facts, store: Store, max_model_len: int | None) -> LlamaConfig:
    """The window of the file is used as `transformers` uses it (0 means none)."""
    shape = gguf_keys.read_shape(facts, store, max_model_len)
    dims = facts.whole("rope.dimension_count", shape.sizes.head_dim, low=2, high=shape.sizes.head_dim)
    rotary = gguf_rotary(facts, store, dims, shape.sizes.context_len, shape.sizes.max_model_len)
    window = gguf_keys.window(facts)
    layers = tuple(Layer(h, k, f, rotary, window) for h, k, f in shape.per_layer)
    return LlamaConfig("phi3", shape.sizes, layers, gguf_keys.tied(store))
