"""Models on disk: a config alone, of families with and without a graph, and a checkpoint with weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ridgeline.bench.random_gguf import SHAPES, write_random
from ridgeline.engine.loader import open_model
from ridgeline.errors import FileFormatError, UnsupportedError, UserError
from ridgeline.options import Options
from ridgeline.planner.catalog import find_model
from ridgeline.planner.cost import parameters
from ridgeline.planner.demand import weight_bytes
from ridgeline.planner.local import local_facts

LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_hidden_layers": 32, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
V3: dict[str, Any] = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_attention_heads": 128, "num_key_value_heads": 128, "num_hidden_layers": 61,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "first_k_dense_replace": 3, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "q_lora_rank": 1536, "vocab_size": 129280, "max_position_embeddings": 163840, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32,
    "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000, "sliding_window": None,
}  # fmt: skip


def written(folder: Path, config: object) -> Path:
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


def test_a_config_of_a_family_with_a_graph(tmp_path: Path) -> None:
    facts = local_facts(written(tmp_path, LLAMA))
    assert (facts.params, facts.counted) == (8_030_261_248, "graph")
    assert facts.graph is not None and facts.native == "bf16" and facts.max_context == 8192
    assert local_facts(tmp_path) == facts  # a folder with nothing but a config
    tied = local_facts(written(tmp_path, {**LLAMA, "tie_word_embeddings": True}))
    assert facts.params - tied.params == 128256 * 4096


def test_a_head_width_of_its_own(tmp_path: Path) -> None:
    """PL-01 (b), Mistral-Small-24B: 32 heads of 128 beside a width of 5120."""
    shape = {"hidden_size": 5120, "num_hidden_layers": 40, "head_dim": 128, "intermediate_size": 32768, "vocab_size": 131072}
    family = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    facts = local_facts(written(tmp_path, {**LLAMA, **family, **shape}))
    assert facts.kv_bytes_per_token("bf16") == 163_840 and 23.4e9 < facts.params < 23.7e9


@pytest.mark.parametrize("config, row", [(V3, "DeepSeek-V3 / R1"), (MIXTRAL, "Mixtral-8x7B")])
def test_configs_that_are_counted_like_a_row(tmp_path: Path, config: dict[str, Any], row: str) -> None:
    facts, wanted = local_facts(written(tmp_path, config)), find_model(row)
    assert facts.params == wanted.params and facts.counted == "config"
    assert facts.kv_bytes_per_token("bf16") == wanted.kv_bytes_per_token("bf16")
    assert facts.active_params == wanted.active_params


def test_a_sparse_indexer(tmp_path: Path) -> None:
    config = {**V3, "model_type": "deepseek_v32", "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048}
    facts = local_facts(written(tmp_path, config))
    assert facts.kept == find_model("DeepSeek-V3.2").kept and facts.params == find_model("DeepSeek-V3.2").params


@pytest.mark.parametrize(
    "config, words",
    [
        ("{", "not JSON"), ("[1]", "not a JSON object"), ({"model_type": "bert", "hidden_size": 8}, "model_type 'bert' is not known"),
        ({**LLAMA, "hidden_size": -4}, "hidden_size is -4"), ({**LLAMA, "mystery": 3}, "mystery not understood"),
        ({**V3, "num_hidden_layers": "many"}, "num_hidden_layers is 'many'"), ({**V3, "vocab_size": None}, "vocab_size is missing"),
        ({**MIXTRAL, "layer_types": ["linear_attention"] * 32}, "cannot be counted"),
    ],
)  # fmt: skip
def test_configs_that_are_refused(tmp_path: Path, config: object, words: str) -> None:
    with pytest.raises(UserError) as error:
        local_facts(written(tmp_path, config))
    assert words in str(error.value) and "config.json" in str(error.value)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError):
        local_facts(tmp_path / "config.json")
    with pytest.raises((FileFormatError, UnsupportedError)):
        local_facts(tmp_path)


@pytest.mark.parametrize("mix", ["Q4_0", "Q4_K_M", "F16"])
def test_a_file_is_counted_by_its_tensors(tmp_path: Path, mix: str) -> None:
    """PL-03: mixed types per tensor; parameters and bytes exactly the checkpoint's."""
    path = tmp_path / "m.gguf"
    write_random(path, SHAPES["tiny"], mix)
    facts, model = local_facts(path), open_model(Options(str(path), max_model_len=64, threads=1))
    assert facts.params == parameters(model.spec.graph)
    assert facts.stored is not None
    assert weight_bytes(facts, None).total == facts.stored.total == sum(t.nbytes for t in model.spec.tensors.values())
