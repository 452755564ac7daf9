"""Colours for `ridgeline chat --show-spec`: which words were guessed and came true, which guesses did not, what came for free behind them.

Knows a choice's news and terminals' colours. Nothing here changes what is said.
"""

from __future__ import annotations

from ridgeline.engine.choice import Choice
from ridgeline.text.stream import Detokenizer
from ridgeline.text.tokenizer import Tokenizer

_GREEN, _RED, _CYAN, _END = "\x1b[32m", "\x1b[2;31;9m", "\x1b[1;36m", "\x1b[0m"
LEGEND = f"{_GREEN}guessed and true{_END}, {_RED}guessed and wrong{_END}, {_CYAN}drawn behind guesses that all came true{_END}, drawn"


class Painter:
    """Mutable: the characters of one answer that are not whole yet. colour False: the plain text."""

    def __init__(self, tokenizer: Tokenizer, colour: bool) -> None:
        self._tokenizer, self._colour = tokenizer, colour
        self._words = Detokenizer(tokenizer)

    def paint(self, choice: Choice) -> str:
        """The last step's words, in order; a wrong guess stands where it was made, in front of what was drawn instead."""
        if not self._colour:
            return choice.delta
        guesses, out = choice.drafts, ""
        for i, token in enumerate(choice.new_ids):
            true = i < len(guesses) and guesses[i] == token
            if not true and i < len(guesses):
                out += _coloured(_RED, self._tokenizer.decode(guesses[i:]))
            bonus = bool(guesses) and i == len(guesses)
            out += _coloured(_GREEN if true else _CYAN if bonus else "", self._words.push(token))
        return out

    def finish(self) -> str:
        return self._words.finish() if self._colour else ""


def _coloured(colour: str, text: str) -> str:
    return f"{colour}{text}{_END}" if colour and text else text


def summary(choice: Choice) -> str:
    """One line about an answer."""
    if not choice.drafted:
        return "no guesses were made"
    steps = max(1, len(choice.token_ids) - choice.accepted)
    return f"{choice.accepted} of {choice.drafted} guesses came true, {len(choice.token_ids) / steps:.2f} tokens a step"
