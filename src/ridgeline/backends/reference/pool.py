"""Paged keys and values of the reference backend: blocks of float32 that hold only what the KV dtypes can hold, which defines them.

The pool starts full of NaN, and only positions below a span's length are ever read: a read too far shows at once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ridgeline.graph.caches import Paged
from ridgeline.kv.layout import split_kv_dtype

Array = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


GROUP = 32  # numbers of int4 along the head dimension that share a step and a least
LEAST_SIZE = np.float32(2.0**-100)
MOST_HALF = np.float32(65504)


def int8_rows(x: Array) -> Array:
    """What int8 makes of rows x [..., dim]: codes -127..127 times one float32 scale per row, the row's largest size / 127.

    A row below 2^-100 throughout is zeros; one with a number that is not finite is NaN.
    """
    finite = np.isfinite(x).all(-1, keepdims=True)
    size = np.abs(np.where(finite, x, np.float32(0))).max(-1, keepdims=True)
    small = size < LEAST_SIZE
    factor = np.where(small, np.float32(0), np.float32(127) / np.where(small, np.float32(1), size))
    codes = np.clip(np.rint(np.where(finite, x, np.float32(0)) * factor), -127, 127)
    scale = np.where(finite, np.where(small, np.float32(0), size / np.float32(127)), np.float32(np.nan))
    return np.asarray(codes * scale, np.float32)


def int4_rows(x: Array) -> Array:
    """What int4 makes of rows x [..., dim]: in each group of 32 numbers (the last may be shorter) codes 0..15 times a step plus the
    group's least number; step (largest - least) / 15 and least are halves. A group with a number that is not finite is NaN."""
    out = np.empty_like(x, np.float32)
    for first in range(0, x.shape[-1], GROUP):
        part = x[..., first : first + GROUP]
        finite = np.isfinite(part).all(-1, keepdims=True)
        part = np.where(finite, part, np.float32(0))
        low, high = part.min(-1, keepdims=True), part.max(-1, keepdims=True)
        with np.errstate(over="ignore"):
            wide = np.minimum((high - low) / np.float32(15), MOST_HALF)
        step = wide.astype(np.float16).astype(np.float32)
        least = np.clip(low, -MOST_HALF, MOST_HALF).astype(np.float16).astype(np.float32)
        inverse = np.where(step > 0, np.float32(1) / np.where(step > 0, step, np.float32(1)), np.float32(0))
        with np.errstate(over="ignore"):
            codes = np.clip(np.rint((part - least) * inverse), 0, 15)
        out[..., first : first + GROUP] = np.where(finite, codes * step + least, np.float32(np.nan))
    return out


def round_to(x: Array, dtype: str) -> Array:
    """The nearest value (ties to even) that `dtype` can hold, as float32. f16 overflows to infinity beyond 65,519. Codes: rows of one
    token and head are the last dimension."""
    if dtype == "int8":
        return int8_rows(x)
    if dtype == "int4":
        return int4_rows(x)
    if dtype == "f32":
        return x.astype(np.float32)
    if dtype == "f16":
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float32)
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), np.float32(np.nan), rounded.view(np.float32))


class KvPool:
    """Blocks of one cache. keys [blocks, block_size, kv_heads, k_dim]; values likewise, or none when they are part of the key."""

    def __init__(self, cache: Paged, blocks: int, block_size: int, dtype: str) -> None:
        self.cache, self.block_size, self.dtypes = cache, block_size, split_kv_dtype(dtype)
        self.keys = np.full((blocks, block_size, cache.kv_heads, cache.k_dim), np.nan, np.float32)
        self.values = None if cache.v_aliases_k else np.full((blocks, block_size, cache.kv_heads, cache.v_dim), np.nan, np.float32)

    def copy_block(self, src: int, dst: int) -> None:
        self.keys[dst] = self.keys[src]
        if self.values is not None:
            self.values[dst] = self.values[src]

    def write(self, table: npt.NDArray[np.int32], positions: Ints, k: Array, v: Array) -> None:
        """Store rows k [n, kv_heads * k_dim] and v [n, kv_heads * v_dim] at `positions` [n] of the sequence behind `table`."""
        blocks, slots = table[positions // self.block_size], positions % self.block_size
        self.keys[blocks, slots] = round_to(k.reshape(len(k), self.cache.kv_heads, -1), self.dtypes[0])
        if self.values is not None:
            self.values[blocks, slots] = round_to(v.reshape(len(v), self.cache.kv_heads, -1), self.dtypes[1])

    def read(self, table: npt.NDArray[np.int32], positions: Ints) -> tuple[Array, Array]:
        """Keys [n, kv_heads, k_dim] and values [n, kv_heads, v_dim] at `positions` [n]."""
        blocks, slots = table[positions // self.block_size], positions % self.block_size
        keys = self.keys[blocks, slots]
        values = keys[..., : self.cache.v_dim] if self.values is None else self.values[blocks, slots]
        return keys, values
