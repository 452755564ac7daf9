"""Which family reads which architecture, and the one entry point: a checkpoint in, a graph and its tensors out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import ridgeline.models.gemma as gemma
import ridgeline.models.llama as llama
import ridgeline.models.phi3 as phi3
import ridgeline.models.qwen as qwen
from ridgeline.errors import FileFormatError, UnsupportedError
from ridgeline.formats import names
from ridgeline.formats.tensors import Tensor, Tensors
from ridgeline.graph.graph import Graph
from ridgeline.graph.verify import verify
from ridgeline.models.facts import Facts
from ridgeline.models.gemma import GemmaConfig
from ridgeline.models.llama import LlamaConfig
from ridgeline.models.store import Store, collect

Config = LlamaConfig | GemmaConfig
Reader = Callable[[Facts, Store, int | None], Config]

GGUF: Mapping[str, tuple[Reader, names.NameTable]] = {
    "llama": (llama.from_gguf, names.GGUF_INTERLEAVED),
    "smollm3": (llama.smollm3_from_gguf, names.GGUF_INTERLEAVED),
    "qwen2": (qwen.qwen2_from_gguf, names.GGUF),
    "qwen3": (qwen.qwen3_from_gguf, names.GGUF),
    "gemma2": (gemma.gemma2_from_gguf, names.GGUF),
    "gemma3": (gemma.gemma3_from_gguf, names.GGUF),
    "phi3": (phi3.from_gguf, names.GGUF_FUSED_PAIR),
}
HUGGING_FACE: Mapping[str, tuple[Reader, names.NameTable]] = {
    "llama": (llama.from_hf, names.HUGGING_FACE),
    "mistral": (llama.from_hf, names.HUGGING_FACE),
    "smollm3": (llama.smollm3_from_hf, names.HUGGING_FACE),
    "qwen2": (qwen.qwen2_from_hf, names.HUGGING_FACE),
    "qwen3": (qwen.qwen3_from_hf, names.HUGGING_FACE),
    "gemma2": (gemma.gemma2_from_hf, names.HUGGING_FACE_GEMMA),
    "gemma3_text": (gemma.gemma3_from_hf, names.HUGGING_FACE_GEMMA),
    "phi3": (phi3.from_hf, names.HUGGING_FACE),
}
# The class in `architectures` must fit: the same model_type is used for classifiers and encoders too.
HF_CLASSES = ("LlamaForCausalLM", "MistralForCausalLM", "SmolLM3ForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Gemma2ForCausalLM",
              "Gemma3ForCausalLM", "Phi3ForCausalLM")  # fmt: skip


class CheckpointLike(Protocol):
    """What is read of `formats.checkpoint.Checkpoint`."""

    @property
    def path(self) -> Any: ...
    @property
    def kind(self) -> Literal["gguf", "hf"]: ...
    @property
    def architecture(self) -> str: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...
    @property
    def tensors(self) -> Tensors: ...


@dataclass(frozen=True)
class ModelSpec:
    """A model ready for any backend. tensors: exactly the graph's manifest, by our weight names; max_model_len and
    trained_context_len in tokens."""

    config: Config
    graph: Graph
    tensors: Mapping[str, Tensor]
    max_model_len: int
    trained_context_len: int


def load_spec(checkpoint: CheckpointLike, max_model_len: int | None = None) -> ModelSpec:
    """Read config and tensors of a checkpoint; nothing is decoded but norms that need correcting and RoPE factors.

    max_model_len: positions to fix the RoPE for, None for what the model was trained for.
    Raises `UnsupportedError` for an architecture or a value that is not understood, `FileFormatError` for values and tensors that are
    missing, left over or inconsistent, `UserError` for a length beyond the model's.
    """
    families, keys, origin = _families(checkpoint)
    if checkpoint.architecture not in families:
        raise UnsupportedError(
            f"{checkpoint.path}: architecture {checkpoint.architecture!r} is not supported", field="architecture",
            value=checkpoint.architecture, limit=sorted(families), remedy=f"supported: {', '.join(sorted(families))}",
        )  # fmt: skip
    reader, table = families[checkpoint.architecture]
    store = Store(checkpoint.tensors, str(checkpoint.path))
    facts = Facts(keys, origin, f"{checkpoint.architecture}." if checkpoint.kind == "gguf" else "")
    config = reader(facts, store, max_model_len)
    facts.finish()
    graph = build(config)
    verify(graph)
    tensors = collect(graph, table, store, config.sizes.head_dim)
    return ModelSpec(config, graph, tensors, config.sizes.max_model_len, config.sizes.context_len)


def build(config: Config) -> Graph:
    """The family's graph."""
    return gemma.build(config) if isinstance(config, GemmaConfig) else llama.build(config)


def _families(checkpoint: CheckpointLike) -> tuple[Mapping[str, tuple[Reader, names.NameTable]], Mapping[str, Any], str]:
    """The table, the keys and the origin to show, by container."""
    if checkpoint.kind == "gguf":
        return GGUF, checkpoint.metadata, str(checkpoint.path)
    config = checkpoint.metadata.get("config")
    if not isinstance(config, Mapping):
        raise FileFormatError(f"{checkpoint.path}: has no config.json", field="config.json")
    classes = config.get("architectures") or []
    if checkpoint.architecture in HUGGING_FACE and not all(c in HF_CLASSES for c in classes):
        raise UnsupportedError(
            f"{checkpoint.path}: architectures is {classes}, supported: {', '.join(HF_CLASSES)}",
            field="architectures", value=classes, limit=HF_CLASSES,
        )  # fmt: skip
    return HUGGING_FACE, config, f"{checkpoint.path}/config.json"
