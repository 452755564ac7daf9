"""The pool of KV blocks of one cache group: who holds each block, which are free, which may be evicted and in what order.

Knows integers only. Refuses to know tokens, prefixes, windows and bytes; it asks `on_evict` to forget a block before it reuses it.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Mapping

from ridgeline.errors import InternalError


class BlockPool:
    """Blocks 0 .. size-1. A block is `refs` sequences' and perhaps `held` by the prefix index; with neither it is free.

    Held blocks without references rest in a queue per rank, least recently released first: a sequence releases its last block first,
    so within a path a child always comes before its parent and eviction never leaves a hole. A rested block whose `keep_until` lies
    ahead of `now` is evicted only when nothing else is left. Blocks that a step copies from are barred from reuse until `settle`.
    """

    def __init__(self, size: int, on_evict: Callable[[int], None]) -> None:
        self.size = size
        self.now = 0.0
        self.evictions = 0
        self.refs = [0] * size
        self.held = [False] * size
        self._on_evict = on_evict
        self._free = list(range(size - 1, -1, -1))
        self._rank = [0] * size
        self._keep_until = [0.0] * size
        self._queues: dict[int, OrderedDict[int, None]] = {0: OrderedDict()}
        self._kept: list[tuple[float, int, int]] = []  # heap of (keep_until, ticket, block); entries with an old ticket are void
        self._ticket = [0] * size
        self._tickets = 0
        self._evictable = 0
        self._rested_at = [0.0] * size
        self._barred: set[int] = set()

    @property
    def free(self) -> int:
        """Blocks that nobody has."""
        return len(self._free)

    @property
    def evictable(self) -> int:
        """Held blocks that no sequence uses."""
        return self._evictable

    @property
    def available(self) -> int:
        """How often `take` would succeed now."""
        return len(self._free) + self._evictable

    def take(self) -> int:
        """A block for one owner (refs 1), evicting if none is free. Raises `InternalError` when nothing is available."""
        if not self._free:
            self.evict()
        block = self._free.pop()
        self.refs[block] = 1
        self._rank[block] = 0
        self._keep_until[block] = 0.0
        return block

    def ref(self, block: int) -> None:
        """One more owner of a block that is held or owned."""
        if self.refs[block] == 0:
            if not self.held[block]:
                raise InternalError(f"block {block} is free and cannot be referenced")
            self._wake(block)
        self.refs[block] += 1

    def unref(self, block: int) -> None:
        """The single release path of an owner."""
        if self.refs[block] <= 0:
            raise InternalError(f"block {block} released more often than referenced")
        self.refs[block] -= 1
        if self.refs[block] == 0:
            self._rest(block)

    def hold(self, block: int) -> None:
        """The prefix index keeps this block, whose owner still references it."""
        if self.held[block] or self.refs[block] == 0:
            raise InternalError(f"block {block} cannot be held: held {self.held[block]}, refs {self.refs[block]}")
        self.held[block] = True

    def unhold(self, block: int) -> None:
        """The prefix index forgets this block."""
        if not self.held[block]:
            raise InternalError(f"block {block} is not held")
        if self.refs[block] == 0:
            self._wake(block)
        self.held[block] = False
        if self.refs[block] == 0:
            self._rest(block)

    def mark(self, block: int, rank: int, keep_until: float) -> None:
        """Raise a referenced block's soft priority and the time until which it is kept; neither ever falls while it is held."""
        self._rank[block] = max(self._rank[block], rank)
        self._keep_until[block] = max(self._keep_until[block], keep_until)

    def bar(self, block: int) -> None:
        """Not to be reused before `settle`: a copy of the step reads it."""
        if block not in self._barred:
            if self.refs[block] == 0:
                self._wake(block)
            self._barred.add(block)

    def settle(self) -> None:
        """The step is complete, nothing more is taken for it: barred blocks return to where they belong."""
        barred, self._barred = self._barred, set()
        for block in barred:
            if self.refs[block] == 0:
                self._rest(block)

    def writable(self, block: int) -> bool:
        """True when its only owner may write into it without a copy."""
        return self.refs[block] == 1 and not self.held[block]

    def evict(self) -> int:
        """Free the block that is worth least. Raises `InternalError` when none is evictable."""
        block = self._worst()
        if block is None:
            raise InternalError(f"no block of {self.size} is free or evictable")
        self.evictions += 1
        self._on_evict(block)
        if self.held[block]:
            raise InternalError(f"block {block} is still held after eviction")
        return block

    def idle_s(self, block: int) -> float:
        """Seconds since the last sequence let go of a held block; 0 while one uses it."""
        return 0.0 if self.refs[block] else max(0.0, self.now - self._rested_at[block])

    def ttl_s(self, block: int) -> float:
        """Seconds for which it is kept before others; 0 when it is not."""
        return max(0.0, self._keep_until[block] - self.now)

    def _expire(self) -> None:
        """Blocks whose time is up queue behind what rested before."""
        while self._kept and (self._void(self._kept[0]) or self._kept[0][0] <= self.now):
            entry = heapq.heappop(self._kept)
            if not self._void(entry):
                self._ticket[entry[2]] = 0
                self._queue(entry[2])[entry[2]] = None

    def _worst(self) -> int | None:
        self._expire()
        for rank in sorted(self._queues):
            if self._queues[rank]:
                return next(iter(self._queues[rank]))
        return self._kept[0][2] if self._kept else None

    def _void(self, entry: tuple[float, int, int]) -> bool:
        return self._ticket[entry[2]] != entry[1]

    def _queue(self, block: int) -> OrderedDict[int, None]:
        return self._queues.setdefault(self._rank[block], OrderedDict())

    def _rest(self, block: int) -> None:
        if block in self._barred:
            return
        if not self.held[block]:
            self._free.append(block)
            return
        self._expire()  # a child that was kept must queue before its parent, which may rest now
        self._evictable += 1
        self._rested_at[block] = self.now
        if self._keep_until[block] > self.now:
            self._tickets += 1
            self._ticket[block] = self._tickets
            heapq.heappush(self._kept, (self._keep_until[block], self._tickets, block))
        else:
            self._queue(block)[block] = None

    def _wake(self, block: int) -> None:
        if block in self._barred:
            return
        self._evictable -= 1
        if self._ticket[block]:
            self._ticket[block] = 0
        else:
            del self._queue(block)[block]

    def check(self, owners: Mapping[int, int], held: set[int]) -> None:
        """Recompute every invariant from scratch: `owners` counts each block in all tables, `held` is what the index has."""
        queued = [b for q in self._queues.values() for b in q]
        kept = [entry[2] for entry in self._kept if not self._void(entry)]
        resting = queued + kept
        problems = [
            (self.refs != [owners.get(b, 0) for b in range(self.size)], "references differ from the tables"),
            ({b for b in range(self.size) if self.held[b]} != held, "held blocks differ from the index"),
            (len(set(self._free)) != len(self._free), "a block is twice in the free list"),
            (len(set(resting)) != len(resting), "a block is in two queues"),
            (set(resting) != {b for b in held if not self.refs[b]} - self._barred, "the queues are not the held, unreferenced blocks"),
            (set(self._free) != {b for b in range(self.size) if not self.refs[b]} - held - self._barred, "the free list is wrong"),
            (self._evictable != len(resting), "the evictable count is wrong"),
            (any(self._rank[b] != rank for rank, q in self._queues.items() for b in q), "a block is in another rank's queue"),
        ]
        for wrong, what in problems:
            if wrong:
                raise InternalError(f"block pool: {what}")
