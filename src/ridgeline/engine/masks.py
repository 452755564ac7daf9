"""Which ids the next draw of one sequence may take: allowed and banned ids, bad words, ends before min_tokens, a grammar's mask.

Knows token ids and bits. Refuses to know text, logits and grammars: a grammar is whatever answers to `TokenMask`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.uint32]  # [ceil(vocab / 32)], bit i of word i // 32 set: id i may be drawn


class TokenMask(Protocol):
    """A grammar's state for one sequence. An exception out of it ends that sequence alone."""

    def allowed(self) -> Mask | None:
        """What the next token may be; None: anything."""

    def accept(self, token: int) -> bool:
        """The token that was drawn. True when nothing more may follow, which ends the sequence."""


def mask_of(ids: Iterable[int], vocab: int) -> Mask:
    """Only these ids are allowed."""
    mask = np.zeros((vocab + 31) // 32, np.uint32)
    for i in ids:
        mask[i >> 5] |= np.uint32(1 << (i & 31))
    return mask


class Bans:
    """The mask of each next draw. Computed once for a sequence: only bad words of several tokens and a grammar change it on the way.

    end_ids may not be drawn among the first `min_tokens`; bad_words are token sequences whose last token may not follow the others.
    """

    __slots__ = ("_base", "_early", "_grammar", "_long", "_min_tokens", "_vocab")

    def __init__(
        self,
        vocab: int,
        *,
        allowed: Iterable[int] | None = None,
        end_ids: frozenset[int] = frozenset(),
        min_tokens: int = 0,
        bad_words: Sequence[Sequence[int]] = (),
        grammar: TokenMask | None = None,
    ) -> None:
        self._vocab, self._min_tokens, self._grammar = vocab, min_tokens, grammar
        self._long = [(list(word[:-1]), word[-1]) for word in bad_words if len(word) > 1]
        never = [word[0] for word in bad_words if len(word) == 1]
        base = None if allowed is None else mask_of(allowed, vocab)
        self._base = self._without(base, never) if never else base
        self._early = self._without(self._base, end_ids) if min_tokens and end_ids else self._base

    def next(self, output: list[int]) -> Mask | None:
        """The mask after the generated ids `output`; None allows everything. The caller must not write into it."""
        mask = self._early if len(output) < self._min_tokens else self._base
        banned = [last for first, last in self._long if output[-len(first) :] == first]
        if banned:
            mask = self._without(mask, banned)
        if self._grammar is not None:
            legal = self._grammar.allowed()
            if legal is not None:
                mask = legal if mask is None else mask & legal
        return mask

    def accept(self, token: int) -> bool:
        """Tell the grammar; True when it is complete."""
        return self._grammar is not None and self._grammar.accept(token)

    def _without(self, mask: Mask | None, ids: Iterable[int]) -> Mask:
        if mask is None:
            return np.bitwise_not(mask_of(ids, self._vocab))
        return mask & ~mask_of(ids, self._vocab)
