"""`apply`: what a finished step means for the state. Knows token counts and reasons; why the engine stopped a sequence is its affair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ridgeline.graph.step import Step
from ridgeline.scheduler.preempt import preempt
from ridgeline.scheduler.state import UNDRAWN, Draw, SchedulerState
from ridgeline.types import FinishReason


def apply(
    state: SchedulerState,
    step: Step,
    tokens: Sequence[int],
    finishes: Mapping[int, FinishReason] | None = None,
    seconds: float | None = None,
) -> None:
    """The step ran: its tokens are computed, and each draw of `state.draws` gave tokens[i] (-1: that row failed, the sequence ends alone;
    UNDRAWN: nothing, which rejects the draft before it and those after).

    finishes: sequence id -> why the engine ends it after this token (EOS, a stop string). Length limits are ended here.
    seconds: the measured time of the step. Sequences that ended since `decide` (aborts) are passed over.
    """
    record = state.record
    for span in step.spans:
        seq = state.sequences.get(span.seq)
        if seq is None or seq.table is None:
            continue
        seq.computed = min(span.past + span.new, seq.known)  # a draft counts when the draw before it was it
        seq.drafted = 0
        seq.scored = max(seq.scored, min(seq.computed, seq.prompt_len))
        state.kv.commit(seq.table, seq.tokens, seq.computed)
    for _, sibling_id in record.forked:
        sibling = state.sequences.get(sibling_id)
        if sibling is not None and sibling.table is not None:
            sibling.computed = sibling.prompt_len
            state.kv.commit(sibling.table, sibling.tokens, sibling.computed)
    for i, (draw, token) in enumerate(zip(record.draws, tokens, strict=True)):
        seq = state.sequences.get(draw.seq)
        if seq is None or token == UNDRAWN:
            continue
        if token < 0:
            state.end(seq, "error")
            continue
        seq.computed += draw.ahead > 0
        seq.append(int(token))
        reason = finishes.get(seq.id) if finishes and _last_of(record.draws, tokens, i) else None
        if reason is not None or seq.known >= seq.cap:
            state.end(seq, reason or "length")
    if seconds is not None:
        state.times.observe(record.decodes, record.chunk_tokens, seconds)


def _last_of(draws: Sequence[Draw], tokens: Sequence[int], i: int) -> bool:
    """Whether draw `i` gave the last token of its sequence in this step."""
    return i + 1 == len(draws) or draws[i + 1].seq != draws[i].seq or tokens[i + 1] == UNDRAWN


def undo(state: SchedulerState, step: Step) -> None:
    """The step did not run (a backend fault): whoever was in it is preempted and computes again from what was known before."""
    ids = {span.seq for span in step.spans} | {sibling for _, sibling in state.record.forked}
    for seq in [s for s in state.running if s.id in ids]:
        seq.computed -= seq.computed % state.kv.block_size  # the last block may be a copy that was never made
        preempt(state, seq, forced=True)
