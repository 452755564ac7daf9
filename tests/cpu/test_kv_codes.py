"""KV dtypes made of codes: the native numbers are those of the reference, within what the order of two roundings can differ."""

from __future__ import annotations

from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
from tests.cpu.pairs import definition, value_steps
from tests.cpu.rowwise import matrix

pytest.importorskip("ridgeline.backends.cpu.native._native", reason="the native backend is not built")

import ridgeline.backends.reference.ops as reference_ops
from ridgeline.backends import cpu, reference
from ridgeline.backends.base import LoadPlan
from ridgeline.backends.cpu import _native
from ridgeline.backends.cpu.program import ISAS
from ridgeline.backends.reference.pool import round_to
from ridgeline.formats.tensors import Tensors
from ridgeline.graph.caches import Paged
from ridgeline.graph.graph import Graph
from ridgeline.graph.ops import Attend, CacheWrite, Embed, SelectRows
from ridgeline.graph.step import Span, Step
from ridgeline.kv.layout import bytes_per_token
from ridgeline.types import PAIRS_ISA, Isa

Floats = npt.NDArray[np.float32]
HERE: tuple[Isa, ...] = ISAS[: _native.best_isa() + 1]
DTYPES = ("int8", "int4", "int8/int4", "f16/int8", "int4/bf16")
ROWS, HEADS, SCALE = 300, 2, 0.2


def one_layer(dim: int, alias: bool = False) -> tuple[Graph, Tensors]:
    """Queries, keys and values straight from tables of random rows: what is stored is the same bits on every backend."""
    rng = np.random.default_rng(dim)
    v_dim = 16 if alias else dim
    cache = Paged("c", 1, dim, v_dim, v_aliases_k=alias)
    ops = (
        Embed("q", "q", ROWS, HEADS * dim), Embed("k", "k", ROWS, dim), Embed("v", "v", ROWS, v_dim), CacheWrite("c", "k", "v"),
        Attend("y", "q", "c", HEADS, SCALE), SelectRows("logits", "y"),
    )  # fmt: skip
    tables = {"q": HEADS * dim, "k": dim, "v": v_dim}
    made = {n: (rng.standard_normal((ROWS, width)) * rng.uniform(0.1, 3, (ROWS, 1))).astype(np.float32) for n, width in tables.items()}
    return Graph("codes", ops, (cache,), {"logits": "logits"}), {n: matrix(n, x) for n, x in made.items()}


def step_of(past: int, new: int, blocks: int) -> Step:
    tokens = np.arange(past, past + new, dtype=np.int32)
    return Step((Span(0, past, new, new),), tokens, ((np.arange(blocks, dtype=np.int32)[::-1].copy(),),))


def bound(x: dict[str, Floats], dim: int) -> float:
    """float32 sums of `dim` products and of 300 probabilities, with the scale of int8 applied at another place: 2 (n + 4) units of the
    last place of the sum of sizes, in scores (each moves an output by at most twice the largest value) and in outputs."""
    unit = 2.0**-24
    score = 2 * (dim + 4) * unit * SCALE * float(np.abs(x["q"]).max() * np.abs(x["k"]).max() * dim)
    most = float(np.abs(x["v"]).max())
    return 2 * most * score + 2 * (ROWS + 4) * unit * most


@pytest.mark.parametrize(("dtype", "dim"), list(product(DTYPES, (20, 48, 64))))
def test_equals_the_reference(dtype: str, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, tensors = one_layer(dim)
    plan = LoadPlan((20,), 16, dtype, threads=2)
    want, floats = reference.load(graph, tensors, plan), reference_ops.attend
    numbers = {n: t.data.view(np.float32).reshape(ROWS, -1) for n, t in tensors.items()}
    for isa in HERE:
        monkeypatch.setattr(reference_ops, "attend", definition(isa, dtype, floats))
        want.forward(step_of(0, ROWS, 20))
        got = cpu.load(graph, tensors, plan, isa)
        got.native.fill_kv(0xFF)
        got.forward(step_of(0, ROWS, 20))
        assert got.kv_bytes == 20 * 16 * bytes_per_token(graph.caches, dtype)
        assert np.abs(got.logits() - want.logits()).max() < bound(numbers, dim)
        whole = got.logits().copy()
        for past, new in ((0, 100), (100, 1), (101, 199)):  # the same bits in pieces, and where few rows are walked without a panel
            got.forward(step_of(past, new, 20))
            assert (got.logits() == whole[past : past + new]).all()


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_a_latent_cache_reads_its_values_from_the_codes_of_its_keys(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, tensors = one_layer(40, alias=True)
    monkeypatch.setattr(reference_ops, "attend", definition(HERE[-1], dtype, reference_ops.attend, alias=True))
    plan = LoadPlan((20,), 16, dtype)
    want, got = reference.load(graph, tensors, plan), cpu.load(graph, tensors, plan)
    for loaded in (want, got):
        loaded.forward(step_of(0, ROWS, 20))
    numbers = {n: t.data.view(np.float32).reshape(ROWS, -1) for n, t in tensors.items()}
    assert np.abs(got.logits() - want.logits()).max() < bound({**numbers, "v": numbers["k"]}, 40)
    assert got.kv_bytes == 20 * 16 * bytes_per_token(graph.caches, dtype)


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_one_key_gives_back_its_value_as_the_reference_rounds_it(dtype: str, isa: Isa) -> None:
    """With one key the output is the stored value itself: zeros, constants, huge, tiny and broken rows, bit for bit but for a rounding.
    In pairs of bfloat16 the step of int8 is rounded to one, and below the smallest normal number nothing is left."""
    dim = 72
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((10, dim)).astype(np.float32)
    rows[0], rows[1], rows[2], rows[3] = 0, 1.5, rows[2] * 1e30, rows[3] * 1e-38
    rows[4, 7], rows[5, 40], rows[6] = np.nan, np.inf, np.abs(rows[6]) + 1000
    graph, tensors = one_layer(dim)
    table = np.zeros((ROWS, dim), np.float32)
    table[:10] = rows
    loaded = cpu.load(graph, {**tensors, "v": matrix("v", table)}, LoadPlan((20,), 16, f"f32/{dtype}"), isa)
    stored, least = round_to(rows, dtype), 0.0
    if isa == PAIRS_ISA and dtype == "int8":
        steps = value_steps(stored)[:, None]
        stored, least = stored / steps * round_to(steps, "bf16"), 2.0**-126
    for i, want in enumerate(stored):
        loaded.forward(Step((Span(0, 0, 1, 1),), np.array([i], np.int32), ((np.array([3], np.int32),),)))
        for got in loaded.logits().reshape(HEADS, dim):
            assert (np.isnan(got) == np.isnan(want)).all()
            assert np.allclose(got, want, rtol=2.0**-22, atol=least, equal_nan=True)
