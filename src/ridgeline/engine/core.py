"""The engine: one loop of receive, decide, forward, sample, apply, reply over all requests there are.

Knows requests, the scheduler and a backend's program, and calls them in order. Refuses to know text, files, threads and protocols.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from threading import RLock
from time import perf_counter

import numpy as np

from ridgeline.backends.base import Program
from ridgeline.engine.choice import Choice
from ridgeline.engine.metrics import Metrics
from ridgeline.engine.pace import Pace
from ridgeline.engine.request import Limits, RequestState
from ridgeline.engine.sampler import sample_step
from ridgeline.engine.speculate import Speculator
from ridgeline.engine.trace import StepTrace, Trace
from ridgeline.graph.step import Step
from ridgeline.kv.index import namespace
from ridgeline.sampling.guide import MaskPool
from ridgeline.scheduler.apply import apply, undo
from ridgeline.scheduler.budget import Budget
from ridgeline.scheduler.policy import decide
from ridgeline.scheduler.state import Faults, Request, SchedulerState, Sequence

Clock = Callable[[], float]


class EngineCore:
    """Mutable: everything that is under way. Not for use from several threads at once.

    make_state: an empty scheduler with its KV cache; called again only when an invariant broke and all starts anew.
    cache_key: (model, KV dtype) of the prefix cache's namespaces. pace: predicts steps and learns from them, so that running answers
    keep their inter-token time. clock: seconds, monotonic.
    """

    def __init__(
        self,
        program: Program,
        make_state: Callable[[], SchedulerState],
        budget: Budget,
        limits: Limits,
        *,
        cache_key: tuple[str, str] = ("", ""),
        pace: Pace | None = None,
        clock: Clock = perf_counter,
    ) -> None:
        self.program, self.budget, self.limits = program, budget, limits
        self.clock, self.pace = clock, pace
        self.state, self.metrics = make_state(), Metrics()
        self.trace: Trace | None = None
        self.speculator: Speculator | None = None
        self.lock = RLock()  # held while anything changes, free while a backend runs: other threads may read under it
        self.requests: dict[str, RequestState] = {}
        self._choices: dict[int, Choice] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._masks = MaskPool()  # its thread begins with the first grammar
        self._make_state, self._cache_key = make_state, cache_key

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do or to reply."""
        return bool(self.requests)

    def step(self) -> list[Choice]:
        """One iteration: the choices that got a token or ended, each once. Faults end requests, never the engine."""
        try:
            with self.lock:
                self.state.now = self.clock()
                self._expire()
            return self._reply(self._advance() if self.state.alive else [])
        except BaseException as fault:  # an invariant broke, or Ctrl-C came in the middle
            with self.lock:
                ended = self._start_anew(fault)
            if isinstance(fault, Exception):
                return ended
            raise

    def _advance(self) -> list[Choice]:
        """The loop's body: what ran, and the choices that drew a token from it."""
        state, program, clock = self.state, self.program, self.clock
        if self.speculator is not None:
            self.speculator.propose(state, self._choices)
            self.metrics.counts["speculation_faults"] = int(self.speculator.fault is not None)
        with self.lock:
            step = decide(state, self.budget, self.pace)
            self._note_admitted()
        predicted = self.pace(step) if self.pace is not None and self.trace is not None else None
        decided = clock()
        self._prepare_masks()
        try:
            if step.spans:
                program.forward(step)
            ran = clock()
            rule = None if self.speculator is None else self.speculator.rule
            sampled = sample_step(program, step, state, self._choices, self.requests, self.limits.vocab, ran, rule)
        except Exception as fault:
            with self.lock:
                self._give_up(step, f"{type(fault).__name__}: {fault}")
            return []
        done = clock()
        with self.lock:
            apply(state, step, sampled.tokens, sampled.finishes, done - decided)
        if self.pace is not None and step.spans:
            self.pace.learn(step, done - decided)
        if self.speculator is not None:
            self.speculator.learn(step, state.record, sampled.accepted, self._choices, done - decided)
        self.metrics.stepped(state.record, sampled.gaps, clock() - state.now, sampled.accepted.values())
        if self.trace is not None:
            times, usage = (state.now, decided, ran, done, clock()), tuple(state.kv.usage())
            self.trace.step(StepTrace(state.record, step, tuple(sampled.tokens), sampled.finishes, times, usage, predicted))
        return sampled.choices

    def _prepare_masks(self) -> None:
        """Begin the masks that this step's draws will want: they are made while the backend runs."""
        draws = dict.fromkeys(draw.seq for draw in self.state.draws)
        states = [state for seq in draws if (state := self._choices[seq].grammar) is not None]
        if states:
            self._masks.prepare(states)

    def submit(self, asked: RequestState) -> None:
        """Queue a prepared request. Raises `UserError` for an id in use, `ContextLengthError` for a prompt that can never fit."""
        r, p, now = asked.request, asked.request.params, self.clock()
        self.state.now = now
        model, kv_dtype = self._cache_key
        scheduled = Request(
            r.id, np.array(asked.prompt_ids, np.int32), p.max_tokens, n=p.n, priority=r.priority, arrival=now,
            space=namespace(tenant=r.tenant, model=model, kv_dtype=kv_dtype, salt=r.cache_salt), salted=bool(r.cache_salt or r.tenant),
            cache_rank=r.cache_rank, cache_ttl_s=r.cache_ttl_s, prompt_rows=p.prompt_logprobs is not None,
        )  # fmt: skip
        with self.lock:
            sequences = self.state.submit(scheduled)
        for choice, sequence in zip(asked.choices, sequences, strict=True):
            choice.sequence = sequence
            self._choices[sequence.id] = choice
        asked.times.arrival = now
        self.requests[r.id] = asked
        self.metrics.arrived(asked)
        if r.timeout_s is not None:
            heapq.heappush(self._deadlines, (now + r.timeout_s, r.id))
        if self.trace is not None:
            self.trace.arrived(scheduled, now)

    def abort(self, request_id: str, why: str | None = None) -> bool:
        """End a request wherever it is; the next step replies, computing nothing more for it. False when there is no such request."""
        asked = self.requests.get(request_id)
        if asked is None:
            return False
        self.state.now = self.clock()
        for choice in asked.choices:
            if choice.finish is None:
                choice.close("abort", why)
        if self.trace is not None:
            self.trace.aborted(request_id, self.state.now)
        with self.lock:
            return self.state.abort(request_id)

    def close(self) -> list[Choice]:
        """Abort everything, and reply."""
        for request_id in list(self.requests):
            self.abort(request_id, "the engine was closed")
        return self._reply([])

    def dial(self, faults: Faults) -> None:
        """Set the scheduler's fault dials, for tests."""
        self.state.faults = faults

    def _expire(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= self.state.now:
            _, request_id = heapq.heappop(self._deadlines)
            asked = self.requests.get(request_id)
            if asked is not None and asked.timed_out(self.state.now):
                self.metrics.counts["timeouts"] += 1
                self.abort(request_id, f"timeout after {asked.request.timeout_s:g} s")

    def _note_admitted(self) -> None:
        """Who left the queue, and what the prefix cache did for them."""
        record = self.state.record
        for seq_id in [seq_id for seq_id, _ in record.admitted] + [sibling for _, sibling in record.forked]:
            choice = self._choices[seq_id]
            choice.times.admitted = choice.times.admitted or record.now
            if choice.index == 0 and choice.sequence is not None:
                self.requests[choice.request_id].cache = choice.sequence.report

    def _reply(self, drawn: Iterable[Choice]) -> list[Choice]:
        """Those that drew a token, and those that ended, with or without one."""
        touched = dict.fromkeys(drawn)
        for sequence, reason in self.state.take_ended():
            choice = self._choices.pop(sequence.id)
            if self.speculator is not None:
                self.speculator.forget((sequence.id,))
            if choice.finish is None:
                choice.close(reason)
            touched[choice] = None
            self._ended(choice, sequence)
        return list(touched)

    def _ended(self, choice: Choice, sequence: Sequence) -> None:
        asked = self.requests[choice.request_id]
        asked.times.preemptions += sequence.preemptions
        asked.alive -= 1
        if asked.alive == 0:
            asked.times.finished = self.clock()
            del self.requests[choice.request_id]
            self.metrics.finished(asked)

    def _give_up(self, step: Step, why: str) -> None:
        """The backend failed on a step: whoever was in it ends with an error, the others go on."""
        state = self.state
        ids = [span.seq for span in step.spans] + [sibling for _, sibling in state.record.forked]
        undo(state, step)
        for seq_id in ids:
            sequence = state.sequences.get(seq_id)
            if sequence is not None:
                self._choices[seq_id].close("error", f"the backend failed: {why}")
                state.end(sequence, "error")
        self.metrics.counts["backend_faults"] += 1
        if self.trace is not None:
            self.trace.step(StepTrace(state.record, step, None, {}, (state.now,) * 5, tuple(state.kv.usage())))

    def _start_anew(self, fault: BaseException) -> list[Choice]:
        """Every request ends with an error, the scheduler and its cache begin empty: what they held can no longer be trusted."""
        ended = []
        for choice in self._choices.values():
            if choice.finish is None:
                choice.close("error", f"the engine failed: {type(fault).__name__}: {fault}")
            ended.append(choice)
            if choice.sequence is not None:
                self._ended(choice, choice.sequence)
        if self.speculator is not None:
            self.speculator.forget(self._choices)
        self._choices, self.requests, self._deadlines = {}, {}, []
        self.state = self._make_state()
        self.metrics.counts["engine_restarts"] += 1
        if self.trace is not None:
            self.trace.clear()
        return ended
