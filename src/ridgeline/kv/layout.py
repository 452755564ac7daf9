"""Bytes and blocks of everything a sequence keeps: the one place that the planner and the allocator both ask.

Knows cache shapes, KV formats and windows. Refuses to know pools, devices, or which sequence owns what.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from ridgeline.errors import UserError
from ridgeline.graph.caches import Cache, CacheGroup, Paged, State, cache_groups


@dataclass(frozen=True, slots=True)
class KvFormat:
    """How the numbers of one token and one KV head are stored. Self-contained per token and head, never across tokens.

    `bits` per value; one scale (and zero point) of `scale_bytes` for each `group` values along the head dimension (0: one per row).
    """

    name: str
    bits: int
    scale_bytes: int = 0
    group: int = 0

    def row_bytes(self, values: int) -> int:
        """Bytes of `values` numbers of one head and token; codes are padded to whole bytes."""
        if values == 0:
            return 0
        scales = -(-values // self.group) if self.group else 1
        return -(-values * self.bits // 8) + scales * self.scale_bytes


KV_FORMATS: dict[str, KvFormat] = {
    f.name: f for f in (KvFormat("f32", 32), KvFormat("bf16", 16), KvFormat("f16", 16), KvFormat("int8", 8, 4), KvFormat("int4", 4, 4, 32))
}


_PAIRED = ("bf16", "int8")


def kv_format(dtype: str | KvFormat) -> KvFormat:
    """The format of a KV dtype. Raises `UserError` naming what exists. A format that only a planner knows is passed as itself."""
    if isinstance(dtype, KvFormat):
        return dtype
    found = KV_FORMATS.get(dtype)
    if found is None:
        raise UserError(f"KV dtype {dtype!r} is not known", field="kv_dtype", value=dtype, limit=tuple(KV_FORMATS))
    return found


def split_kv_dtype(dtype: str) -> tuple[str, str]:
    """The dtypes of keys and of values: "int8" is both, "int8/int4" is one of each."""
    keys, _, values = dtype.partition("/")
    return keys, values or keys


def join_kv_dtype(keys: str, values: str) -> str:
    """One name for both, as `split_kv_dtype` reads it."""
    return keys if keys == values else f"{keys}/{values}"


def bf16_pairs(cache: Paged, dtype: str | KvFormat) -> tuple[bool, bool]:
    """Whether keys and values are multiplied in pairs of bfloat16 by a CPU that can: those in bf16, and codes of int8, which bfloat16 holds
    exactly. Keys two dimensions at a time, so not an odd number of them; values two tokens at a time, so not those that lie in the keys'
    rows (`v_aliases_k`)."""
    keys, values = split_kv_dtype(dtype if isinstance(dtype, str) else dtype.name)
    return keys in _PAIRED and cache.k_dim % 2 == 0, values in _PAIRED and not cache.v_aliases_k


def token_bytes(cache: Paged, dtype: str | KvFormat) -> int:
    """Bytes that one token adds to one layer's cache. A latent cache (`v_aliases_k`) stores its row once, in the dtype of keys."""
    keys, values = (dtype, dtype) if isinstance(dtype, KvFormat) else map(kv_format, split_kv_dtype(dtype))
    return cache.kv_heads * (keys.row_bytes(cache.k_dim) + (0 if cache.v_aliases_k else values.row_bytes(cache.v_dim)))


def block_bytes(cache: Paged, block_size: int, dtype: str) -> int:
    """Bytes of one block of `block_size` tokens in one layer."""
    return block_size * token_bytes(cache, dtype)


def group_block_bytes(group: CacheGroup, block_size: int, dtype: str) -> int:
    """Bytes of one block id of a cache group: that block in every member layer."""
    return sum(block_bytes(c, block_size, dtype) for c in group.members)


def bytes_per_token(caches: Iterable[Cache], dtype: str, *, beyond_windows: bool = False) -> int:
    """Bytes that one more token writes; with `beyond_windows`, by how much a long sequence grows (window layers no longer do)."""
    return sum(token_bytes(c, dtype) for c in caches if isinstance(c, Paged) and not (beyond_windows and c.window is not None))


def window_bytes(caches: Iterable[Cache], dtype: str) -> int:
    """Bytes that all window layers need at most per sequence, block rounding left out."""
    return sum(c.window * token_bytes(c, dtype) for c in caches if isinstance(c, Paged) and c.window is not None)


def state_bytes(caches: Iterable[Cache], dtype: str = "f32") -> int:
    """Bytes of all recurrent states of one sequence, whatever its length."""
    form = kv_format(dtype)
    return sum(form.row_bytes(prod(c.shape)) for c in caches if isinstance(c, State))


def first_needed(window: int | None, past: int) -> int:
    """The first position that a query at position `past` reads: 0, or past - window + 1 behind a window."""
    return 0 if window is None else max(0, past - window + 1)


def blocks_needed(window: int | None, block_size: int, past: int, new: int) -> int:
    """Blocks a sequence must hold in a group while `new` tokens after `past` are computed."""
    return -(-(past + new) // block_size) - first_needed(window, past) // block_size if new else 0


def peak_blocks(window: int | None, block_size: int, tokens: int, chunk: int = 1) -> int:
    """The most blocks a sequence of up to `tokens` tokens ever holds in a group, computed at most `chunk` tokens at a time."""
    whole = -(-tokens // block_size)
    if window is None:
        return whole
    # A span of W - 1 + chunk positions that starts on the last slot of a block touches the most blocks.
    return min(whole, -(-(window + chunk - 2) // block_size) + 1)


def sequence_bytes(caches: Iterable[Cache], dtype: str, block_size: int, tokens: int, *, state_dtype: str = "f32") -> int:
    """Bytes held by one sequence whose last computed token was its `tokens`-th: whole blocks (windows saturate) and states."""
    held = tuple(caches)
    total = state_bytes(held, state_dtype)
    for group in cache_groups(held):
        if tokens:
            total += blocks_needed(group.window, block_size, tokens - 1, 1) * group_block_bytes(group, block_size, dtype)
    return total
