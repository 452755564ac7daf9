"""Paged against contiguous KV memory, from a run: what is reserved and not used (internal), what is free and not usable (external).

Knows when each request held how many tokens. Three ways: whole blocks; one region of the maximum length; one region of just what the
request will need, which only an oracle knows and which still leaves holes.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
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
    reserved = used = 0.0
    for r in requests:
        last = r.start_s
        for i, at in enumerate(r.token_s):
            tokens, span = r.prompt + i, at - last
            reserved += -(-tokens // block) * block * span
            used += tokens * span
            last = at
    return Waste(1 - used / reserved if reserved else 0.0, None)


def contiguous(requests: Sequence[Held], capacity: int, length: int | None = None) -> Waste:
    """First fit of one region per request: `length` tokens each (maximum model length), or exactly what each will need (None)."""
    reserved = used = 0.0
    for r in requests:
        region, last = r.final if length is None else length, r.start_s
        for i, at in enumerate(r.token_s):
            reserved += region * (at - last)
            used += (r.prompt + i) * (at - last)
            last = at
    return Waste(1 - used / reserved if reserved else 0.0, _external(requests, capacity, length))


def _external(requests: Sequence[Held], capacity: int, length: int | None) -> float:
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
        size = requests[i].final if length is None else length
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
