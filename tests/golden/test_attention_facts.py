"""What a lecture says of attention, shown on tiny models: why the KV cache is valid, how far windows see, what a long prompt needs."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest
from tests.equivalence.world import Work, World
from tests.models.tiny import VOCAB, config, random_tensors, tiny
from tests.reference.running import run_whole

from ridgeline.backends import cpu
from ridgeline.backends.base import LoadPlan
from ridgeline.backends.reference import ops
from ridgeline.formats.tensors import Tensors
from ridgeline.graph.graph import Graph
from ridgeline.graph.ops import CacheWrite
from ridgeline.models.llama import LlamaConfig
from ridgeline.models.registry import build

Array = npt.NDArray[np.float32]
TOKENS = np.random.default_rng(3).integers(0, VOCAB, 24).astype(np.int32)


def last_keys_and_values(graph: Graph, tensors: Tensors, tokens: npt.NDArray[np.int32]) -> list[Array]:
    prog = run_whole(graph, tensors, tokens)
    write = [op for op in graph.ops if isinstance(op, CacheWrite)][-1]
    return [prog.value(write.k), prog.value(write.v)]


def test_row_25_a_later_token_leaves_earlier_keys_and_values_alone() -> None:
    """Causal: with and without a 24th token the deepest layer's K and V of the first 23 are the same up to the rounding of numpy's
    matrix products, and on the CPU backend, where sums keep their order, so are the logits made from them, bit for bit."""
    graph, tensors = tiny("llama")
    for short, long in zip(last_keys_and_values(graph, tensors, TOKENS[:23]), last_keys_and_values(graph, tensors, TOKENS), strict=True):
        assert np.abs(short - long[:23]).max() < 1e-5
    assert np.array_equal(logits("cpu", graph, tensors, TOKENS[:23]), logits("cpu", graph, tensors, TOKENS)[:23])


def test_row_25_with_attention_both_ways_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same model where every token sees every other: a cache of it would be wrong from the second layer on."""
    causal = ops.attend

    def both_ways(q: Array, k: Array, v: Array, visible: npt.NDArray[np.bool_], scale: float, cap: float | None) -> Array:
        return causal(q, k, v, np.ones_like(visible), scale, cap)

    monkeypatch.setattr(ops, "attend", both_ways)
    graph, tensors = tiny("llama")
    for short, long in zip(last_keys_and_values(graph, tensors, TOKENS[:23]), last_keys_and_values(graph, tensors, TOKENS), strict=True):
        assert (np.abs(short - long[:23]).max(axis=1) > 1e-4).all()


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_row_56_windows_of_w_in_l_layers_see_l_times_w_minus_1_back(layers: int) -> None:
    """Another first token changes position p's logits for p up to L (W - 1) and not one bit beyond: the context grows with depth."""
    made = cast(LlamaConfig, config("mistral"))
    window = made.layers[0].window
    assert window is not None
    graph = build(replace(made, layers=(made.layers[0],) * layers))
    tensors = random_tensors(graph)
    reach = layers * (window - 1)
    tokens = np.random.default_rng(4).integers(0, VOCAB, reach + 9).astype(np.int32)
    other = tokens.copy()
    other[0] = (tokens[0] + 1) % VOCAB
    for backend in ("reference", "cpu"):
        a, b = (logits(backend, graph, tensors, t) for t in (tokens, other))
        changed = [p for p in range(len(tokens)) if not np.array_equal(a[p], b[p])]
        assert changed == list(range(reach + 1)), backend


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_row_48_ordinary_grouped_and_multi_query_heads(kv_heads: int) -> None:
    """4 query heads on 4, 2 and 1 KV heads: the KV bytes are in proportion, the numbers those of the reference, and those of ordinary
    attention whose KV heads are written out once for each query head that shares them."""
    made = cast(LlamaConfig, config("llama"))
    graphs = [build(replace(made, layers=tuple(replace(layer, kv_heads=n) for layer in made.layers))) for n in (kv_heads, 4)]
    tensors = random_tensors(graphs[0])
    dim = made.sizes.head_dim
    written = {}
    for name, t in tensors.items():
        if name.endswith((".k", ".v")):
            heads = np.repeat(t.data.reshape(kv_heads, dim, -1), 4 // kv_heads, axis=0)
            written[name] = replace(t, shape=(4 * dim, t.columns), stored=heads.reshape(4 * dim, -1))
    native = cpu.load(graphs[0], tensors, LoadPlan((3,), 16, "bf16", 2))
    assert native.kv_bytes == kv_heads * 3 * 16 * len(made.layers) * 2 * dim * 2
    found = logits("cpu", graphs[0], tensors, TOKENS)
    for other in (logits("reference", graphs[0], tensors, TOKENS), logits("cpu", graphs[1], {**tensors, **written}, TOKENS)):
        assert np.abs(found - other).max() < 1e-4


def logits(backend: str, graph: Graph, tensors: Tensors, tokens: npt.NDArray[np.int32]) -> Array:
    if backend == "reference":
        return run_whole(graph, tensors, tokens).logits()
    whole: Work = [(0, len(tokens))]
    return World(graph, tensors, [tokens], kv="f32", evict=False).run([whole])[0]


PEAK = """
import resource, sys
import numpy as np
from tests.models.tiny import tiny
from ridgeline.backends import cpu
from ridgeline.backends.base import LoadPlan
from ridgeline.graph.step import Span, Step
length = int(sys.argv[1])
graph, tensors = tiny("llama")
program = cpu.load(graph, tensors, LoadPlan((512,), 16, "bf16", 2))
table = (np.arange(512, dtype=np.int32),)
tokens = np.arange(8192, dtype=np.int32) % 199
program.forward(Step((Span(0, 0, 512, 1),), tokens[:512], (table,)))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for past in range(0, length, 512):
    program.forward(Step((Span(0, past, 512, 1),), tokens[past:past + 512], (table,)))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10)
"""


def test_row_106_attention_never_holds_scores_of_all_against_all() -> None:
    """8,192 tokens have 256 MiB of scores per head and 16 MiB per head and chunk of 512; what is needed beyond a chunk's own
    memory is the KV cache (2 layers, 64 values a token in bfloat16: 4 MiB)."""
    where = os.getcwd()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([where, *(p for p in sys.path if p)])}
    grown = int(subprocess.run([sys.executable, "-c", PEAK, "8192"], env=environment, capture_output=True, check=True, text=True).stdout)
    assert grown < 12 << 20
