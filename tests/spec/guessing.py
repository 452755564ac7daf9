"""Proposers for tests: they know the answer and are right as often as they are told to be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ridgeline.spec.base import Asked, Proposal

Answer = Callable[[int], Sequence[int]]  # sequence id -> prompt and whole answer


class Knowing:
    """A `Proposer` whose guess is the true next token with chance `right`, else another one. forgotten: ids it was told had ended."""

    def __init__(self, answer: Answer, right: float, vocab: int, seed: int = 0, *, free: bool = True) -> None:
        self._answer, self._right, self._vocab, self.free = answer, right, vocab, free
        self._rng = np.random.default_rng(seed)
        self.forgotten: list[int] = []
        self.asked = 0

    def propose(self, asked: Sequence[Asked]) -> list[Proposal]:
        self.asked += len(asked)
        return [self._one(one) for one in asked]

    def _one(self, one: Asked) -> Proposal:
        rng, answer, guesses = self._rng, self._answer(one.id), list[int]()
        for at in range(len(one.tokens), len(one.tokens) + int(rng.integers(0, one.most + 1))):
            true = answer[at] if at < len(answer) else 0
            guesses.append(int(true) if rng.random() < self._right else int((true + 1 + rng.integers(self._vocab - 1)) % self._vocab))
        return Proposal(guesses, strength=1)

    def forget(self, ids: Iterable[int]) -> None:
        self.forgotten.extend(ids)
