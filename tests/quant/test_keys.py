"""Even keys: nothing changes where keys are floats, less is lost where they are codes, and graphs that do not fit are left alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from tests.models.encode import vector
from tests.models.tiny import FAMILIES, VOCAB, tiny
from tests.reference.running import run_whole

from ridgeline.backends import cpu
from ridgeline.backends.base import LoadPlan
from ridgeline.engine.loader import OpenModel
from ridgeline.formats.tensors import Tensor
from ridgeline.graph.caches import Paged, cache_groups
from ridgeline.graph.graph import Graph
from ridgeline.graph.ops import RmsNorm, Rope
from ridgeline.graph.step import Span, Step
from ridgeline.models import ModelSpec
from ridgeline.options import Plan
from ridgeline.quant.decode import decode_tensor
from ridgeline.quant.keys import even_keys

NORMED = ("qwen3", "gemma3")
TOKENS = np.random.default_rng(0).integers(0, VOCAB, 40).astype(np.int32)


def uneven(family: str, seed: int = 0) -> tuple[Graph, dict[str, Tensor]]:
    """A tiny model whose key norms have a few factors that are tens of times the others, and some that are 0."""
    graph, tensors = tiny(family, seed)
    rng = np.random.default_rng(seed)
    for name in [n for n in tensors if n.endswith("k_norm")]:
        factors = np.abs(rng.standard_normal(tensors[name].shape)).astype(np.float32)
        factors[rng.permutation(len(factors))[:3]] *= 20
        factors[rng.permutation(len(factors))[:2]] = 0
        tensors[name] = vector(name, factors)
    return graph, tensors


def native(graph: Graph, tensors: dict[str, Tensor], kv: str) -> npt.NDArray[np.float32]:
    groups = len(cache_groups(graph.caches))
    program = cpu.load(graph, tensors, LoadPlan((4,) * groups, 16, kv))
    blocks = np.arange(3, dtype=np.int32)
    program.forward(Step((Span(0, 0, len(TOKENS), len(TOKENS)),), TOKENS, ((blocks,),) * groups))
    return program.logits().copy()


@pytest.mark.parametrize("family", NORMED)
def test_float_keys_give_the_same_bits(family: str) -> None:
    graph, tensors = uneven(family)
    even = dict(even_keys(graph, tensors))
    changed = {n for n in tensors if even[n] is not tensors[n]}
    assert changed == {n for n in tensors if n.endswith(("k_norm", "q_norm"))} and changed
    for kv in ("f32", "bf16"):
        assert np.array_equal(run_whole(graph, tensors, TOKENS, kv).logits(), run_whole(graph, even, TOKENS, kv).logits())
        assert np.array_equal(native(graph, tensors, kv), native(graph, even, kv))


@pytest.mark.parametrize("family", NORMED)
@pytest.mark.parametrize(("kv", "least"), [("int8/f32", 2.0), ("int4/f32", 1.3)])
def test_codes_lose_less(family: str, kv: str, least: float) -> None:
    """Mean square error of the logits over three models, on both backends."""
    lost = np.zeros((2, 2))
    for seed in range(3):
        graph, tensors = uneven(family, seed)
        for i, given in enumerate((tensors, dict(even_keys(graph, tensors)))):
            lost[0, i] += np.square(run_whole(graph, given, TOKENS, kv).logits() - run_whole(graph, tensors, TOKENS).logits()).mean()
            lost[1, i] += np.square(native(graph, given, kv) - native(graph, tensors, "f32")).mean()
    assert (lost[:, 1] < lost[:, 0] / least).all()


@pytest.mark.parametrize("family", NORMED)
def test_factors_are_powers_of_two_and_the_same_for_what_a_rotation_mixes(family: str) -> None:
    graph, tensors = uneven(family)
    even = even_keys(graph, tensors)
    ropes = {op.x: op for op in graph.ops if isinstance(op, Rope)}
    norms = [op for op in graph.ops if isinstance(op, RmsNorm) and op.weight.endswith("q_norm")]
    for op in norms:
        factors = decode_tensor(even[op.weight]) / decode_tensor(tensors[op.weight])
        assert (np.frexp(factors)[0] == 0.5).all() and len(np.unique(factors)) > 2
        turning = len(ropes[op.out].inv_freq)
        assert np.array_equal(factors[:turning], factors[turning : 2 * turning])
        key = op.weight.replace("q_norm", "k_norm")
        assert np.array_equal(decode_tensor(even[key]) * factors, decode_tensor(tensors[key]))


@pytest.mark.parametrize("family", sorted({*FAMILIES} - {*NORMED}))
def test_models_without_such_norms_are_left_alone(family: str) -> None:
    graph, tensors = tiny(family)
    assert even_keys(graph, tensors) is tensors


def test_norms_that_are_used_for_more_are_left_alone() -> None:
    graph, tensors = uneven("qwen3")
    norm = next(op for op in graph.ops if isinstance(op, RmsNorm) and op.weight.endswith("0.q_norm"))
    tapped = replace(graph, outputs={**graph.outputs, "queries": norm.out})
    other = next(op for op in graph.ops if isinstance(op, RmsNorm) and op.weight.endswith("1.q_norm"))
    shared = replace(graph, ops=tuple(replace(op, weight=norm.weight) if op is other else op for op in graph.ops))
    aliased = replace(graph, caches=tuple(replace(c, v_aliases_k=True) for c in graph.caches if isinstance(c, Paged)))
    rope = next(op for op in graph.ops if isinstance(op, Rope) and op.x == norm.out)
    turned = replace(graph, ops=tuple(replace(rope, inv_freq=rope.inv_freq[:-1]) if op is rope else op for op in graph.ops))
    for one, kept in ((tapped, "layers.0."), (turned, "layers.0."), (shared, "layers."), (aliased, "layers.")):
        even = even_keys(one, tensors)
        changed = {n for n in tensors if even[n] is not tensors[n]}
        assert not any(n.startswith(kept) for n in changed) and bool(changed) == (kept == "layers.0.")


def test_a_norm_of_zeros_stays_one() -> None:
    graph, tensors = uneven("gemma3")
    for name in [n for n in tensors if n.endswith("k_norm")]:
        tensors[name] = vector(name, np.zeros(tensors[name].shape, np.float32))
    even = dict(even_keys(graph, tensors))
    assert all(np.isfinite(decode_tensor(even[n])).all() for n in even)
    assert np.array_equal(native(graph, tensors, "int8"), native(graph, even, "int8"))


@pytest.mark.parametrize(("kv", "changes"), [("int8", True), ("int4", True), ("int8/f16", True), ("bf16/int8", False), ("f32", False)])
def test_a_load_evens_keys_that_become_codes(kv: str, changes: bool) -> None:
    graph, tensors = uneven("qwen3")
    spec = ModelSpec(None, graph, tensors, 64, 64)  # type: ignore[arg-type]
    plan = Plan.__new__(Plan)
    object.__setattr__(plan, "kv_dtype", kv)
    model = OpenModel(None, spec, plan)  # type: ignore[arg-type]
    assert (model.weights() is not tensors) == changes
