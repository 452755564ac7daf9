"""A model's engine on virtual time: the real scheduler, cache and loop, with steps that take as long as this host should need.

Knows whose times: a calibration of this host, or its roofline. Reads no weights and says nothing of words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ridgeline.backends.base import LoadPlan
from ridgeline.backends.clock import ClockProgram
from ridgeline.backends.cpu.program import choose_isa
from ridgeline.bench.calibrate import load_calibration
from ridgeline.bench.drive import Driven, drive
from ridgeline.bench.probe import machine
from ridgeline.bench.workloads import Workload
from ridgeline.engine.core import EngineCore
from ridgeline.engine.loader import LoadedModel, OpenModel, make_core
from ridgeline.engine.request import Limits
from ridgeline.engine.words import Words, open_words
from ridgeline.errors import UserError
from ridgeline.graph.step import SharedWalk, Span
from ridgeline.planner.calibration import CalibratedSeconds
from ridgeline.planner.predictor import StepPredictor

Seconds = Callable[[Sequence[Span], Sequence[SharedWalk]], float]
_SCRIPTED = 5  # what every draw gives


def fitted(model: OpenModel) -> CalibratedSeconds:
    """Seconds of a step as this host was calibrated. Raises `UserError` where it was not, or not for a format of the model."""
    isa = choose_isa(None if model.plan.isa == "auto" else model.plan.isa)
    found = load_calibration(model.plan.threads, isa)
    if found is None:
        text = f"this host is not calibrated for {model.plan.threads} threads and {isa}"
        raise UserError(text, field="calibration", value=isa, remedy="run `ridgeline calibrate MODEL` first")
    formats = {name: t.encoding.name for name, t in model.spec.tensors.items()}
    return CalibratedSeconds(model.spec.graph, formats, found, model.plan.kv_dtype)


def fitted_or_least(model: OpenModel) -> tuple[Seconds, str]:
    """Seconds of a step and where they are from: as fitted, else the least that this host's roofline allows."""
    try:
        found = fitted(model)
    except UserError:
        least = StepPredictor(model.costs(), machine(model.plan.threads, model.plan.isa))
        return least, "predicted: the roofline's least time; `ridgeline calibrate` fits it to this host"
    c = found.calibration
    return found, f"fitted: calibrated {c.date}, {c.threads} threads, {c.isa}"


class Clocked:
    """The engine of `model` whose steps take `seconds`."""

    def __init__(self, model: OpenModel, seconds: Seconds) -> None:
        self._model, self._seconds = model, seconds
        self.text: Words = open_words(model.checkpoint)

    def core(self, *, paced: bool = True) -> tuple[EngineCore, ClockProgram]:
        """An idle engine at second 0, and the program that holds its time."""
        plan, spec = self._model.plan, self._model.spec
        wanted = LoadPlan(plan.blocks, plan.block_size, plan.kv_dtype, plan.threads)
        program = ClockProgram(spec.graph, wanted, self._seconds, lambda row: _SCRIPTED)
        limits = Limits(plan.max_model_len, self.text.vocab_size, self.text.stop_ids)
        core = make_core(LoadedModel(plan, program, spec.tensors, self.text, limits, 0.0), paced=paced)
        core.clock = program.read
        return core, program

    def run(self, workload: Workload) -> Driven:
        """The workload from second 0 to its last answer."""
        core, program = self.core()

        def pass_time(seconds: float) -> None:
            program.now += seconds

        return drive(core, self.text, workload, pass_time)
