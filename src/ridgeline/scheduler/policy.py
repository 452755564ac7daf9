"""`decide`: one step from the state. Running sequences advance in order of their keys, then the queue fills what is left.

Knows budgets and order; changes nothing but the state it is given. Refuses to know clocks, text and what a backend does with the step.
"""

from __future__ import annotations

from ridgeline.graph.step import Span, Step
from ridgeline.scheduler.admit import admit
from ridgeline.scheduler.budget import Budget, Predict, chunk_limit
from ridgeline.scheduler.draft import Draft
from ridgeline.scheduler.preempt import apply_faults, make_room
from ridgeline.scheduler.state import SchedulerState


def decide(state: SchedulerState, budget: Budget, predict: Predict | None = None) -> Step:
    """The next step: every decode, prompt chunks beside them, new sequences. Its spans are empty only when nothing is alive.

    `state.draws` then tells which logits row is sampled for which sequence; `state.take_ended()` who ended for lack of room.
    predict: seconds of a step; without it the measured times given to `apply` keep the inter-token target.
    """
    record = state.begin()
    apply_faults(state)
    draft = Draft(state, budget, _chunk_limit(state, budget, predict))
    record.chunk_limit = draft.chunk_left
    preempted = len(record.preempted)
    _advance(state, draft)
    if len(record.preempted) == preempted:
        admit(state, draft)
    record.waiting, record.running = len(state.waiting), len(state.running)
    step = draft.build()
    state.kv.settle()
    return step


def _chunk_limit(state: SchedulerState, budget: Budget, predict: Predict | None) -> int:
    decodes = [Span(s.id, s.computed, 1 + s.drafted, 1 + s.drafted) for s in state.running if s.known - s.computed == 1]
    behind = next((s for s in state.running if s.known - s.computed > 1), None)
    if behind is None and state.waiting and len(state.running) < budget.sequences:
        behind = state.waiting[0]
    if behind is None:
        return budget.tokens - len(decodes)
    prefill = Span(behind.id, behind.computed, min(behind.known - behind.computed, budget.tokens), 1)
    return chunk_limit(budget, decodes, prefill, state.times, predict)


def _advance(state: SchedulerState, draft: Draft) -> None:
    """Give each running sequence its tokens, smallest key first; who cannot grow takes the blocks of the last."""
    kv, running = state.kv, state.running
    i = 0
    while i < len(running):
        seq = running[i]
        want = draft.chunk_of(seq)
        table = seq.table
        if want <= 0 or table is None:
            i += 1
            continue
        new = kv.room(table, seq.computed, want)
        if new == 0:
            make_room(state, seq)
            continue
        kv.grow(table, seq.computed, new)
        draft.add(seq, new)
        i += 1
