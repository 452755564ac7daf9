"""A draft beside its target: that both speak the same vocabulary, and how they share the memory. Opens files, packs nothing.

Knows checkpoints and the options. Each model's KV cache gets memory in proportion to what one token takes in it, so that both hold the
same number of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.engine.resolve import KV_SHARE
from ridgeline.engine.self_draft import LeftOut
from ridgeline.engine.words import open_words
from ridgeline.errors import UserError
from ridgeline.formats.checkpoint import Checkpoint, open_checkpoint
from ridgeline.formats.pull import resolve as find
from ridgeline.graph.manifest import manifest
from ridgeline.graph.rewrite import without
from ridgeline.kv.layout import bytes_per_token
from ridgeline.models import ModelSpec, load_spec
from ridgeline.options import Options, SpeculativeConfig
from ridgeline.text.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class DraftFile:
    """An opened draft, and the options and memory (bytes) that are left to the target and given to the draft. name: what it is;
    weights: bytes that it adds to the target's."""

    path: Path
    checkpoint: Checkpoint
    spec: ModelSpec
    target: Options
    target_memory: int
    options: Options
    memory: int
    name: str
    weights: int


def open_draft(config: SpeculativeConfig, options: Options, checkpoint: Checkpoint, spec: ModelSpec, memory: int) -> DraftFile:
    """The draft of `config` for a target. memory: bytes the process may still use. Raises `UserError` for another vocabulary."""
    if config.model is None:
        raise UserError("speculative_config: method draft_model needs the draft's model", field="model")
    path = find(config.model)
    opened = open_checkpoint(path)
    draft = load_spec(opened, None)
    check_vocabulary(open_words(checkpoint).tokenizer, open_words(opened).tokenizer, options.model, config.model)
    weights = sum(t.nbytes for t in draft.tensors.values())
    file = DraftFile(path, opened, draft, options, memory - weights, replace(options, model=config.model), 0, config.model, weights)
    return _divided(file, spec)


def draft_of_itself(left: LeftOut, options: Options, path: Path, checkpoint: Checkpoint, spec: ModelSpec, memory: int) -> DraftFile:
    """The target without some half layers, as its draft: no weights of its own, and KV of the layers that it keeps."""
    graph = without(spec.graph, left.sums)
    draft = replace(spec, graph=graph, tensors={name: spec.tensors[name] for name in manifest(graph)})
    return _divided(DraftFile(path, checkpoint, draft, options, memory, options, 0, str(left), 0), spec)


def _divided(file: DraftFile, spec: ModelSpec) -> DraftFile:
    """What is left of the memory, all of which `file` gives to the target `spec`, goes to both in proportion to a token's KV."""
    options, left, draft = file.target, file.target_memory, file.spec
    kv = options.kv_cache_memory_bytes
    per_token = [bytes_per_token(s.graph.caches, "bf16") for s in (spec, draft)]
    share = per_token[1] / max(1, sum(per_token))
    given = int((left * KV_SHARE if kv is None else kv) * share)
    part = int(left * share)
    if given < 1:
        text = f"the draft model {file.name} leaves no memory: its weights and KV cache are counted too"
        raise UserError(text, field="model", value=file.name, limit=left + file.weights, remedy="use a smaller one")
    own = replace(file.options, speculative_config=None)
    if kv is None:
        return replace(file, target_memory=left - part, options=own, memory=part)
    target = replace(options, kv_cache_memory_bytes=max(1, kv - given))
    return replace(file, target=target, options=replace(own, kv_cache_memory_bytes=given), memory=left)


def check_vocabulary(target: Tokenizer, draft: Tokenizer, target_name: str, draft_name: str) -> None:
    """Raises `UserError` with the first difference: a draft's ids must mean what the target's mean."""
    what = f"the draft model {draft_name} has another vocabulary than {target_name}"
    remedy = "a draft must come from the same family of models"
    if target.size != draft.size:
        text = f"{what}: {draft.size} ids instead of {target.size}"
        raise UserError(text, field="model", value=draft.size, limit=target.size, remedy=remedy)
    a, b = target.vocabulary, draft.vocabulary
    for id in range(target.size):
        if a.text(id) != b.text(id):
            text = f"{what}: id {id} is {b.text(id)!r} instead of {a.text(id)!r}"
            raise UserError(text, field="model", value=id, remedy=remedy)
