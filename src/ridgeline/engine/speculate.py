"""Speculation in the engine's loop: before a step guesses are put behind each answer that is under way, afterwards it is learned what they
were worth.

Knows choices, the scheduler's sequences and the cost of steps. Refuses to know how guesses are made (`spec/`) and how they are verified
(`sampler`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np

from ridgeline.engine.choice import Choice
from ridgeline.graph.step import Span, Step
from ridgeline.sampling.plan import SampleRow
from ridgeline.scheduler.state import SchedulerState, Sequence, StepRecord
from ridgeline.spec.adaptive import Acceptance, StepCost, lengths
from ridgeline.spec.base import NOTHING, Asked, Proposal, Proposer

Seconds = Callable[[Step], float]
_WEIGHT = 0.1  # of a new measurement
_PROBE = 32  # steps between guesses that cost something, while they are not worth it


class Speculator:
    """Mutable. most: guesses of one sequence in one step; predict: seconds of a step, from the cost model; None: always `most`.

    A proposer whose guesses are free goes on guessing while nothing is verified, and learns from what was drawn.
    """

    def __init__(self, proposer: Proposer, most: int, predict: Seconds | None = None, least_batch_off: int | None = None) -> None:
        self.proposer, self.most = proposer, most
        self._predict, self._off = predict, least_batch_off
        self._acceptance = Acceptance()
        self._made: dict[int, Proposal] = {}  # what was guessed before the step in flight
        self._known: set[int] = set()
        self._plain = self._wide = 1.0  # measured over predicted seconds, of steps without and with drafts
        self._idle = 0

    def propose(self, state: SchedulerState, choices: Mapping[int, Choice]) -> None:
        """Put guesses behind the known tokens of those that decode."""
        self._made = {}
        decoding = [s for s in state.running if s.known - s.computed == 1 and s.generated]
        if not decoding or (self._off is not None and len(decoding) >= self._off) or self._resting():
            return
        asked = [self._ask(s, choices[s.id]) for s in decoding]
        proposals = self.proposer.propose(asked)
        self._known.update(s.id for s in decoding)
        made = [self._checked(p, choices[s.id]) for s, p in zip(decoding, proposals, strict=True)]
        self._made = {s.id: p for s, p in zip(decoding, made, strict=True) if p.tokens}
        for seq, p, count in zip(decoding, made, self._lengths(decoding, made), strict=True):
            seq.guess(p.tokens[:count])

    def learn(self, step: Step, record: StepRecord, accepted: Mapping[int, int], choices: Mapping[int, Choice], seconds: float) -> None:
        """The step ran and took so long: what became of its drafts, and of guesses that were not in it."""
        drafts = dict(record.drafts)
        for seq_id, proposal in self._made.items():
            drafted, choice = len(drafts.get(seq_id, ())), choices.get(seq_id)
            if drafted:
                right = accepted.get(seq_id, 0)
                self._acceptance.tried(seq_id, proposal.strength, right, drafted)
                if choice is not None:
                    choice.verified(list(drafts[seq_id]), right)
            elif choice is not None and choice.new_ids:
                self._acceptance.tried(seq_id, proposal.strength, int(choice.new_ids[0] == proposal.tokens[0]), 1)
        if self._predict is not None and record.chunk_tokens == 0 and step.spans and seconds > 0:
            ratio = seconds / max(1e-9, self._predict(step))
            if drafts:
                self._wide += _WEIGHT * (ratio - self._wide)
            else:
                self._plain += _WEIGHT * (ratio - self._plain)

    def forget(self, ids: Iterable[int]) -> None:
        """These sequences ended."""
        gone = [i for i in ids if i in self._known]
        self._known.difference_update(gone)
        for i in gone:
            self._acceptance.forget(i)
        self.proposer.forget(gone)

    @staticmethod
    def _checked(proposal: Proposal, choice: Choice) -> Proposal:
        return Proposal(choice.look_ahead(proposal.tokens), proposal.strength) if proposal.tokens else NOTHING

    def _resting(self) -> bool:
        """Guesses that cost something are not made where the last ones were not worth it, but for a probe now and then."""
        if self.proposer.free or self._idle == 0:
            return False
        self._idle = (self._idle + 1) % _PROBE
        return self._idle != 0

    def _ask(self, seq: Sequence, choice: Choice) -> Asked:
        return Asked(seq.id, seq.tokens, max(0, min(self.most, seq.cap - 1 - seq.known)), partial(_row, seq, choice))

    def _lengths(self, decoding: list[Sequence], made: list[Proposal]) -> list[int]:
        have = [len(p.tokens) for p in made]
        if self._predict is None or not any(have):
            return have
        plain = self._predict(_decodes(decoding, 0))
        row = (self._predict(_decodes(decoding, 1)) - plain) / len(decoding)
        cost = StepCost(plain * self._plain, plain * self._wide, max(row, 0.0) * self._wide)
        with_some = [i for i, n in enumerate(have) if n]
        rates = [self._acceptance.rate(decoding[i].id, made[i].strength) for i in with_some]
        counts = lengths(rates, [have[i] for i in with_some], cost, extra=len(have) - len(with_some))
        chosen = [0] * len(have)
        for i, count in zip(with_some, counts, strict=True):
            chosen[i] = count
        if not any(chosen) and not self.proposer.free:
            self._idle = 1
        return chosen


def _row(seq: Sequence, choice: Choice, row: int, drafts: list[int]) -> SampleRow:
    seq.guess(drafts)
    return choice.row(row, len(drafts))


def _decodes(seqs: list[Sequence], drafts: int) -> Step:
    spans = tuple(Span(s.id, s.computed, 1 + drafts, 1 + drafts) for s in seqs)
    return Step(spans, np.zeros(len(seqs) * (1 + drafts), np.int32), ())
