"""The rejection rule in a step: what rows with guesses give is decided from the logits, the other rows draw as always.

Knows rows and proposals; the arithmetic is in `sampling/verify`. It keeps the distribution, not the words, so it is never the default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

from ridgeline.backends.base import Program
from ridgeline.sampling.plan import SampleRow
from ridgeline.sampling.verify import certain, distribution, rejection
from ridgeline.scheduler.state import Draw
from ridgeline.spec.base import Proposal


def reject(made: Callable[[int], Proposal], program: Program, draws: Sequence[Draw], rows: list[SampleRow], vocab: int) -> list[SampleRow]:
    """rows[i] belongs to draws[i]; a sequence's rows stand together. A row without numbers is left alone: its draw fails as always."""
    logits, decided, at = program.logits(), list(rows), 0
    for seq_id, group in groupby(draws, key=lambda draw: draw.seq):
        count = len(list(group))
        mine, at = rows[at : at + count], at + count
        proposal = made(seq_id)
        if count < 2 or len(proposal.tokens) < count - 1:
            continue
        targets = [distribution(logits[row.row, :vocab], row) for row in mine]
        guesses = proposal.tokens[: count - 1]
        drawn_from = proposal.drawn_from or [certain(token) for token in guesses]
        known = [t for t in targets if t is not None]
        if len(known) < count:
            continue
        tokens = rejection(known, guesses, drawn_from, [(row.seed, row.choice, row.position) for row in mine])
        given = [*tokens, *[tokens[-1]] * (count - len(tokens))]
        decided[at - count : at] = [replace(row, given=token) for row, token in zip(mine, given, strict=True)]
    return decided
