"""Paged against contiguous KV memory, from a run: what is reserved and not used (internal), what is free and not usable (external).

Knows when each request held how many tokens. Three ways: whole blocks; one region of the maximum length; one region of just what the
request will need, which only an oracle knows and which still leaves holes.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ridgeline.bench.replica import Live


@dataclass(frozen=True, slots=True)
class Held:
    """Tokens of one request: `prompt` at start_s, one more at each of token_s; freed at the last."""

    start_s: float
    prompt: int
    token_s: tuple[float, ...]

    @property
    def final(self) -> int:
        return self.prompt + len(self.token_s)


@dataclass(frozen=True, slots=True)
class Waste:
    """Shares of reserved memory that hold no token (internal, averaged over token-seconds), and of failed placements for which there was
    room, but in pieces (external; None where every place fits)."""

    internal: float
    external: float | None


def held(lives: Iterable[Live]) -> list[Held]:
    """What a run's requests kept, each while it ran."""
    return [Held(live.admitted_s, len(live.job.prompt), tuple(live.token_s)) for live in lives if live.token_s]


def paged(requests: Sequence[Held], block: int = 16) -> Waste:
    """Less than one block per sequence, and no external waste: any block will do."""
    return Waste(_internal(requests, lambda r, tokens: -(-tokens // block) * block), None)


def contiguous(requests: Sequence[Held], capacity: int, length: int | None = None) -> Waste:
    """First fit of one region per request: `length` tokens each (maximum model length), or exactly what each will need (None)."""


    def region(r: Held) -> int:
        return r.final if length is None else length

    return Waste(_internal(requests, lambda r, tokens: region(r)), _external(requests, capacity, region))


def _internal(requests: Sequence[Held], size: Callable[[Held, int], int]) -> float:
    """Share of reserved token-seconds that hold nothing. size: tokens reserved for a request that holds so many."""
    reserved = used = 0.0
    for r in requests:
        last = r.start_s
        for i, at in enumerate(r.token_s):
            tokens = r.prompt + i
            reserved += size(r, tokens) * (at - last)
            used += tokens * (at - last)
            last = at
    return 1 - used / reserved if reserved else 0.0


def _external(requests: Sequence[Held], capacity: int, region: Callable[[Held], int]) -> float:
    """Placements that failed although so much was free in all, over all placements."""
    taken: list[tuple[int, int]] = []  # (start, size), by start
    events = [(r.token_s[-1], 0, i) for i, r in enumerate(requests)] + [(r.start_s, 1, i) for i, r in enumerate(requests)]
    places: dict[int, tuple[int, int]] = {}
    failed = tried = 0
    for _, kind, i in sorted(events):
        if kind == 0:
            if i in places:
                taken.remove(places.pop(i))
            continue
        size = region(requests[i])
        tried += 1
        start = _first_fit(taken, size, capacity)
        if start is not None:
            places[i] = (start, size)
            insort(taken, places[i])
        elif capacity - sum(s for _, s in taken) >= size:
            failed += 1
    return failed / tried if tried else 0.0


def _first_fit(taken: Sequence[tuple[int, int]], size: int, capacity: int) -> int | None:
    end = 0
    for start, used in taken:
        if start - end >= size:
            return end
        end = start + used
    return end if capacity - end >= size else None
