"""Accept rules: which of a step's guesses become tokens, and what is drawn where one does not.

coupled: the target draws every row with its own noise, and a guess is accepted iff it is what was drawn: nothing here is needed for that.
rejection: the published rule (Leviathan et al. 2211.17192; Chen et al. 2302.01318): a guess x drawn from q is accepted with probability
min(1, p(x) / q(x)), else a token of max(p - q, 0) is drawn; when all are accepted, one more of p (bonus). It keeps the distribution, not
the words.

Knows rows of logits as numbers; refuses to know models and sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ridgeline.sampling import exact
from ridgeline.sampling.plan import SampleRow
from ridgeline.sampling.transforms import GREEDY_BELOW, adjusted, kept

_ACCEPT, _RESIDUAL = 0xA5A5_0001, 0x5A5A_0002  # streams of noise apart from the draws', which the guesses may have used


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """Probabilities of the ids that may be drawn. ids: int32 [n], rising; p: float64 [n], their sum 1."""

    ids: npt.NDArray[np.int32]
    p: npt.NDArray[np.float64]

    def of(self, token: int) -> float:
        at = int(np.searchsorted(self.ids, token))
        return float(self.p[at]) if at < len(self.ids) and self.ids[at] == token else 0.0


def distribution(logits: npt.NDArray[np.float32], row: SampleRow) -> Distribution | None:
    """What a row of logits (float32 [vocab]) draws from after mask, bias, penalties, temperature, top-k, top-p and min-p; None when no
    number is left. Greedy rows are certain of one id."""
    if not bool((logits <= np.finfo(np.float32).max).all()):
        return None
    changed = adjusted(logits, row)
    best = int(np.argmax(changed))
    if changed[best] == -np.inf:
        return None
    if row.temperature < GREEDY_BELOW or row.top_k == 1:
        return certain(best)
    ids, x = kept(changed, row)
    weights = exact.weights(x).astype(np.float64)
    order = np.argsort(ids)
    return Distribution(ids[order], (weights / weights.sum())[order])


def certain(token: int) -> Distribution:
    """A guess that was not drawn but looked up: q is 1 there."""
    return Distribution(np.array([token], np.int32), np.ones(1))


def residual(p: Distribution, q: Distribution) -> Distribution:
    """max(p - q, 0), normalized. p itself where nothing is left, which only rounding can bring about."""
    at = np.searchsorted(q.ids, p.ids)
    inside = at < len(q.ids)
    same = np.zeros(len(p.ids), np.bool_)
    same[inside] = q.ids[at[inside]] == p.ids[inside]
    rest = p.p.copy()
    rest[same] = np.maximum(rest[same] - q.p[at[same]], 0.0)
    total = rest.sum()
    return Distribution(p.ids, rest / total) if total > 0 else p


def sample(found: Distribution, key: int) -> int:
    """One id: where the running sum of p passes the number of `key`."""
    sums = found.p.cumsum()
    at = int(sums.searchsorted(uniform(key) * sums[-1], side="right"))
    return int(found.ids[min(at, len(sums) - 1)])


def uniform(key: int) -> float:
    """A number in (0, 1) that depends on `key` only: 52 bits of a key that is mixed already."""
    return ((key >> 12) + 0.5) * 2.0**-52


def rejection(
    targets: Sequence[Distribution], guesses: Sequence[int], proposals: Sequence[Distribution], key_of: Sequence[tuple[int, int, int]]
) -> list[int]:
    """The tokens of a step: accepted guesses, then one that is drawn.

    targets: what each row draws from, one more than guesses; proposals: what each guess was drawn from; key_of: (seed, choice, position)
    of each row's token.
    """
    tokens: list[int] = []
    for p, guess, q, key in zip(targets, guesses, proposals, key_of, strict=False):
        seed, choice, position = key
        chance = p.of(guess) / max(q.of(guess), 1e-300)
        if chance >= 1.0 or uniform(exact.noise_key(seed + _ACCEPT, choice, position)) < chance:
            tokens.append(guess)
            continue
        tokens.append(sample(residual(p, q), exact.noise_key(seed + _RESIDUAL, choice, position)))
        return tokens
    seed, choice, position = key_of[len(guesses)]
    tokens.append(sample(targets[len(guesses)], exact.noise_key(seed + _RESIDUAL, choice, position)))
    return tokens
