"""The one mutable state of the scheduler: what is waiting, what is running, and the record of the step in flight.

Knows token counts, tables and keys of order. Refuses to know text, sampling, clocks (`now` is set by the caller) and backends.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ridgeline.errors import ContextLengthError, UserError
from ridgeline.graph.step import Int32Array
from ridgeline.kv.manager import KvCache, Table
from ridgeline.scheduler.budget import StepTimes
from ridgeline.types import CacheReport, FinishReason

Policy = Literal["fcfs", "priority", "lpm"]
Status = Literal["waiting", "running", "ended"]
Key = tuple[float, int, int]
Tokens = Many[int] | Int32Array
UNDRAWN = -2  # in place of a token: a draft before it was not what the target drew, or the sequence had ended


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of the scheduler: a prompt (int32 ids) and `n` continuations of at most `max_tokens` tokens each.

    priority: lower is served first (policy "priority"); space: `kv.index.namespace`, `salted` when the user chose it; cache False neither
    reads nor feeds the prefix cache; cache_rank and cache_ttl_s: soft priority and seconds for which its prefix is kept after the end;
    prompt_rows: logits of every prompt position are wanted (prompt logprobs, echo), which bypasses hits; max_chunk bounds its chunks.
    """

    id: str
    prompt: Int32Array
    max_tokens: int | None = None
    n: int = 1
    priority: int = 0
    arrival: float = 0.0
    space: bytes = b""
    salted: bool = False
    cache: bool = True
    cache_rank: int = 0
    cache_ttl_s: float = 0.0
    prompt_rows: bool = False
    max_chunk: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", np.ascontiguousarray(self.prompt, np.int32))


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Fixed rules of one engine. aging_s: seconds of waiting that outweigh one step of priority; max_overtakes: how many later arrivals
    may pass a request under lpm; lpm_window: how many waiting requests lpm looks at; key_segment: the backends' KEY_SEGMENT."""

    policy: Policy = "fcfs"
    max_model_len: int = 1 << 30
    aging_s: float = 10.0
    max_overtakes: int = 16
    lpm_window: int = 32
    key_segment: int = 256
    cascade: bool = True


@dataclass(frozen=True, slots=True)
class Faults:
    """Dials for tests: every k-th step preempt a running sequence, or evict the whole unused cache (0: never)."""

    preempt_every: int = 0
    evict_every: int = 0


class Sequence:
    """One continuation. Computed tokens chase known tokens; `table` exists while it runs.

    known: tokens in `tokens`; computed: of these, in the cache; cap: `known` at which it ends with "length"; scored: prompt positions
    whose logits were already handed out. A decode is a sequence with known - computed == 1; it may carry `drafted` guesses behind its
    known tokens, for one step.
    """

    __slots__ = (
        "_buffer", "admitted_step", "cap", "computed", "drafted", "finish", "id", "index", "key", "known", "overtaken", "preemptions",
        "report", "request", "scored", "status", "table",
    )  # fmt: skip

    def __init__(self, seq_id: int, request: Request, index: int, key: Key, cap: int) -> None:
        self.id = seq_id
        self.request = request
        self.index = index
        self.key = key
        self.cap = cap
        self._buffer = request.prompt
        self.known = len(request.prompt)
        self.computed = 0
        self.drafted = 0
        self.scored = 0
        self.status: Status = "waiting"
        self.table: Table | None = None
        self.finish: FinishReason | None = None
        self.report: CacheReport | None = None
        self.preemptions = 0
        self.overtaken = 0
        self.admitted_step: int | None = None

    @property
    def prompt_len(self) -> int:
        return len(self.request.prompt)

    @property
    def generated(self) -> int:
        return self.known - len(self.request.prompt)

    @property
    def owes_rows(self) -> bool:
        """Whether logits of its prompt's positions are still to be handed out."""
        return self.request.prompt_rows and self.scored < self.prompt_len

    @property
    def tokens(self) -> Int32Array:
        """int32 [known]: prompt and generated ids."""
        return self._buffer[: self.known]

    @property
    def drafts(self) -> Int32Array:
        """int32 [drafted]: guesses of what follows the known tokens."""
        return self._buffer[self.known : self.known + self.drafted]

    def ahead(self, drafts: int) -> Int32Array:
        """int32 [known + drafts]: the known tokens and the first of the guesses."""
        return self._buffer[: self.known + drafts]

    def guess(self, tokens: Tokens) -> None:
        """Guesses for the next step, in place of older ones."""
        self.drafted = len(tokens)
        if self.drafted:
            self._reserve(self.drafted)
            self._buffer[self.known : self.known + self.drafted] = tokens

    def append(self, token: int) -> None:
        self._reserve(1)
        self._buffer[self.known] = token
        self.known += 1

    def _reserve(self, more: int) -> None:
        if self.known + more > len(self._buffer):
            grown = np.empty(max(16, self.known + more + (self.known >> 1)), np.int32)
            grown[: self.known] = self._buffer[: self.known]
            self._buffer = grown


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to sample: from row `row` of the step's logits, for sequence `seq`, after `ahead` of its drafts.

    A fork of a prompt draws from its leader's row."""

    row: int
    seq: int
    ahead: int = 0


