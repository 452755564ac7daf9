"""Token counts that a server reports, checked with the model's own tokenizer where its file is at hand. Knows no server.

Text does not always cut into the tokens it was generated from, and control tokens have no text: a difference is a fact to show, and a large
one means that a server's counts are not to be compared with another's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.bench.client_metrics import Outcome
from ridgeline.engine.words import open_words
from ridgeline.errors import UserError
from ridgeline.formats.checkpoint import open_checkpoint
from ridgeline.formats.pull import find_cached
from ridgeline.text.tokenizer import Tokenizer

TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class TokenCheck:
    """Of answers: usage is the server's sum, counted ours; within: answers whose counts are the same or one apart (the end token)."""

    answers: int
    usage: int
    counted: int
    within: int

    @property
    def agrees(self) -> bool:
        return abs(self.usage - self.counted) <= TOLERANCE * max(1, self.usage)


def tokenizer_of(model: str | None) -> Tokenizer | None:
    """None where there is no file that we read; nothing is downloaded for a check."""
    if model is None:
        return None
    path = find_cached(model) or Path(model)
    if not path.exists():
        return None
    try:
        return open_words(open_checkpoint(path)).tokenizer
    except (UserError, OSError):
        return None


def check_tokens(tokenizer: Tokenizer, outcomes: Sequence[Outcome]) -> TokenCheck | None:
    """Over answers of one choice that ended well and have usage; None when there are none."""
    answers = usage = counted = within = 0
    for o in outcomes:
        if not o.ok or o.choices != 1 or o.reading.output_tokens is None:
            continue
        ours = len(tokenizer.encode_plain(o.reading.text, first=False))
        answers, usage, counted = answers + 1, usage + o.reading.output_tokens, counted + ours
        within += abs(ours - o.reading.output_tokens) <= 1
    return TokenCheck(answers, usage, counted, within) if answers else None
