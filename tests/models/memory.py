"""Checkpoints that exist only in memory: a tiny model written out under Hugging Face or GGUF names and keys, no file involved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from tests.models.encode import vector
from tests.models.tiny import VOCAB, WINDOW, config, random_tensors

from ridgeline.formats import names
from ridgeline.formats.tensors import Tensor
from ridgeline.models.registry import Config, build
from ridgeline.quant.decode import decode_tensor

HF_EXTRA: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "tie_word_embeddings": True},
    "mistral": {"model_type": "mistral", "sliding_window": WINDOW},
    "smollm3": {"model_type": "smollm3", "rope_theta": 10000.0, "no_rope_layers": [1, 0]},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "tie_word_embeddings": True},
    "gemma2": {
        "model_type": "gemma2", "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 28, "sliding_window": WINDOW,
    },
    "gemma3": {
        "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 32, "sliding_window": WINDOW,
        "num_key_value_heads": 1, "sliding_window_pattern": 2,
    },
}  # fmt: skip
GGUF_EXTRA: dict[str, dict[str, Any]] = {
    "llama": {"rope.dimension_count": 32},
    "mistral": {"rope.dimension_count": 32, "attention.sliding_window": WINDOW},
    "qwen2": {},
    "qwen3": {},
    "gemma3": {"attention.sliding_window": WINDOW, "attention.sliding_window_pattern": 2, "attention.head_count_kv": 1},
}
GGUF_ARCH = {"mistral": "llama"}


@dataclass(frozen=True)
class Memory:
    """What `load_spec` reads of a checkpoint."""

    kind: Literal["gguf", "hf"]
    architecture: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    path: str = "memory"


def model(family: str, encoding: str = "F32", **changes: Any) -> tuple[Config, dict[str, Tensor]]:
    """The tiny config (fields of it changed) and random tensors."""
    made = replace(config(family), **changes)
    return made, random_tensors(build(made), 0, encoding)


def hf(family: str, tensors: Mapping[str, Tensor], **keys: Any) -> Memory:
    """Under Hugging Face names; a key given as None is left out. Gemma norms are stored as w - 1."""
    base: dict[str, Any] = {
        "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 96,
        "num_hidden_layers": 2, "vocab_size": VOCAB, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    values = {k: v for k, v in {**base, **HF_EXTRA[family], **keys}.items() if v is not None}
    table = names.HUGGING_FACE_GEMMA if family.startswith("gemma") else names.HUGGING_FACE
    return Memory("hf", values["model_type"], {"config": values}, stored(table, tensors))


def gguf(family: str, tensors: Mapping[str, Tensor], **keys: Any) -> Memory:
    """Under GGUF names; keys with dots are given as `{"a.b": 1}` in `more`."""
    arch = GGUF_ARCH.get(family, family)
    base: dict[str, Any] = {
        "embedding_length": 64, "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 32,
        "attention.value_length": 32, "feed_forward_length": 96, "block_count": 2, "context_length": 4096,
        "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e6 if family == "gemma3" else 1e4,
    }  # fmt: skip
    values = {**base, **GGUF_EXTRA[family], **keys.pop("more", {}), **keys}
    metadata = {"general.architecture": arch, **{f"{arch}.{k}": v for k, v in values.items() if v is not None}}
    table = names.GGUF_INTERLEAVED if arch in ("llama", "smollm3") else names.GGUF
    return Memory("gguf", arch, metadata, stored(table, tensors))


def stored(table: names.NameTable, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our tensors under the container's names, in its row order and with its kind of norm weights."""
    found = {}
    for ours, tensor in tensors.items():
        parts = ours.split(".")
        key = ours if len(parts) == 1 else f"layers.{{i}}.{parts[2]}"
        source = table[key][0]
        if source.interleaved_heads:
            tensor = tensor.take_rows(interleave(tensor.shape[0]))
        if source.add_one:
            tensor = vector(ours, decode_tensor(tensor) - np.float32(1))
        found[source.name.replace("{i}", parts[1] if len(parts) > 1 else "")] = tensor
    return found


def interleave(rows: int, head_dim: int = 32) -> np.ndarray[Any, np.dtype[np.int64]]:
    """What llama.cpp's converter does to the rows of each head: (first half, second half) become neighbours."""
    return np.arange(rows, dtype=np.int64).reshape(-1, 2, head_dim // 2).transpose(0, 2, 1).reshape(-1)
