"""One engine on virtual time: the real scheduler and KV cache, a clock for a backend, and a script for a sampler.

Knows steps and when they end. Refuses to know workloads, routing and what is made of the times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ridgeline.bench.workloads import Job
from ridgeline.engine.pace import Pace
from ridgeline.errors import ContextLengthError, InternalError
from ridgeline.graph.step import Int32Array, SharedWalk, Span, Step
from ridgeline.scheduler.apply import apply
from ridgeline.scheduler.budget import Budget
from ridgeline.scheduler.policy import decide
from ridgeline.scheduler.state import Request, SchedulerState

Seconds = Callable[[Sequence[Span], Sequence[SharedWalk]], float]
Batching = Literal["continuous", "static"]
MAX_EMPTY_STEPS = 100


@dataclass(slots=True, eq=False)
class Live:
    """A request under way and its times, seconds; -1: not yet. hit: prompt tokens found in the cache; token_s: when each token came."""

    job: Job
    replica: int
    admitted_s: float = -1.0
    hit: int = 0
    token_s: list[float] = field(default_factory=list)
    end_s: float = -1.0
    reason: str = ""
    preemptions: int = 0

    @property
    def first_s(self) -> float:
        return self.token_s[0] if self.token_s else -1.0


@dataclass(frozen=True, slots=True)
class StepLog:
    """One step as it ran: start and duration in seconds, tokens in it, sequences, share of KV blocks in use."""

    start_s: float
    seconds: float
    decodes: int
    chunk_tokens: int
    running: int
    waiting: int
    used: float


class Replica:
    """Mutable. `busy` while a step is in flight, or the next about to be decided.

    pace: as an engine has one, its own; None: the scheduler goes by the times of steps alone. Static batching admits a batch only when the
    last one has ended whole, and its finished sequences go on costing what they did: that is the waste it is shown for.
    """

    def __init__(
        self,
        index: int,
        state: SchedulerState,
        budget: Budget,
        seconds: Seconds,
        batching: Batching = "continuous",
        pace: Pace | None = None,
    ) -> None:
        self.index, self.state, self.budget, self.batching = index, state, budget, batching
        self.seconds, self.pace = seconds, pace
        self.busy = False
        self.busy_s = 0.0
        self.steps = 0
        self.tokens_ahead = 0  # prompt and output tokens that are still to be computed, for routing
        self.lives: dict[int, Live] = {}
        self.held: deque[tuple[Live, Request]] = deque()  # static batching: who waits for the next batch
        self.step: Step | None = None
        self.took = 0.0
        self._ghosts: list[Span] = []
        self._empty = 0

    @property
    def load(self) -> int:
        """Requests here."""
        return len(self.lives) + len(self.held)

    def add(self, live: Live, now: float) -> None:
        """A request arrives. Raises `ContextLengthError` when it can never fit."""
        job = live.job
        request = Request(job.id, job.prompt, job.output, arrival=now)
        if self.batching == "static" and len(job.prompt) > self.state.limit():
            text = f"the prompt has {len(job.prompt)} tokens, the KV cache holds {self.state.limit()}"
            raise ContextLengthError(text, field="prompt", value=len(job.prompt), limit=self.state.limit())
        self.tokens_ahead += len(job.prompt) + job.output
        if self.batching == "static":
            self.held.append((live, request))
        else:
            self._submit(live, request, now)

    def _submit(self, live: Live, request: Request, now: float) -> None:
        self.state.now = now
        sequence = self.state.submit(request)[0]
        self.lives[sequence.id] = live

    def begin(self, now: float) -> StepLog | None:
        """Decide and start the next step; None when there is nothing to do."""
        if self.step is not None:
            raise InternalError(f"replica {self.index} began a step inside another")
        state, self.busy = self.state, False
        if self.batching == "static" and not state.alive:
            self._ghosts = []
            while self.held and len(self.lives) < self.budget.sequences:
                self._submit(*self.held.popleft(), now)
        if not state.alive:
            return None
        state.now = now
        step = decide(state, self.budget, self.pace)
        record = state.record
        for seq_id, hit in record.admitted:
            live = self.lives[seq_id]
            if live.admitted_s < 0:
                live.admitted_s, live.hit = now, hit
        self.step, self.busy = step, True
        self._empty = 0 if step.spans else self._empty + 1
        if self._empty > MAX_EMPTY_STEPS:
            raise InternalError(f"replica {self.index} makes no progress: {len(state.waiting)} requests wait")
        spans: Sequence[Span] = [*step.spans, *self._ghosts] if self._ghosts else step.spans
        self.took = self.seconds(spans, step.shared) if step.spans else 0.0
        self.busy_s += self.took
        self.steps += 1
        used = self._used() if self.steps % 8 == 1 else -1.0
        return StepLog(now, self.took, record.decodes, record.chunk_tokens, record.running, record.waiting, used)

    def _used(self) -> float:
        pool = self.state.kv.pools[0]
        return 1.0 - pool.available / pool.size

    def finish(self, now: float) -> list[tuple[Live, Int32Array]]:
        """The step in flight has ended: who is done, with what they generated. Busy until `begin` says otherwise: arrivals wait for it."""
        state, step = self.state, self.step
        self.step = None
        if step is None:
            return []
        state.now = now
        draws = state.draws
        tokens = []
        for draw in draws:
            sequence = state.sequences[draw.seq]
            live = self.lives[draw.seq]
            live.token_s.append(now)
            tokens.append(scripted(live.job, sequence.generated))
        if self.batching == "static":
            self._remember(step)
        apply(state, step, tokens, None, self.took)
        if self.pace is not None and step.spans:
            self.pace.learn(step, self.took)
        self.tokens_ahead -= step.rows
        return self._ended(now)

    def _remember(self, step: Step) -> None:
        """Spans that end now, as what they will go on costing until their batch has ended."""
        for span in step.spans:
            sequence = self.state.sequences.get(span.seq)
            if sequence is not None and sequence.known + 1 >= sequence.cap and span.want:
                self._ghosts.append(Span(-1, span.past + span.new, 1, 1))

    def _ended(self, now: float) -> list[tuple[Live, Int32Array]]:
        found = []
        for sequence, reason in self.state.take_ended():
            live = self.lives.pop(sequence.id)
            live.end_s, live.reason, live.preemptions = now, reason, sequence.preemptions
            found.append((live, sequence.tokens[sequence.prompt_len :].copy()))
        return found


def scripted(job: Job, index: int) -> int:
    """The token that a request generates at `index`: the same whenever and wherever it runs."""
    return (hash((int(job.prompt[0]), index)) & 0xFFFFF) + (1 << 22)
