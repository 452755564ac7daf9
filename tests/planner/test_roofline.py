"""Bounds of time: ridges, verdicts, and the four cells of the lecture's summary (row 31)."""

from __future__ import annotations

import pytest
from tests.planner import planner_shapes as shapes

from ridgeline.graph.manifest import manifest
from ridgeline.graph.ops import Attend, Linear
from ridgeline.graph.step import Span
from ridgeline.planner.cost import Cost, GraphCost
from ridgeline.planner.hardware import Machine, assumed
from ridgeline.planner.roofline import predict, predict_generation, predict_prompt, times

H100 = Machine("H100 SXM", 3350, 1979e3, 989e3, 1, "sm90", "assumed")


def half(graph: object) -> dict[str, int]:
    sizes = {}
    for name, shape in manifest(graph).items():  # type: ignore[arg-type]
        sizes[name] = 2
        for n in shape:
            sizes[name] *= n
    return sizes


def test_verdict_carries_both_times() -> None:
    t = times(Cost(f32_flops=989 * 10**9, weight_bytes=3350 * 10**6), H100)
    assert (t.memory_s, t.math_s) == pytest.approx((1e-3, 1e-3))
    assert times(Cost(f32_flops=10**9, weight_bytes=10**9), H100).bound == "memory"
    assert times(Cost(int8_flops=10**15), H100).bound == "compute"
    assert times(Cost(), H100).bound == "none"


def test_pairs_of_bfloat16_have_a_roof_of_their_own() -> None:
    """Attention over a bf16 or int8 cache takes half the time where pairs take half; over any other what it takes without them."""
    plain = Machine("x", 1e6, 400.0, 100.0, 1, "avx512", "measured")
    pairs = Machine("x", 1e6, 400.0, 100.0, 1, "avx512_bf16", "measured", bf16_gflops=200.0)
    assert plain.bf16_gflops == 100 and (plain.pairs, pairs.pairs) == (False, True)
    assert times(Cost(bf16_flops=10**9), pairs).math_s == pytest.approx(5e-3) == times(Cost(bf16_flops=10**9), plain).math_s / 2
    graph = shapes.llama(96, 32, 80, 2, 4, 2, 8)
    attend = next(op for op in graph.ops if isinstance(op, Attend))
    for kv_dtype, ratio in (("bf16", 2), ("int8", 2), ("bf16/int4", 4 / 3), ("int4", 1), ("f16", 1)):
        book = GraphCost(graph, kv_dtype=kv_dtype)
        cost = book.op(attend, book.work([Span(0, 0, 500, 1)]))
        assert times(cost, plain).math_s / times(cost, pairs).math_s == pytest.approx(ratio)
    assert assumed(2, "avx512_bf16").bf16_gflops == 2 * assumed(2, "avx512_bf16").f32_gflops
    assert assumed(2, "avx512").bf16_gflops == assumed(2, "avx512").f32_gflops


def test_llama_13b_decode_meets_the_golden_latency() -> None:
    """Row 42 from the graph: 8.02 ms at batch 1 (the graph reads one embedding row, not the table: 0.1 ms less)."""
    graph = shapes.llama_13b()
    book = GraphCost(graph, half(graph), "bf16")
    for batch, ms in ((1, 8.02), (64, 23.80), (256, 71.87)):
        found = predict(book, [Span(s, 1023, 1, 1) for s in range(batch)], H100)
        table_ms = 2 * (32000 - batch) * 5120 / 3.35e9
        written_ms = batch * 819_200 / 3.35e9
        assert found.lower_s * 1e3 + table_ms - written_ms == pytest.approx(ms, abs=0.02)
        assert found.upper_s >= found.lower_s


def test_four_cells() -> None:
    """Row 31: prompt or generation, MLP or attention: BS, S/2, B, below 1, and what binds each."""
    graph = shapes.llama_13b()
    book = GraphCost(graph, half(graph), "bf16", value_bytes=2)
    S, B = 1024, 64
    up = next(op for op in graph.ops if isinstance(op, Linear) and op.out.endswith("up"))
    attend = next(op for op in graph.ops if isinstance(op, Attend))
    prompt = book.work([Span(s, 0, S, 1) for s in range(B)], causal=False)
    decode = book.work([Span(s, S - 1, 1, 1) for s in range(B)])
    assert times(book.op(up, prompt), H100).bound == "compute"
    assert times(book.op(up, decode), H100).bound == "memory"
    assert book.op(up, decode).intensity == pytest.approx(B, rel=0.03)
    assert book.op(attend, prompt).intensity == S / 2
    assert times(book.op(attend, prompt), H100).bound == "compute"
    assert book.op(attend, decode).intensity == pytest.approx(S / (S + 1))
    assert times(book.op(attend, decode), H100).bound == "memory"


def test_prompt_and_generation_join_steps() -> None:
    book = GraphCost(shapes.llama(96, 32, 80, 2, 4, 2, 8))
    machine = assumed(2, "avx2")
    one = predict(book, [Span(0, 0, 30, 1)], machine)
    assert predict_prompt(book, 30, machine) == one
    chunked = predict_prompt(book, 30, machine, chunk=8)
    assert chunked.cost.linear_flops == one.cost.linear_flops
    assert chunked.lower_s > one.lower_s  # weights are read four times
    steps = [predict(book, [Span(0, 30 + i, 1, 1)], machine) for i in range(5)]
    generation = predict_generation(book, 30, 5, machine)
    assert generation.lower_s == pytest.approx(sum(s.lower_s for s in steps))
    assert generation.provenance == "assumed"


def test_machines_need_positive_ceilings() -> None:
    with pytest.raises(ValueError, match="positive"):
        Machine("x", 0, 1, 1, 1, "avx2", "measured")
    with pytest.raises(ValueError, match="positive"):
        Machine("x", 1, 1, 1, 1, "avx2", "measured", bf16_gflops=-1)
    assert assumed(2, "avx2").int8_ridge == pytest.approx(240 / 22)
