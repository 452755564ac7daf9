"""How many guesses are worth verifying: what each is likely to be worth, against what a wider step costs. Pure arithmetic.

Knows numbers only. E[tokens of a step] = 1 + a + a^2 + .. as in Leviathan et al. (2211.17192); costs are the caller's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_OWN_WEIGHT = 4.0  # expected hits that a sequence must have missed or passed before its own record counts half
_KEEP = 0.9  # of a sequence's record, with each guess tried: about the last ten count
_KEEP_ALL = 0.995
# Before anything was seen a guess of strength s has come true s times out of s, and Laplace's rule of succession says (s + 1) / (s + 2) of
# the next. Measured with no text: what `bench spec` measures is out of sample. Each bucket begins at its least strength, as two trials.
_LEAST_STRENGTHS = (0, 1, 2, 3, 4, 5, 9, 17)
_START_WEIGHT = 2.0
_LEAST, _MOST = 0.01, 0.99


class Record:
    """Guesses that came true beside those that were expected to, and how many were tried; what is old counts less. Mutable."""

    __slots__ = ("expected", "hits", "tries")

    def __init__(self, hits: float = 0.0, tries: float = 0.0) -> None:
        self.hits, self.tries, self.expected = hits, tries, 0.0

    def add(self, hits: int, tries: int, rate: float, keep: float) -> None:
        """So many of so many guesses were right, each expected with chance `rate`."""
        kept = keep**tries
        self.hits = self.hits * kept + hits
        self.tries = self.tries * kept + tries
        self.expected = self.expected * kept + rate * tries


class Acceptance:
    """What guesses are worth, by sequence and by strength. Mutable.

    A sequence is believed to do what all did at the same strength, times how much better or worse than that it has done so far.
    agreement: what was measured of strength 0 on other text, in place of the rule. rising: of guesses that were copied in a row; each that
    comes true is one more token that agrees, so the next is as strong as if it had been found behind it.
    """

    def __init__(self, agreement: float | None = None) -> None:
        starts = [(s + 1) / (s + 2) for s in _LEAST_STRENGTHS]
        starts[0] = starts[0] if agreement is None else agreement
        self._all = [Record(_START_WEIGHT * start, _START_WEIGHT) for start in starts]
        self._own: dict[int, Record] = {}

    def rate(self, id: int, strength: int) -> float:
        """Chance that the next guess of sequence `id` comes true, above 0 and below 1."""
        rate, own = self._common(strength), self._own.get(id)
        if own is not None:
            rate *= (own.hits + _OWN_WEIGHT) / (own.expected + _OWN_WEIGHT)
        return min(max(rate, _LEAST), _MOST)

    def _common(self, strength: int) -> float:
        seen = self._all[bucket(strength)]
        return seen.hits / seen.tries

    def chances(self, id: int, strength: int, count: int, *, rising: bool = False) -> list[float]:
        """Chance of each of `count` guesses that it and all before it come true."""
        found, chance = list[float](), 1.0
        for k in range(count):
            chance *= self.rate(id, strength + k if rising else strength)
            found.append(chance)
        return found

    def tried(self, id: int, strength: int, accepted: int, drafted: int, *, rising: bool = False) -> None:
        """Of `drafted` guesses the first `accepted` came true; those after the first wrong one say nothing."""
        own = self._own.setdefault(id, Record())
        parts = [(strength, accepted, min(drafted, accepted + 1))]
        if rising:
            parts = [(strength + k, int(k < accepted), 1) for k in range(parts[0][2])]
        for level, hits, tries in parts:
            rate = self._common(level)
            own.add(hits, tries, rate, _KEEP)
            self._all[bucket(level)].add(hits, tries, rate, _KEEP_ALL)

    def forget(self, id: int) -> None:
        self._own.pop(id, None)


def bucket(strength: int) -> int:
    """Strengths 0 .. 3 apart, then by doublings."""
    return strength if strength < 4 else min(len(_LEAST_STRENGTHS) - 1, 2 + (strength - 1).bit_length())


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step without drafts, and of one with `rows` of them: wide_s + row_s * rows, times what was learned of so many rows."""

    plain_s: float
    wide_s: float
    row_s: float
    learned: Mapping[int, float] = field(default_factory=dict)

    def seconds(self, rows: int) -> float:
        """rows: drafts, at least 1."""
        return (self.wide_s + self.row_s * rows) * self.learned.get(rows, 1.0)


def expected(rate: float, drafts: int) -> float:
    """Tokens that a sequence gains from a step with so many drafts: (1 - a^(k+1)) / (1 - a)."""
    return float(drafts + 1) if rate >= 1.0 else (1.0 - rate ** (drafts + 1)) / (1.0 - rate)


def lengths(chances: Sequence[Sequence[float]], cost: StepCost, extra: int = 0) -> list[int]:
    """Drafts per sequence that give the most tokens per second; all 0 when none gives more than a step without.

    chances: of each guess of each sequence, as `Acceptance.chances` tells them: none above the one before it; extra: sequences in the step
    that have none. Best ones first, every number of drafts is tried: kernels work in blocks of rows, so one more may cost much or nothing.
    """
    offers = sorted(((chance, i) for i, each in enumerate(chances) for chance in each), reverse=True)
    tokens = float(len(chances) + extra)
    best, speed = 0, tokens / cost.plain_s
    for rows, (chance, _) in enumerate(offers, 1):
        tokens += chance
        if tokens > speed * cost.seconds(rows):
            best, speed = rows, tokens / cost.seconds(rows)
    taken = [0] * len(chances)
    for _, i in offers[:best]:
        taken[i] += 1
    return taken


def depth(rates: Sequence[float], most: int, cost: StepCost, guess_s: float) -> tuple[int, float]:
    """(guesses of every sequence alike, tokens per second with them), where each round of guesses costs `guess_s`; 0 guesses when no number
    gives more tokens per second than none."""
    best, speed = 0, len(rates) / cost.plain_s
    for count in range(1, most + 1):
        seconds = cost.wide_s + count * (cost.row_s * len(rates) + guess_s)
        found = sum(expected(rate, count) for rate in rates) / seconds
        if found > speed:
            best, speed = count, found
    return best, speed
