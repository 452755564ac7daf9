"""What a proposer is: it is told sequences and answers with guesses of what follows. Knows no backend, no engine and no text.

Trained heads (Medusa, EAGLE) fit the same interface: they are proposers whose runner reads a tap of the target instead of its own weights.
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


@dataclass(frozen=True, slots=True)
class Asked:
    """One sequence that wants at most `most` guesses. tokens: int32 [known], prompt and answer so far; space: with whom it may share."""

    id: int
    tokens: Int32Array
    most: int
    row: RowOf
    space: bytes = b""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Guesses, in their order; none when nothing comes to mind. strength: any number that tells good guesses of this proposer from bad
    ones (`adaptive` learns what each is worth); drawn_from: what each was drawn from, None when they were looked up."""

    tokens: list[int]
    strength: int = 0
    drawn_from: list[Distribution] | None = None


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
