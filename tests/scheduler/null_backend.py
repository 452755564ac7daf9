"""A model stub under a virtual clock: each token is a function of all tokens before it, read back from the KV memory it was written to.

Any fault of the scheduler (stale block, missing copy, lost or doubled token, wrong resume) changes a token or trips an assertion.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq

import numpy as np
from tests.kv.kv_memory import Memory, names

from ridgeline.graph.step import KEY_PART, Int32Array, Step
from ridgeline.kv.manager import CachePolicy, KvCache
from ridgeline.scheduler.apply import apply
from ridgeline.scheduler.budget import Budget, Predict
from ridgeline.scheduler.policy import decide
from ridgeline.scheduler.state import Faults, Request, SchedulerConfig, SchedulerState
from ridgeline.types import FinishReason

EOS = 3
VOCAB = 1000


def draw(name: bytes, choice: int) -> int:
    """The token after the prefix called `name`, for sample `choice`: never EOS by itself."""
    raw = hashlib.blake2b(name + choice.to_bytes(4, "little"), digest_size=4).digest()
    return 4 + int.from_bytes(raw, "little") % (VOCAB - 4)


def alone(request: Request, index: int, cap: int, stop: Callable[[int], bool] | None = None) -> list[int]:
    """What sample `index` of a request gives when nothing else runs: the definition."""
    known, out = names(request.space, request.prompt), list[int]()
    tokens = request.prompt.tolist()
    while len(tokens) < cap:
        token = draw(known[-1], index)
        out.append(token)
        tokens.append(token)
        if stop is not None and stop(token):
            break
        names(request.space, np.array(tokens, np.int32), known)
    return out


class Harness:
    """Submits, steps and checks. `clock` advances by `seconds(step)` per step."""

    def __init__(
        self,
        windows: Seq[int | None] = (None,),
        blocks: Seq[int] = (64,),
        block_size: int = 16,
        policy: CachePolicy = "radix",
        budget: Budget | None = None,
        config: SchedulerConfig | None = None,
        faults: Faults | None = None,
        stop: Callable[[int], bool] | None = None,
        seconds: Callable[[Step], float] = lambda step: 0.01 + 0.001 * step.rows,
        predict: Predict | None = None,
        check_every: int = 1,
        contents: bool = True,
        ghost_blocks: int = 24,
    ) -> None:
        self.kv = KvCache(windows, blocks, block_size, policy, ghost_blocks)
        self.state = SchedulerState(self.kv, config, faults)
        self.budget = budget or Budget(tokens=256, sequences=8, itl_slack=None)
        self.memory = Memory(windows, blocks, block_size)
        self.stop, self.seconds, self.predict = stop, seconds, predict
        self.check_every, self.contents = check_every, contents
        self.outputs: dict[tuple[str, int], list[int]] = {}
        self.finished: dict[tuple[str, int], FinishReason] = {}
        self.finished_step: dict[tuple[str, int], int] = {}
        self.requests: dict[str, Request] = {}
        self.caps: dict[tuple[str, int], int] = {}
        self.steps: list[Step] = []
        self.computed: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self._names: dict[int, list[bytes]] = {}

    def submit(self, prompt: Seq[int] | Int32Array, max_tokens: int | None = 8, **more: object) -> Request:
        made: dict[str, object] = {"id": f"r{len(self.requests)}", "arrival": self.state.now, **more}
        request = Request(prompt=np.asarray(prompt, np.int32), max_tokens=max_tokens, **made)  # type: ignore[arg-type]
        for seq in self.state.submit(request):
            self.outputs[request.id, seq.index] = []
            self.caps[request.id, seq.index] = seq.cap
        self.requests[request.id] = request
        return request

    def step(self) -> Step:
        state = self.state
        step = decide(state, self.budget, self.predict)
        check = self.check_every and state.steps % self.check_every == 0
        if check:
            self.kv.check()
        assert step.rows <= self.budget.tokens and len(step.tokens) == step.rows and len(state.running) <= self.budget.sequences
        self.collect()
        sampled = self.forward(step)
        for draw_, token in zip(state.draws, sampled, strict=True):
            seq = state.sequences[draw_.seq]
            self.outputs[seq.request.id, seq.index].append(token)
        finishes: dict[int, FinishReason] = {
            d.seq: "stop" for d, t in zip(state.draws, sampled, strict=True) if self.stop is not None and self.stop(t)
        }
        took = self.seconds(step)
        state.now += took
        apply(state, step, sampled, finishes, took)
        if check:
            self.kv.check()
        self.collect()
        self.steps.append(step)
        return step

    def forward(self, step: Step) -> list[int]:
        state = self.state
        self.memory.copy(step.copies)
        self.check_writes(step)
        last: list[bytes] = []
        at = 0
        pending = []
        for i, span in enumerate(step.spans):
            seq = state.sequences[span.seq]
            assert step.tokens[at : at + span.new].tolist() == seq.tokens[span.past : span.past + span.new].tolist()
            at += span.new
            self.computed[seq.request.id] += span.new
            if not self.contents:
                last += [f"{span.seq} {span.past + span.new}".encode()] * span.want
                continue
            wanted = names(seq.request.space, seq.tokens[: span.past + span.new], self._names.setdefault(seq.id, []))
            for group in range(len(self.kv.windows)):
                self.memory.write(group, step.tables[group][i], span.past, wanted)
            pending.append((i, span.past, wanted))
            last += wanted[len(wanted) - span.want :] if span.want else []
        for i, past, wanted in pending:
            for group in range(len(self.kv.windows)):
                self.memory.read(group, step.tables[group][i], past, wanted)
        self.check_walks(step)
        assert len(last) == step.wanted
        return [draw(last[d.row], state.sequences[d.seq].index) for d in state.draws]

    def check_writes(self, step: Step) -> None:
        """Nobody else owns, and no cache keeps, a block that the step writes; only siblings that fork in this very step may wait for it."""
        forked = Counter(leader for leader, _ in self.state.record.forked)
        for i, span in enumerate(step.spans):
            for group, pool in enumerate(self.kv.pools):
                for j in range(span.past // self.kv.block_size, -(-(span.past + span.new) // self.kv.block_size)):
                    block = int(step.tables[group][i][j])
                    assert pool.refs[block] == 1 + forked[span.seq] and not pool.held[block], "a shared block is written"

    def check_walks(self, step: Step) -> None:
        segment = self.state.config.key_segment
        seen: set[int] = set()
        for walk in step.shared:
            part = KEY_PART if all(step.spans[i].new == 1 for i in walk.spans) else segment
            assert len(walk.spans) > 1 and walk.tokens > 0 and walk.tokens % min(part, segment) == 0 and not seen & set(walk.spans)
            seen |= set(walk.spans)
            end = -(-walk.tokens // self.kv.block_size)
            first = step.tables[0][walk.spans[0]][:end]
            for i in walk.spans:
                assert step.spans[i].past >= walk.tokens and np.array_equal(step.tables[0][i][:end], first)
            self.events["walks"] += 1

    def collect(self) -> None:
        for seq, reason in self.state.take_ended():
            key = seq.request.id, seq.index
            assert key not in self.finished, "ended twice"
            self.finished[key] = reason
            self.finished_step[key] = self.state.steps
            assert seq.tokens[seq.prompt_len :].tolist() == self.outputs[key]

    def run(self, limit: int = 10_000) -> int:
        """Step until nothing is alive; returns the number of steps. Every step must do something."""
        for count in range(limit):
            if not self.state.alive:
                return count
            step = self.step()
            assert step.rows > 0 or not self.state.alive, "an empty step with requests alive"
        raise AssertionError(f"still alive after {limit} steps: {len(self.state.waiting)} waiting, {len(self.state.running)} running")

    def verify(self) -> None:
        """Every output is what the request gives alone, and nothing is left."""
        for (request_id, index), out in self.outputs.items():
            expected = alone(self.requests[request_id], index, self.caps[request_id, index], self.stop)
            if self.finished[request_id, index] in ("stop", "length"):
                assert out == expected, f"{request_id}/{index} differs from its run alone"
            else:
                assert out == expected[: len(out)]
        self.drained()

    def drained(self) -> None:
        assert not self.state.alive and not self.state.running and not self.state.waiting and not self.state.by_request
        self.kv.check()
        assert all(used == 0 for _, _, used in self.kv.usage())
        self.kv.evict()
        self.kv.check()
        assert [free for free, _, _ in self.kv.usage()] == [p.size for p in self.kv.pools]
