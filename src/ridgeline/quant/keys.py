"""Even keys: the norms of queries and keys, scaled against each other so that keys with one scale per token and head lose less.

Knows graphs and weights, no text and no model family. A key whose norm has a few large factors spends its 8 bits on them. The factor of
each channel goes from the key's norm to the query's: q.k stays the same number, and since factors are powers of two, to the last bit.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ridgeline.encodings import F32
from ridgeline.formats.tensors import Tensor, Tensors
from ridgeline.graph.caches import Paged
from ridgeline.graph.graph import Graph
from ridgeline.graph.ops import Attend, CacheWrite, Linear, Op, RmsNorm, Rope, inputs, results
from ridgeline.quant.decode import decode_tensor

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
_LEAST = 2.0**-10  # of the largest factor: channels whose norm is (nearly) 0 hold nothing that a finer step would show


@dataclass(frozen=True, slots=True)
class _Head:
    """A norm of heads that is turned or not; what it reads, and what that reads. turning: frequencies of the rope, 0 for none."""

    norm: RmsNorm
    turning: int
    source: Op | None
    before: Op | None


def even_keys(graph: Graph, tensors: Tensors) -> Tensors:
    """The tensors with the norms of keys and of the queries that read them scaled, as float32; the same tensors where a graph has no such
    norms, or uses them for more. Logits are the same to the last bit wherever keys are kept as floats.

    A channel's factor is the geometric mean of its norm's factor and of the size that this weight and the key's projection give a
    random input, over the two channels that a rotation turns into each other: both must have the same. SmoothQuant (2211.10438)
    and QServe's SmoothAttention (2405.04532) find such factors from activations; here the weights say enough.
    """
    made = {name: op for op in graph.ops for name in results(op)}
    readers = Counter(name for op in graph.ops for name in inputs(op)) + Counter(graph.outputs.values())
    owners = Counter(op.weight for op in graph.ops if isinstance(op, RmsNorm))
    caches = {c.name: c for c in graph.caches if isinstance(c, Paged) and not c.v_aliases_k}

    def head(value: str) -> _Head | None:
        rope = made.get(value)
        norm = made.get(rope.x) if isinstance(rope, Rope) else rope
        if not isinstance(norm, RmsNorm) or owners[norm.weight] > 1 or norm.weight in graph.tied or norm.weight not in tensors:
            return None
        if any(readers[name] > 1 for name in (value, norm.out)):
            return None
        source = made.get(norm.x)
        before = made.get(source.x) if isinstance(source, Linear) else None
        return _Head(norm, len(rope.inv_freq) if isinstance(rope, Rope) else 0, source, before)

    changed: dict[str, Tensor] = {}
    for cache in caches.values():
        keys = [head(op.k) for op in graph.ops if isinstance(op, CacheWrite) and op.cache == cache.name]
        queries = [head(op.q) for op in graph.ops if isinstance(op, Attend) and op.cache == cache.name]
        key = keys[0] if len(keys) == 1 else None
        if key is None or key.norm.dim != cache.k_dim:
            continue
        if all(q is not None and (q.norm.dim, q.turning) == (cache.k_dim, key.turning) for q in queries):
            factors = _factors(key, tensors)
            changed[key.norm.weight] = _scaled(tensors[key.norm.weight], np.reciprocal(factors))
            changed.update((q.norm.weight, _scaled(tensors[q.norm.weight], factors)) for q in queries if q is not None)
    return {**tensors, **changed} if changed else tensors


def _factors(key: _Head, tensors: Tensors) -> Floats:
    """[k_dim], powers of two."""
    factor = np.abs(decode_tensor(tensors[key.norm.weight]).reshape(-1).astype(np.float64))
    size = np.sqrt(_pairs(factor, key.turning) * _pairs(factor * _spread(key, tensors), key.turning))
    size = np.maximum(size, max(float(size.max()), 2.0**-60) * _LEAST)
    return np.exp2(np.rint(np.log2(size))).astype(np.float32)


def _spread(key: _Head, tensors: Tensors) -> Doubles:
    """[k_dim]: size of each channel of a head before its norm, where a layer's input points anywhere; 1 on average. Ones where unknown."""
    source, before = key.source, key.before
    if not isinstance(source, Linear) or source.weight not in tensors or source.bias is not None:
        return np.ones(key.norm.dim)
    rows = decode_tensor(tensors[source.weight])
    if isinstance(before, RmsNorm) and before.dim == source.in_dim and before.weight in tensors:
        rows = rows * decode_tensor(tensors[before.weight]).reshape(-1)
    squares = np.square(rows, dtype=np.float64).sum(axis=1).reshape(-1, key.norm.dim)
    means = np.maximum(squares.mean(axis=1, keepdims=True), 1e-30)
    spread: Doubles = np.sqrt((squares / means).mean(axis=0))
    return spread


def _pairs(x: Doubles, turning: int) -> Doubles:
    """Channels i and i + turning have the root mean square of both; those behind them their own."""
    low, high = x[:turning], x[turning : 2 * turning]
    both = np.sqrt((np.square(low) + np.square(high)) / 2)
    return np.concatenate([both, both, np.abs(x[2 * turning :])])


def _scaled(tensor: Tensor, factors: Floats) -> Tensor:
    values = np.ascontiguousarray(decode_tensor(tensor).reshape(1, -1) * factors, np.float32)
    return Tensor(tensor.name, tensor.shape, F32, values.view(np.uint8), tensor.origin)
