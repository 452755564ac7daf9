"""Rewrites and liveness: fused graphs mean the same bits; buffers are reused and never shared by values that live together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.tiny import FAMILIES, tiny
from tests.reference.running import run_whole

from ridgeline.errors import FileFormatError
from ridgeline.graph.graph import Graph
from ridgeline.graph.liveness import Buffers, assign_buffers
from ridgeline.graph.manifest import check_tensors, manifest
from ridgeline.graph.ops import Add, AddNorm, Embed, Linear, LinearGroup, Mul, Op, RmsNorm, SelectRows, inputs, results
from ridgeline.graph.rewrite import fuse, residual_sums, without
from ridgeline.graph.verify import GraphError, selected_values, value_widths, verify

TOKENS = np.random.default_rng(0).integers(0, 199, 17).astype(np.int32)


@pytest.mark.parametrize("family", FAMILIES)
def test_fused_equals_unfused_bit_for_bit(family: str) -> None:
    graph, tensors = tiny(family)
    fused = fuse(graph)
    verify(fused)
    taps = list(graph.outputs)
    one, two = run_whole(graph, tensors, TOKENS, taps=taps), run_whole(fused, tensors, TOKENS, taps=taps)
    for tap in taps:
        assert np.array_equal(one.tap(tap), two.tap(tap)), tap


@pytest.mark.parametrize("family", FAMILIES)
def test_fuse_leaves_nothing_to_fuse(family: str) -> None:
    graph, _ = tiny(family)
    fused = fuse(graph)
    kinds = [type(op) for op in fused.ops]
    layers = len(graph.caches)
    assert kinds.count(LinearGroup) == 2 * layers
    sums = {op.out for op in fused.ops if isinstance(op, Add)}
    assert not any(isinstance(op, RmsNorm) and op.groups == 1 and op.x in sums for op in fused.ops)
    assert kinds.count(AddNorm) == 2 * layers - 1  # the last sum goes through SelectRows first
    assert fuse(fused).ops == fused.ops
    assert manifest(fused) == manifest(graph)
    assert graph.ops == tiny(family)[0].ops  # pure


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sum_left_out_is_a_sum_that_adds_nothing(family: str) -> None:
    """Bit for bit: what the left out half would have read, computed and kept is gone, the rest is as it was."""
    graph, tensors = tiny(family)
    sums = residual_sums(graph)
    assert sums == ("layers.0.attn_sum", "layers.0.out", "layers.1.attn_sum", "layers.1.out")
    for left in (sums[:1], sums[1:2], sums[2:], sums[1:3], ()):
        draft = without(graph, left)
        verify(draft)
        silent = {w for s in left for w in (s.replace("attn_sum", "o") if s.endswith("attn_sum") else s.replace("out", "down"),)}
        zeroed = {n: replace(t, stored=np.zeros_like(t.data)) if n in silent else t for n, t in tensors.items()}
        want = run_whole(graph, zeroed, TOKENS, taps=["hidden"])
        got = run_whole(draft, tensors, TOKENS, taps=["hidden"])
        assert np.array_equal(got.logits(), want.logits()) and np.array_equal(got.tap("hidden"), want.tap("hidden")), left
        assert len(draft.caches) == 2 - sum(s.endswith("attn_sum") for s in left)
        assert manifest(draft).items() <= manifest(graph).items() and not silent & set(manifest(draft))
    assert without(graph, ()).ops == graph.ops


def test_a_sum_with_two_norms_is_left_alone() -> None:
    ops: tuple[Op, ...] = (
        Embed("x", "e", 9, 8), Add("y", "x", "x"), RmsNorm("n1", "y", "w1", 8, 1e-5), RmsNorm("n2", "y", "w2", 8, 1e-5),
        Mul("z", "n1", "n2"),
    )  # fmt: skip
    graph = Graph("two norms", ops, (), {"logits": "z"})
    assert fuse(graph).ops == ops


def test_manifest_lists_tied_weights_once_and_refuses_contradictions() -> None:
    graph, tensors = tiny("llama")
    wanted = manifest(graph)
    assert "head" not in wanted
    assert wanted["embed"] == (199, 64)
    assert wanted["layers.1.k"] == (64, 64)
    assert {n: t.shape for n, t in tensors.items()} == wanted
    ops = (*graph.ops, Linear("more", "final", "layers.0.q", 64, 99))
    with pytest.raises(GraphError, match=r"layers.0.q is used as \[99, 64\] and as \[128, 64\]"):
        manifest(replace(graph, ops=ops))


def test_checkpoints_are_held_to_the_manifest() -> None:
    wanted = manifest(tiny("qwen2")[0])
    check_tensors(wanted, wanted, "m.gguf")
    with pytest.raises(FileFormatError, match=r"m.gguf: tensors are missing: layers.0.q_bias$"):
        check_tensors(wanted, {n: s for n, s in wanted.items() if n != "layers.0.q_bias"}, "m.gguf")
    with pytest.raises(FileFormatError, match=r"not understood: vision.0, vision.1, vision.2, vision.3 and 2 more"):
        check_tensors(wanted, {**wanted, **{f"vision.{i}": (1,) for i in range(6)}}, "m.gguf")
    with pytest.raises(FileFormatError, match=r"layers.1.o is \[64, 65\], must be \[64, 128\]"):
        check_tensors(wanted, {**wanted, "layers.1.o": (64, 65)}, "m.gguf")


def check_buffers(graph: Graph, keep: tuple[str, ...], buffers: Buffers) -> None:
    """Replay the program with buffers as storage: every read must find the value that was meant."""
    widths, selected = value_widths(graph), selected_values(graph)
    holds: dict[int, str] = {}
    for op in graph.ops:
        read = {buffers.index[v] for v in inputs(op)}
        for value in inputs(op):
            assert holds[buffers.index[value]] == value
        for value in results(op):
            buffer = buffers.index[value]
            assert buffer not in read
            assert buffers.widths[buffer] >= widths[value]
            assert buffers.selected[buffer] == (value in selected)
            holds[buffer] = value
        assert len({buffers.index[v] for v in results(op)}) == len(results(op))
    for value in keep:
        assert holds[buffers.index[value]] == value


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_buffers_are_few_and_never_clash(family: str, fused: bool) -> None:
    graph = fuse(tiny(family)[0]) if fused else tiny(family)[0]
    logits = (graph.outputs["logits"],)
    plain = assign_buffers(graph, logits)
    check_buffers(graph, logits, plain)
    assert len(plain.widths) <= 12 < len(plain.index)
    everything = tuple(graph.outputs.values())
    check_buffers(graph, everything, assign_buffers(graph, everything))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100), st.sampled_from([4, 8])), min_size=1, max_size=25), st.data())
def test_buffers_of_random_graphs(choices: list[tuple[int, int, int]], data: st.DataObject) -> None:
    ops: list[Op] = [Embed("v0", "e", 9, 4)]
    width = {"v0": 4}
    for i, (a, b, out) in enumerate(choices, 1):
        left, right = f"v{a % i}", f"v{b % i}"
        op: Op = Add(f"v{i}", left, right) if width[left] == width[right] else Linear(f"v{i}", left, f"w{i}", width[left], out)
        width[f"v{i}"] = out if isinstance(op, Linear) else width[left]
        ops.append(op)
    ops.append(SelectRows("s", f"v{len(choices)}"))
    graph = Graph("random", tuple(ops), (), {"logits": "s"})
    keep = (*data.draw(st.lists(st.sampled_from(sorted(width)), unique=True)), "s")
    check_buffers(graph, keep, assign_buffers(graph, keep))
