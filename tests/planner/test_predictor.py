"""The fast predictor equals the slow one; the native backend's own account equals the planner's bytes and FLOPs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.planner import planner_shapes as shapes

from ridgeline.bench.random_gguf import SHAPES, write_random
from ridgeline.bench.runner import OneSequence, random_tokens
from ridgeline.engine.loader import load_program, open_model
from ridgeline.graph.graph import Graph
from ridgeline.graph.ops import Attend, CacheWrite, Embed, Linear, LinearGroup
from ridgeline.graph.step import SharedWalk, Span
from ridgeline.options import Options
from ridgeline.planner.catalog import find_model
from ridgeline.planner.cost import Cost, GraphCost
from ridgeline.planner.formats import kv_format_named
from ridgeline.planner.hardware import Machine
from ridgeline.planner.local import local_facts
from ridgeline.planner.parallel import Layout
from ridgeline.planner.predictor import StepPredictor
from ridgeline.planner.roofline import predict
from ridgeline.planner.setup import Setup, host_device

MACHINE = Machine("test", 12.0, 300.0, 90.0, 2, "avx2", "measured")
PAIRS = replace(MACHINE, isa="avx512_bf16", bf16_gflops=180.0)


@pytest.mark.parametrize("graph", shapes.several(), ids=lambda g: f"{len(g.ops)}-{g.caches[0].window}")  # type: ignore[union-attr]
@pytest.mark.parametrize("machine", [MACHINE, PAIRS], ids=lambda m: m.isa)
@pytest.mark.parametrize("kv_dtype", ["bf16", "int8/bf16"])
def test_fast_equals_slow(graph: Graph, machine: Machine, kv_dtype: str) -> None:
    book = GraphCost(graph, kv_dtype=kv_dtype)
    fast = StepPredictor(book, machine)
    rng = np.random.default_rng(0)
    for _ in range(25):
        spans = [Span(i, int(rng.integers(0, 300)), int(rng.integers(0, 60)), 0) for i in range(int(rng.integers(0, 5)))]
        spans = [Span(s.seq, s.past, s.new, int(rng.integers(0, min(s.new, 3) + 1))) for s in spans]
        assert fast(spans) == pytest.approx(predict(book, spans, machine).lower_s, rel=1e-9, abs=1e-18)
    assert fast([]) == 0


def test_shared_walks_save_reads() -> None:
    """Eight sequences that read one prefix together: seven reads less, until arithmetic is what they wait for (contradiction C4)."""
    book = GraphCost(shapes.mistral_7b())
    spans, walk = [Span(i, 4000, 1, 1) for i in range(8)], [SharedWalk(tuple(range(8)), 3840)]
    quick = StepPredictor(book, replace(MACHINE, f32_gflops=1e6, bf16_gflops=1e6))
    assert quick(spans) - quick(spans, walk) == pytest.approx(7 * 3840 * 131_072 / 12e9, rel=1e-6)
    slow = StepPredictor(book, MACHINE)
    assert 0 < slow(spans) - slow(spans, walk) < 7 * 3840 * 131_072 / 12e9


@pytest.mark.parametrize("mix", ["Q4_0", "Q4_K_M"])
def test_a_plan_of_a_file_has_the_engines_costs(tmp_path: Path, mix: str) -> None:
    """What the simulator paces this host by is what the engine paces itself by."""
    path = tmp_path / "m.gguf"
    write_random(path, SHAPES["tiny"], mix)
    facts = local_facts(path)
    costs = Setup(facts, host_device(MACHINE, 8e9), None, kv_format_named("int8"), Layout()).costs()
    theirs = open_model(Options(str(path), max_model_len=64, threads=1, kv_cache_dtype="int8")).costs()
    assert costs is not None
    for spans in ([Span(0, 17, 1, 1), Span(1, 0, 12, 1)], [Span(0, 0, 40, 0)]):
        assert costs.total(costs.work(spans)) == theirs.total(theirs.work(spans))
    assert Setup(find_model("gpt-oss-20b"), host_device(MACHINE, 8e9), None, kv_format_named("bf16"), Layout()).costs() is None


@pytest.mark.parametrize("mix", ["Q4_0", "Q4_K_M", "F16"])
@pytest.mark.parametrize("past, new, want", [(0, 40, 1), (40, 1, 1), (17, 20, 3), (5, 6, 0)])
def test_the_native_account_is_the_planners(tmp_path: Path, mix: str, past: int, new: int, want: int) -> None:
    """Bytes and FLOPs of linear layers, attention, cache writes and lookups, op by op (the backend leaves out norm weights)."""
    path = tmp_path / "m.gguf"
    write_random(path, SHAPES["tiny"], mix)
    model = open_model(Options(str(path), max_model_len=64, threads=1))
    program = load_program(model)
    book = GraphCost(program.graph, {n: t.nbytes for n, t in model.spec.tensors.items()}, program.plan.kv_dtype)
    sequence, tokens = OneSequence(program), random_tokens(64, 512)
    if past:
        program.forward(sequence.step(0, tokens[:past], 0))
    step = book.work([Span(0, past, new, want)])
    program.timing(True)  # type: ignore[attr-defined]
    program.forward(sequence.step(past, tokens[:new], want))
    counted = 0
    for time in program.op_times():  # type: ignore[attr-defined]
        heavy = [op for op in time.ops if isinstance(op, Attend | CacheWrite | Embed | Linear | LinearGroup)]
        cost = sum((book.op(op, step) for op in heavy), Cost())
        assert time.bytes == cost.memory_bytes, time.label
        if any(isinstance(op, Attend | Linear | LinearGroup) for op in heavy):
            assert time.flops == cost.flops, time.label
        counted += len(heavy)
    assert counted == sum(isinstance(op, Attend | CacheWrite | Embed | Linear | LinearGroup) for op in program.graph.ops)
