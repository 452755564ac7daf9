"""Tiny random checkpoints made by `transformers`, their GGUF twins as llama.cpp's converter lays them out, and both forwards."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
import transformers
from tests.reference.running import run_whole

from ridgeline.formats.checkpoint import open_checkpoint
from ridgeline.models.registry import ModelSpec, load_spec

Array = npt.NDArray[np.float32]
VOCAB = 151
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
FACTORS = [1.0 + 0.25 * i for i in range(6)]
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "long_factor": [2.0 * f for f in FACTORS], "short_factor": FACTORS,
    "partial_rotary_factor": 0.75,
}  # fmt: skip
GEMMA: dict[str, Any] = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 9}
LOCAL_GLOBAL = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}


@dataclass(frozen=True)
class Kind:
    """A family's config class, what it changes, and its GGUF name. `length`: tokens compared, past the original context where scaled."""

    config: str
    changes: dict[str, Any] = field(default_factory=dict)
    gguf: str = "llama"
    length: int = 80


KINDS: dict[str, Kind] = {
    "llama": Kind("LlamaConfig"),
    "llama-tied-bias": Kind("LlamaConfig", {"tie_word_embeddings": True, "attention_bias": True}),
    "llama-head-dim": Kind("LlamaConfig", {"head_dim": 24, "num_key_value_heads": 1}),
    "llama-linear": Kind("LlamaConfig", {"rope_parameters": LINEAR}, length=200),
    "llama-dynamic": Kind("LlamaConfig", {"rope_parameters": DYNAMIC, "max_position_embeddings": 64}, gguf="", length=200),
    "llama-llama3": Kind("LlamaConfig", {"rope_parameters": LLAMA3}, length=200),
    "llama-yarn": Kind("LlamaConfig", {"rope_parameters": YARN}, length=200),
    "mistral": Kind("MistralConfig", {"sliding_window": 7}),
    "smollm3": Kind("SmolLM3Config", {"num_hidden_layers": 5}, "smollm3"),
    "qwen2": Kind("Qwen2Config", {}, "qwen2"),
    "qwen2-window": Kind("Qwen2Config", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}, ""),
    "qwen2-yarn": Kind("Qwen2Config", {"rope_parameters": YARN}, "qwen2", 200),
    "qwen3": Kind("Qwen3Config", {"head_dim": 32, "tie_word_embeddings": True}, "qwen3"),
    "gemma2": Kind("Gemma2Config", GEMMA, "gemma2"),
    "gemma2-scalar": Kind("Gemma2Config", {**GEMMA, "query_pre_attn_scalar": 28}, ""),
    "gemma3": Kind("Gemma3TextConfig", {**GEMMA, "num_hidden_layers": 8}, "gemma3"),
    "gemma3-linear": Kind("Gemma3TextConfig", {**GEMMA, "num_hidden_layers": 8, "rope_parameters": LOCAL_GLOBAL}, "gemma3", 200),
    "phi3": Kind("Phi3Config", {"sliding_window": 11, "original_max_position_embeddings": 256}, "phi3"),
    "phi3-longrope": Kind("Phi3Config", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 32}, "phi3", 200),
    "phi3-shortrope": Kind("Phi3Config", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 32}, "phi3", 32),
}


def make_model(kind: Kind, seed: int = 0) -> Any:
    """A transformers model in float32 whose weights are random enough that every part matters."""
    changes = copy.deepcopy({**COMMON, **kind.changes})  # transformers writes into nested RoPE dicts
    config = getattr(transformers, kind.config)(**changes, attn_implementation="eager")
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    shifted = kind.config.startswith("Gemma")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                weight.normal_(0, 0.3 if "embed" in name else weight.shape[1] ** -0.5)
            else:
                middle = 1.0 if "norm" in name and not shifted else 0.0
                weight.normal_(middle, 0.1)
    return model


