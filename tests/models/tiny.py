"""A tiny random model of each family, in pure numpy: `tiny("gemma3", encoding="Q4_K") -> (graph, tensors)`.

The shapes are odd on purpose: grouped heads, head_dim other than dim / heads, windows of a few tokens, partial rotation.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tests.models.encode import random_matrix, vector

from ridgeline.encodings import BY_NAME
from ridgeline.formats.tensors import Tensor
from ridgeline.graph.graph import Graph
from ridgeline.graph.manifest import manifest
from ridgeline.models.decoder import Layer, Sizes
from ridgeline.models.gemma import GemmaConfig
from ridgeline.models.llama import LlamaConfig
from ridgeline.models.registry import Config, build
from ridgeline.models.rope import frequencies, llama3, longrope_scale, rotary

FAMILIES = ("llama", "llama3", "mistral", "smollm3", "qwen2", "qwen3", "gemma2", "gemma3", "phi3")
VOCAB = 199
WINDOW = 6


def config(family: str, dim: int = 64) -> Config:
    """The config of a family; `dim` a multiple of 64. Gemma has 1 KV head and head_dim 32 whatever the dim."""
    head_dim = 32 if dim == 64 or family.startswith("gemma") else dim // 8
    heads, kv_heads, ffn = dim // 16 if dim == 64 else 8, 2, dim + dim // 2
    ffn = ffn if dim % 256 else 2 * dim
    sizes = Sizes(VOCAB, dim, head_dim, head_dim, 1e-5, 4096, 4096)
    base = frequencies(head_dim, 10000.0)
    full = Layer(heads, kv_heads, ffn, rotary(base))
    local = replace(full, window=WINDOW)
    match family:
        case "llama":
            return LlamaConfig(family, sizes, (full, full), tied=True)
        case "llama3":
            turned = replace(full, rotary=rotary(llama3(base, 8.0, 1.0, 4.0, 64)))
            return LlamaConfig(family, sizes, (turned, replace(turned, kv_heads=1)), tied=False)
        case "mistral":
            return LlamaConfig(family, sizes, (local, local), tied=False)
        case "smollm3":
            return LlamaConfig(family, sizes, (full, replace(full, rotary=None)), tied=True)
        case "qwen2":
            return LlamaConfig(family, sizes, (full, full), tied=False, qkv_bias=True)
        case "qwen3":
            return LlamaConfig(family, sizes, (full, full), tied=True, qk_norm=True)
        case "phi3":
            part = rotary(frequencies(head_dim * 3 // 4, 10000.0), longrope_scale(4.0, 64))
            return LlamaConfig(family, sizes, (replace(full, rotary=part),) * 2, tied=False)
        case "gemma2":
            return GemmaConfig(family, sizes, (local, full), True, 28**-0.5, 50.0, 30.0)
        case "gemma3":
            one = replace(full, kv_heads=1)
            layers = (replace(one, window=WINDOW), replace(one, rotary=rotary(frequencies(head_dim, 1e6))))
            return GemmaConfig(family, sizes, layers, True, head_dim**-0.5, qk_norm=True)
    raise ValueError(f"no tiny {family}")


def tiny(family: str, seed: int = 0, encoding: str = "F32") -> tuple[Graph, dict[str, Tensor]]:
    """Graph and tensors: matrices in `encoding` (any of `encodings.ENCODINGS`), norms and biases float32. Same seed, same model."""
    graph = build(config(family, 256 if BY_NAME[encoding].block_size == 256 else 64))
    return graph, random_tensors(graph, seed, encoding)


def random_tensors(graph: Graph, seed: int = 0, encoding: str = "F32") -> dict[str, Tensor]:
    """Random tensors for any graph's manifest."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in manifest(graph).items():
        if len(shape) == 2:
            # Embeddings of unit size: with tied heads the logits then spread over a few units.
            tensors[name] = random_matrix(rng, name, *shape, encoding, 0.3 if name == "embed" else None)
        else:
            middle = 1.0 if "norm" in name else 0.0
            tensors[name] = vector(name, (middle + 0.1 * rng.standard_normal(shape)).astype(np.float32))
    return tensors
