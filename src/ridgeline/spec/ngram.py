"""Prompt lookup: the longest end of a sequence that occurred in it before, and what followed there. Needs no model.

Knows token ids only. Source: prompt lookup decoding (Saxena 2023); chains of earlier places as in LZ77 compressors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ridgeline.graph.step import Int32Array
from ridgeline.spec.base import NOTHING, Asked, Proposal

_PLACES = 32  # earlier places of an end that are compared, latest first


class Index:
    """Where each run of `least` tokens of one sequence stood. Mutable: it grows with the sequence, a microsecond a token."""

    __slots__ = ("_earlier", "_latest", "_least", "_tokens")

    def __init__(self, least: int) -> None:
        self._least = least
        self._tokens: list[int] = []
        self._latest: dict[tuple[int, ...], int] = {}  # a run -> the position behind its last place but the sequence's very end
        self._earlier: list[int] = []  # by position: the one behind the run's place before, 0 for none

    def extend(self, tokens: Int32Array) -> None:
        """tokens: int32 [known], beginning with those that were given before."""
        known, least, start = self._tokens, self._least, len(self._tokens)
        known.extend(tokens[start:].tolist())
        latest, earlier = self._latest, self._earlier
        for at in range(start, len(known)):
            if at < least:
                earlier.append(0)
                continue
            run = tuple(known[at - least : at])
            earlier.append(latest.get(run, 0))
            latest[run] = at

    def find(self, longest: int) -> tuple[int, int]:
        """(position behind the best earlier place, tokens that agree before it): the longest agreement up to `longest`, the latest such
        place; (0, 0) when the last `least` tokens are new."""
        known, least = self._tokens, self._least
        end = len(known)
        place = self._latest.get(tuple(known[end - least :]), 0) if end > least else 0
        best, agreed = 0, 0
        for _ in range(_PLACES):
            if not place:
                break
            same, most = least, min(longest, place)
            while same < most and known[place - 1 - same] == known[end - 1 - same]:
                same += 1
            if same > agreed:
                best, agreed = place, same
                if same >= longest:
                    break
            place = self._earlier[place]
        return best, agreed

    def follow(self, place: int, count: int) -> list[int]:
        """What stood at `place` and after; past the sequence's end the guess goes on with itself, so that a loop is guessed as one."""
        known = self._tokens
        found = known[place : place + count]
        while len(found) < count:
            found.append(found[len(found) - (len(known) - place)])
        return found


class NgramProposer:
    """A `Proposer`. least, longest: tokens of the end that must agree, and at which it is long enough (`prompt_lookup_min`, `_max`)."""

    free = True

    def __init__(self, least: int = 2, longest: int = 16) -> None:
        self._least, self._longest = least, longest
        self._indexes: dict[int, Index] = {}

    def propose(self, asked: Sequence[Asked]) -> list[Proposal]:
        return [self._one(one) for one in asked]

    def _one(self, one: Asked) -> Proposal:
        index = self._indexes.get(one.id)
        if index is None:
            index = self._indexes[one.id] = Index(self._least)
        index.extend(one.tokens)
        place, agreed = index.find(self._longest)
        return Proposal(index.follow(place, one.most), agreed, rising=True) if place and one.most > 0 else NOTHING

    def forget(self, ids: Iterable[int]) -> None:
        for id in ids:
            self._indexes.pop(id, None)
