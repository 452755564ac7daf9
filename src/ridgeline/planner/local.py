"""Facts of a model on disk: a GGUF file or folder with weights, or a `config.json` alone. Reads names, shapes and keys, no weights.

A config of a family that has a graph becomes that graph; of other families (experts, latent attention) the keys are counted like a row
of the table. What cannot be counted right is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.encodings import BF16
from ridgeline.errors import FileFormatError, UnsupportedError
from ridgeline.formats.checkpoint import open_checkpoint
from ridgeline.formats.tensors import Tensor
from ridgeline.graph.verify import verify
from ridgeline.models.facts import Facts
from ridgeline.models.registry import HUGGING_FACE, ModelSpec, build, load_spec
from ridgeline.models.store import Store
from ridgeline.planner.catalog import model_of
from ridgeline.planner.facts import ModelFacts, Parts, from_graph
from ridgeline.planner.partial import partial_facts
from ridgeline.planner.tables import Row

MAX_CONFIG_BYTES = 16 << 20
CONFIG = "config.json"


def local_facts(path: Path) -> ModelFacts:
    """Raises `UserError` naming the file and the key. A folder without weights is read by its config.json; of a GGUF file that is not
    supported what can be counted without a graph (`partial`)."""
    folder_config = path / CONFIG
    bare = path.is_dir() and folder_config.exists() and not any(path.glob("*.safetensors")) and not any(path.glob("*.gguf"))
    if bare or path.suffix == ".json":
        return config_facts(folder_config if bare else path)
    try:
        checkpoint = open_checkpoint(path)
        return spec_facts(load_spec(checkpoint), str(path))
    except UnsupportedError as why:
        if path.suffix != ".gguf":
            raise
        return partial_facts(path, why)


def spec_facts(spec: ModelSpec, path: str) -> ModelFacts:
    """A checkpoint's facts: parameters and bytes exactly as its tensors hold them."""
    facts = from_graph(spec.graph, "file", f"file: {path}", max_context=spec.trained_context_len)
    sizes = {name: t.nbytes for name, t in spec.tensors.items()}
    head, embed = sizes.get("head", 0), sizes["embed"]
    norms = sum(t.nbytes for t in spec.tensors.values() if len(t.shape) == 1)
    linear = sum(sizes.values()) - head - embed - norms
    formats = {name: t.encoding.name for name, t in spec.tensors.items()}
    return replace(facts, name=Path(path).name, stored=Parts(embed, head, linear, norms), native="as stored", formats=formats)


def config_facts(path: Path) -> ModelFacts:
    """From a `config.json` of Hugging Face's form."""
    keys = _read(path)
    family = str(keys.get("model_type"))
    name = path.parent.name if path.name == CONFIG and path.parent.name else path.stem
    native = str(keys.get("torch_dtype") or keys.get("dtype") or "bf16").replace("bfloat16", "bf16").replace("float16", "fp16")
    if family in HUGGING_FACE:
        reader, _ = HUGGING_FACE[family]
        facts = Facts(keys, str(path))
        # The readers ask the weights only whether there is a head of its own.
        head = {} if keys.get("tie_word_embeddings", family.startswith(("gemma", "smollm3"))) else {"lm_head.weight": _nothing()}
        config = reader(facts, Store(head, str(path)), None)
        facts.finish()
        graph = build(config)
        verify(graph)
        found = from_graph(graph, "config", f"config: {path}", native=native, max_context=config.sizes.context_len)
        return replace(found, name=name)
    return model_of(_row(keys, path, name, native))


def _nothing() -> Tensor:
    return Tensor("lm_head.weight", (0, 0), BF16, np.empty((0, 0), np.uint8))


def _read(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise FileFormatError(f"{path}: longer than {MAX_CONFIG_BYTES} bytes", field=str(path), limit=MAX_CONFIG_BYTES)
        keys = json.loads(path.read_text("utf8"))
    except OSError as error:
        raise FileFormatError(f"{path}: {error.strerror or error}", field=str(path), remedy="check the path") from None
    except (ValueError, RecursionError):
        raise FileFormatError(f"{path}: not JSON", field=str(path), remedy="give a config.json of Hugging Face's form") from None
    if not isinstance(keys, dict):
        raise FileFormatError(f"{path}: not a JSON object", field=str(path))
    text = keys.get("text_config")
    return {**keys, **text} if isinstance(text, dict) else keys


def _row(keys: Mapping[str, Any], path: Path, name: str, native: str) -> Row:
    """The config as a row of the models table. Sources: DeepSeek, Mixtral, Qwen-MoE, GLM and gpt-oss configs on the hub."""
    facts = Facts(keys, str(path))

    def whole(*names: str, default: int | None = None) -> int:
        chosen = next((n for n in names if facts.has(n)), names[0])
        return facts.whole(chosen, default, low=0)

    kinds = keys.get("layer_types")
    if isinstance(kinds, list) and any(k not in ("full_attention", "sliding_attention") for k in kinds):
        raise UnsupportedError(
            f"{path}: layer_types has {sorted({str(k) for k in kinds})}, which cannot be counted from a config", field="layer_types",
            remedy="use a row of `ridgeline models`",
        )  # fmt: skip
    experts = whole("n_routed_experts", "num_local_experts", "num_experts", default=0)
    latent = whole("kv_lora_rank", default=0)
    if not experts and not latent:
        raise UnsupportedError(
            f"{path}: model_type {keys.get('model_type')!r} is not known and has neither experts nor latent attention to count by",
            field="model_type", value=keys.get("model_type"), limit=sorted(HUGGING_FACE), remedy="use a row of `ridgeline models`",
        )  # fmt: skip
    layers, heads, dim = facts.whole("num_hidden_layers", high=4096), facts.whole("num_attention_heads"), facts.whole("hidden_size")
    sliding = kinds.count("sliding_attention") if isinstance(kinds, list) else 0
    wide = whole("moe_intermediate_size", "intermediate_size")
    rope, nope = whole("qk_rope_head_dim", default=0), whole("qk_nope_head_dim", default=0)
    index = whole("index_head_dim", default=0)
    spelled = ""
    if latent and index:
        spelled = f"{layers}x{heads}:1x{latent + rope}={latent}@{facts.whole('index_topk')};"
        spelled += f"{layers}x{facts.whole('index_n_heads')}:1x{index}+0"
    cells = {
        "model": name, "kind": ("moe-mla-dsa" if index else "moe-mla") if latent else "moe", "layers": layers, "d_model": dim,
        "n_heads": heads, "n_kv_heads": whole("num_key_value_heads", default=heads), "head_dim": whole("head_dim", default=dim // heads),
        "ff_dense": whole("intermediate_size", default=0), "vocab": facts.whole("vocab_size"),
        "tied_emb": "Y" if keys.get("tie_word_embeddings") else "N", "max_ctx": whole("max_position_embeddings", default=0),
        "native_dtype": native, "moe_experts": experts, "moe_topk": whole("num_experts_per_tok", default=0),
        "moe_shared": whole("n_shared_experts", default=0), "moe_ff": wide, "dense_first_layers": whole("first_k_dense_replace", default=0),
        "mla_kv_lora": latent, "mla_rope": rope, "mla_q_lora": whole("q_lora_rank", default=0), "mla_nope": nope,
        "mla_v": whole("v_head_dim", default=0), "sliding_window": whole("sliding_window", default=0), "layers_full_attn": layers - sliding,
        "layers_sliding": sliding, "kv_layers": spelled, "source": f"config {path}", "provenance": "given",
    }  # fmt: skip
    return Row({k: str(v) for k, v in cells.items()}, str(path), 1)
