"""What an answer is like: how much of it is quoted from its prompt, and whether it went round in a circle. Knows token ids only."""

from __future__ import annotations

from collections.abc import Sequence

QUOTE_TOKENS = 8  # a run of so many tokens that stands in the prompt is a quotation
QUOTES = 0.6  # an answer of which so much is quoted counts as one that quotes
_PERIOD, _TIMES, _SHARE = 32, 3, 0.3  # a loop: a run of up to 32 tokens, at least three times in a row, over so much of the answer


def quoted(answer: Sequence[int], prompt: Sequence[int]) -> float:
    """Share of the answer's tokens that lie in runs of `QUOTE_TOKENS` which stand in the prompt, 0 .. 1."""
    size = QUOTE_TOKENS
    runs = {tuple(prompt[i : i + size]) for i in range(len(prompt) - size + 1)}
    inside = [False] * len(answer)
    for i in range(len(answer) - size + 1):
        if tuple(answer[i : i + size]) in runs:
            inside[i : i + size] = [True] * size
    return sum(inside) / len(answer) if answer else 0.0


def degenerate(answer: Sequence[int]) -> bool:
    """Whether a good part of the answer is one run said over and over."""
    for period in range(1, _PERIOD + 1):
        same = best = 0
        for i in range(period, len(answer)):
            same = same + 1 if answer[i] == answer[i - period] else 0
            best = max(best, same)
        if best >= (_TIMES - 1) * period and best + period >= max(12, _SHARE * len(answer)):
            return True
    return False
