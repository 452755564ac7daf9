"""Speculation in the engine's loop: before a step guesses are put behind each answer that is under way, afterwards it is learned what they
were worth.

Knows choices, the scheduler's sequences and the cost of steps. Refuses to know how guesses are made (`spec/`) and how they are verified
(`sampler`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import perf_counter

import numpy as np

from ridgeline.engine.choice import Choice
from ridgeline.engine.reject import reject
from ridgeline.engine.sampler import Rule
from ridgeline.graph.step import Span, Step
from ridgeline.sampling.plan import SampleRow
from ridgeline.scheduler.state import SchedulerState, Sequence, StepRecord, Tokens
from ridgeline.spec.adaptive import Acceptance, StepCost, depth, lengths
from ridgeline.spec.base import NOTHING, Asked, Proposal, Proposer, RowsOf, no_rows

Seconds = Callable[[Step], float]
_WEIGHT = 0.1  # of a new measurement
_EVERY = 8  # plain steps between two whose time is compared with its prediction: that takes longer than guessing
_FORCED = 1 << 20  # the strength of what a grammar forces
_PROBE = 32  # steps between guesses for a crowd, which are not worth it
_LEARNING = 0.02  # of the time, at most, goes into guesses that cost something and are not worth it, to see whether they have become so


class Speculator:
    """Mutable. rule: decides on guesses in place of the coupled draw, with `rejection`.

    most: guesses of one sequence in one step; predict: seconds of a step, from the cost model, None: always `most`; guess:
    seconds of a step of the draft model, where guesses are not free; least_batch_off: no guesses when so many sequences decode;
    agreement: how often guesses come true, where that was measured before.

    A proposer whose guesses are free goes on guessing while nothing is verified, and learns from what was drawn.
    """

    def __init__(
        self,
        proposer: Proposer,
        most: int,
        predict: Seconds | None = None,
        least_batch_off: int | None = None,
        guess: Seconds | None = None,
        *,
        rejection: bool = False,
        agreement: float | None = None,
    ) -> None:
        self.proposer, self.most = proposer, most
        self.rule: Rule | None = partial(reject, self.made) if rejection else None
        self.fault: str | None = None  # why there are no more guesses
        self._predict, self._off, self._guess = predict, least_batch_off, guess
        self._acceptance = Acceptance(agreement)
        self._made: dict[int, Proposal] = {}  # what was guessed before the step in flight
        self._last: _Ran | None = None  # the step before this one, when it ran
        self._asked: dict[int, int] = {}  # sequence id -> its known tokens when a guess was asked for last
        self._plain = self._wide = self._guessing = 1.0  # measured over predicted seconds: steps without and with drafts, and of the draft
        self._blocks: dict[int, float] = {}  # tokens of a step with drafts -> its seconds over what `_wide` makes of it
        self._measured = False
        self._learning = False  # the guesses asked for are not expected to be worth it
        self._credit_s = 0.0  # may go into guesses that are not worth it; below 0: went into them already
        self._crowd = 1 << 30  # so many sequences fill a step with arithmetic: a sure guess would not pay

    def propose(self, state: SchedulerState, choices: Mapping[int, Choice]) -> None:
        """Put guesses behind the known tokens of those that decode."""
        self._made = {}
        ran, self._last = self._last, None
        decoding = [s for s in state.running if s.known - s.computed == 1 and s.generated]
        if not decoding or self.fault or (self._off is not None and len(decoding) >= self._off):
            return
        if len(decoding) >= self._crowd and state.steps % _PROBE:
            return
        most = self._depth(decoding)
        if most == 0:
            return
        try:
            proposals = self._ask(decoding, choices, most, no_rows if ran is None else ran.rows)
        except Exception as fault:  # guesses are never needed: the answers go on without
            self.fault = f"{type(fault).__name__}: {fault}"
            for seq in decoding:
                seq.guess(())
            return
        made = [self._checked(p, choices[s.id], s) for s, p in zip(decoding, proposals, strict=True)]
        self._made = {s.id: p for s, p in zip(decoding, made, strict=True) if p.tokens}
        for seq, p, count in zip(decoding, made, self._lengths(decoding, made), strict=True):
            seq.guess(p.tokens[:count])

    def learn(self, step: Step, record: StepRecord, accepted: Mapping[int, int], choices: Mapping[int, Choice], seconds: float) -> None:
        """The step ran and took so long: what became of its drafts, and of guesses that were not in it."""
        drafts = dict(record.drafts)
        self._last = _Ran(step, drafts, accepted)
        for seq_id, proposal in self._made.items():
            drafted, choice = len(drafts.get(seq_id, ())), choices.get(seq_id)
            if drafted:
                right = accepted.get(seq_id, 0)
                self._acceptance.tried(seq_id, proposal.strength, right, drafted, rising=proposal.rising)
                if choice is not None:
                    choice.verified(list(drafts[seq_id]), right)
            elif choice is not None and choice.new_ids:
                self._acceptance.tried(seq_id, proposal.strength, int(choice.new_ids[0] == proposal.tokens[0]), 1)
        if self._predict is None or record.chunk_tokens or not step.spans or seconds <= 0:
            return
        if drafts or record.number % _EVERY == 0:
            ratio = seconds / max(1e-9, self._predict(step))
            if not self._measured:  # the assumed ceilings may be far off: until all kinds were seen, they are so alike
                self._measured, self._plain, self._wide, self._guessing = True, ratio, ratio, ratio
            if drafts:
                known = self._blocks.get(len(step.tokens), 1.0)
                self._blocks[len(step.tokens)] = known + _WEIGHT * (ratio / self._wide - known)
                self._wide += _WEIGHT * (ratio - self._wide)
            else:
                self._plain += _WEIGHT * (ratio - self._plain)

    def made(self, seq_id: int) -> Proposal:
        """What was guessed for a sequence before the step in flight."""
        return self._made.get(seq_id, NOTHING)

    def forget(self, ids: Iterable[int]) -> None:
        """These sequences ended."""
        gone = [i for i in ids if self._asked.pop(i, None) is not None]
        for i in gone:
            self._acceptance.forget(i)
        with suppress(Exception):
            self.proposer.forget(gone)

    def _ask(self, decoding: list[Sequence], choices: Mapping[int, Choice], most: int, stood: RowsOf) -> list[Proposal]:
        rooms = [max(0, min(most, s.cap - 1 - s.known)) for s in decoding]
        rows = [partial(_row, s, choices[s.id]) for s in decoding]
        asked = [Asked(s.id, s.tokens, n, row, s.request.space, stood) for s, n, row in zip(decoding, rooms, rows, strict=True)]
        known = all(s.id in self._asked for s in decoding)
        first_s = 0.0 if self._guess is None else self._guess(self._unread(decoding))
        self._asked.update((s.id, s.known) for s in decoding)
        begun = perf_counter()
        proposals = self.proposer.propose(asked)
        took = perf_counter() - begun
        if self._guess is not None and known and all(p.tokens for p in proposals):
            more = max(len(p.tokens) for p in proposals) - 1
            predicted = first_s + (more * self._guess(_decodes(decoding, 0)) if more else 0.0)
            self._guessing += _WEIGHT * (took / max(1e-9, predicted) - self._guessing)
        if self._learning:
            self._credit_s -= took
        return proposals

    def _unread(self, decoding: list[Sequence]) -> Step:
        """What a draft model has to read before it guesses, so far as it is not in its cache."""
        starts = [min(self._asked.get(s.id, 0), s.known - 1) for s in decoding]
        spans = tuple(Span(s.id, start, s.known - start, 1) for s, start in zip(decoding, starts, strict=True))
        return Step(spans, np.zeros(sum(span.new for span in spans), np.int32), ())

    def _checked(self, proposal: Proposal, choice: Choice, seq: Sequence) -> Proposal:
        """What a grammar forces goes before any guess; then what the choice lets pass."""
        forced = choice.forced()[: max(0, min(self.most, seq.cap - 1 - seq.known))] if choice.grammar is not None else []
        if forced and proposal.tokens[: len(forced)] != forced:
            proposal = Proposal(forced, _FORCED)
        return replace(proposal, tokens=choice.look_ahead(proposal.tokens)) if proposal.tokens else NOTHING

    def _cost(self, decoding: list[Sequence]) -> StepCost | None:
        if self._predict is None:
            return None
        plain = self._predict(_decodes(decoding, 0))
        row = (self._predict(_decodes(decoding, 1)) - plain) / len(decoding)
        learned = {tokens - len(decoding): share for tokens, share in self._blocks.items()}
        return StepCost(plain * self._plain, plain * self._wide, max(row, 0.0) * self._wide, learned)

    def _depth(self, decoding: list[Sequence]) -> int:
        """Guesses to ask for. Those that cost something are made where the tokens that may still come win back what the draft has to read
        first: a newcomer's prompt, and all that was said since it was asked. Else one is made now and then."""
        self._learning = False
        cost = None if self._guess is None else self._cost(decoding)
        if cost is None or self._guess is None:
            return self.most
        rates = [self._acceptance.rate(s.id, 0) for s in decoding]
        guess_s, first_s = (self._guess(step) * self._guessing for step in (_decodes(decoding, 0), self._unread(decoding)))
        best, speed = depth(rates, self.most, cost, guess_s)
        left = sum(s.cap - s.known for s in decoding)
        if best and left * (cost.plain_s / len(decoding) - 1 / speed) > first_s - guess_s:
            return best
        self._credit_s += _LEARNING * cost.plain_s
        self._learning = self._credit_s >= first_s + cost.row_s * len(decoding)
        return int(self._learning)

    def _lengths(self, decoding: list[Sequence], made: list[Proposal]) -> list[int]:
        """How many of its guesses each sequence takes into the step."""
        have = [len(p.tokens) for p in made]
        cost = self._cost(decoding) if self._guess is None and any(have) else None
        if cost is None:
            return have
        if cost.wide_s <= len(decoding) * cost.row_s:
            self._crowd = min(self._crowd, len(decoding))
        elif len(decoding) >= self._crowd:
            self._crowd = len(decoding) + 1
        some = [i for i, n in enumerate(have) if n]
        chances = [self._acceptance.chances(decoding[i].id, made[i].strength, have[i], rising=made[i].rising) for i in some]
        counts = dict(zip(some, lengths(chances, cost, extra=len(have) - len(some)), strict=True))
        return [counts.get(i, 0) for i in range(len(have))]


