"""Prefix index by chained block hashes: whole blocks only, found in one table. The peer of `radix`, to be compared on the same requests.

A hash only finds candidates; the tokens of the block and the identity of its parent are always compared, so a collision costs time, never
a wrong answer. Refuses to know sequences beyond their table; eviction order is the pool's.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ridgeline.errors import InternalError
from ridgeline.graph.step import Int32Array
from ridgeline.kv.blocks import BlockPool
from ridgeline.kv.index import ABSENT, Cursor, Path

Digest = Callable[[bytes, bytes], bytes]


def blake2(parent: bytes, raw: bytes) -> bytes:
    """128-bit keyed chain: digest of a block given its parent's digest. Token ids are fixed 4-byte words."""
    return hashlib.blake2b(raw, digest_size=16, key=parent).digest()


class Entry:
    """One whole block of tokens after one parent. Without any block it only remembers that it was there."""

    __slots__ = ("alive", "blocks", "children", "digest", "gone_at", "index", "parent", "raw")

    def __init__(self, parent: Entry | None, index: int, raw: bytes, digest: bytes, groups: int) -> None:
        self.parent = parent
        self.index = index
        self.raw = raw
        self.digest = digest
        self.blocks = [ABSENT] * groups
        self.gone_at: float | None = None
        self.children = 0
        self.alive = True

    @property
    def ghost(self) -> bool:
        return all(b == ABSENT for b in self.blocks)


