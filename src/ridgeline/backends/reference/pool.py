"""Paged keys and values of the reference backend: blocks of float32 that hold only what the KV dtype can hold.

The pool starts full of NaN, and only positions below a span's length are ever read: a read too far shows at once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ridgeline.graph.caches import Paged
from ridgeline.types import KvDtype

Array = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


def round_to(x: Array, dtype: KvDtype) -> Array:
    """The nearest value (ties to even) that `dtype` can hold, as float32. f16 overflows to infinity beyond 65,519."""
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

    def __init__(self, cache: Paged, blocks: int, block_size: int, dtype: KvDtype) -> None:
        self.cache, self.block_size, self.dtype = cache, block_size, dtype
        self.keys = np.full((blocks, block_size, cache.kv_heads, cache.k_dim), np.nan, np.float32)
        self.values = None if cache.v_aliases_k else np.full((blocks, block_size, cache.kv_heads, cache.v_dim), np.nan, np.float32)

    def copy_block(self, src: int, dst: int) -> None:
        self.keys[dst] = self.keys[src]
        if self.values is not None:
            self.values[dst] = self.values[src]

    def write(self, table: npt.NDArray[np.int32], positions: Ints, k: Array, v: Array) -> None:
        """Store rows k [n, kv_heads * k_dim] and v [n, kv_heads * v_dim] at `positions` [n] of the sequence behind `table`."""
        blocks, slots = table[positions // self.block_size], positions % self.block_size
        self.keys[blocks, slots] = round_to(k, self.dtype).reshape(len(k), self.cache.kv_heads, -1)
        if self.values is not None:
            self.values[blocks, slots] = round_to(v, self.dtype).reshape(len(v), self.cache.kv_heads, -1)

    def read(self, table: npt.NDArray[np.int32], positions: Ints) -> tuple[Array, Array]:
        """Keys [n, kv_heads, k_dim] and values [n, kv_heads, v_dim] at `positions` [n]."""
        blocks, slots = table[positions // self.block_size], positions % self.block_size
        keys = self.keys[blocks, slots]
        values = keys[..., : self.cache.v_dim] if self.values is None else self.values[blocks, slots]
        return keys, values
