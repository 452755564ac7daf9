"""Preemption by recompute, and who is preempted: the running sequence that would be served last.

Knows order only. A preempted sequence keeps its tokens and its place in the queue; what it had computed stays, evictable, in the cache.
"""

from __future__ import annotations

from ridgeline.scheduler.state import SchedulerState, Sequence


def preempt(state: SchedulerState, seq: Sequence, *, forced: bool = False) -> None:
    """Take all blocks from a running sequence; it waits again and later computes prompt and generated tokens anew, or hits them.

    Only preemptions by lack of room, not `forced` ones, raise the margin that it must find to return (`admit`)."""
    state.stop(seq)
    state.release(seq, keep=True)
    seq.drafted = 0
    seq.preemptions += not forced
    state.enqueue(seq)
    state.record.preempted.append(seq.id)
    state.counts["preemptions"] += 1


def make_room(state: SchedulerState, seq: Sequence) -> bool:
    """Free some blocks so that `seq` may grow. False when `seq` itself had to go: preempted, or ended with "length" if it was alone."""
    victim = state.running[-1]
    if victim is seq and len(state.running) == 1:
        state.end(seq, "length")
        return False
    preempt(state, victim)
    return victim is not seq


def apply_faults(state: SchedulerState) -> None:
    """The test dials of `Faults`."""
    faults = state.faults
    if faults.evict_every and state.steps % faults.evict_every == 0:
        state.kv.evict()
    if faults.preempt_every and state.steps % faults.preempt_every == 0 and state.running:
        preempt(state, state.running[state.steps // faults.preempt_every % len(state.running)], forced=True)