@dataclass(slots=True)
class StepRecord:
    """What one `decide` did and why: enough, with the requests, to replay it. Sequence ids throughout."""

    number: int = 0
    now: float = 0.0
    arrived: list[str] = field(default_factory=list)
    admitted: list[tuple[int, int]] = field(default_factory=list)  # (sequence, tokens hit)
    forked: list[tuple[int, int]] = field(default_factory=list)  # (leader, sibling)
    preempted: list[int] = field(default_factory=list)
    ended: list[tuple[int, FinishReason]] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    drafts: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)  # (sequence, guesses in the step)
    chunk_limit: int = 0
    decodes: int = 0
    draft_tokens: int = 0
    chunk_tokens: int = 0
    waiting: int = 0
    running: int = 0


def _order(seq: Sequence) -> Key:
    return seq.key


class SchedulerState:
    """Everything that `decide` and `apply` change. Set `now` (seconds, any origin) before each call.

    `running` and `waiting` are sorted by key: the smallest key is served first and preempted last.
    """

    def __init__(self, kv: KvCache, config: SchedulerConfig | None = None, faults: Faults | None = None) -> None:
        self.kv = kv
        self.config = config or SchedulerConfig()
        self.faults = faults or Faults()
        self.now = 0.0
        self.steps = 0
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.sequences: dict[int, Sequence] = {}
        self.by_request: dict[str, list[Sequence]] = {}
        self.record = StepRecord()
        self.times = StepTimes()
        self.counts: Counter[str] = Counter()
        self._arrived: list[str] = []
        self._ended: list[tuple[Sequence, FinishReason]] = []
        self._next_id = 0
        self._next_order = 0

    @property
    def draws(self) -> list[Draw]:
        """What the step in flight samples, in the order in which `apply` takes the tokens."""
        return self.record.draws

    @property
    def alive(self) -> bool:
        return bool(self.sequences)

    def limit(self) -> int:
        """The most tokens that one sequence may have in the cache: model length or what the pool holds, whichever is less."""
        capacity = self.kv.capacity_tokens
        return self.config.max_model_len if capacity is None else min(capacity, self.config.max_model_len)

    def submit(self, request: Request) -> list[Sequence]:
        """Queue a request; its sequences, index 0 .. n-1. Raises `ContextLengthError` with the true limit when its prompt can never fit."""
        prompt = len(request.prompt)
        if request.id in self.by_request:
            raise UserError(f"request id {request.id!r} is already in use", field="id", value=request.id)
        self.check_prompt(prompt)
        capacity = self.kv.capacity_tokens
        cap = self.config.max_model_len if capacity is None else min(capacity + 1, self.config.max_model_len)
        if request.max_tokens is not None:
            cap = min(cap, prompt + request.max_tokens)
        virtual = request.arrival + request.priority * self.config.aging_s if self.config.policy == "priority" else 0.0
        order, self._next_order = self._next_order, self._next_order + 1
        made = []
        for index in range(request.n):
            seq = Sequence(self._next_id, request, index, (virtual, order, index), cap)
            seq.scored = prompt if index else 0  # the first sample hands out the prompt's rows for all
            self._next_id += 1
            self.sequences[seq.id] = seq
            self.enqueue(seq)
            made.append(seq)
        self.by_request[request.id] = list(made)
        self._arrived.append(request.id)
        return made

    def check_prompt(self, tokens: int) -> None:
        """Raises what `submit` would for a prompt of so many tokens. Depends on nothing that changes."""
        if tokens == 0:
            raise UserError("the prompt has no tokens", field="prompt", value=0, limit=1, remedy="send at least one token")
        self._check_fits(tokens, self.config.max_model_len - 1, "the model length leaves", "shorten the prompt")
        capacity = self.kv.capacity_tokens
        if capacity is not None:
            self._check_fits(tokens, capacity, "the KV cache holds", "shorten the prompt or give the KV cache more memory")

    @staticmethod
    def _check_fits(prompt: int, limit: int, what: str, remedy: str) -> None:
        if prompt > limit:
            message = f"the prompt has {prompt} tokens, {what} room for {limit}"
            raise ContextLengthError(message, field="prompt", value=prompt, limit=limit, remedy=remedy)

    def enqueue(self, seq: Sequence) -> None:
        seq.status = "waiting"
        insort(self.waiting, seq, key=_order)

    def start(self, seq: Sequence) -> None:
        """Move a waiting sequence, which has a table, to the running ones."""
        self._take_out(self.waiting, seq)
        seq.status = "running"
        seq.admitted_step = self.steps
        insort(self.running, seq, key=_order)

    def stop(self, seq: Sequence) -> None:
        """Take a sequence out of its list; its table is the caller's."""
        self._take_out(self.running if seq.status == "running" else self.waiting, seq)

    @staticmethod
    def _take_out(line: list[Sequence], seq: Sequence) -> None:
        del line[bisect_left(line, seq.key, key=_order)]

    def end(self, seq: Sequence, reason: FinishReason) -> None:
        """The single end of a sequence: blocks go back, its prefix stays cached unless it failed, `take_ended` reports it."""
        if seq.status == "ended":
            return
        self.stop(seq)
        if seq.table is not None:
            self.release(seq, keep=reason != "error")
        seq.status, seq.finish = "ended", reason
        del self.sequences[seq.id]
        siblings = self.by_request[seq.request.id]
        siblings.remove(seq)
        if not siblings:
            del self.by_request[seq.request.id]
        self._ended.append((seq, reason))
        self.record.ended.append((seq.id, reason))
        self.counts[f"ended_{reason}"] += 1

    def release(self, seq: Sequence, *, keep: bool) -> None:
        """Give the table back; what was computed stays in the prefix cache if `keep`."""
        table, request = seq.table, seq.request
        if table is not None:
            until = self.now + request.cache_ttl_s if request.cache_ttl_s > 0 else 0.0
            self.kv.close(table, seq.tokens, seq.computed, keep=keep, rank=request.cache_rank, keep_until=until)
        seq.table = None
        seq.computed = 0

    def abort(self, request_id: str) -> bool:
        """End every sequence of a request, wherever it is, before the next step; False when there is none."""
        alive = self.by_request.get(request_id)
        for seq in list(alive or ()):
            self.end(seq, "abort")
        return alive is not None

    def take_ended(self) -> list[tuple[Sequence, FinishReason]]:
        """Sequences that ended since the last call, each exactly once."""
        ended, self._ended = self._ended, []
        return ended

    def begin(self) -> StepRecord:
        """Open the record of the next step."""
        self.steps += 1
        self.kv.now = self.now
        self.record = StepRecord(self.steps, self.now, self._arrived)
        self._arrived = []
        return self.record
