"""Configs in the form that model makers publish, without tensors: every key is understood, and the graph has the published size.

Keys and values were written down from memory, not copied from the files: what checks them is the parameter count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.models.encode import vector

from ridgeline.graph.caches import Paged
from ridgeline.graph.manifest import manifest
from ridgeline.graph.verify import verify
from ridgeline.models.facts import Facts
from ridgeline.models.registry import HUGGING_FACE, build
from ridgeline.models.store import Store

COMMON: dict[str, Any] = {
    "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.02, "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0", "use_cache": True,
}  # fmt: skip
# name -> (config, parameters without a separate head, in millions)
PUBLISHED: dict[str, tuple[dict[str, Any], float]] = {
    "Llama-3.2-1B": ({
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama",
        "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
                         "rope_type": "llama3"},
        "rope_theta": 500000.0, "tie_word_embeddings": True, "vocab_size": 128256,
    }, 1236),
    "SmolLM2-135M": ({
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "hidden_act": "silu", "hidden_size": 576,
        "intermediate_size": 1536, "is_llama_config": True, "max_position_embeddings": 8192, "mlp_bias": False, "model_type": "llama",
        "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3, "pad_token_id": 2, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000, "tie_word_embeddings": True,
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}, "vocab_size": 49152,
    }, 134.5),
    "Mistral-7B-v0.1": ({
        "architectures": ["MistralForCausalLM"], "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": False,
        "vocab_size": 32000,
    }, 7111),
    "Qwen2.5-0.5B": ({
        "architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864,
        "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
        "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
        "tie_word_embeddings": True, "use_mrope": False, "use_sliding_window": False, "vocab_size": 151936,
    }, 494),
    "Qwen3-0.6B": ({
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
        "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
        "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True, "use_sliding_window": False, "vocab_size": 151936,
    }, 596),
    "gemma-2-2b": ({
        "architectures": ["Gemma2ForCausalLM"], "attention_bias": False, "attn_logit_softcapping": 50.0, "cache_implementation": "hybrid",
        "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 2304, "intermediate_size": 9216, "max_position_embeddings": 8192, "model_type": "gemma2",
        "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4, "pad_token_id": 0, "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096, "vocab_size": 256000,
    }, 2614),
    "gemma-3-1b": ({
        "architectures": ["Gemma3ForCausalLM"], "attention_bias": False, "attn_logit_softcapping": None, "cache_implementation": "hybrid",
        "eos_token_id": [1, 106], "final_logit_softcapping": None, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 1152, "intermediate_size": 6912, "max_position_embeddings": 32768, "model_type": "gemma3_text",
        "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 512,
        "sliding_window_pattern": 6, "vocab_size": 262144,
    }, 1000),
    "Phi-3.5-mini": ({
        "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"},
        "embd_pdrop": 0.0, "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 131072,
        "model_type": "phi3", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
        "original_max_position_embeddings": 4096, "pad_token_id": 32000, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
        "rope_scaling": {"long_factor": [1.5] * 48, "short_factor": [1.0] * 48, "type": "longrope"}, "rope_theta": 10000.0,
        "sliding_window": 262144, "tie_word_embeddings": False, "vocab_size": 32064,
    }, 3723),
    "Phi-4-mini": ({
        "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "embd_pdrop": 0.0, "full_attn_mod": 1, "hidden_act": "silu",
        "hidden_size": 3072, "intermediate_size": 8192, "interpolate_factor": 1, "lm_head_bias": False, "max_position_embeddings": 131072,
        "mlp_bias": False, "model_type": "phi3", "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
        "rope_scaling": {"long_factor": [1.5] * 48, "short_factor": [1.0] * 48, "type": "longrope"}, "rope_theta": 10000.0,
        "sliding_window": 262144, "tie_word_embeddings": True, "vocab_size": 200064,
    }, 3836),
    "SmolLM3-3B": ({
        "architectures": ["SmolLM3ForCausalLM"], "attention_bias": False, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 11008, "layer_types": ["full_attention"] * 36, "max_position_embeddings": 65536, "max_window_layers": 28,
        "mlp_bias": False, "model_type": "smollm3", "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9,
        "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4, "pretraining_tp": 2, "rms_norm_eps": 1e-06,
        "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None, "use_sliding_window": False, "vocab_size": 128256,
    }, 3075),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_understood(name: str) -> None:
    keys, millions = PUBLISHED[name]
    facts = Facts({**COMMON, **keys}, name)
    reader, _ = HUGGING_FACE[keys["model_type"]]
    config = reader(facts, Store({"lm_head.weight": vector("lm_head.weight", np.ones(1, np.float32))}, name), None)
    facts.finish()
    graph = build(config)
    verify(graph)
    parameters = sum(int(np.prod(shape)) for weight, shape in manifest(graph).items() if weight != "head")
    assert parameters / 1e6 == pytest.approx(millions, rel=0.002)
    assert sum(isinstance(c, Paged) for c in graph.caches) == keys["num_hidden_layers"]
    assert config.sizes.max_model_len == keys["max_position_embeddings"]
