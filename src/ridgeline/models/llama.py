"""The Llama shape: pre-norm layers of attention and SwiGLU. Llama 2/3.x, TinyLlama, Mistral, SmolLM2, SmolLM3; qwen and phi3 reuse it.

What differs between them is data of the config: biases, query/key norms, a window or no RoPE in some layers, rotated dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import ridgeline.models.gguf_keys as gguf_keys
import ridgeline.models.hf_keys as hf_keys
from ridgeline.graph.build import Builder
from ridgeline.graph.caches import Paged
from ridgeline.graph.graph import Graph
from ridgeline.models.decoder import Layer, Sizes, check_layers
from ridgeline.models.facts import Facts
from ridgeline.models.rope import Rotary
from ridgeline.models.scaling import gguf_rotary, hf_rotary
from ridgeline.models.store import Store


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Everything the graph follows from. `tied`: the head is the embedding."""

    name: str
    sizes: Sizes
    layers: tuple[Layer, ...]
    tied: bool
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        check_layers(self.name, self.sizes, self.layers)


def build(config: LlamaConfig) -> Graph:
    """Taps: "logits" (wanted rows), "hidden" (before the final norm, all rows), "layers.{i}" (residual after layer i, all rows)."""
    b, s = Builder(config.name), config.sizes
    x = b.embed("embed", "embed", s.vocab, s.dim)
    for i, layer in enumerate(config.layers):
        p = f"layers.{i}."
        x = b.add(p + "attn_sum", x, _attention(b, p, config, layer, x))
        h = b.norm(p + "ffn_in", x, p + "ffn_norm", s.dim, s.eps)
        gate = b.linear(p + "gate", h, p + "gate", s.dim, layer.ffn_dim)
        up = b.linear(p + "up", h, p + "up", s.dim, layer.ffn_dim)
        act = b.gated(p + "act", gate, up, "silu")
        x = b.add(p + "out", x, b.linear(p + "down", act, p + "down", layer.ffn_dim, s.dim))
        b.tap(f"layers.{i}", x)
    b.tap("hidden", x)
    x = b.norm("final", b.select("selected", x), "final_norm", s.dim, s.eps)
    b.tap("logits", b.linear("logits", x, "head", s.dim, s.vocab))
    if config.tied:
        b.tied["head"] = "embed"
    return b.graph()


def _attention(b: Builder, p: str, config: LlamaConfig, layer: Layer, x: str) -> str:
    s, q_dim, kv_dim = config.sizes, layer.heads * config.sizes.head_dim, layer.kv_heads * config.sizes.head_dim
    bias = {w: p + w + "_bias" if config.qkv_bias else None for w in "qkv"}
    h = b.norm(p + "attn_in", x, p + "attn_norm", s.dim, s.eps)
    q = b.linear(p + "q", h, p + "q", s.dim, q_dim, bias["q"])
    k = b.linear(p + "k", h, p + "k", s.dim, kv_dim, bias["k"])
    v = b.linear(p + "v", h, p + "v", s.dim, layer.kv_heads * s.v_dim, bias["v"])
    if config.qk_norm:
        q = b.norm(p + "q_normed", q, p + "q_norm", s.head_dim, s.eps, layer.heads)
        k = b.norm(p + "k_normed", k, p + "k_norm", s.head_dim, s.eps, layer.kv_heads)
    if layer.rotary is not None:
        q = b.rope(p + "q_rope", q, layer.heads, s.head_dim, layer.rotary.inv_freq, layer.rotary.scale)
        k = b.rope(p + "k_rope", k, layer.kv_heads, s.head_dim, layer.rotary.inv_freq, layer.rotary.scale)
    cache = Paged(p + "kv", layer.kv_heads, s.head_dim, s.v_dim, layer.window)
    a = b.attend(p + "attn", q, k, v, cache, layer.heads, s.head_dim**-0.5)
    return b.linear(p + "o", a, p + "o", layer.heads * s.v_dim, s.dim, p + "o_bias" if config.o_bias else None)


