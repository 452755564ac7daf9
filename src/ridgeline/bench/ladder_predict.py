"""What a rung will do, before it runs: the same engine, scheduler and prompts on a clock fitted to this host, or at its roofline.

Knows step times of the planner. What depends on the words (speculation) is not predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ridgeline.backends.base import LoadPlan
from ridgeline.backends.clock import ClockProgram
from ridgeline.backends.cpu.program import choose_isa
from ridgeline.bench.calibrate import load_calibration
from ridgeline.bench.ladder_cell import CellResult, answer
from ridgeline.bench.ladder_numbers import Numbers, numbers
from ridgeline.bench.probe import machine
from ridgeline.engine.loader import LoadedModel, OpenModel, make_core, open_model
from ridgeline.engine.request import Limits
from ridgeline.engine.words import open_words
from ridgeline.errors import UserError
from ridgeline.graph.step import SharedWalk, Span
from ridgeline.options import make_options
from ridgeline.planner.calibration import CalibratedSeconds
from ridgeline.planner.cost import GraphCost
from ridgeline.planner.predictor import StepPredictor

Seconds = Callable[[Sequence[Span], Sequence[SharedWalk]], float]


def predict(spec: Mapping[str, Any]) -> tuple[Numbers, str]:
    """(numbers, label) of a cell that runs `spec`. Raises `UserError` for options that cannot be."""
    model = open_model(make_options(spec["model"], dict(spec["options"])))
    seconds, label = step_seconds(model)
    plan = model.plan
    program = ClockProgram(model.spec.graph, LoadPlan(plan.blocks, plan.block_size, plan.kv_dtype, plan.threads), seconds, lambda row: 5)
    text = open_words(model.checkpoint)
    limits = Limits(plan.max_model_len, text.vocab_size, text.stop_ids)
    core = make_core(LoadedModel(plan, program, model.spec.tensors, text, limits, 0.0), paced=False)
    core.clock = program.read
    result = CellResult(spec["rung"])
    answer(core, text, spec["prompts"], spec["outputs"], spec["wave"], result)
    return numbers(asdict(result)), label


def step_seconds(model: OpenModel) -> tuple[Seconds, str]:
    """Seconds of a step on this host: fitted where it was calibrated for the model's formats, else the roofline's least."""
    isa = choose_isa(None if model.plan.isa == "auto" else model.plan.isa)
    found = load_calibration(model.plan.threads, isa)
    if found is not None:
        formats = {name: tensor.encoding.name for name, tensor in model.spec.tensors.items()}
        try:
            return CalibratedSeconds(
                model.spec.graph, formats, found
            ), f"fitted: calibrated {found.date}, {found.threads} threads, {found.isa}"
        except UserError:
            pass  # a format that was not calibrated
    book = GraphCost(model.spec.graph, {n: t.nbytes for n, t in model.spec.tensors.items()}, model.plan.kv_dtype)
    ceilings = machine(model.plan.threads, isa)
    return StepPredictor(book, ceilings), "predicted: the roofline's least time; `ridgeline calibrate` fits it to this host"
