"""The clock backend: its seconds and bytes are the planner's, and the engine on it schedules as the simulator and the CPU engine do."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.engine.fakes import ByteWords

from ridgeline.backends.base import LoadPlan, Program
from ridgeline.backends.clock import ClockProgram, StepSeconds
from ridgeline.bench.random_gguf import SHAPES, write_random
from ridgeline.bench.replica import Replica, scripted
from ridgeline.bench.simulate import Fleet, Simulation
from ridgeline.bench.workloads import Job, Lengths, OpenLoop, poisson
from ridgeline.engine.core import EngineCore
from ridgeline.engine.loader import load_program, open_model
from ridgeline.engine.request import EngineRequest, Limits, prepare
from ridgeline.engine.trace import Trace
from ridgeline.errors import InternalError
from ridgeline.graph.caches import cache_groups
from ridgeline.graph.step import SharedWalk, Span
from ridgeline.kv.manager import KvCache
from ridgeline.options import Options
from ridgeline.planner.catalog import find_model
from ridgeline.planner.deployment import Deployment
from ridgeline.planner.formats import kv_format_named, native_format
from ridgeline.planner.hardware import devices, find_device
from ridgeline.planner.parallel import Layout
from ridgeline.planner.setup import Setup
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


def engine(program: Program, budget: Budget, length: int, clock: object = None) -> EngineCore:
    windows = [g.window for g in cache_groups(program.graph.caches)]

    def state() -> SchedulerState:
        return SchedulerState(KvCache(windows, program.plan.blocks, program.plan.block_size), SchedulerConfig(max_model_len=length))

    more = {} if clock is None else {"clock": clock}
    return EngineCore(program, state, budget, Limits(length, 1 << 23, frozenset()), **more)  # type: ignore[arg-type]


def asked(job: Job) -> SamplingParams:
    return SamplingParams(max_tokens=job.output, temperature=0, ignore_eos=True, detokenize=False)


def simulated(fleet: Fleet, workload: OpenLoop) -> list[Spans]:
    steps: list[Spans] = []

    def seen(replica: Replica, now: float) -> None:
        assert replica.step is not None
        steps.append(replica.step.spans)

    Simulation(fleet, workload, on_step=seen).go()
    return steps


@pytest.mark.parametrize("slack", [None, 2.5])
@pytest.mark.parametrize("blocks", [400, 60])
def test_the_engine_on_a_clock_schedules_as_the_simulator(slack: float | None, blocks: int) -> None:
    """The whole engine, loop and all, over a clock, against the event loop: the same spans in every step, preemptions included."""
    d = deployment("SmolLM2-135M")
    seconds = StepSeconds(d, 0.002)
    workload = poisson(60, 30.0, Lengths(120, 60, 0.6), seed=5)
    budget = Budget(tokens=256, sequences=12, itl_slack=slack)
    program = clock_program(seconds, (blocks,))
    core = engine(program, budget, 8192, program.read)
    core.trace = Trace()
    waiting = sorted(workload.start(), key=lambda j: j.arrival_s)
    while waiting or core.busy:
        if not core.busy:
            program.now = max(program.now, waiting[0].arrival_s)
        while waiting and waiting[0].arrival_s <= program.now:
            job = waiting.pop(0)
            core.submit(prepare(EngineRequest(job.id, job.prompt.tolist(), asked(job)), core.limits, ByteWords()))
        core.step()
    recorded = [s.step.spans for s, _ in core.trace.steps() if s.step.spans]
    fleet = Fleet((None,), (blocks,), seconds, budget, max_model_len=8192)
    assert simulated(fleet, workload) == recorded
    if blocks == 60:
        assert core.state.counts["preemptions"] > 0 or core.metrics.counts["preemptions"] > 0


def test_the_clock_schedules_as_the_cpu_engine_did(tmp_path: Path) -> None:
    """A real engine on real kernels in real time; its arrivals and step times replayed on the clock give the same steps."""
    path = tmp_path / "m.gguf"
    write_random(path, SHAPES["tiny"], "Q4_0")
    model = open_model(Options(str(path), max_model_len=128, threads=1, max_num_seqs=6))
    program = load_program(model)
    budget = Budget(tokens=48, sequences=6, itl_slack=None)
    core = engine(program, budget, 128)
    core.limits = Limits(128, 500, frozenset())
    core.trace = Trace()
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

    fleet = Fleet(tuple(g.window for g in cache_groups(program.graph.caches)), program.plan.blocks, replayed, budget, max_model_len=128)
    assert simulated(fleet, OpenLoop("replay", arrivals)) == [s.step.spans for s, _ in steps]
    assert len(arrivals) == 14 and len(steps) > 20


def test_scripts_repeat() -> None:
    job = poisson(1, 1.0, Lengths(8, 4)).start()[0]
    assert [scripted(job, i) for i in range(4)] == [scripted(job, i) for i in range(4)]
    assert len({scripted(job, i) for i in range(50)}) == 50
