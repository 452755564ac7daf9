"""Gemma 2 and Gemma 3 (text): norms before and after each half of a layer, GeGLU, scaled embeddings, local and global layers.

Gemma 2 caps attention scores and logits; Gemma 3 norms query and key heads and rotates local layers with a base of their own.
The norm's 1 + w is not here: weights are the factor itself (see `formats/names`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import ridgeline.models.gguf_keys as gguf_keys
import ridgeline.models.hf_keys as hf_keys
from ridgeline.graph.build import Builder
from ridgeline.graph.caches import Paged
from ridgeline.graph.graph import Graph
from ridgeline.models.decoder import Layer, Sizes, check_layers
from ridgeline.models.facts import Facts
from ridgeline.models.rope import Rotary, frequencies, rotary
from ridgeline.models.scaling import gguf_rotary, hf_rotary, hf_section
from ridgeline.models.store import Store

ACTS = ("gelu_pytorch_tanh",)
LOCAL_THETA, GLOBAL_THETA = 10_000.0, 1_000_000.0


@dataclass(frozen=True, slots=True)
class GemmaConfig:
    """query_scale multiplies q.k; caps are None where the family has none; local layers are those with a window."""

    name: str
    sizes: Sizes
    layers: tuple[Layer, ...]
    tied: bool
    query_scale: float
    attn_softcap: float | None = None
    final_softcap: float | None = None
    qk_norm: bool = False

    def __post_init__(self) -> None:
        check_layers(self.name, self.sizes, self.layers)


def build(config: GemmaConfig) -> Graph:
    """Taps as in `llama.build`; "logits" are capped."""
    b, s = Builder(config.name), config.sizes
    x = b.embed("embed", "embed", s.vocab, s.dim, math.sqrt(s.dim))
    for i, layer in enumerate(config.layers):
        p = f"layers.{i}."
        a = b.norm(p + "attn_normed", _attention(b, p, config, layer, x), p + "post_attn_norm", s.dim, s.eps)
        x = b.add(p + "attn_sum", x, a)
        h = b.norm(p + "ffn_in", x, p + "ffn_norm", s.dim, s.eps)
        gate = b.linear(p + "gate", h, p + "gate", s.dim, layer.ffn_dim)
        up = b.linear(p + "up", h, p + "up", s.dim, layer.ffn_dim)
        act = b.gated(p + "act", gate, up, "gelu_tanh")
        down = b.linear(p + "down", act, p + "down", layer.ffn_dim, s.dim)
        x = b.add(p + "out", x, b.norm(p + "ffn_normed", down, p + "post_ffn_norm", s.dim, s.eps))
        b.tap(f"layers.{i}", x)
    b.tap("hidden", x)
    x = b.norm("final", b.select("selected", x), "final_norm", s.dim, s.eps)
    x = b.linear("head", x, "head", s.dim, s.vocab)
    b.tap("logits", x if config.final_softcap is None else b.softcap("logits", x, config.final_softcap))
    if config.tied:
        b.tied["head"] = "embed"
    return b.graph()


def _attention(b: Builder, p: str, config: GemmaConfig, layer: Layer, x: str) -> str:
    s = config.sizes
    h = b.norm(p + "attn_in", x, p + "attn_norm", s.dim, s.eps)
    q = b.linear(p + "q", h, p + "q", s.dim, layer.heads * s.head_dim)
    k = b.linear(p + "k", h, p + "k", s.dim, layer.kv_heads * s.head_dim)
    v = b.linear(p + "v", h, p + "v", s.dim, layer.kv_heads * s.v_dim)
    if config.qk_norm:
        q = b.norm(p + "q_normed", q, p + "q_norm", s.head_dim, s.eps, layer.heads)
        k = b.norm(p + "k_normed", k, p + "k_norm", s.head_dim, s.eps, layer.kv_heads)
    if layer.rotary is not None:
        q = b.rope(p + "q_rope", q, layer.heads, s.head_dim, layer.rotary.inv_freq, layer.rotary.scale)
        k = b.rope(p + "k_rope", k, layer.kv_heads, s.head_dim, layer.rotary.inv_freq, layer.rotary.scale)
    cache = Paged(p + "kv", layer.kv_heads, s.head_dim, s.v_dim, layer.window)
    a = b.attend(p + "attn", q, k, v, cache, layer.heads, config.query_scale, config.attn_softcap)
    return b.linear(p + "o", a, p + "o", layer.heads * s.v_dim, s.dim)


def _cap(facts: Facts, key: str, default: float | None) -> float | None:
    """A softcap; a key that is present and null means none, an absent one the family's default."""
    if key in facts.values and facts.get(key) is None:
        return None
    return facts.real(key, default) if facts.has(key) or default is not None else None


def gemma2_from_hf(facts: Facts, store: Store, max_model_len: int | None) -> GemmaConfig:
    """Layers alternate, the first is local."""
    shape = _hf_shape(facts, store, max_model_len)
    rot = hf_rotary(facts, shape.sizes.head_dim, shape.sizes.context_len, shape.sizes.max_model_len)
    windows = hf_keys.windows(facts, shape.layers, lambda i: i % 2 == 0)
    layers = tuple(Layer(shape.heads, shape.kv_heads, shape.ffn_dim, rot, w) for w in windows)
    return GemmaConfig(
        shape.name, shape.sizes, layers, hf_keys.tied(facts, store, True), facts.real("query_pre_attn_scalar", 256.0) ** -0.5,
        _cap(facts, "attn_logit_softcapping", 50.0), _cap(facts, "final_logit_softcapping", 30.0),
    )  # fmt: skip


