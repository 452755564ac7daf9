"""What a proposer is: it is told sequences and answers with guesses of what follows. Knows no backend, no engine and no text.

Trained heads (Medusa, EAGLE) fit the same interface: they are proposers that are given a tap of the target, and find in `Asked.rows`
which of its rows belong to whom.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ridgeline.graph.step import Int32Array
from ridgeline.sampling.plan import SampleRow
from ridgeline.sampling.verify import Distribution

# How the target would draw a token: (logits row, guesses before it) -> the draw, with its noise, penalties and masks; None when no
# further guess would be of use.
RowOf = Callable[[int, Sequence[int]], SampleRow | None]
# Rows of the target's last forward that a sequence's newest tokens were drawn from, in order, by its id: of every tap that has a row for
# each token. Empty where that forward was without it (resumed, forked).
RowsOf = Callable[[int], range]


def no_rows(id: int) -> range:
    """Nothing is known of the last forward."""
    return range(0)


@dataclass(frozen=True, slots=True)
class Asked:
    """One sequence that wants at most `most` guesses. tokens: int32 [known], prompt and answer so far; space: with whom it may share;
    rows: asked with `id`, where the target's hidden states stand that its newest tokens came from."""

    id: int
    tokens: Int32Array
    most: int
    row: RowOf
    space: bytes = b""
    rows: RowsOf = no_rows


@dataclass(frozen=True, slots=True)
class Proposal:
    """Guesses, in their order; none when nothing comes to mind. strength: any number that tells good guesses of this proposer from bad
    ones (`adaptive` learns what each is worth); rising: each that comes true makes the next one stronger by 1; drawn_from: what each was
    drawn from, None when they were looked up."""

    tokens: list[int]
    strength: int = 0
    drawn_from: list[Distribution] | None = None
    rising: bool = False


NOTHING = Proposal([])


class Proposer(Protocol):
    """Guesses for many sequences at once. Mutable: it may keep what it knows of each until `forget`."""

    @property
    def free(self) -> bool:
        """A guess costs next to nothing, so it is made even where it will not be verified."""

    def propose(self, asked: Sequence[Asked]) -> list[Proposal]:
        """One proposal per sequence, in order."""

    def forget(self, ids: Iterable[int]) -> None:
        """These sequences ended."""
