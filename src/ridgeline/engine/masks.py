"""Which ids the next draw of one sequence may take: allowed and banned ids, bad words, ends before min_tokens, a grammar's mask.

Knows token ids and bits. Refuses to know text, logits and grammars: a grammar is a `GuideState`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

import numpy as np

from ridgeline.sampling.guide import GuideState, Mask, allows, both, mask_of


class Bans:
    """The mask of each next draw. Computed once for a sequence: only bad words of several tokens and a grammar change it on the way.

    end_ids may not be drawn among the first `min_tokens`; bad_words are token sequences whose last token may not follow the others.
    While a grammar confines, only its own end (`eos_ids`) counts as one, and it is allowed early where nothing else is.
    """

    __slots__ = ("_base", "_early", "_early_confined", "_long", "_min_tokens", "_vocab", "grammar")

    def __init__(
        self,
        vocab: int,
        *,
        allowed: Iterable[int] | None = None,
        end_ids: frozenset[int] = frozenset(),
        eos_ids: frozenset[int] = frozenset(),
        min_tokens: int = 0,
        bad_words: Sequence[Sequence[int]] = (),
        grammar: GuideState | None = None,
    ) -> None:
        self._vocab, self._min_tokens, self.grammar = vocab, min_tokens, grammar
        self._long = [(list(word[:-1]), word[-1]) for word in bad_words if len(word) > 1]
        never = [word[0] for word in bad_words if len(word) == 1]
        base = None if allowed is None else mask_of(allowed, vocab)
        self._base = self._without(base, never) if never else base
        self._early = self._without(self._base, end_ids) if min_tokens and end_ids else self._base
        self._early_confined = self._without(self._base, eos_ids) if min_tokens and eos_ids and grammar is not None else self._base

    @property
    def confined(self) -> bool:
        """The next token is bound by a grammar, which alone says where the text may end."""
        return self.grammar is not None and self.grammar.confines

    def next(self, output: list[int]) -> Mask | None:
        """The mask after the generated ids `output`; None allows everything. The caller must not write into it."""
        confined, early = self.confined, len(output) < self._min_tokens
        mask = self._base if not early else self._early_confined if confined else self._early
        banned = [last for first, last in self._long if output[-len(first) :] == first]
        if banned:
            mask = self._without(mask, banned)
        if self.grammar is None:
            return mask
        legal = self.grammar.allowed()
        found = both(mask, legal)
        if early and confined and found is not None and not found.any():
            found = both(self._without(self._base, banned) if banned else self._base, legal)
        return found

    def ahead(self, output: list[int], drafts: list[int]) -> list[Mask | None]:
        """The masks before each of the drafts and after the last, up to a draft that may not be drawn or is the grammar's end; none where
        the grammar cannot say. The grammar is left where it was."""
        masks, told = list[Mask | None](), 0
        with suppress(Exception):  # whoever comes to that place gets the same error again
            for i in range(len(drafts) + 1):
                mask = self.next(output + drafts[:i])
                masks.append(mask)
                if i == len(drafts) or not allows(mask, drafts[i]):
                    break
                over = self.accept(drafts[i])
                told += 1
                if over:
                    break
        if told and self.grammar is not None:
            with suppress(Exception):
                self.grammar.rollback(told)
        return masks

    def accept(self, token: int) -> bool:
        """Tell the grammar; True when it is complete."""
        return self.grammar is not None and self.grammar.accept(token)

    def _without(self, mask: Mask | None, ids: Iterable[int]) -> Mask:
        if mask is None:
            return np.bitwise_not(mask_of(ids, self._vocab))
        return mask & ~mask_of(ids, self._vocab)
