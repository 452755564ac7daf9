"""Runs a graph on the reference backend in any schedule, with scattered blocks and a pool full of NaN."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ridgeline.backends.base import LoadPlan
from ridgeline.backends.reference.program import ReferenceProgram, load
from ridgeline.formats.tensors import Tensors
from ridgeline.graph.caches import cache_groups
from ridgeline.graph.graph import Graph
from ridgeline.graph.step import Span, Step
from ridgeline.types import KvDtype

Ints = npt.NDArray[np.int32]


def program(
    graph: Graph, tensors: Tensors, blocks: int = 64, block_size: int = 4, kv: KvDtype = "f32", taps: Sequence[str] = ()
) -> ReferenceProgram:
    groups = len(cache_groups(graph.caches))
    return load(graph, tensors, LoadPlan((blocks,) * groups, block_size, kv, taps=tuple(taps)))


def scattered(count: int, total: int, seed: int = 0) -> Ints:
    """`count` distinct block ids in a random order."""
    return np.random.default_rng(seed).permutation(total)[:count].astype(np.int32)


def run_whole(
    graph: Graph, tensors: Tensors, tokens: Ints, kv: KvDtype = "f32", taps: Sequence[str] = (), block_size: int = 4
) -> ReferenceProgram:
    """One prefill of all tokens, logits wanted everywhere."""
    return run_chunks(graph, tensors, tokens, [len(tokens)], kv, taps, block_size)[1]


def run_chunks(
    graph: Graph, tensors: Tensors, tokens: Ints, chunks: Sequence[int], kv: KvDtype = "f32", taps: Sequence[str] = (), block_size: int = 4
) -> tuple[npt.NDArray[np.float32], ReferenceProgram]:
    """Chunks of the given lengths, one span each; returns the logits of all tokens and the program after the last chunk."""
    need = -(-len(tokens) // block_size)
    prog = program(graph, tensors, need + 3, block_size, kv, taps)
    tables = tuple((scattered(need, need + 3, g),) for g in range(len(cache_groups(graph.caches))))
    logits, past = [], 0
    for new in chunks:
        prog.forward(Step((Span(0, past, new, new),), tokens[past : past + new], tables))
        logits.append(prog.logits())
        past += new
    assert past == len(tokens)
    return np.concatenate(logits), prog
