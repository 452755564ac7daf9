"""From a model's name to a program that can run: resolve, open, read, plan, pack. Each step is one call into the room that knows it.

Knows the order of things and nothing of their insides. `open_model` packs no weights, for those who only want to look.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from time import perf_counter

from ridgeline.backends import cpu
from ridgeline.backends.base import KEY_SEGMENT, LoadPlan, Program
from ridgeline.backends.cpu import CpuProgram, default_threads
from ridgeline.backends.cpu.selftest import check_kernels
from ridgeline.engine.core import EngineCore
from ridgeline.engine.drafting import DraftFile, draft_of_itself, open_draft
from ridgeline.engine.machine import memory_budget
from ridgeline.engine.pace import pace_of, paced_budget
from ridgeline.engine.progress import packing_bar
from ridgeline.engine.request import Limits
from ridgeline.engine.resolve import Facts, resolve
from ridgeline.engine.self_draft import READINGS, LeftOut, blocks_for, keep_for, kept_for, search, shipped_texts
from ridgeline.engine.speculators import LoadedDraft, make_speculator, step_seconds
from ridgeline.engine.words import Words, open_words
from ridgeline.formats.checkpoint import Checkpoint, open_checkpoint
from ridgeline.formats.pull import resolve as find
from ridgeline.formats.tensors import Tensor, Tensors
from ridgeline.graph.caches import cache_groups
from ridgeline.graph.graph import Graph
from ridgeline.graph.ops import Embed
from ridgeline.graph.step import Step
from ridgeline.kv.layout import split_kv_dtype
from ridgeline.kv.manager import CachePolicy, KvCache
from ridgeline.models import ModelSpec, load_spec
from ridgeline.options import Options, Plan, speculative_config
from ridgeline.planner.cost import GraphCost
from ridgeline.quant.keys import even_keys
from ridgeline.scheduler.state import SchedulerConfig, SchedulerState

# Looks at what will be asked of a model before anything is packed, and refuses it by raising.
Accept = Callable[[Words, Limits], None]
# Logits of prompt positions (prompt_logprobs) that one step may hold.
PROMPT_ROWS_BYTES = 64 << 20


@dataclass(frozen=True, eq=False)
class OpenModel:
    """A model whose file is mapped and understood; nothing is packed."""

    checkpoint: Checkpoint
    spec: ModelSpec
    plan: Plan
    draft: OpenModel | None = None

    def weights(self) -> Tensors:
        """What a program packs: the file's tensors, with even keys (`quant.keys`) where the cache keeps keys in codes."""
        codes = split_kv_dtype(self.plan.kv_dtype)[0] in ("int8", "int4")
        return even_keys(self.spec.graph, self.spec.tensors) if codes else self.spec.tensors

    def costs(self) -> GraphCost:
        """What steps of this graph move and compute, with the bytes that its tensors take in the file."""
        return _costs(self.spec.graph, self.spec.tensors, self.plan)


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model that can answer. tensors: as in the file, for byte counts; load_s: seconds from the name to here; draft: it guesses."""

    plan: Plan
    program: Program
    tensors: Mapping[str, Tensor]
    text: Words
    limits: Limits
    load_s: float
    draft: LoadedDraft | None = None

    def costs(self) -> GraphCost:
        """As `OpenModel.costs`."""
        return _costs(self.program.graph, self.tensors, self.plan)


def _costs(graph: Graph, tensors: Mapping[str, Tensor], plan: Plan) -> GraphCost:
    return GraphCost(graph, {name: t.nbytes for name, t in tensors.items()}, plan.kv_dtype)


def open_model(options: Options) -> OpenModel:
    """Raises `UserError` (unknown name, bad file, unsupported model, impossible option) before any heavy work."""
    path, checkpoint, spec = _opened(options)
    return _planned(options, path, checkpoint, spec, memory_budget())


def _opened(options: Options) -> tuple[Path, Checkpoint, ModelSpec]:
    path = find(options.model)
    checkpoint = open_checkpoint(path)
    return path, checkpoint, load_spec(checkpoint, options.max_model_len)


def _planned(options: Options, path: Path, checkpoint: Checkpoint, spec: ModelSpec, memory: int, left: LeftOut | None = None) -> OpenModel:
    """left: what a draft of itself goes without; None: what is kept of an earlier search, and nothing before there was one."""
    config = speculative_config(options.speculative_config)
    if config is None or config.method == "ngram":
        return OpenModel(checkpoint, spec, _resolved(options, path, spec, memory))
    if config.method == "draft_model":
        return _open_with_draft(path, checkpoint, spec, open_draft(config, options, checkpoint, spec, memory))
    left = left or kept_for(spec) or LeftOut()
    return _open_with_draft(path, checkpoint, spec, draft_of_itself(left, options, path, checkpoint, spec, memory))


def _resolved(options: Options, path: Path, spec: ModelSpec, memory: int) -> Plan:
    return resolve(options, Facts(str(path), spec.max_model_len, spec.graph.caches, default_threads(), memory))


def _open_with_draft(path: Path, checkpoint: Checkpoint, spec: ModelSpec, draft: DraftFile) -> OpenModel:
    plan = _resolved(draft.target, path, spec, draft.target_memory)
    own = replace(draft.options, max_model_len=min(plan.max_model_len, draft.spec.max_model_len))
    theirs = _resolved(own, draft.path, draft.spec, draft.memory)
    weights = f"{draft.weights / 1e6:.0f} MB of weights" if draft.weights else "no weights"
    note = f"draft {draft.name}: {weights} and {theirs.kv_bytes / 1e6:.0f} MB of KV cache beside the target's"
    if own.max_model_len != plan.max_model_len:
        note += f"; it guesses up to token {own.max_model_len}"
    return OpenModel(checkpoint, spec, replace(plan, notes=(*plan.notes, note)), OpenModel(draft.checkpoint, draft.spec, theirs))


def load(options: Options, accept: Accept | None = None) -> LoadedModel:
    """Everything that a request needs. Raises like `open_model`, for a tokenizer that is not understood, and as `accept` does."""
    start = perf_counter()
    (path, checkpoint, spec), memory = _opened(options), memory_budget()
    model, packed = _planned(options, path, checkpoint, spec, memory), None
    text = open_words(checkpoint)
    if accept is not None:
        accept(text, Limits(model.plan.max_model_len, text.vocab_size, text.stop_ids))
    of_itself = model.plan.speculative is not None and model.plan.speculative.method == "self"
    left = kept_for(spec) if of_itself else None
    if of_itself and left is None:
        left, packed = _find_left_out(model, text)
        keep_for(spec, left)
        model = _planned(options, path, checkpoint, spec, memory, left)
    program = load_program(model, packed)
    limits = Limits(model.plan.max_model_len, text.vocab_size, text.stop_ids)
    draft = None
    if model.draft is not None:
        guesser = load_program(model.draft, program if of_itself else None)
        agreement = None if left is None else left.agreement
        draft = LoadedDraft(model.draft.plan, guesser, model.draft.costs(), model.draft.spec.tensors, agreement)
    return LoadedModel(model.plan, program, spec.tensors, text, limits, perf_counter() - start, draft)


def _find_left_out(model: OpenModel, text: Words) -> tuple[LeftOut, Program]:
    """What a draft of itself goes without, and a program whose packed weights others may share."""
    plan, spec, first, readings = model.plan, model.spec, list[Program](), count()
    texts = shipped_texts(text.encode, spec.max_model_len)

    def run(graph: Graph, taps: tuple[str, ...]) -> Program:
        report(next(readings), READINGS)
        small = replace(plan, blocks=blocks_for(graph, texts, plan.block_size))
        program = load_program(OpenModel(model.checkpoint, replace(spec, graph=graph), small), next(iter(first), None), taps)
        first[:] = first or [program]
        return program

    def seconds(graph: Graph, step: Step) -> float:
        return step_seconds(_costs(graph, spec.tensors, plan), plan)(step)

    with packing_bar(plan.model, "choosing a draft of") as report:
        return search(spec.graph, texts, plan.block_size, run, seconds), first[0]


def isa_of(program: Program, plan: Plan) -> str:
    """The kernels that a program runs on; where its backend has none to choose from, what was asked for."""
    return str(getattr(program, "isa", plan.isa))


def load_program(model: OpenModel, shared: Program | None = None, taps: tuple[str, ...] = ()) -> Program:
    """Pack the weights for the backend of the plan. shared: a program of the same file, whose weights are used as they are."""
    plan, spec = model.plan, model.spec
    if plan.backend == "reference":
        from ridgeline.backends import reference

        wanted = LoadPlan(plan.blocks, plan.block_size, plan.kv_dtype, plan.threads, taps)
        return reference.load(spec.graph, model.weights(), wanted, shared if isinstance(shared, reference.ReferenceProgram) else None)
    return load_cpu(model, shared if isinstance(shared, CpuProgram) else None, taps)


def load_cpu(model: OpenModel, shared: CpuProgram | None = None, taps: tuple[str, ...] = ()) -> CpuProgram:
    """Pack for the CPU backend, whatever the plan says, then let go of the file's pages."""
    plan, spec = model.plan, model.spec
    with packing_bar(plan.model) as report:
        wanted = LoadPlan(plan.blocks, plan.block_size, plan.kv_dtype, plan.threads, taps)
        if shared is None:
            check_kernels(spec.tensors.values(), None if plan.isa == "auto" else plan.isa)
        isa, packed = None if plan.isa == "auto" else plan.isa, None if shared is None else shared.packed
        program = cpu.load(spec.graph, model.weights(), wanted, isa, report, shared=packed)
    model.checkpoint.check_unchanged()
    model.checkpoint.release_all()
    return program


