"""A GGUF file small enough for any test: llama, two layers, random weights, a byte-level tokenizer with ChatML turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tests.formats.gguf_writer import TensorSpec, f32_tensor, write_gguf

from ridgeline.text.vocabulary import byte_to_char

DIM, LAYERS, HEADS, KV_HEADS, FFN, CONTEXT = 32, 2, 4, 2, 64, 128
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_ID = 256 + CONTROL.index("<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def metadata(template: str | None = TEMPLATE, **changes: Any) -> dict[str, Any]:
    spell = byte_to_char()
    tokens = [spell[b] for b in range(256)] + list(CONTROL)
    keys: dict[str, Any] = {
        "general.architecture": "llama", "general.name": "tiny", "llama.block_count": LAYERS, "llama.context_length": CONTEXT,
        "llama.embedding_length": DIM, "llama.feed_forward_length": FFN, "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS, "llama.rope.freq_base": 10000.0, "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": DIM // HEADS, "llama.vocab_size": len(tokens), "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * 256 + [3] * len(CONTROL),
        "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.bos_token_id": 257, "tokenizer.ggml.eos_token_id": END_ID,
        "tokenizer.ggml.add_bos_token": False,
    }  # fmt: skip
    keys["tokenizer.ggml.tokens"].append("ab")
    keys["tokenizer.ggml.token_type"].append(1)
    keys["llama.vocab_size"] += 1
    if template is not None:
        keys["tokenizer.chat_template"] = template
    return {k: v for k, v in (keys | changes).items() if v is not None}


def tensors(seed: int = 0) -> list[TensorSpec]:
    rng = np.random.default_rng(seed)
    head = DIM // HEADS
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (260, DIM), "output_norm.weight": (DIM,)}
    for i in range(LAYERS):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (DIM,), f"blk.{i}.attn_q.weight": (HEADS * head, DIM),
            f"blk.{i}.attn_k.weight": (KV_HEADS * head, DIM), f"blk.{i}.attn_v.weight": (KV_HEADS * head, DIM),
            f"blk.{i}.attn_output.weight": (DIM, HEADS * head),
            f"blk.{i}.ffn_norm.weight": (DIM,), f"blk.{i}.ffn_gate.weight": (FFN, DIM), f"blk.{i}.ffn_up.weight": (FFN, DIM),
            f"blk.{i}.ffn_down.weight": (DIM, FFN),
        }  # fmt: skip
    return [f32_tensor(n, np.ones(s) if len(s) == 1 else rng.normal(scale=0.3, size=s)) for n, s in shapes.items()]


def tiny_gguf(path: Path, *, template: str | None = TEMPLATE, seed: int = 0, **changes: Any) -> Path:
    """Write the model; `changes` replace metadata keys, None removes one."""
    write_gguf(path, metadata(template, **changes), tensors(seed))
    return path
