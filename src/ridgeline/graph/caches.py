"""What each layer keeps between steps, as data. Knows shapes only; bytes are in `kv/layout`, storage in the backends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Paged:
    """Keys and values of one layer, one row per token and KV head, kept in blocks.

    `window` W: a query at position p reads keys p-W+1 .. p only (Hugging Face's meaning); None reads all.
    `v_aliases_k`: the values are the first `v_dim` numbers of the key row (latent attention), nothing is stored twice.
    """

    name: str
    kv_heads: int
    k_dim: int
    v_dim: int
    window: int | None = None
    v_aliases_k: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """A recurrent state of fixed shape per sequence (linear attention, state space), whatever the context."""

    name: str
    shape: tuple[int, ...]


Cache = Paged | State


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Paged caches that live and die together, hence share one block table per sequence: those of equal window."""

    window: int | None
    members: tuple[Paged, ...]


def cache_groups(caches: Iterable[Cache]) -> tuple[CacheGroup, ...]:
    """Groups in order of first appearance, full attention (window None) first. `Step.tables[g]` belongs to group g."""
    paged = [c for c in caches if isinstance(c, Paged)]
    windows = sorted(dict.fromkeys(c.window for c in paged), key=lambda w: w is not None)
    return tuple(CacheGroup(w, tuple(c for c in paged if c.window == w)) for w in windows)
