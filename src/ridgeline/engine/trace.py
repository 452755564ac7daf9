"""A flight recorder: every step, with what entered before it, in a ring; written as Chrome/Perfetto JSON, or decided again (`replay`).

Recording keeps references to what the scheduler made anyway. Knows no numbers of the model.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ridgeline.engine.pace import Pace
from ridgeline.errors import UserError
from ridgeline.graph.step import SharedWalk, Span, Step
from ridgeline.planner.cost import GraphCost
from ridgeline.planner.linear import LinearCosts
from ridgeline.scheduler.apply import apply, undo
from ridgeline.scheduler.budget import Budget
from ridgeline.scheduler.policy import decide
from ridgeline.scheduler.state import UNDRAWN, Request, SchedulerState, StepRecord
from ridgeline.types import FinishReason

Event = tuple[float, Request | str]  # (now, a request that arrived, or the id of one that was aborted)


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One step. tokens: what each draw gave, None when the backend failed; times: seconds at its start, decided, forward done,
    sampled, applied; usage: per cache group blocks free, cached, in use; predicted_s: what `Pace` had expected from decided to sampled."""

    record: StepRecord
    step: Step
    tokens: tuple[int, ...] | None
    finishes: Mapping[int, FinishReason]
    times: tuple[float, float, float, float, float]
    usage: tuple[tuple[int, int, int], ...]
    predicted_s: float | None = None


@dataclass(frozen=True, slots=True)
class Phase:
    """Consecutive steps in which one sequence did the same: read its prompt (prefill), or said token after token (generation).

    start_s, end_s: of the first and the last of them; forward_s: of their forwards, which it may have shared with others; tokens:
    computed; flops, weight_bytes, kv_bytes: of its own part, 0 where no costs were given."""

    seq: int
    name: Literal["prefill", "generation"]
    start_s: float
    end_s: float
    forward_s: float
    steps: int
    tokens: int
    flops: int = 0
    weight_bytes: int = 0
    kv_bytes: int = 0

    def __str__(self) -> str:
        """For a terminal."""
        took, moved = self.end_s - self.start_s, self.weight_bytes + self.kv_bytes
        done = f"{self.flops / 1e9:,.2f} GFLOP, {moved / 1e6:,.1f} MB of weights and KV ({self.kv_bytes / 1e6:,.1f} of it KV)"
        counted = f"{self.tokens} tokens in {self.steps} step{'s' if self.steps > 1 else ''}"
        return f"sequence {self.seq} {self.name}: {counted}, {done}, {took * 1e3:,.1f} ms"


class Trace:
    """Mutable: the last `keep` steps, about 4 kB each at 32 sequences. `lost` counts steps that fell out of the ring."""

    def __init__(self, keep: int = 16384) -> None:
        self._ring: deque[tuple[StepTrace, tuple[Event, ...]]] = deque(maxlen=keep)
        self._pending: list[Event] = []
        self.lost = 0

    def arrived(self, request: Request, now: float) -> None:
        self._pending.append((now, request))

    def aborted(self, request_id: str, now: float) -> None:
        self._pending.append((now, request_id))

    def step(self, step: StepTrace) -> None:
        self.lost += len(self._ring) == self._ring.maxlen
        # Block tables would be most of it, and `decide` makes them again.
        light = replace(step, step=replace(step.step, tables=()))
        self._ring.append((light, tuple(self._pending)))
        self._pending.clear()

    def clear(self) -> None:
        self._ring.clear()
        self._pending.clear()
        self.lost = 0

    def steps(self) -> list[tuple[StepTrace, tuple[Event, ...]]]:
        """Oldest first: each step and what entered before it."""
        return list(self._ring)

    def phases(self, book: GraphCost | None = None) -> list[Phase]:
        """Of every sequence in order: a request that was preempted, or found its prefix half way, has more than two."""
        return _phases([step for step, _ in self.steps()], None if book is None else LinearCosts(book))

    def write(self, path: Path | str, book: GraphCost | None = None) -> None:
        """Chrome trace JSON (opens in ui.perfetto.dev): a row for the engine's phases, one per running sequence, one for what each
        sequence did as a whole, and counters.

        book: adds FLOPs and bytes, of each step and of each sequence's part of it. Raises `UserError` for a path that cannot be written."""
        steps = self.steps()
        origin = steps[0][0].times[0] if steps else 0.0
        costs = None if book is None else LinearCosts(book)
        events = [e for step, before in steps for e in _events(step, before, origin, costs)]
        events += [_phase_event(phase, origin) for phase in _phases([step for step, _ in steps], costs)]
        document = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"lost_steps": self.lost}}
        try:
            with open(path, "w", encoding="utf8") as file:
                json.dump(document, file)
                file.write("\n")
        except OSError as error:
            raise UserError(f"the trace cannot be written to {path}: {error.strerror}", field="--trace", value=str(path)) from None


_PHASES = ("decide", "forward", "sample", "apply")


def _work(costs: LinearCosts | None, spans: Sequence[Span], shared: Sequence[SharedWalk] = ()) -> dict[str, int]:
    """FLOPs and bytes from memory. Parts of a step each count the weights that the step reads once for all of them."""
    if costs is None or not spans:
        return {}
    cost = costs.cost(costs.numbers(spans, shared))
    return {"flops": cost.flops, "weight_bytes": cost.weight_bytes, "kv_bytes": cost.kv_read_bytes + cost.kv_write_bytes}


def _name(span: Span, guesses: Sequence[int]) -> Literal["chunk", "decode"]:
    return "decode" if span.want and span.new == 1 + len(guesses) else "chunk"