def gemma3_from_hf(facts: Facts, store: Store, max_model_len: int | None) -> GemmaConfig:
    """Every sixth layer is global unless the config says otherwise; scaling applies to global layers only."""
    shape = _hf_shape(facts, store, max_model_len)
    pattern = facts.whole("sliding_window_pattern", facts.whole("_sliding_window_pattern", 6))
    windows = hf_keys.windows(facts, shape.layers, lambda i: (i + 1) % pattern != 0)
    local, everywhere = _gemma3_rotaries(facts, shape.sizes)
    layers = tuple(Layer(shape.heads, shape.kv_heads, shape.ffn_dim, everywhere if w is None else local, w) for w in windows)
    return GemmaConfig(
        shape.name, shape.sizes, layers, hf_keys.tied(facts, store, True), facts.real("query_pre_attn_scalar", 256.0) ** -0.5,
        _cap(facts, "attn_logit_softcapping", None), _cap(facts, "final_logit_softcapping", None), qk_norm=True,
    )  # fmt: skip


def _hf_shape(facts: Facts, store: Store, max_model_len: int | None) -> hf_keys.Shape:
    shape = hf_keys.read_shape(facts, store, max_model_len, acts=ACTS, act_key="hidden_activation", head_dim=256)
    facts.must_be("hidden_act", *ACTS, "gelu")  # transformers reads hidden_activation and leaves this one alone
    facts.must_be("sliding_window_size", facts.values.get("sliding_window"))
    facts.must_be("attention_bias", False)
    facts.must_be("use_bidirectional_attention", False)
    return shape


def _gemma3_rotaries(facts: Facts, sizes: Sizes) -> tuple[Rotary, Rotary]:
    """(local, global) from the old keys (rope_theta, rope_local_base_freq, rope_scaling) or the new nested rope_parameters."""
    local_theta = facts.real("rope_local_base_freq", LOCAL_THETA)
    nested = facts.section("rope_parameters")
    if nested is None or not (nested.has("full_attention") or nested.has("sliding_attention")):
        found = hf_rotary(facts, sizes.head_dim, sizes.context_len, sizes.max_model_len, GLOBAL_THETA)
        return rotary(frequencies(sizes.head_dim, local_theta)), found
    facts.must_be("rope_scaling")
    theta = facts.real("rope_theta", GLOBAL_THETA)

    def one(kind: str, base: float) -> Rotary:
        section = nested.section(kind)
        if section is None:
            return rotary(frequencies(sizes.head_dim, base))
        found = hf_section(section, sizes.head_dim, sizes.context_len, sizes.context_len, sizes.max_model_len, base, ("default", "linear"))
        section.finish()
        return found

    pair = one("sliding_attention", local_theta), one("full_attention", theta)
    nested.finish()
    return pair


def _gguf_layers(
    facts: Facts, shape: gguf_keys.Shape, window: int | None, every: int, local: Rotary, everywhere: Rotary
) -> tuple[Layer, ...]:
    """Every `every`-th layer is global, all are without a window."""
    slides = gguf_keys.slides(facts, len(shape.per_layer), every)
    return tuple(
        Layer(h, k, f, local if slide and window else everywhere, window if slide else None)
        for slide, (h, k, f) in zip(slides, shape.per_layer, strict=True)
    )  # fmt: skip


def _gguf_query_scale(shape: gguf_keys.Shape, layers_of_27b: int) -> float:
    """Not in the file. The scalar is head_dim for all published models but the 27B ones, where it is embedding / heads."""
    heads = shape.per_layer[0][0]
    scalar: float = shape.sizes.dim / heads if len(shape.per_layer) == layers_of_27b else float(shape.sizes.head_dim)
    return float(scalar**-0.5)


def gemma2_from_gguf(facts: Facts, store: Store, max_model_len: int | None) -> GemmaConfig:
    shape = gguf_keys.read_shape(facts, store, max_model_len)
    rot = gguf_rotary(facts, store, shape.sizes.head_dim, shape.sizes.context_len, shape.sizes.max_model_len)
    facts.must_be("rope.dimension_count", shape.sizes.head_dim)
    window = facts.whole("attention.sliding_window", 4096, low=0) or None
    layers = _gguf_layers(facts, shape, window, 2, rot, rot)
    return GemmaConfig(
        "gemma2", shape.sizes, layers, gguf_keys.tied(store), _gguf_query_scale(shape, 46),
        _cap(facts, "attn_logit_softcapping", 50.0), _cap(facts, "final_logit_softcapping", 30.0),
    )  # fmt: skip


def gemma3_from_gguf(facts: Facts, store: Store, max_model_len: int | None) -> GemmaConfig:
    shape = gguf_keys.read_shape(facts, store, max_model_len)
    sizes = shape.sizes
    everywhere = gguf_rotary(facts, store, sizes.head_dim, sizes.context_len, sizes.max_model_len, GLOBAL_THETA)
    local = rotary(frequencies(sizes.head_dim, facts.real("rope.freq_base_swa", LOCAL_THETA)))
    facts.must_be("rope.dimension_count", sizes.head_dim)
    layers = _gguf_layers(facts, shape, gguf_keys.window(facts), 6, local, everywhere)
    return GemmaConfig(
        "gemma3", sizes, layers, gguf_keys.tied(store), _gguf_query_scale(shape, 62),
        None, _cap(facts, "final_logit_softcapping", None), qk_norm=True,
    )  # fmt: skip
