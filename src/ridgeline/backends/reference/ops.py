"""The definition of every op: one small numpy function each, float32 in and out. Knows nothing of graphs, caches or speed.

Matrix products are float32 (BLAS); sums of squares and softmax sums are accumulated in float64, so that they define no order.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ridgeline.graph.ops import ActivationKind

Array = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


def embed(tokens: npt.NDArray[np.int32], weight: Array, scale: float) -> Array:
    """tokens [T], weight [vocab, dim] -> [T, dim]"""
    rows: Array = np.multiply(weight[tokens], scale, dtype=np.float32)
    return rows


def rms_norm(x: Array, weight: Array, eps: float, groups: int = 1) -> Array:
    """x [T, groups * dim], weight [dim] -> same shape, each group normalised by itself"""
    parts = x.reshape(len(x), groups, x.shape[1] // groups)
    mean_square = np.mean(np.square(parts, dtype=np.float64), axis=-1, keepdims=True)
    normed: Array = parts * (1.0 / np.sqrt(mean_square + eps)).astype(np.float32) * weight
    return normed.reshape(x.shape)


def linear(x: Array, weight: Array, bias: Array | None) -> Array:
    """x [T, in], weight [out, in], bias [out] -> [T, out]"""
    y: Array = x @ weight.T
    return y if bias is None else y + bias


def rope(x: Array, positions: Ints, heads: int, inv_freq: tuple[float, ...], scale: float) -> Array:
    """x [T, heads * head_dim], positions [T]; dimensions i and i + r turn together, the rest passes through"""
    r = len(inv_freq)
    products = positions[:, None].astype(np.float32) * np.asarray(inv_freq, dtype=np.float32)  # [T, r]
    angles = products.astype(np.float64)
    cos = (np.cos(angles) * scale).astype(np.float32)[:, None, :]
    sin = (np.sin(angles) * scale).astype(np.float32)[:, None, :]
    parts = x.reshape(len(x), heads, x.shape[1] // heads)
    low, high = parts[..., :r], parts[..., r : 2 * r]
    turned = np.concatenate([low * cos - high * sin, high * cos + low * sin, parts[..., 2 * r :]], axis=-1)
    return turned.reshape(x.shape)


def softcap(x: Array, cap: float) -> Array:
    """cap * tanh(x / cap): tends to +-cap and never overflows"""
    capped: Array = np.multiply(np.tanh(x / np.float32(cap)), cap, dtype=np.float32)
    return capped


def attend(q: Array, k: Array, v: Array, visible: npt.NDArray[np.bool_], scale: float, cap: float | None) -> Array:
    """One head. q [T, k_dim], k [L, k_dim], v [L, v_dim], visible [T, L] (at least one key per row) -> [T, v_dim]"""
    scores = (q @ k.T) * np.float32(scale)
    if cap is not None:
        scores = softcap(scores, cap)
    scores = np.where(visible, scores, np.float32(-np.inf))
    weights: Array = np.exp(scores - scores.max(axis=1, keepdims=True))
    total = weights.sum(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
    mixed: Array = (weights @ v) / total
    return mixed


def silu(x: Array) -> Array:
    with np.errstate(over="ignore"):  # exp(-x) may be inf: x / inf is the right 0
        y: Array = np.divide(x, 1 + np.exp(-x), dtype=np.float32)
    return y


def gelu_tanh(x: Array) -> Array:
    with np.errstate(over="ignore"):  # tanh(inf) is the right 1
        inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    y: Array = np.multiply(np.float32(0.5) * x, 1 + np.tanh(inner), dtype=np.float32)
    return y


def gelu(x: Array) -> Array:
    erf = np.vectorize(math.erf, otypes=[np.float64])
    y: Array = np.multiply(np.float32(0.5) * x, 1 + erf(x / math.sqrt(2))).astype(np.float32)
    return y


def relu(x: Array) -> Array:
    y: Array = np.maximum(x, 0, dtype=np.float32)
    return y


ACTIVATIONS: dict[ActivationKind, Callable[[Array], Array]] = {"silu": silu, "gelu_tanh": gelu_tanh, "gelu": gelu, "relu": relu}


def activation(x: Array, kind: ActivationKind) -> Array:
    return ACTIVATIONS[kind](x)


def select_rows(x: Array, spans: list[tuple[int, int]]) -> Array:
    """Keep the last `want` of every span's `new` rows. spans: (new, want) in order"""
    ends = np.cumsum([new for new, _ in spans])
    kept = [x[end - want : end] for end, (_, want) in zip(ends, spans, strict=True)]
    return np.concatenate(kept) if kept else x[:0]