class HashIndex:
    """Entries of every namespace in one table of digests. `digest` may be weak (tests); answers stay right."""

    def __init__(
        self,
        pools: Sequence[BlockPool],
        windows: Sequence[int | None],
        block_size: int,
        ghost_blocks: int = 4096,
        digest: Digest = blake2,
    ) -> None:
        self.unit = block_size
        self._pools = pools
        self._full = tuple(w is None for w in windows)
        self._size = block_size
        self._digest = digest
        self._roots: dict[bytes, Entry] = {}
        self._table: dict[bytes, list[Entry]] = {}
        self._entry: list[list[Entry | None]] = [[None] * p.size for p in pools]
        self._ghosts = 0
        self._ghost_limit = ghost_blocks
        self._ghost_queue: deque[Entry] = deque()

    def match(self, space: bytes, tokens: Int32Array) -> Path:
        blocks: tuple[list[int], ...] = tuple([] for _ in self._pools)
        gone_at: list[float | None] = []
        entry = self._roots.get(space)
        known = entry is not None
        raw, step = np.ascontiguousarray(tokens, np.int32).tobytes(), 4 * self._size
        at = 0
        while entry is not None and at + step <= len(raw):
            entry = self._find(entry, raw[at : at + step])
            if entry is not None:
                for mine, block in zip(blocks, entry.blocks, strict=True):
                    mine.append(block)
                gone_at.append(entry.gone_at)
                at += step
        return Path(at // 4, blocks, gone_at, known)

    def _find(self, parent: Entry, raw: bytes) -> Entry | None:
        found = self._table.get(self._digest(parent.digest, raw), ())
        return next((e for e in found if e.parent is parent and e.raw == raw), None)

    def insert(self, space: bytes, tokens: Int32Array, table: Cursor, computed: int, *, tail: bool) -> None:
        whole = computed // self._size
        if table.committed >= whole:
            return
        parent = self._seek(space, tokens, table)
        while table.committed < whole:
            index = table.committed
            raw = self._raw(tokens, index)
            parent = self._find(parent, raw) or self._create(parent, index, raw)
            self._adopt(parent, table)
            table.committed += 1
        table.place = parent

    def _raw(self, tokens: Int32Array, index: int) -> bytes:
        return np.ascontiguousarray(tokens[index * self._size : (index + 1) * self._size], np.int32).tobytes()

    def _seek(self, space: bytes, tokens: Int32Array, table: Cursor) -> Entry:
        if isinstance(table.place, Entry) and table.place.alive and table.place.index == table.committed - 1:
            return table.place
        entry = self._roots.get(space)
        if entry is None:
            digest = hashlib.blake2b(space, digest_size=16).digest()
            entry = self._roots[space] = Entry(None, -1, space, digest, len(self._pools))
        for index in range(table.committed):
            found = self._find(entry, self._raw(tokens, index))
            if found is None:
                table.committed = index
                break
            entry = found
        return entry

    def _create(self, parent: Entry, index: int, raw: bytes) -> Entry:
        entry = Entry(parent, index, raw, self._digest(parent.digest, raw), len(self._pools))
        self._table.setdefault(entry.digest, []).append(entry)
        parent.children += 1
        self._ghosts += 1
        return entry

    def _adopt(self, entry: Entry, table: Cursor) -> None:
        was_ghost = entry.ghost
        for group, mine in enumerate(table.blocks):
            known, own = entry.blocks[group], mine[entry.index]
            if own in (known, ABSENT):
                continue
            if known == ABSENT:
                entry.blocks[group] = own
                self._pools[group].hold(own)
                self._entry[group][own] = entry
            else:
                self._pools[group].ref(known)
                table.replace(group, entry.index, known)
                self._pools[group].unref(own)
        self._ghosts -= was_ghost and not entry.ghost
        if all(b != ABSENT for b in entry.blocks):
            entry.gone_at = None
        elif entry.ghost:
            entry.gone_at = self._pools[0].now
            self._ghost_queue.append(entry)

    def drop(self, group: int, block: int) -> None:
        entry = self._entry[group][block]
        if entry is None:
            raise InternalError(f"block {block} of group {group} is not in the hash index")
        for g in range(len(self._pools)) if self._full[group] else (group,):
            lost = entry.blocks[g]
            if lost != ABSENT:
                entry.blocks[g] = ABSENT
                self._entry[g][lost] = None
                self._pools[g].unhold(lost)
        entry.gone_at = self._pools[group].now
        if entry.ghost:
            self._ghosts += 1
            self._ghost_queue.append(entry)
            self._prune()

    def _prune(self) -> None:
        while self._ghosts > self._ghost_limit and self._ghost_queue:
            entry = self._ghost_queue.popleft()
            while entry.alive and entry.ghost and not entry.children and entry.parent is not None:
                entry.alive = False
                self._ghosts -= 1
                bucket = self._table[entry.digest]
                bucket.remove(entry)
                if not bucket:
                    del self._table[entry.digest]
                entry = entry.parent
                entry.children -= 1
            if entry.parent is None and not entry.children:
                entry.alive = False
                self._roots.pop(entry.raw, None)

    def _entries(self) -> Iterator[Entry]:
        for bucket in self._table.values():
            yield from bucket

    def held(self) -> Iterator[tuple[int, int]]:
        for entry in self._entries():
            yield from ((group, b) for group, b in enumerate(entry.blocks) if b != ABSENT)

    def check(self) -> None:
        children: dict[int, int] = {}
        ghosts = 0
        for digest, bucket in self._table.items():
            for entry in bucket:
                ghosts += entry.ghost
                parent = entry.parent
                if parent is None:
                    raise InternalError("hash index: a root is in the table")
                children[id(parent)] = children.get(id(parent), 0) + 1
                holes = any(
                    full and b != ABSENT and parent.parent is not None and parent.blocks[g] == ABSENT
                    for g, (full, b) in enumerate(zip(self._full, entry.blocks, strict=True))
                )
                wrong = not entry.alive or not parent.alive or entry.index != parent.index + 1
                stray = any(b != ABSENT and self._entry[g][b] is not entry for g, b in enumerate(entry.blocks))
                if holes or wrong or stray or entry.digest != digest or digest != self._digest(parent.digest, entry.raw):
                    raise InternalError(f"hash index: entry at block {entry.index} is inconsistent")
        if ghosts != self._ghosts or any(e.children != children.get(id(e), 0) for e in (*self._entries(), *self._roots.values())):
            raise InternalError("hash index: counts differ from the entries")
