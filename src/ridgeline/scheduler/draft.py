"""A step under construction: spans, draws and what is left of the budget. Knows how rows are counted; refuses to choose sequences."""

from __future__ import annotations

import numpy as np

from ridgeline.graph.step import SharedWalk, Span, Step
from ridgeline.scheduler.budget import Budget
from ridgeline.scheduler.cascade import shared_walks
from ridgeline.scheduler.state import Draw, SchedulerState, Sequence


class Draft:
    """Collects spans in order. chunk_left: prompt tokens that the step may still take; rows_left: logits rows beyond one a sequence."""

    def __init__(self, state: SchedulerState, budget: Budget, chunk_limit: int) -> None:
        self.budget = budget
        self.chunk_left = chunk_limit
        self._draft_left = budget.tokens - sum(1 for s in state.running if s.known - s.computed == 1)
        self.rows_left = budget.tokens if budget.prompt_rows is None else budget.prompt_rows
        self.finished_prompts: list[Sequence] = []
        self._state = state
        self._spans: list[Span] = []
        self._seqs: list[Sequence] = []
        self._rows = 0  # of the logits so far

    def chunk_of(self, seq: Sequence) -> int:
        """Tokens that a sequence may compute in this step, blocks apart. A decode always may."""
        rest = seq.known - seq.computed
        if rest == 1 and seq.status == "running" and seq.admitted_step != self._state.steps:
            return 1 + self._drafts_of(seq)
        if seq.owes_rows:
            rest = min(rest, max(0, seq.scored - seq.computed) + self.rows_left)
        return min(rest, self.chunk_left, self.budget.max_chunk or rest, seq.request.max_chunk or rest)

    def _drafts_of(self, seq: Sequence) -> int:
        """Drafts that a decode may carry: none past its end, and no blocks beyond those that `admit` counts as its own."""
        if not seq.drafted or not seq.generated:  # siblings are forked at a prompt's end: its table must hold nothing else
            return 0
        return max(0, min(seq.drafted, seq.cap - 1 - seq.known, self._state.kv.block_size, self._draft_left, self.rows_left))

    def add(self, seq: Sequence, new: int) -> None:
        """One span of a sequence whose table has room for it."""
        past = seq.computed
        end = past + new
        record = self._state.record
        decode = seq.known - past == 1 and seq.admitted_step != self._state.steps
        want = max(0, end + 1 - max(seq.known, past + 1))
        if seq.owes_rows:
            want = max(want, end - max(past, seq.scored))
            self.rows_left -= want
        self._spans.append(Span(seq.id, past, new, want))
        self._seqs.append(seq)
        self._rows += want
        if decode:
            record.decodes += 1
            if seq.drafted:
                self._add_drafts(seq, new - 1)
        else:
            record.chunk_tokens += new
            self.chunk_left -= new
            self._draft_left -= new
        if end >= seq.known:
            first = self._rows - 1 - seq.drafted
            record.draws.append(Draw(first, seq.id))
            record.draws += [Draw(first + ahead, seq.id, ahead) for ahead in range(1, 1 + seq.drafted)] if seq.drafted else ()
            if seq.request.n > 1 and seq.generated == 0:
                self.finished_prompts.append(seq)

    def _add_drafts(self, seq: Sequence, count: int) -> None:
        seq.drafted = count
        if count:
            record = self._state.record
            record.draft_tokens += count
            record.drafts.append((seq.id, tuple(seq.drafts.tolist())))
            self.rows_left -= count
            self._draft_left -= count
            self.chunk_left = min(self.chunk_left, self._draft_left)

    def draw_from(self, leader: Sequence, seq: Sequence) -> None:
        """A forked sibling samples from the row of its leader."""
        draws = self._state.record.draws
        draws.append(Draw(next(d.row for d in draws if d.seq == leader.id), seq.id))

    def build(self) -> Step:
        state, kv = self._state, self._state.kv
        tokens = np.empty(sum(s.new for s in self._spans), np.int32)
        at = 0
        for span, seq in zip(self._spans, self._seqs, strict=True):
            tokens[at : at + span.new] = seq.ahead(seq.drafted)[span.past : span.past + span.new]
            at += span.new
        held = [seq.table for seq in self._seqs if seq.table is not None]
        tables = tuple(tuple(table.array(g) for table in held) for g in range(len(kv.windows)))
        walks: tuple[SharedWalk, ...] = ()
        if state.config.cascade and kv.windows and kv.windows[0] is None:
            walks = shared_walks(self._spans, tables[0], kv.block_size, state.config.key_segment)
            state.counts["shared_walks"] += len(walks)
        return Step(tuple(self._spans), tokens, tables, tuple(kv.copies), walks)
