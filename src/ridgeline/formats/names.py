"""Checkpoint names -> our weight names, as data. Knows no shapes: a `part` says which rows of a tensor are meant, `models` counts them.

Ours: embed, head, final_norm, layers.{i}.{attn_norm, q, k, v, o, q_bias, k_bias, v_bias, o_bias, q_norm, k_norm, ffn_norm, gate, up,
down, post_attn_norm, post_ffn_norm}.
Sources: the tensor names of ggml-org/llama.cpp's converter (gguf-py constants) and of Hugging Face `transformers` modelling files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# Rows of a tensor that holds several of our weights, one after the other.
Part = Literal["whole", "q_of_qkv", "k_of_qkv", "v_of_qkv", "gate_of_pair", "up_of_pair"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a weight is stored. `{i}` in the name is the layer.

    interleaved_heads: the rows of each head are paired for interleaved RoPE and must be put in half-split order.
    add_one: the container stores w for a factor 1 + w.
    """

    name: str
    part: Part = "whole"
    interleaved_heads: bool = False
    add_one: bool = False


# Our name -> the places it may be stored, the first that exists is taken.
NameTable = Mapping[str, tuple[Source, ...]]


def _gguf(interleaved: bool) -> NameTable:
    blk, turn = "blk.{i}.", interleaved
    return {
        "embed": (Source("token_embd.weight"),),
        "head": (Source("output.weight"),),
        "final_norm": (Source("output_norm.weight"),),
        "layers.{i}.attn_norm": (Source(blk + "attn_norm.weight"),),
        "layers.{i}.q": (Source(blk + "attn_q.weight", interleaved_heads=turn), Source(blk + "attn_qkv.weight", "q_of_qkv", turn)),
        "layers.{i}.k": (Source(blk + "attn_k.weight", interleaved_heads=turn), Source(blk + "attn_qkv.weight", "k_of_qkv", turn)),
        "layers.{i}.v": (Source(blk + "attn_v.weight"), Source(blk + "attn_qkv.weight", "v_of_qkv")),
        "layers.{i}.o": (Source(blk + "attn_output.weight"),),
        "layers.{i}.q_bias": (Source(blk + "attn_q.bias", interleaved_heads=turn),),
        "layers.{i}.k_bias": (Source(blk + "attn_k.bias", interleaved_heads=turn),),
        "layers.{i}.v_bias": (Source(blk + "attn_v.bias"),),
        "layers.{i}.o_bias": (Source(blk + "attn_output.bias"),),
        "layers.{i}.q_norm": (Source(blk + "attn_q_norm.weight"),),
        "layers.{i}.k_norm": (Source(blk + "attn_k_norm.weight"),),
        "layers.{i}.post_attn_norm": (Source(blk + "post_attention_norm.weight"),),
        "layers.{i}.ffn_norm": (Source(blk + "ffn_norm.weight"),),
        "layers.{i}.gate": (Source(blk + "ffn_gate.weight"), Source(blk + "ffn_up.weight", "gate_of_pair")),
        "layers.{i}.up": (Source(blk + "ffn_up.weight"),),
        "layers.{i}.down": (Source(blk + "ffn_down.weight"),),
        "layers.{i}.post_ffn_norm": (Source(blk + "post_ffw_norm.weight"),),
    }


def _hugging_face() -> NameTable:
    layer, attn, mlp = "model.layers.{i}.", "model.layers.{i}.self_attn.", "model.layers.{i}.mlp."
    return {
        "embed": (Source("model.embed_tokens.weight"),),
        "head": (Source("lm_head.weight"),),
        "final_norm": (Source("model.norm.weight"),),
        "layers.{i}.attn_norm": (Source(layer + "input_layernorm.weight"),),
        "layers.{i}.q": (Source(attn + "q_proj.weight"), Source(attn + "qkv_proj.weight", "q_of_qkv")),
        "layers.{i}.k": (Source(attn + "k_proj.weight"), Source(attn + "qkv_proj.weight", "k_of_qkv")),
        "layers.{i}.v": (Source(attn + "v_proj.weight"), Source(attn + "qkv_proj.weight", "v_of_qkv")),
        "layers.{i}.o": (Source(attn + "o_proj.weight"),),
        "layers.{i}.q_bias": (Source(attn + "q_proj.bias"),),
        "layers.{i}.k_bias": (Source(attn + "k_proj.bias"),),
        "layers.{i}.v_bias": (Source(attn + "v_proj.bias"),),
        "layers.{i}.o_bias": (Source(attn + "o_proj.bias"),),
        "layers.{i}.q_norm": (Source(attn + "q_norm.weight"),),
        "layers.{i}.k_norm": (Source(attn + "k_norm.weight"),),
        "layers.{i}.ffn_norm": (Source(layer + "post_attention_layernorm.weight"),),
        "layers.{i}.gate": (Source(mlp + "gate_proj.weight"), Source(mlp + "gate_up_proj.weight", "gate_of_pair")),
        "layers.{i}.up": (Source(mlp + "up_proj.weight"), Source(mlp + "gate_up_proj.weight", "up_of_pair")),
        "layers.{i}.down": (Source(mlp + "down_proj.weight"),),
    }


def _gemma() -> NameTable:
    """Norms around both halves of a layer, and every norm stored as w for a factor 1 + w."""
    layer = "model.layers.{i}."
    around = {
        "layers.{i}.post_attn_norm": (Source(layer + "post_attention_layernorm.weight"),),
        "layers.{i}.ffn_norm": (Source(layer + "pre_feedforward_layernorm.weight"),),
        "layers.{i}.post_ffn_norm": (Source(layer + "post_feedforward_layernorm.weight"),),
    }
    table = {**HUGGING_FACE, **around}
    shifted = {ours: (Source(places[0].name, add_one=True),) for ours, places in table.items() if ours.endswith("norm")}
    return {**table, **shifted}


GGUF: NameTable = _gguf(interleaved=False)
GGUF_INTERLEAVED: NameTable = _gguf(interleaved=True)
# phi3 stores gate and up as one tensor under the name of up.
GGUF_FUSED_PAIR: NameTable = {**GGUF, "layers.{i}.up": (Source("blk.{i}.ffn_up.weight", "up_of_pair"),)}
HUGGING_FACE: NameTable = _hugging_face()
HUGGING_FACE_GEMMA: NameTable = _gemma()

# Tensors that the config readers turn into RoPE frequencies; they are no weights of the graph.
GGUF_ROPE_FACTORS = {"plain": "rope_freqs.weight", "long": "rope_factors_long.weight", "short": "rope_factors_short.weight"}
# Buffers that old checkpoints carry and that follow from the config.
HUGGING_FACE_DERIVED = ("rotary_emb.inv_freq", "self_attn.masked_bias", "self_attn.bias")
