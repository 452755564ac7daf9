"""The CPU backend against the definition: tight for float weights; quantized Linears against decode-then-matmul on quantized rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from tests.cpu.pairs import attend_in_pairs, definition
from tests.cpu.rowwise import matrix
from tests.models.encode import random_matrix
from tests.models.tiny import FAMILIES, VOCAB, tiny

import ridgeline.backends.reference.ops as reference_ops
from ridgeline.backends import cpu, reference
from ridgeline.backends.base import LoadPlan
from ridgeline.backends.cpu import _native
from ridgeline.backends.cpu.program import ISAS
from ridgeline.encodings import ENCODINGS
from ridgeline.graph.caches import cache_groups
from ridgeline.graph.graph import Graph
from ridgeline.graph.ops import Embed, Linear, SelectRows
from ridgeline.graph.step import Span, Step
from ridgeline.quant.decode import decode_tensor
from ridgeline.types import Isa, KvDtype

HERE: tuple[Isa, ...] = ISAS[: _native.best_isa() + 1]
Floats = npt.NDArray[np.float32]


def step_of(graph: Graph, spans: tuple[Span, ...], blocks: int, size: int) -> Step:
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, VOCAB, sum(s.new for s in spans)).astype(np.int32)
    tables = []
    for _ in cache_groups(graph.caches):
        free = rng.permutation(blocks).astype(np.int32)
        cuts = np.cumsum([-(-(s.past + s.new) // size) for s in spans])
        tables.append(tuple(np.ascontiguousarray(part) for part in np.split(free, cuts)[:-1]))
    return Step(spans, tokens, tuple(tables))


def both(family: str, encoding: str, isa: Isa, kv: KvDtype, spans: tuple[Span, ...]) -> tuple[Floats, Floats]:
    graph, tensors = tiny(family, encoding=encoding)
    plan = LoadPlan((40,) * len(cache_groups(graph.caches)), 16, kv, threads=2)
    step = step_of(graph, spans, 40, 16)
    want, got = reference.load(graph, tensors, plan), cpu.load(graph, tensors, plan, isa)
    want.forward(step)
    got.forward(step)
    return got.logits(), want.logits()


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("family", FAMILIES)
def test_float_weights(family: str, isa: Isa) -> None:
    got, want = both(family, "F32", isa, "f32", (Span(0, 0, 290, 290), Span(1, 0, 13, 5)))
    assert got.shape == want.shape and np.abs(got - want).max() < 1e-4


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("kv", ["bf16", "f16"])
def test_rounded_cache(kv: KvDtype, isa: Isa, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding ties that fall the other way move a key by one unit of the dtype: 2^-8 of bf16, 2^-11 of f16."""
    monkeypatch.setattr(reference_ops, "attend", definition(isa, kv, reference_ops.attend))
    got, want = both("gemma2", "F32", isa, kv, (Span(0, 0, 90, 90),))
    assert np.abs(got - want).max() < {"bf16": 2e-2, "f16": 3e-3}[kv]
    assert np.abs(got - want).mean() < 1e-4


@pytest.mark.skipif("avx512_bf16" not in HERE, reason="this CPU has no products of bfloat16 pairs")
@pytest.mark.parametrize("kv", ["bf16", "int8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_pairs_of_bfloat16(family: str, kv: KvDtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond one segment, with windows, and with an odd number of keys: nearer to their own definition than to that of floats."""
    spans = (Span(0, 0, 291, 291), Span(1, 0, 13, 5))
    got, floats = both(family, "F32", "avx512_bf16", kv, spans)
    monkeypatch.setattr(reference_ops, "attend", attend_in_pairs(kv))
    _, want = both(family, "F32", "avx512_bf16", kv, spans)
    assert np.abs(got - want).max() < 2e-2 and np.abs(got - want).mean() < 2e-4
    assert np.abs(got - floats).mean() < 2e-2 and np.abs(got - want).mean() < 0.5 * np.abs(got - floats).mean()


def quantized(x: Floats) -> Floats:
    """What activations become in front of quantized weights: int8 in groups of 32, scale amax / 127."""
    rows, width = x.shape
    padded = np.zeros((rows, -(-width // 32) * 32), np.float32)
    padded[:, :width] = x
    groups = padded.reshape(rows, -1, 32)
    scale = np.abs(groups).max(axis=2, keepdims=True) / np.float32(127)
    codes = np.clip(np.rint(groups / np.where(scale == 0, 1, scale)), -127, 127)
    return (codes * scale).astype(np.float32).reshape(rows, -1)[:, :width]


QUANTIZED = [e.name for e in ENCODINGS if not e.is_float]


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("encoding", QUANTIZED)
def test_quantized_linear(encoding: str, isa: Isa) -> None:
    """One Linear equals decode-then-matmul on quantized activations, but for codes that fall the other way (by one, rarely)."""
    rng, rows, width, out_dim = np.random.default_rng(4), 37, 512, 61
    x = rng.standard_normal((rows, width)).astype(np.float32)
    weight = random_matrix(rng, "w", out_dim, width, encoding)
    bias = rng.standard_normal(out_dim).astype(np.float32)
    ops = (Embed("x", "table", rows, width), Linear("y", "x", "w", width, out_dim, "b"), SelectRows("logits", "y"))
    tensors = {"table": matrix("table", x), "w": weight, "b": matrix("b", bias)}
    program = cpu.load(Graph("linear", ops, (), {"logits": "logits"}), tensors, LoadPlan((), threads=2), isa)
    program.forward(Step((Span(0, 0, rows, rows),), np.arange(rows, dtype=np.int32), ()))
    decoded = decode_tensor(weight)
    error = np.abs(program.logits() - reference_ops.linear(quantized(x), decoded, bias))
    one_code = np.abs(x).max() / 127 * np.abs(decoded).max()
    assert np.median(error) < 1e-5 and error.max() < 1e-5 + 2 * one_code
    assert (error > 1e-4).mean() < 0.05


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("encoding", QUANTIZED)
def test_quantized_models(encoding: str, isa: Isa) -> None:
    """A whole model is off by the rounding of its activations: 1 / (127 sqrt 12) of a group's largest for each, about 0.6% of a
    standard deviation, and a few of those add up over nine Linears in a row."""
    got, want = both("qwen2", encoding, isa, "f32", (Span(0, 0, 40, 40),))
    assert np.abs(got - want).mean() < 0.02 * want.std()
    assert np.abs(got - want).max() < 0.15 * want.std()
