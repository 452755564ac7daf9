"""The clock backend: its seconds and bytes are the planner's, and the engine on it schedules as the simulator and the CPU engine do."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.tiny_gguf import tiny_gguf
from tests.engine.fakes import ByteWords
from tests.planner.test_calibration import NOTHING

from ridgeline.backends.base import LoadPlan, Program
from ridgeline.backends.clock import ClockProgram, StepSeconds
from ridgeline.bench.clocked import Clocked
from ridgeline.bench.random_gguf import SHAPES, write_random
from ridgeline.bench.replica import Replica, scripted
from ridgeline.bench.simulate import Fleet, Simulation, fleet_of, simulate
from ridgeline.bench.workloads import Job, Lengths, OpenLoop, poisson
from ridgeline.engine.core import EngineCore
from ridgeline.engine.loader import load_program, open_model
from ridgeline.engine.pace import Pace, Shape, pace_of, paced_budget
from ridgeline.engine.request import EngineRequest, Limits, prepare
from ridgeline.engine.trace import Trace, replay
from ridgeline.errors import InternalError
from ridgeline.graph.caches import cache_groups
from ridgeline.graph.step import SharedWalk, Span, Step
from ridgeline.kv.manager import KvCache
from ridgeline.options import Options
from ridgeline.planner.calibration import CalibratedSeconds, ChunkAttention, DecodeAttention, linear_formats
from ridgeline.planner.catalog import find_model
from ridgeline.planner.deployment import Deployment
from ridgeline.planner.formats import kv_format_named, native_format
from ridgeline.planner.hardware import Machine, assumed, devices, find_device
from ridgeline.planner.local import local_facts
from ridgeline.planner.parallel import Layout
from ridgeline.planner.predictor import StepPredictor
from ridgeline.planner.setup import Setup, host_device
from ridgeline.scheduler.budget import Budget
from ridgeline.scheduler.state import SchedulerConfig, SchedulerState
from ridgeline.types import SamplingParams

Spans = tuple[Span, ...]


def deployment(model: str, tp: int = 1) -> Deployment:
    facts = find_model(model)
    device = find_device("H200", devices())
    return Setup(facts, device, native_format(facts.native), kv_format_named("bf16"), Layout(tp)).deployment()


@pytest.mark.parametrize(
    ("model", "tp"),
    [
        ("Llama-3.1-8B", 1),
        ("Mistral-7B-v0.1", 2),
        ("Gemma-3-1B", 1),
        ("gpt-oss-20b", 1),
        ("DeepSeek-V3.2", 8),
        ("Qwen3-Next", 2),
        ("DeepSeek-V4-Pro", 16),
    ],
)
def test_seconds_are_the_planners(model: str, tp: int) -> None:
    d = deployment(model, tp)
    seconds, rng = StepSeconds(d), random.Random(3)
    for _ in range(40):
        spans = [Span(i, rng.randrange(9000), rng.choice((0, 1, 1, 1, 300)), 1) for i in range(rng.randrange(0, 12))]
        spans = [Span(s.seq, s.past, s.new, min(1, s.new)) for s in spans]
        assert seconds(spans) == pytest.approx(d.step(spans).seconds, rel=1e-12)
        assert seconds.demand(spans).bytes == pytest.approx(d.demand.step(spans).bytes, rel=1e-12)
    walk, eight = [SharedWalk(tuple(range(8)), 1024)], [Span(i, 2000, 1, 1) for i in range(8)]
    assert seconds.demand(eight, walk).kv_bytes == pytest.approx(d.demand.step(eight, walk).kv_bytes)


def test_the_clock_has_no_numbers() -> None:
    program = clock_program(lambda spans, shared: 0.25, (64,))
    with pytest.raises(InternalError):
        program.logits()
    with pytest.raises(InternalError):
        program.tap("hidden")


def clock_program(seconds: object, blocks: tuple[int, ...]) -> ClockProgram:
    graph = find_model("SmolLM2-135M").graph
    assert graph is not None
    return ClockProgram(graph, LoadPlan(blocks), seconds, lambda row: 1000 + row.position)  # type: ignore[arg-type]


def state_of(program: Program, length: int) -> SchedulerState:
    windows = [g.window for g in cache_groups(program.graph.caches)]
    return SchedulerState(KvCache(windows, program.plan.blocks, program.plan.block_size), SchedulerConfig(max_model_len=length))


def engine(program: Program, budget: Budget, length: int, vocab: int = 1 << 23, **more: Any) -> EngineCore:
    core = EngineCore(program, lambda: state_of(program, length), budget, Limits(length, vocab, frozenset()), **more)
    core.trace = Trace()
    return core


def asked(job: Job) -> SamplingParams:
    return SamplingParams(max_tokens=job.output, temperature=0, ignore_eos=True, detokenize=False)


def simulated(fleet: Fleet, workload: OpenLoop) -> list[Spans]:
    steps: list[Spans] = []

    def seen(replica: Replica, now: float) -> None:
        assert replica.step is not None
        steps.append(replica.step.spans)

    Simulation(fleet, workload, on_step=seen).go()
    return steps


@pytest.mark.parametrize(
    ("budget", "paced"), [(Budget(256, 12, itl_slack=None), False), (Budget(256, 12, itl_slack=2.5), False), (paced_budget(256, 12), True)]
)
@pytest.mark.parametrize("blocks", [400, 60])
def test_the_engine_on_a_clock_schedules_as_the_simulator(budget: Budget, paced: bool, blocks: int) -> None:
    """The whole engine, loop and all, over a clock, against the event loop: the same spans in every step, preemptions included."""
    d = deployment("SmolLM2-135M")
    seconds = StepSeconds(d)
    workload = poisson(60, 300.0, Lengths(120, 60, 0.6), seed=5)
    program = clock_program(seconds, (blocks,))
    core = engine(program, budget, 8192, clock=program.read, pace=Pace(seconds) if paced else None)
    assert core.trace is not None
    waiting = sorted(workload.start(), key=lambda j: j.arrival_s)
    while waiting or core.busy:
        if not core.busy:
            program.now = max(program.now, waiting[0].arrival_s)
        while waiting and waiting[0].arrival_s <= program.now:
            job = waiting.pop(0)
            core.submit(prepare(EngineRequest(job.id, job.prompt.tolist(), asked(job)), core.limits, ByteWords()))
        core.step()
    recorded = [s.step.spans for s, _ in core.trace.steps() if s.step.spans]
    fleet = Fleet((None,), (blocks,), seconds, budget, max_model_len=8192, pace=(lambda: Pace(seconds)) if paced else None)
    assert simulated(fleet, workload) == recorded
    if blocks == 60:
        assert core.state.counts["preemptions"] > 0 or core.metrics.counts["preemptions"] > 0


class Replayed(Pace):
    """Learns from the times that another one saw."""

    def __init__(self, shape: Shape, seconds: Sequence[float]) -> None:
        super().__init__(shape)
        self._seconds = iter(seconds)

    def learn(self, step: Step, seconds: float) -> None:
        super().learn(step, next(self._seconds))


@pytest.mark.parametrize("paced", [False, True])
def test_the_clock_schedules_as_the_cpu_engine_did(tmp_path: Path, paced: bool) -> None:
    """A real engine on real kernels in real time, its chunks paced as a server's; its arrivals and step times replayed on the clock give
    the same steps."""
    path = tmp_path / "m.gguf"
    write_random(path, SHAPES["tiny"], "Q4_0")
    model = open_model(Options(str(path), max_model_len=128, threads=1, max_num_seqs=6))
    program = load_program(model)
    # Without the floor: steps of so small a model are never as long.
    kept = replace(paced_budget(48, 6), itl_floor=0.0)
    budget, pace = (kept, pace_of(model.costs(), 1, "avx2")) if paced else (Budget(48, 6, itl_slack=None), None)
    core = engine(program, budget, 128, 500, pace=pace)
    assert core.trace is not None
    rng = np.random.default_rng(0)
    jobs = [Job(f"r{i}", 0.0, rng.integers(3, 500, rng.integers(1, 90), np.int32), int(rng.integers(1, 30))) for i in range(14)]
    for i, job in enumerate(jobs):
        core.submit(prepare(EngineRequest(job.id, job.prompt.tolist(), asked(job)), core.limits, ByteWords()))
        for _ in range(i % 3):
            core.step()
    while core.busy:
        core.step()
    steps = [(s, before) for s, before in core.trace.steps() if s.step.spans]
    starts = [s.record.now for s, _ in steps]
    gaps = [b - a for a, b in zip(starts, [*starts[1:], starts[-1] + 1.0], strict=True)]
    arrivals = [
        Job(r.id, s.record.now - starts[0], r.prompt, r.max_tokens or 0) for s, before in steps for _, r in before if not isinstance(r, str)
    ]
    times = iter(gaps)

    def replayed(spans: Sequence[Span], shared: Sequence[SharedWalk]) -> float:
        return next(times)

    shape, learned = StepPredictor(model.costs(), assumed(1, "avx2")), [s.times[3] - s.times[1] for s, _ in steps]
    windows = tuple(g.window for g in cache_groups(program.graph.caches))
    again = (lambda: Replayed(shape, learned)) if paced else None
    fleet = Fleet(windows, program.plan.blocks, replayed, budget, max_model_len=128, pace=again)
    assert simulated(fleet, OpenLoop("replay", arrivals)) == [s.step.spans for s, _ in steps]
    assert len(arrivals) == 14 and len(steps) > 20
    cut = [s for s, _ in steps if 0 < s.record.chunk_tokens == s.record.chunk_limit < 48 - s.record.decodes]
    assert bool(cut) == paced
    decided = replay(core.trace, state_of(program, 128), budget, pace_of(model.costs(), 1, "avx2") if paced else None)
    assert all(before == after for before, after in decided)


def test_the_simulated_host_is_the_engine_on_its_calibrated_clock(tmp_path: Path) -> None:
    """`simulate --this-host` and `bench predict`: the same arrivals get their tokens at the same times, paced alike."""
    path = tiny_gguf(tmp_path / "m.gguf")
    model, facts = open_model(Options(str(path), threads=1, max_num_seqs=8)), local_facts(path)
    assert facts.graph is not None
    forms = linear_formats(facts.graph, facts.formats)
    calibration = replace(
        NOTHING, threads=1, linear_s=dict.fromkeys(forms, (1e-7, 2e-7, 8e-7)), linear_op_s=dict.fromkeys(forms, (1e-4,) * 3), step_s=1e-2,
        sequence_s=1e-3, decode=DecodeAttention(1e-8, 1e-8, 1e-5, 1e-5), chunk=ChunkAttention(1e-9, 1e-8, 1e-8),
    )  # fmt: skip
    workload = poisson(60, 2.0, Lengths(70, 20, 0.3), seed=2)
    engine = Clocked(model, CalibratedSeconds(facts.graph, facts.formats, calibration)).run(workload).lives
    host = host_device(Machine("m", 20.0, 300.0, 100.0, 1, "avx2", "measured"), 8e9)
    setup = Setup(facts, host, None, kv_format_named("bf16"), Layout(), calibration=calibration)
    fleet = fleet_of(setup, paced_budget(model.plan.chunk, 8), 128)
    simulated = simulate(fleet, workload).lives
    assert [live.job.id for live in simulated] == [live.job.id for live in engine] and len(engine) == 60
    for mine, theirs in zip(simulated, engine, strict=True):
        assert mine.token_s == pytest.approx(theirs.token_s, abs=1e-9)
    whole = simulate(replace(fleet, pace=None, budget=Budget(model.plan.chunk, 8, itl_slack=None)), workload).lives
    assert max(np.diff(live.token_s).max() for live in simulated) < 0.5 * max(np.diff(live.token_s).max() for live in whole)


def test_scripts_repeat() -> None:
    job = poisson(1, 1.0, Lengths(8, 4)).start()[0]
    assert [scripted(job, i) for i in range(4)] == [scripted(job, i) for i in range(4)]
    assert len({scripted(job, i) for i in range(50)}) == 50
