"""Who enters a step from the queue: order, reuse of prefixes, and the rule that keeps admitted sequences from being thrown out again.

Knows the state and how many blocks are spoken for. Refuses to know time beyond the keys of order.
"""

from __future__ import annotations

import numpy as np

from ridgeline.kv.layout import peak_blocks
from ridgeline.kv.manager import NO_HIT, Hit
from ridgeline.scheduler.draft import Draft
from ridgeline.scheduler.state import SchedulerState, Sequence


def admit(state: SchedulerState, draft: Draft) -> None:
    """Admit from the head of the queue while slots, tokens and blocks last. The first that does not fit stops the line: nobody starves."""
    if not state.waiting:
        return
    spare = _spare(state)
    for leader in list(draft.finished_prompts):
        _fork(state, draft, leader, spare)
    hits: dict[int, Hit] = {}
    while state.waiting and len(state.running) < draft.budget.sequences and draft.chunk_left > 0:
        seq = _next(state, hits)
        hit = hits.get(seq.id) or _lookup(state, seq)
        if _worth_waiting(state, seq, hit) or draft.chunk_of(seq) <= 0:
            break
        if seq.owes_rows and draft.rows_left <= 0:  # a hit on all it has scored would leave it nothing to compute
            break
        chosen = _affordable(state, seq, hit, spare)
        if chosen is None:
            break
        version, before = state.kv.version, [pool.available for pool in state.kv.pools]
        _start(state, draft, seq, hit, chosen)
        if state.kv.version != version:
            hits.clear()  # an eviction may have taken what they found
        taken = [b - pool.available + g for b, pool, g in zip(before, state.kv.pools, growth(state, seq), strict=True)]
        spare = [s - t for s, t in zip(spare, taken, strict=True)]
        if draft.finished_prompts and draft.finished_prompts[-1] is seq:
            _fork(state, draft, seq, spare)


def _lookup(state: SchedulerState, seq: Sequence) -> Hit:
    return state.kv.lookup(seq.request.space, seq.tokens, _limit(seq)) if seq.request.cache else NO_HIT


def _limit(seq: Sequence) -> int:
    """At least one token is computed anew, and every prompt row that is still owed."""
    return min(seq.known - 1, seq.scored) if seq.owes_rows else seq.known - 1


def _next(state: SchedulerState, hits: dict[int, Hit]) -> Sequence:
    """The head of the queue; under lpm the longest hit among the first few, unless the head was overtaken too often."""
    config, head = state.config, state.waiting[0]
    if config.policy != "lpm" or head.overtaken >= config.max_overtakes:
        return head
    best, longest = head, -1
    for seq in state.waiting[: config.lpm_window]:
        hit = hits[seq.id] = _lookup(state, seq)
        if hit.tokens > longest:
            best, longest = seq, hit.tokens
    return best


def _worth_waiting(state: SchedulerState, seq: Sequence, hit: Hit) -> bool:
    """True when an older running sequence is computing a longer part of this prompt right now, so that it need not be computed twice."""
    request, size = seq.request, state.kv.block_size
    end = (hit.tokens // size + 1) * size
    for other in state.running:
        if other.key > seq.key or (other.known - other.computed <= 1 and other.request is not request):
            continue
        if other.request is request and other.generated == 0 and seq.generated == 0:
            return True
        shares = request.cache and other.request.cache and request.space == other.request.space and state.kv.index is not None
        if shares and other.computed < end <= min(_limit(seq), other.known) and np.array_equal(other.tokens[:end], seq.tokens[:end]):
            return True
    return False


def growth(state: SchedulerState, seq: Sequence) -> list[int]:
    """Blocks per group that a running sequence will still take for its known tokens and one block more."""
    kv, table = state.kv, seq.table
    if table is None:
        return [0] * len(kv.windows)
    tokens = min(seq.known + kv.block_size, max(seq.known, seq.cap - 1))
    copies = int(table.ready == 0 and seq.computed % kv.block_size > 0)
    held = [len(blocks) - behind for blocks, behind in zip(table.blocks, table.behind, strict=True)]
    return [max(0, peak_blocks(w, kv.block_size, tokens) - h) + copies for w, h in zip(kv.windows, held, strict=True)]


def _spare(state: SchedulerState) -> list[int]:
    """Blocks per group that nobody who runs has a claim on."""
    spare = [pool.available for pool in state.kv.pools]
    for seq in state.running:
        spare = [s - g for s, g in zip(spare, growth(state, seq), strict=True)]
    return spare


def _affordable(state: SchedulerState, seq: Sequence, hit: Hit, spare: list[int]) -> Hit | None:
    """The hit, or less of it, with which all known tokens of the sequence fit beside everybody's claims; None if they do not.

    Each preemption doubles the margin a sequence must find, so a request is preempted at most log2(blocks) + 1 times by lack of room.
    """
    kv = state.kv
    alone = not state.running
    margin = 0 if alone else (1 << min(seq.preemptions, 30)) - 1
    headroom = 0 if alone else min(kv.block_size, max(0, seq.cap - 1 - seq.known))
    for option in (hit, kv.shorten(hit), NO_HIT):
        if all(kv.cost(option, g, seq.known, headroom) + margin <= free for g, free in enumerate(spare)):
            return option
    return None


def _start(state: SchedulerState, draft: Draft, seq: Sequence, hit: Hit, chosen: Hit) -> None:
    kv, request = state.kv, seq.request
    if seq.admitted_step is None and seq.index == 0:
        seq.report = kv.report(seq.tokens, NO_HIT if seq.owes_rows else hit, _limit(seq), salted=request.salted)
        state.counts[f"prefix_{seq.report.reason}"] += 1
        state.counts["prefix_tokens_queried"] += seq.prompt_len
        state.counts["prefix_tokens_hit"] += chosen.tokens
    if state.config.policy == "lpm":
        for earlier in state.waiting:
            if earlier is seq:
                break
            earlier.overtaken += 1
    seq.table = kv.open(request.space, chosen, shares=request.cache)
    seq.computed = chosen.tokens
    state.start(seq)
    state.record.admitted.append((seq.id, chosen.tokens))
    want = draft.chunk_of(seq)
    new = kv.room(seq.table, seq.computed, want)
    kv.grow(seq.table, seq.computed, new)
    draft.add(seq, new)


def _fork(state: SchedulerState, draft: Draft, leader: Sequence, spare: list[int]) -> None:
    """Start siblings of a sequence whose prompt ends in this step: they share its blocks and draw from its row."""
    if leader.table is None:
        return
    for seq in list(state.by_request[leader.request.id]):
        if seq.status != "waiting" or seq.generated:
            continue
        if len(state.running) >= draft.budget.sequences or state.waiting[0] is not seq:
            return
        copies = int(leader.prompt_len % state.kv.block_size > 0)
        if any(free < 1 + copies for free in spare):
            return
        spare[:] = [free - 1 - copies for free in spare]
        seq.table = state.kv.fork(leader.table)
        state.start(seq)
        state.record.forked.append((leader.id, seq.id))
        draft.draw_from(leader, seq)
        state.counts["forks"] += 1
