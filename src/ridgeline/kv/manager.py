"""The KV cache as the scheduler sees it: tables that grow, share, copy on write and slide, over one pool per cache group.

Knows positions, windows and namespaces. Refuses to know requests, policies, clocks (`now` is set by the caller) and what is in a block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from ridgeline.errors import InternalError, UserError
from ridgeline.graph.step import BlockCopy, Int32Array
from ridgeline.kv.blocks import BlockPool
from ridgeline.kv.hashblocks import HashIndex
from ridgeline.kv.index import ABSENT, Path, PrefixIndex, explain, usable
from ridgeline.kv.layout import first_needed, peak_blocks
from ridgeline.kv.radix import RadixIndex
from ridgeline.types import CacheReport

CachePolicy = Literal["radix", "hash", "off"]


class Table:
    """The blocks of one sequence. blocks[g][j] holds positions j*B .. (j+1)*B-1, ABSENT behind the window.

    ready: tokens that fit without allocation or copy; behind[g]: leading entries that are ABSENT; committed: blocks known to the index.
    """

    __slots__ = ("_stores", "_views", "behind", "blocks", "committed", "place", "ready", "shares", "space")

    def __init__(self, groups: int, space: bytes, shares: bool) -> None:
        self.space = space
        self.shares = shares  # its blocks may enter the prefix index
        self.blocks: tuple[list[int], ...] = tuple([] for _ in range(groups))
        self.behind = [0] * groups
        self.ready = 0
        self.committed = 0
        self.place: object | None = None
        self._stores: list[Int32Array | None] = [None] * groups  # with room to append; what a view shows never changes
        self._views: list[Int32Array | None] = [None] * groups

    def replace(self, group: int, index: int, block: int) -> None:
        self.blocks[group][index] = block
        store = self._stores[group]
        if store is not None:
            store = self._stores[group] = store.copy()
            store[index] = block
        self._views[group] = None

    def append(self, group: int, block: int) -> None:
        store, length = self._stores[group], len(self.blocks[group])
        self.blocks[group].append(block)
        if store is not None and length < len(store):
            store[length] = block
        else:
            self._stores[group] = None
        self._views[group] = None

    def array(self, group: int) -> Int32Array:
        """int32 block ids of one group. What was handed out never changes: a later change makes a new array."""
        view = self._views[group]
        if view is None:
            blocks, store = self.blocks[group], self._stores[group]
            if store is None:
                store = self._stores[group] = np.empty(len(blocks) + len(blocks) // 2 + 8, np.int32)
                store[: len(blocks)] = blocks
            view = self._views[group] = store[: len(blocks)]
        return view


@dataclass(frozen=True, slots=True)
class Hit:
    """A usable cached prefix of `tokens` tokens: what `open` takes."""

    tokens: int
    path: Path | None = None


NO_HIT = Hit(0)


class KvCache:
    """Pools, tables and prefix index of one engine. windows[g] and blocks[g] belong to cache group g (`graph.caches.cache_groups`)."""

    def __init__(
        self,
        windows: Sequence[int | None],
        blocks: Sequence[int],
        block_size: int = 16,
        policy: CachePolicy = "radix",
        ghost_blocks: int = 4096,
    ) -> None:
        if block_size < 1 or len(windows) != len(blocks) or any(b < 1 for b in blocks):
            what = f"KV cache of {list(blocks)} blocks of {block_size} tokens for {len(windows)} cache groups"
            raise UserError(what, field="blocks", value=tuple(blocks), limit=">= 1 per group", remedy="give the KV cache more memory")
        self.windows = tuple(windows)
        self.block_size = block_size
        self.policy: CachePolicy = policy
        self.pools = tuple(BlockPool(n, partial(self._evicted, g)) for g, n in enumerate(blocks))
        made: dict[CachePolicy, Callable[[], PrefixIndex]] = {
            "radix": lambda: RadixIndex(self.pools, self.windows, block_size, ghost_blocks),
            "hash": lambda: HashIndex(self.pools, self.windows, block_size, ghost_blocks),
        }
        self.index: PrefixIndex | None = made[policy]() if policy in made else None
        self.copies: list[BlockCopy] = []
        self.counts: Counter[str] = Counter()
        self.version = 0  # changes whenever a lookup might answer differently
        self._tables: set[Table] = set()

    @property
    def now(self) -> float:
        return self.pools[0].now

    @now.setter
    def now(self, value: float) -> None:
        for pool in self.pools:
            pool.now = value

    @property
    def capacity_tokens(self) -> int | None:
        """The longest sequence that fits when it is alone (None: any length, windows only)."""
        limits = []
        for window, pool in zip(self.windows, self.pools, strict=True):
            if window is None or pool.size < peak_blocks(window, self.block_size, 1 << 40):
                limits.append(pool.size * self.block_size)
        return min(limits, default=None)

    def lookup(self, space: bytes, tokens: Int32Array, limit: int) -> Hit:
        """The longest cached prefix of at most `limit` tokens that every group can serve. Changes nothing."""
        if self.index is None:
            return NO_HIT
        path = self.index.match(space, tokens)
        return Hit(usable(path, self.windows, self.block_size, limit), path)

    def report(self, tokens: Int32Array, hit: Hit, limit: int, *, salted: bool) -> CacheReport:
        """Why this hit is not longer (`kv.index.explain`)."""
        if self.index is None or hit.path is None:
            return CacheReport(len(tokens), 0, 0, "ineligible", unit=self.index.unit if self.index else 0)
        return explain(hit.path, tokens, hit.tokens, limit, unit=self.index.unit, salted=salted)

    def shorten(self, hit: Hit) -> Hit:
        """The same hit ending on a block boundary, which needs no copy."""
        path = hit.path
        limit = hit.tokens // self.block_size * self.block_size
        return hit if path is None else Hit(usable(path, self.windows, self.block_size, limit), path)

    def cost(self, hit: Hit, group: int, tokens: int, headroom: int) -> int:
        """Blocks that a sequence of `tokens` (at most `headroom` more) takes from `available` when it starts from `hit`."""
        window, pool = self.windows[group], self.pools[group]
        whole, first = hit.tokens // self.block_size, first_needed(window, hit.tokens) // self.block_size
        need = peak_blocks(window, self.block_size, tokens + headroom)
        if hit.path is None or not hit.tokens:
            return need
        blocks = hit.path.blocks[group]
        resting = sum(1 for b in blocks[first:whole] if pool.refs[b] == 0)
        source = blocks[whole] if hit.tokens % self.block_size else ABSENT
        barred = int(source != ABSENT and pool.refs[source] == 0)
        return max(need - max(0, whole - first), 1) + resting + barred

    def open(self, space: bytes, hit: Hit, *, shares: bool = True) -> Table:
        """A table that starts with the blocks of a hit; a block the hit ends inside is copied. Needs `cost` blocks."""
        table = Table(len(self.pools), space, shares and self.index is not None)
        self._tables.add(table)
        whole, rest = divmod(hit.tokens, self.block_size)
        if hit.path is None or not hit.tokens:
            return table
        for group, pool in enumerate(self.pools):
            blocks = hit.path.blocks[group]
            first = min(first_needed(self.windows[group], hit.tokens) // self.block_size, whole)
            table.blocks[group].extend([ABSENT] * first)
            table.behind[group] = first
            for block in blocks[first:whole]:
                pool.ref(block)
                table.blocks[group].append(block)
        if rest:
            self.counts["hits_inside_block"] += 1
            for group in range(len(self.pools)):
                table.append(group, self._copy(group, hit.path.blocks[group][whole]))
        table.committed = whole
        table.ready = (whole + (rest > 0)) * self.block_size
        return table

    def _copy(self, group: int, source: int) -> int:
        pool = self.pools[group]
        pool.bar(source)
        made = pool.take()
        self.copies.append(BlockCopy(group, source, made))
        return made

    def room(self, table: Table, past: int, want: int) -> int:
        """How many of `want` tokens after `past` could be stored now, evicting what may be evicted."""
        if past + want <= table.ready:
            return want
        for group, pool in enumerate(self.pools):
            mine, behind = table.blocks[group], table.behind[group]
            first = min(first_needed(self.windows[group], past) // self.block_size, len(mine))
            freed = sum(1 for b in mine[behind:first] if pool.refs[b] == 1)
            at = past // self.block_size
            copy = int(at < len(mine) and at >= first and not pool.writable(mine[at]))
            want = min(want, (len(mine) + pool.available + freed - copy) * self.block_size - past)
        return max(0, want)

    def grow(self, table: Table, past: int, new: int) -> None:
        """Make positions past .. past + new - 1 writable: release what lies behind windows, copy what is shared, take the rest.

        Raises `InternalError` when `room` would not have granted it."""
        if past + new <= table.ready:
            return
        size = self.block_size
        for group, pool in enumerate(self.pools):
            mine = table.blocks[group]
            first = min(first_needed(self.windows[group], past) // size, len(mine))
            for index in range(table.behind[group], first):
                pool.unref(mine[index])
                table.replace(group, index, ABSENT)
                self.counts["window_releases"] += 1
            table.behind[group] = max(table.behind[group], first)
            at = past // size
            if first <= at < len(mine) and not pool.writable(mine[at]):
                source = mine[at]
                table.replace(group, at, self._copy(group, source))
                pool.unref(source)
                self.counts["copies_on_write"] += 1
            while len(mine) * size < past + new:
                table.append(group, pool.take())
        table.ready = min(len(b) for b in table.blocks) * size

    def commit(self, table: Table, tokens: Int32Array, computed: int) -> None:
        """The first `computed` of `tokens` are in the cache: whole blocks become hits for others."""
        if self.index is not None and table.shares and computed // self.block_size > table.committed:
            self.index.insert(table.space, tokens, table, computed, tail=False)
            self.version += 1

    def fork(self, table: Table) -> Table:
        """A second sequence with the same past; whoever writes into a shared block first copies it."""
        twin = Table(len(self.pools), table.space, table.shares)
        for group, pool in enumerate(self.pools):
            twin.blocks[group].extend(table.blocks[group])
            twin.behind[group] = table.behind[group]
            for block in table.blocks[group][table.behind[group] :]:
                pool.ref(block)
        twin.committed, twin.place = table.committed, table.place
        twin.ready = table.ready = 0
        self._tables.add(twin)
        return twin

    def close(self, table: Table, tokens: Int32Array, computed: int, *, keep: bool = True, rank: int = 0, keep_until: float = 0.0) -> None:
        """The single end of a table. With `keep` its `computed` tokens stay in the index, unreferenced, at soft priority `rank`."""
        if table not in self._tables:
            raise InternalError("a table was closed twice")
        self._tables.remove(table)
        if keep and self.index is not None and table.shares and computed:
            self.index.insert(table.space, tokens, table, computed, tail=True)
        for group, pool in enumerate(self.pools):
            for block in reversed(table.blocks[group][table.behind[group] :]):
                pool.mark(block, rank, keep_until)
                pool.unref(block)
        self.version += 1

    def settle(self) -> None:
        """The step is complete: its copies were handed over. Before any table is closed, so that eviction order stays child first."""
        self.copies.clear()
        for pool in self.pools:
            pool.settle()

    def evict(self, count: int | None = None) -> int:
        """Drop up to `count` cached blocks per group (all without a count); returns how many went. A fault dial and the flush."""
        gone = 0
        for pool in self.pools:
            left = pool.evictable if count is None else count
            while left > 0 and pool.evictable:
                pool.evict()
                left -= 1
                gone += 1
        return gone

    def _evicted(self, group: int, block: int) -> None:
        if self.index is None:
            raise InternalError("a block is held without a prefix index")
        self.version += 1
        self.counts["evictions"] += 1
        if self.windows[group] is not None:
            self.counts["window_evictions"] += 1
        self.index.drop(group, block)

    def usage(self) -> list[tuple[int, int, int]]:
        """Per group: blocks free, cached but unused, in use."""
        return [(p.free, p.evictable, p.size - p.free - p.evictable) for p in self.pools]

    def check(self) -> None:
        """Recompute every invariant from scratch; raises `InternalError`."""
        held = list(self.index.held()) if self.index else []
        if len(set(held)) != len(held):
            raise InternalError("a block is twice in the prefix index")
        for group, pool in enumerate(self.pools):
            owners: Counter[int] = Counter()
            for table in self._tables:
                behind = table.behind[group]
                if any(b != ABSENT for b in table.blocks[group][:behind]) or ABSENT in table.blocks[group][behind:]:
                    raise InternalError("a table's window is wrong")
                owners.update(table.blocks[group][behind:])
            pool.check(owners, {b for g, b in held if g == group})
        if self.index is not None:
            self.index.check()
