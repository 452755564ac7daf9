"""A smaller model that guesses: it reads what the target has said, in its own KV cache, and draws with the target's own noise.

Knows a runner (steps in, draws out), its blocks and what stands in them. Refuses to know backends, text and how guesses are verified.
The same noise makes it agree as often as the two distributions allow: both take the argmax of logit / T + noise of the same position.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ridgeline.graph.step import Int32Array, Span, Step
from ridgeline.kv.manager import KvCache, Table
from ridgeline.sampling.plan import Sampled, SamplePlan
from ridgeline.sampling.verify import Distribution, distribution
from ridgeline.spec.base import NOTHING, Asked, Proposal


class Runner(Protocol):
    """What runs the draft: the part of `backends.base.Program` that is used here."""

    def forward(self, step: Step) -> None: ...

    def sample(self, plan: SamplePlan) -> Sampled: ...

    def logits(self) -> npt.NDArray[np.float32]: ...


@dataclass(slots=True)
class _Kept:
    """One sequence in the draft's cache. stored: int32, the tokens whose keys are there; checked: how many of them the target has said."""

    table: Table
    stored: Int32Array
    checked: int


@dataclass(slots=True)
class _Turn:
    """One sequence while guesses are made. past: where the next token goes."""

    one: Asked
    kept: _Kept
    past: int
    guesses: list[int]
    drawn_from: list[Distribution]


class DraftProposer:
    """A `Proposer`. kv: the draft's own cache; vocab: ids that may be drawn; longest: the draft's own model length; chunk: tokens that it
    reads at most before it guesses: a sequence whose prompt it has not read to the end gets no guess yet. distributions: proposals say
    what they were drawn from (rejection)."""

    free = False

    def __init__(self, runner: Runner, kv: KvCache, vocab: int, longest: int, chunk: int = 512, distributions: bool = False) -> None:
        self._distributions = distributions
        self._runner, self.kv, self._vocab, self._longest, self._chunk = runner, kv, vocab, longest, chunk
        self._kept: dict[int, _Kept] = {}

    def propose(self, asked: Sequence[Asked]) -> list[Proposal]:
        self.kv.now += 1.0
        turns = self._read(asked)
        alive = self._draw(turns)
        while alive:
            self._forward([(turn, np.array(turn.guesses[-1:], np.int32)) for turn in alive], {id(turn) for turn in alive})
            alive = self._draw(alive)
        made = {turn.one.id: Proposal(turn.guesses, 0, turn.drawn_from if self._distributions else None) for turn in turns if turn.guesses}
        return [made.get(one.id, NOTHING) for one in asked]

    def forget(self, ids: Iterable[int]) -> None:
        for id in ids:
            kept = self._kept.pop(id, None)
            if kept is not None:
                self.kv.close(kept.table, kept.stored, min(kept.checked, len(kept.stored)))

    def _read(self, asked: Sequence[Asked]) -> list[_Turn]:
        """Catch up with what was said, all sequences in one step; those that are abreast of it."""
        left, turns, reading = self._chunk, list[_Turn](), list[tuple[_Turn, int]]()
        for one in asked:
            if one.most < 1 or left < 1:  # who waits may find its prompt in the cache next time
                continue
            kept = self._open(one)
            if kept is None:
                continue
            past = len(kept.stored)
            new = min(len(one.tokens) - past, left)
            ends = past + new == len(one.tokens)
            room = self.kv.room(kept.table, past, new + (one.most - 1 if ends else 0))
            if room < new:
                self.forget((one.id,))
                continue
            self.kv.grow(kept.table, past, room)  # once for all guesses: what is behind a window now is not needed after a rejection
            most = one.most if room - new >= one.most - 1 else room - new + 1
            turn = _Turn(replace(one, most=most), kept, past, [], [])
            reading.append((turn, new))
            left -= new
            if ends:
                turns.append(turn)
        self._forward([(turn, turn.one.tokens[turn.past : turn.past + new]) for turn, new in reading], {id(t) for t in turns})
        for turn, _ in reading:
            turn.kept.checked = len(turn.kept.stored)
            self.kv.commit(turn.kept.table, turn.kept.stored, turn.kept.checked)
        return turns

    def _open(self, one: Asked) -> _Kept | None:
        """The sequence's place in the cache, cut back to what the target has really said; None when there is no room for it."""
        known = len(one.tokens)
        kept = self._kept.get(one.id)
        if known + one.most > self._longest:
            self.forget((one.id,))
            return None
        if kept is None:
            hit = self.kv.lookup(one.space, one.tokens, known - 1)
            if any(self.kv.cost(hit, g, known, one.most) > pool.available for g, pool in enumerate(self.kv.pools)):
                return None
            kept = _Kept(self.kv.open(one.space, hit), one.tokens[: hit.tokens].copy(), hit.tokens)
            self._kept[one.id] = kept
        else:
            same = min(len(kept.stored), known - 1)
            wrong = np.flatnonzero(kept.stored[kept.checked : same] != one.tokens[kept.checked : same])
            kept.stored = kept.stored[: kept.checked + int(wrong[0]) if len(wrong) else same]
        return kept

    def _forward(self, work: list[tuple[_Turn, Int32Array]], wanted: set[int]) -> None:
        if not work:
            return
        spans = tuple(Span(turn.one.id, turn.past, len(new), int(id(turn) in wanted)) for turn, new in work)
        tables = tuple(tuple(turn.kept.table.array(g) for turn, _ in work) for g in range(len(self.kv.windows)))
        step = Step(spans, np.concatenate([new for _, new in work]).astype(np.int32), tables, tuple(self.kv.copies))
        self.kv.settle()
        self._runner.forward(step)
        for turn, new in work:
            turn.past += len(new)
            turn.kept.stored = np.concatenate((turn.kept.stored, new)).astype(np.int32)

    def _draw(self, turns: list[_Turn]) -> list[_Turn]:
        """One guess for each; those that want another."""
        rows, drawing = [], list[_Turn]()
        for at, turn in enumerate(turns):
            row = turn.one.row(at, turn.guesses)
            if row is not None:
                rows.append(replace(row, logprobs=None))
                drawing.append(turn)
        if not rows:
            return []
        drawn = self._runner.sample(SamplePlan(tuple(rows), self._vocab)).tokens.tolist()
        logits = self._runner.logits() if self._distributions else None
        going = []
        for turn, row, token in zip(drawing, rows, drawn, strict=True):
            found = None if logits is None else distribution(logits[row.row, : self._vocab], row)
            if token >= 0 and (found is not None or logits is None):
                turn.guesses.append(token)
                turn.drawn_from += [found] if found is not None else []
                if len(turn.guesses) < turn.one.most:
                    going.append(turn)
        return going