def expected(model: Any, tokens: npt.NDArray[np.int32]) -> Array:
    """Logits of transformers at every position, float32 [tokens, vocab]."""
    with torch.no_grad():
        logits = model(torch.from_numpy(tokens.astype(np.int64))[None], use_cache=False).logits[0]
    return np.asarray(logits.float().numpy())


def ours(path: Path, tokens: npt.NDArray[np.int32]) -> tuple[Array, ModelSpec]:
    """Logits of the reference backend at every position; RoPE is fixed for exactly this length, as transformers fixes it per call."""
    spec = load_spec(open_checkpoint(path), len(tokens))
    return run_whole(spec.graph, spec.tensors, tokens, block_size=16).logits(), spec


def tokens_for(kind: Kind, seed: int = 5) -> npt.NDArray[np.int32]:
    return np.random.default_rng(seed).integers(3, VOCAB, kind.length).astype(np.int32)


def write_gguf(model: Any, kind: Kind, path: Path, quantize: bool = False) -> None:
    """The twin of a checkpoint, keys and row order as llama.cpp's converter writes them; matrices in Q8_0 when asked."""
    config = model.config
    arch = kind.gguf
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if head_dim != config.hidden_size // config.num_attention_heads or arch.startswith("gemma"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    _write_rope(writer, kind, config, head_dim)
    if getattr(config, "sliding_window", None) and (arch.startswith("gemma") or arch in ("phi3", "llama")):
        writer.add_sliding_window(config.sliding_window)
    if getattr(config, "attn_logit_softcapping", None):
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    if getattr(config, "final_logit_softcapping", None):
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        data, target = _gguf_tensor(name, value.numpy(), config, kind)
        if quantize and data.ndim == 2:
            packed = gguf.quants.quantize(data, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(target, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(target, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_rope(writer: gguf.GGUFWriter, kind: Kind, config: Any, head_dim: int) -> None:
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    dims = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    if kind.gguf in ("llama", "smollm3", "phi3"):
        writer.add_rope_dimension_count(dims)
    match rope["rope_type"]:
        case "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(rope["factor"])
        case "yarn":
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(rope["factor"])
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        case "longrope":
            original = rope["original_max_position_embeddings"]
            writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
            writer.add_rope_scaling_orig_ctx_len(original)
            scale = config.max_position_embeddings / original
            writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(scale) / np.log(original))))
            writer.add_tensor("rope_factors_long.weight", np.asarray(rope["long_factor"], np.float32))
            writer.add_tensor("rope_factors_short.weight", np.asarray(rope["short_factor"], np.float32))
        case "llama3":
            # The converter writes the ratio of plain to scaled frequencies as a tensor.
            scaled = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))[0].numpy()
            plain = 1.0 / rope["rope_theta"] ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
            writer.add_tensor("rope_freqs.weight", (plain / scaled).astype(np.float32))


def _gguf_tensor(name: str, data: Array, config: Any, kind: Kind) -> tuple[Array, str]:
    """Data as the converter stores it, and its GGUF name from the `gguf` package's own table."""
    arch = {v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[kind.gguf]
    target = gguf.get_tensor_name_map(arch, config.num_hidden_layers).get_name(name, try_suffixes=(".weight", ".bias"))
    assert target is not None, name
    data = np.ascontiguousarray(data, dtype=np.float32)
    if kind.gguf.startswith("gemma") and "norm" in name:
        data = data + np.float32(1)
    if kind.gguf in ("llama", "smollm3") and ("q_proj" in name or "k_proj" in name):
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        data = data.reshape(heads, 2, len(data) // heads // 2, *data.shape[1:]).swapaxes(1, 2).reshape(data.shape)
    return np.ascontiguousarray(data), target


def round_to_q8_0(model: Any) -> None:
    """Replace every matrix by what Q8_0 keeps of it."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                packed = gguf.quants.quantize(weight.numpy(), gguf.GGMLQuantizationType.Q8_0)
                weight.copy_(torch.from_numpy(gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q8_0)))
