"""The decode loop. Requests go in as sequences, one `forward` and one `sample` per step, tokens come out.

Computed tokens chase known tokens: a long prompt takes several steps of `chunk` tokens, then the sequence adds one token per step.
It knows no files and no text. It is a plain loop in order of arrival: who goes first is the scheduler's business, not this one's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from time import perf_counter

import numpy as np

from ridgeline.backends.base import Program
from ridgeline.engine.blocks import BlockPool
from ridgeline.engine.sequence import Sequence
from ridgeline.graph.caches import cache_groups
from ridgeline.graph.step import Span, Step
from ridgeline.sampling.plan import SamplePlan


def run_batch(program: Program, sequences: Iterable[Sequence], *, vocab: int, chunk: int, max_num_seqs: int) -> Iterator[Sequence]:
    """Yields a sequence each time it got a token or ended; ends when all have ended. Sequences of any length and number.

    chunk: most tokens of one step. A row whose logits are not numbers fails alone; `InternalError` from the backend ends the batch.
    """
    groups = cache_groups(program.graph.caches)
    pool = BlockPool(groups, program.plan.blocks, program.plan.block_size, chunk)
    waiting, live = deque(sequences), list[Sequence]()
    while waiting or live:
        while waiting and len(live) < max_num_seqs and pool.reserve(waiting[0]):
            live.append(waiting.popleft())
            live[-1].times.start = perf_counter()
        step, drawing = next_step(live, pool, chunk)
        program.forward(step)
        if drawing:
            drawn = program.sample(SamplePlan(tuple(seq.row(i) for i, seq in enumerate(drawing)), vocab))
            for i, seq in enumerate(drawing):
                if drawn.failed[i]:
                    seq.fail("the logits hold NaN or infinity, or no token is allowed")
                else:
                    seq.accept(int(drawn.tokens[i]), float(drawn.logprobs[i]), drawn.top[i])
                yield seq
        for seq in live:
            if seq.finish is not None:
                pool.release(seq)
        live = [seq for seq in live if seq.finish is None]


def next_step(live: list[Sequence], pool: BlockPool, chunk: int) -> tuple[Step, list[Sequence]]:
    """The next tokens of every live sequence, `chunk` in all; and, in the order of the logits rows, who draws after it."""
    spans, tokens, chosen, drawing = list[Span](), list[int](), list[Sequence](), list[Sequence]()
    for seq in live:
        new = min(len(seq.tokens) - seq.past, chunk - len(tokens))
        if new == 0:
            break
        last = seq.past + new == len(seq.tokens)
        pool.grow(seq, seq.past + new)
        spans.append(Span(seq.key, seq.past, new, int(last)))
        tokens += seq.tokens[seq.past : seq.past + new]
        chosen.append(seq)
        seq.past += new
        if last:
            drawing.append(seq)
    tables = tuple(tuple(seq.tables[g][: seq.columns].copy() for seq in chosen) for g in range(len(chosen[0].tables)))
    return Step(tuple(spans), np.array(tokens, np.int32), tables), drawing