def uniform_layers(facts: Facts, shape: hf_keys.Shape, rotary: Rotary | None, windows: tuple[int | None, ...]) -> tuple[Layer, ...]:
    """Equal layers but for their windows."""
    return tuple(Layer(shape.heads, shape.kv_heads, shape.ffn_dim, rotary, w) for w in windows)


def from_hf(facts: Facts, store: Store, max_model_len: int | None) -> LlamaConfig:
    """Llama's and Mistral's config.json (Mistral: every layer has the window, null for none)."""
    shape = hf_keys.read_shape(facts, store, max_model_len, acts=hf_keys.SILU)
    facts.must_be("mlp_bias", False)
    facts.must_be("rope_interleaved", False)
    rotary = hf_rotary(facts, shape.sizes.head_dim, shape.sizes.context_len, shape.sizes.max_model_len)
    window = facts.whole("sliding_window") if facts.has("sliding_window") else None
    bias = facts.flag("attention_bias", False)
    layers = uniform_layers(facts, shape, rotary, (window,) * shape.layers)
    return LlamaConfig(shape.name, shape.sizes, layers, hf_keys.tied(facts, store, False), qkv_bias=bias, o_bias=bias)


def smollm3_from_hf(facts: Facts, store: Store, max_model_len: int | None) -> LlamaConfig:
    """SmolLM3: every fourth layer has no RoPE (`no_rope_layers` holds 1 for layers that rotate)."""
    shape = hf_keys.read_shape(facts, store, max_model_len, acts=hf_keys.SILU)
    facts.must_be("mlp_bias", False)
    facts.ignore(("max_window_layers",))
    rotary = hf_rotary(facts, shape.sizes.head_dim, shape.sizes.context_len, shape.sizes.max_model_len, theta=2000000.0)
    interval = facts.whole("no_rope_layer_interval", 4)
    rotates = facts.get("no_rope_layers")
    if rotates is None:
        rotates = [int((i + 1) % interval != 0) for i in range(shape.layers)]
    if not isinstance(rotates, list) or len(rotates) != shape.layers or any(r not in (0, 1) for r in rotates):
        raise facts.bad("no_rope_layers", rotates, f"a list of {shape.layers} zeros and ones")
    windows = hf_keys.windows(facts, shape.layers, lambda i: not rotates[i], switch="use_sliding_window")
    bias = facts.flag("attention_bias", False)
    layers = uniform_layers(facts, shape, rotary, windows)
    layers = tuple(la if r else replace(la, rotary=None) for la, r in zip(layers, rotates, strict=True))
    return LlamaConfig(shape.name, shape.sizes, layers, hf_keys.tied(facts, store, True), qkv_bias=bias, o_bias=bias)


def from_gguf(facts: Facts, store: Store, max_model_len: int | None) -> LlamaConfig:
    """GGUF `llama`: also Mistral and SmolLM2, which converters write under this name."""
    shape = gguf_keys.read_shape(facts, store, max_model_len)
    sizes = shape.sizes
    dims = facts.whole("rope.dimension_count", sizes.head_dim)
    if dims != sizes.head_dim:
        raise facts.bad("rope.dimension_count", dims, f"{sizes.head_dim}, the head's width: its rows are stored interleaved")
    rotary = gguf_rotary(facts, store, dims, sizes.context_len, sizes.max_model_len)
    window = gguf_keys.window(facts)
    layers = tuple(Layer(h, k, f, rotary, window) for h, k, f in shape.per_layer)
    return LlamaConfig(
        facts.prefix.rstrip("."), sizes, layers, gguf_keys.tied(store),
        qkv_bias=store.has("blk.0.attn_q.bias"), o_bias=store.has("blk.0.attn_output.bias"),
    )  # fmt: skip


def smollm3_from_gguf(facts: Facts, store: Store, max_model_len: int | None) -> LlamaConfig:
    """GGUF `smollm3`: the pattern of layers without RoPE is not in the file; it is every fourth."""
    config = from_gguf(facts, store, max_model_len)
    layers = tuple(replace(la, rotary=None) if i % 4 == 3 else la for i, la in enumerate(config.layers))
    return replace(config, layers=layers)
