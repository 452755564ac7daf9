"""Real model shapes as graphs, for cost tests."""

from __future__ import annotations

from ridgeline.graph.graph import Graph
from ridgeline.graph.rewrite import fuse
from ridgeline.models.decoder import Layer, Sizes
from ridgeline.models.llama import LlamaConfig, build
from ridgeline.models.rope import Rotary


def llama(
    vocab: int, dim: int, ffn: int, layers: int, heads: int, kv_heads: int, head_dim: int, *, tied: bool = False, window: int | None = None
) -> Graph:
    rotary = Rotary(tuple(10000.0 ** (-2 * i / head_dim) for i in range(head_dim // 2)), 1.0)
    layer = Layer(heads, kv_heads, ffn, rotary, window)
    sizes = Sizes(vocab, dim, head_dim, head_dim, 1e-5, 4096, 4096)
    return build(LlamaConfig("shape", sizes, (layer,) * layers, tied))


def mistral_7b(window: int | None = None) -> Graph:
    return llama(32000, 4096, 14336, 32, 32, 8, 128, window=window)


def several() -> list[Graph]:
    """As built, fused, with a window and tied weights, and a real size."""
    plain = llama(96, 32, 80, 2, 4, 2, 8)
    return [plain, fuse(plain), llama(96, 32, 80, 2, 4, 1, 8, window=16, tied=True), mistral_7b()]


def llama_13b(kv_heads: int = 40) -> Graph:
    return llama(32000, 5120, 13824, 40, 40, kv_heads, 128)
