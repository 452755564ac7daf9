"""From a model's name to a program that can run: resolve, open, read, plan, pack. Each step is one call into the room that knows it.

Knows the order of things and nothing of their insides. `open_model` packs no weights, for those who only want to look.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter

from ridgeline.backends import cpu
from ridgeline.backends.base import LoadPlan, Program
from ridgeline.backends.cpu import CpuProgram, default_threads
from ridgeline.engine.machine import memory_budget
from ridgeline.engine.progress import packing_bar
from ridgeline.engine.resolve import Facts, resolve
from ridgeline.engine.sequence import Limits
from ridgeline.engine.words import Words, open_words
from ridgeline.formats.checkpoint import Checkpoint, open_checkpoint
from ridgeline.formats.pull import resolve as find
from ridgeline.formats.tensors import Tensor
from ridgeline.models import ModelSpec, load_spec
from ridgeline.options import Options, Plan


@dataclass(frozen=True, eq=False)
class OpenModel:
    """A model whose file is mapped and understood; nothing is packed."""

    checkpoint: Checkpoint
    spec: ModelSpec
    plan: Plan


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model that can answer. tensors: as in the file, for byte counts; load_s: seconds from the name to here."""

    plan: Plan
    program: Program
    tensors: Mapping[str, Tensor]
    text: Words
    limits: Limits
    load_s: float


def open_model(options: Options) -> OpenModel:
    """Raises `UserError` (unknown name, bad file, unsupported model, impossible option) before any heavy work."""
    path = find(options.model)
    checkpoint = open_checkpoint(path)
    spec = load_spec(checkpoint, options.max_model_len)
    facts = Facts(str(path), spec.max_model_len, spec.graph.caches, default_threads(), memory_budget())
    return OpenModel(checkpoint, spec, resolve(options, facts))


def load(options: Options) -> LoadedModel:
    """Everything that a request needs. Raises like `open_model`, and for a tokenizer that is not understood."""
    start = perf_counter()
    model = open_model(options)
    text = open_words(model.checkpoint)
    program = load_program(model)
    limits = Limits(model.plan.max_model_len, text.vocab_size, text.stop_ids)
    return LoadedModel(model.plan, program, model.spec.tensors, text, limits, perf_counter() - start)


def load_program(model: OpenModel) -> Program:
    """Pack the weights for the backend of the plan."""
    plan, spec = model.plan, model.spec
    wanted = LoadPlan(plan.blocks, plan.block_size, plan.kv_dtype, plan.threads)
    if plan.backend == "reference":
        from ridgeline.backends import reference

        return reference.load(spec.graph, spec.tensors, wanted)
    return load_cpu(model)


def load_cpu(model: OpenModel) -> CpuProgram:
    """Pack for the CPU backend, whatever the plan says, then let go of the file's pages."""
    plan, spec = model.plan, model.spec
    with packing_bar(plan.model) as report:
        wanted = LoadPlan(plan.blocks, plan.block_size, plan.kv_dtype, plan.threads)
        program = cpu.load(spec.graph, spec.tensors, wanted, None if plan.isa == "auto" else plan.isa, report)
    model.checkpoint.check_unchanged()
    model.checkpoint.release_all()
    return program