class _Ran:
    """A step that ran, and how many of its drafts came true. Where its rows stand is reckoned when somebody asks."""

    def __init__(self, step: Step, drafts: Mapping[int, Tokens], accepted: Mapping[int, int]) -> None:
        self._step, self._drafts, self._accepted = step, drafts, accepted
        self._found: dict[int, range] | None = None

    def rows(self, id: int) -> range:
        if self._found is None:
            self._found, end = {}, 0
            for span in self._step.spans:
                end += span.new
                if span.want:
                    first = end - 1 - len(self._drafts.get(span.seq, ()))
                    self._found[span.seq] = range(first, first + 1 + self._accepted.get(span.seq, 0))
        return self._found.get(id, range(0))


def _row(seq: Sequence, choice: Choice, row: int, drafts: Tokens) -> SampleRow | None:
    """How the choice would draw after these guesses; None when they end it."""
    guesses = list(drafts)
    if guesses and len(choice.look_ahead(guesses)) < len(guesses):
        return None
    seq.guess(guesses)
    with suppress(Exception):  # a grammar's: the target's own draw will meet it too
        return choice.row(row, len(guesses))
    return None


def _decodes(seqs: list[Sequence], drafts: int) -> Step:
    spans = tuple(Span(s.id, s.computed, 1 + drafts, 1 + drafts) for s in seqs)
    return Step(spans, np.zeros(len(seqs) * (1 + drafts), np.int32), ())