def make_core(
    model: LoadedModel, *, prefix_cache: CachePolicy | None = None, cascade: bool = True, paced: bool = True,
    blocks: Sequence[int] | None = None,
) -> EngineCore:  # fmt: skip
    """An idle engine on a loaded model. One model has one engine at a time: they would write into the same KV blocks.

    prefix_cache: other than the plan says; cascade False walks shared prefixes apart: both are for comparing. paced False: nobody waits
    for single tokens, so prompts are read as fast as they fit. blocks: per cache group, fewer than planned. None of them changes a word."""
    plan, graph = model.plan, model.program.graph
    windows = [group.window for group in cache_groups(graph.caches)]
    config = SchedulerConfig(plan.scheduling_policy, plan.max_model_len, key_segment=KEY_SEGMENT, cascade=cascade)
    policy: CachePolicy = prefix_cache or ("radix" if plan.prefix_caching else "off")
    width = max([op.vocab for op in graph.ops if isinstance(op, Embed)], default=model.limits.vocab)
    rows = max(1, min(plan.chunk, PROMPT_ROWS_BYTES // (4 * width)))
    budget = paced_budget(max(plan.chunk, plan.max_num_seqs), plan.max_num_seqs, plan.itl_target, rows)
    budget = budget if paced else replace(budget, itl_target=None, itl_slack=None)

    def make_state() -> SchedulerState:
        return SchedulerState(KvCache(windows, plan.blocks if blocks is None else blocks, plan.block_size, policy), config)

    pace = pace_of(model.costs(), plan.threads, plan.isa) if graph.ops and paced else None
    core = EngineCore(model.program, make_state, budget, model.limits, cache_key=(plan.path, plan.kv_dtype), pace=pace)
    core.speculator = make_speculator(plan, model.costs, model.limits.vocab, model.draft)
    return core