def _phases(steps: Iterable[StepTrace], costs: LinearCosts | None) -> list[Phase]:
    done, now, answering = list[Phase](), dict[int, Phase](), set[int]()
    for s in steps:
        guessed = dict(s.record.drafts)
        for span in s.step.spans:
            # The last chunk of a prompt may be one token, as every token of an answer is.
            reads = span.seq not in answering or _name(span, guessed.get(span.seq, ())) == "chunk"
            name: Literal["prefill", "generation"] = "prefill" if reads else "generation"
            work, before = _work(costs, [span]), now.get(span.seq)
            if before is None or before.name != name:
                done += [] if before is None else [before]
                before = Phase(span.seq, name, s.times[0], s.times[0], 0.0, 0, 0)
            now[span.seq] = replace(
                before, end_s=s.times[4], forward_s=before.forward_s + s.times[2] - s.times[1], steps=before.steps + 1,
                tokens=before.tokens + span.new, **{k: getattr(before, k) + v for k, v in work.items()},
            )  # fmt: skip
        answering.update(draw.seq for draw in s.record.draws)
        answering.update(sibling for _, sibling in s.record.forked)
    return sorted([*done, *now.values()], key=lambda p: (p.seq, p.start_s))


def _phase_event(p: Phase, origin: float) -> dict[str, Any]:
    facts = {"tokens": p.tokens, "steps": p.steps, "forward_ms": round(p.forward_s * 1e3, 3), "flops": p.flops}
    facts |= {"weight_bytes": p.weight_bytes, "kv_bytes": p.kv_bytes}
    start, took = round((p.start_s - origin) * 1e6, 1), round((p.end_s - p.start_s) * 1e6, 1)
    return {"name": p.name, "ph": "X", "ts": start, "dur": took, "pid": 3, "tid": p.seq, "args": facts}


def _events(s: StepTrace, before: Iterable[Event], origin: float, costs: LinearCosts | None) -> Iterator[dict[str, Any]]:
    def us(seconds: float) -> float:
        return round((seconds - origin) * 1e6, 1)

    r, step = s.record, s.step
    for now, what in before:
        name = f"abort {what}" if isinstance(what, str) else f"arrive {what.id}"
        asked = {} if isinstance(what, str) else {"prompt": len(what.prompt), "max_tokens": what.max_tokens, "n": what.n}
        yield {"name": name, "ph": "i", "s": "p", "ts": us(now), "pid": 1, "tid": 0, "args": {"step": r.number, **asked}}
    facts: dict[str, Any] = {
        "step": r.number, "rows": step.rows, "spans": len(step.spans), "decodes": r.decodes, "chunk_tokens": r.chunk_tokens,
        "chunk_limit": r.chunk_limit, "copies": len(step.copies), "shared_walks": [asdict(w) for w in step.shared],
        "admitted": r.admitted, "forked": r.forked, "preempted": r.preempted, "ended": r.ended, "failed": s.tokens is None,
        "predicted_ms": None if s.predicted_s is None else round(s.predicted_s * 1e3, 3), **_work(costs, step.spans, step.shared),
    }  # fmt: skip
    for name, start, end in zip(_PHASES, s.times[:-1], s.times[1:], strict=True):
        args = facts if name == "forward" else {}
        yield {"name": name, "ph": "X", "ts": us(start), "dur": round((end - start) * 1e6, 1), "pid": 1, "tid": 1, "args": args}
    drawn: dict[int, int | list[int]] = {}
    for draw, token in zip(r.draws, s.tokens or (), strict=False):
        first = drawn.get(draw.seq, [])
        if token != UNDRAWN:
            drawn[draw.seq] = token if draw.ahead == 0 else [*(first if isinstance(first, list) else [first]), token]
    guessed = dict(r.drafts)
    for span in step.spans:
        args = {"past": span.past, "new": span.new, "want": span.want, "token": drawn.get(span.seq), **_work(costs, [span])}
        if span.seq in guessed:
            args["drafts"] = guessed[span.seq]
        name = _name(span, guessed.get(span.seq, ()))
        start, dur = us(s.times[1]), round((s.times[2] - s.times[1]) * 1e6, 1)
        yield {"name": name, "ph": "X", "ts": start, "dur": dur, "pid": 2, "tid": span.seq, "args": args}
    for g, (free, cached, used) in enumerate(s.usage):
        args = {"used": used, "cached": cached, "free": free}
        yield {"name": f"KV blocks {g}", "ph": "C", "ts": us(s.times[0]), "pid": 1, "args": args}
    yield {"name": "sequences", "ph": "C", "ts": us(s.times[0]), "pid": 1, "args": {"running": r.running, "waiting": r.waiting}}


Spans = tuple[Span, ...]


def replay(trace: Trace, state: SchedulerState, budget: Budget, pace: Pace | None = None) -> Iterator[tuple[Spans, Spans]]:
    """Decide every recorded step anew from an empty state: (recorded spans, decided spans). They are equal if nothing but the
    recorded inputs matters. `state` and `pace` are new; only a trace that lost no steps can be replayed."""
    for recorded, before in trace.steps():
        for now, what in before:
            state.now = now
            if isinstance(what, str):
                state.abort(what)
            else:
                state.submit(what)
        state.now = recorded.record.now
        for seq_id, guesses in recorded.record.drafts:
            state.sequences[seq_id].guess(guesses)
        step = decide(state, budget, pace)
        yield recorded.step.spans, step.spans
        if recorded.tokens is None:
            undo(state, step)
            for span in step.spans:
                if span.seq in state.sequences:
                    state.end(state.sequences[span.seq], "error")
        else:
            seconds = recorded.times[3] - recorded.times[1]
            apply(state, step, recorded.tokens, recorded.finishes, seconds)
            if pace is not None and step.spans:
                pace.learn(step, seconds)
        state.take_ended()
