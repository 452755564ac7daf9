"""Costs from the graph: exact counts, agreement with the closed forms, and what must not cost anything."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planner import planner_shapes as shapes

from ridgeline.graph.caches import Paged
from ridgeline.graph.graph import Graph
from ridgeline.graph.manifest import manifest
from ridgeline.graph.ops import Attend, Embed, Linear, LinearGroup
from ridgeline.graph.rewrite import fuse
from ridgeline.graph.step import SharedWalk, Span
from ridgeline.kv.layout import bytes_per_token
from ridgeline.planner import formulas
from ridgeline.planner.cost import Cost, GraphCost, op_cost, pairs, parameters, work


def tiny(tied: bool = False, window: int | None = None) -> Graph:
    graph: Graph = shapes.llama(96, 32, 80, 2, 4, 2, 8, tied=tied, window=window)
    return graph


def half(graph: Graph) -> dict[str, int]:
    """Every weight in two bytes a value."""
    sizes = {}
    for name, shape in manifest(graph).items():
        sizes[name] = 2
        for n in shape:
            sizes[name] *= n
    return sizes


@given(st.integers(0, 40), st.integers(0, 40), st.none() | st.integers(1, 50))
def test_pairs_count_visible_keys(past: int, new: int, window: int | None) -> None:
    want = sum(min(p + 1, window or p + 1) for p in range(past, past + new))
    assert pairs(Span(0, past, new), window) == want


def test_pairs_do_not_depend_on_chunking() -> None:
    for window in (None, 7):
        whole = pairs(Span(0, 0, 50), window)
        assert whole == sum(pairs(Span(0, p, 10), window) for p in range(0, 50, 10))
        assert whole == sum(pairs(Span(0, p, 1), window) for p in range(50))


def test_keys_read_once_per_span() -> None:
    w = work([Span(0, 10, 1, 1), Span(1, 0, 20)], (None, 8))
    assert w.keys == {None: 11 + 20, 8: 8 + 20}
    shared = work([Span(0, 300, 1, 1), Span(1, 280, 1, 1), Span(2, 5, 1, 1)], (None,), [SharedWalk((0, 1), 256)])
    assert shared.keys[None] == 301 + 281 + 6 - 256


def test_mistral_parameters_exactly() -> None:
    """Row 34."""
    assert parameters(shapes.mistral_7b()) == 7_241_732_096
    assert sum(half(shapes.mistral_7b()).values()) / 1e9 == pytest.approx(14.48, abs=0.005)
    assert bytes_per_token(shapes.mistral_7b().caches, "bf16") == 131_072  # row 128


@pytest.mark.parametrize("kv_heads", [40, 8])
def test_llama_13b_parameters(kv_heads: int) -> None:
    """The formula leaves out 81 norm weights of 5120."""
    graph = shapes.llama_13b(kv_heads)
    assert parameters(graph) == formulas.dense_parameters(32000, 5120, 13824, 40, 40, kv_heads, 128) + 81 * 5120
    assert bytes_per_token(graph.caches, "bf16") * 1024 == formulas.kv_bytes(1024, kv_heads, 128, 40)


def test_tied_head_is_stored_once_and_read_for_logits() -> None:
    tied, untied = tiny(tied=True), tiny()
    assert parameters(untied) - parameters(tied) == 96 * 32
    decode = [Span(0, 5, 1, 1)]
    a, b = GraphCost(tied), GraphCost(untied)
    assert a.total(a.work(decode)) == b.total(b.work(decode))


def test_linear_equals_the_lectures_matmul() -> None:
    graph = tiny()
    for T in (1, 17):
        for op in graph.ops:
            if isinstance(op, Linear):
                book = GraphCost(graph, half(graph), value_bytes=2)
                cost = book.op(op, book.work([Span(0, 0, T, T)]))
                want = formulas.matmul(T, op.in_dim, op.out_dim)
                assert (cost.flops, cost.bytes, cost.intensity) == (want.flops, want.bytes, want.intensity)


def test_mlp_of_a_layer_equals_the_lectures_formula() -> None:
    """Row 27: gate and up read x once when fused; the activation's own traffic is not in the formula."""
    B, T, D, F = 3, 5, 32, 80
    graph = fuse(tiny())
    book = GraphCost(graph, half(graph), value_bytes=2)
    step = book.work([Span(s, 0, T) for s in range(B)])
    mlp = [op for op in graph.ops if isinstance(op, LinearGroup | Linear) and F in (op.in_dim, *getattr(op, "out_dims", ()))]
    cost = sum((book.op(op, step) for op in mlp[:2]), Cost())
    want = formulas.gated_mlp(B, T, D, F)
    assert cost.flops == want.flops
    assert cost.bytes == want.bytes + 2 * B * T * F  # down reads one more [BT, F]


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("T, past", [(64, 0), (1, 63)])
def test_attention_equals_the_lectures_formula(kv_heads: int, T: int, past: int) -> None:
    """Row 28, without causal saving; row 48: KV bytes scale with the KV heads."""
    graph = shapes.llama(96, 32, 80, 1, 4, kv_heads, 8)
    book = GraphCost(graph, kv_dtype="bf16", value_bytes=2)
    spans = [Span(s, past, T, 1) for s in range(3)]
    attend = next(op for op in graph.ops if isinstance(op, Attend))
    cost = book.op(attend, book.work(spans, causal=False))
    want = formulas.attention(3, past + T, T, 4, kv_heads, 8)
    assert (cost.flops, cost.bytes) == (want.flops, want.bytes)
    causal = book.op(attend, book.work(spans))
    assert causal.bytes == cost.bytes
    assert causal.flops == (4 * 3 * 8 * 4 * (T * (T + 1) // 2 + T * past))


def test_decode_bytes_are_weights_plus_kv() -> None:
    """Rows 41 and 42: a decode step of the 13B model moves its weights (less the embedding rows not looked up) and all of its KV."""
    graph = shapes.llama_13b()
    book = GraphCost(graph, half(graph), "bf16")
    total = book.total(book.work([Span(s, 1023, 1, 1) for s in range(64)]))
    embed = next(op for op in graph.ops if isinstance(op, Embed))
    stored = sum(half(graph).values())
    assert total.weight_bytes == stored - 2 * (embed.vocab - 64) * embed.dim
    assert total.kv_read_bytes == 64 * 838_860_800
    assert total.kv_write_bytes == 64 * 819_200
    assert total.linear_flops == 2 * 64 * (formulas.dense_parameters(32000, 5120, 13824, 40, 40, 40, 128) - 32000 * 5120)


def test_window_layers_stop_growing() -> None:
    """Row 55."""
    book = GraphCost(tiny(window=16))
    near, far = (book.total(book.work([Span(0, past, 1, 1)])) for past in (16, 4000))
    assert near == far
    full = GraphCost(tiny())
    assert full.total(full.work([Span(0, 4000, 1, 1)])).kv_read_bytes == 4001 * bytes_per_token(tiny().caches, "bf16")


def test_unwanted_logits_cost_nothing() -> None:
    book = GraphCost(tiny())
    head = next(op for op in book.graph.ops if isinstance(op, Linear) and op.out == "logits")
    assert book.op(head, book.work([Span(0, 0, 8, 0)])) == Cost()
    assert book.op(head, book.work([Span(0, 0, 8, 1)])).linear_flops == 2 * 32 * 96
    assert book.total(book.work([])) == Cost()


def test_fusing_changes_no_arithmetic_and_no_weights() -> None:
    a, b = GraphCost(tiny()), GraphCost(fuse(tiny()))
    step = [Span(0, 3, 4, 2), Span(1, 0, 9, 0)]
    before, after = a.total(a.work(step)), b.total(b.work(step))
    assert (before.flops, before.memory_bytes) == (after.flops, after.memory_bytes)
    assert after.activation_bytes < before.activation_bytes


def test_costs_add_up_over_chunks() -> None:
    """All but weights: those are read once per step."""
    book = GraphCost(tiny())
    whole = book.total(book.work([Span(0, 0, 24, 1)]))
    parts = [book.total(book.work([Span(0, p, 8, int(p == 16))])) for p in (0, 8, 16)]
    total = sum(parts, Cost())
    assert (total.flops, total.kv_write_bytes) == (whole.flops, whole.kv_write_bytes)
    assert total.weight_bytes > 2.5 * whole.weight_bytes - sum(half(tiny()).values())


def test_formats_decide_the_arithmetic() -> None:
    """Weights under two bytes a value are multiplied as integers."""
    graph = tiny()
    quarter = {name: size // 4 for name, size in half(graph).items()}
    for sizes, integer in ((half(graph), False), (quarter, True)):
        book = GraphCost(graph, sizes)
        total = book.total(book.work([Span(0, 0, 4, 4)]))
        assert total.int8_flops == (total.linear_flops if integer else 0)
        attention = sum(book.op(op, book.work([Span(0, 0, 4, 4)])).flops for op in graph.ops if isinstance(op, Attend))
        assert total.bf16_flops == attention > 0
        assert total.flops == total.int8_flops + total.f32_flops + total.bf16_flops


@pytest.mark.parametrize("kv_dtype, keys, values", [("bf16", 1, 1), ("int8", 1, 1), ("int8/int4", 1, 0), ("f16/int8", 0, 1), ("f16", 0, 0)])
def test_a_bfloat16_or_int8_cache_is_multiplied_in_pairs(kv_dtype: str, keys: int, values: int) -> None:
    """Keys and values each by their dtype; what they take in all is the same for every dtype."""
    book, step = GraphCost(tiny(), kv_dtype=kv_dtype), [Span(0, 6, 1, 1), Span(1, 0, 4, 0)]
    visible = 7 + 4 * 5 // 2
    for op in book.graph.ops:
        cost = book.op(op, book.work(step))
        if isinstance(op, Attend):
            assert cost.bf16_flops == 2 * 4 * 8 * visible * (keys + values)
            assert cost.bf16_flops + cost.f32_flops == cost.flops == 4 * 4 * 8 * visible
        else:
            assert cost.bf16_flops == 0


def test_values_that_lie_in_the_keys_rows_are_multiplied_as_float32() -> None:
    """MLA: only the scores come in pairs."""
    caches = tuple(replace(c, v_aliases_k=True) for c in tiny().caches if isinstance(c, Paged))
    book = GraphCost(replace(tiny(), caches=caches))
    cost = next(book.op(op, book.work([Span(0, 8, 1, 1)])) for op in book.graph.ops if isinstance(op, Attend))
    assert cost.bf16_flops == cost.f32_flops == 2 * 4 * 9 * 8


def test_ops_sum_to_the_total() -> None:
    book = GraphCost(tiny(), kv_dtype="f32")
    step = [Span(0, 3, 4, 2)]
    by_op = [op_cost(op, book.graph, step, {}, "f32") for op in book.graph.ops]
    assert sum(by_op, Cost()) == book.total(book.work(step))
    assert list(itertools.chain(c for _, c in book.ops(book.work(step)))) == by_op
