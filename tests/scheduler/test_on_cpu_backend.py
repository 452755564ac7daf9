"""The scheduler drives the native backend: each request's logits and tokens are bit for bit those it has alone (promise 1, end to end)."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ridgeline.backends.base import LoadPlan
from ridgeline.graph.caches import cache_groups
from ridgeline.graph.step import Span, Step
from ridgeline.kv.manager import CachePolicy, KvCache
from ridgeline.scheduler.apply import apply
from ridgeline.scheduler.budget import Budget
from ridgeline.scheduler.policy import decide
from ridgeline.scheduler.state import Faults, Policy, Request, SchedulerConfig, SchedulerState
from ridgeline.types import KvDtype

pytest.importorskip("ridgeline.backends.cpu.native._native", reason="the native backend is not built")

from tests.models.tiny import VOCAB, tiny

from ridgeline.backends import cpu

FAMILIES = ["llama", "qwen3", "gemma3", "mistral", "gemma2"]
Row = npt.NDArray[np.float32]


@cache
def model(family: str) -> Any:
    return tiny(family)


def draw(row: Row, index: int, position: int) -> int:
    noise = np.random.default_rng((index, position)).gumbel(size=row.shape)
    return int((row / 0.8 + noise).argmax())


def alone(family: str, prompt: npt.NDArray[np.int32], index: int, cap: int, kv: KvDtype) -> tuple[list[int], list[bytes]]:
    """Tokens and logits of one sample of a prompt, whole, alone, on one thread, without any cache."""
    graph, tensors = model(family)
    groups = len(cache_groups(graph.caches))
    program = cpu.load(graph, tensors, LoadPlan((cap // 16 + 2,) * groups, 16, kv, 1))
    tokens, past, rows = prompt.tolist(), 0, list[bytes]()
    while len(tokens) < cap:
        table = np.arange(-(-len(tokens) // 16), dtype=np.int32)
        program.forward(Step((Span(0, past, len(tokens) - past, 1),), np.array(tokens[past:], np.int32), ((table,),) * groups))
        past = len(tokens)
        row = program.logits()[-1].copy()
        rows.append(row.tobytes())
        tokens.append(draw(row, index, past))
    return tokens[len(prompt) :], rows


class Run:
    """One random schedule on one tiny model."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.family = FAMILIES[seed % len(FAMILIES)]
        self.kv_dtype: KvDtype = ["f32", "bf16", "f16"][int(rng.integers(3))]  # type: ignore[assignment]
        graph, tensors = model(self.family)
        windows = [g.window for g in cache_groups(graph.caches)]
        size = int(rng.choice([4, 16, 32, 5]))
        blocks = [-(-900 // size) if w is None else 4 + int(rng.integers(20)) * 2 for w in windows]
        cache_policy: CachePolicy = ["radix", "radix", "hash", "off"][int(rng.integers(4))]  # type: ignore[assignment]
        order: Policy = ["fcfs", "lpm", "priority"][int(rng.integers(3))]  # type: ignore[assignment]
        faults = Faults(int(rng.choice([0, 4, 9])), int(rng.choice([0, 0, 6])))
        self.kv = KvCache(windows, blocks, size, cache_policy)
        self.state = SchedulerState(self.kv, SchedulerConfig(order, 4000), faults)
        slots = int(rng.integers(1, 8))
        self.budget = Budget(slots + int(rng.integers(1, 400)), slots, itl_slack=None, max_chunk=[None, 7, 100][int(rng.integers(3))])
        self.program = cpu.load(graph, tensors, LoadPlan(tuple(blocks), size, self.kv_dtype, int(rng.integers(1, 3))))
        self.program.native.fill_kv(0xFF)
        self.stems = [rng.integers(0, VOCAB, 600) for _ in range(2)]
        self.requests: dict[str, Request] = {}
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.rows: dict[tuple[str, int], list[bytes]] = {}
        self.caps: dict[tuple[str, int], int] = {}
        self.aborted: set[str] = set()
        self.walks = 0

    def arrive(self) -> None:
        rng, stem = self.rng, self.stems[int(self.rng.integers(2))]
        head = stem[: int(rng.choice([0, 100, 300, 560, 520]))]
        prompt = np.concatenate((head, rng.integers(0, VOCAB, int(rng.integers(1, 40)))))
        if len(prompt) > self.state.limit() - 30:
            return
        name, n = f"r{len(self.requests)}", int(rng.choice([1, 1, 2, 4]))
        request = Request(name, prompt, int(rng.integers(1, 20)), n=n, arrival=self.state.now, priority=int(rng.integers(2)))
        self.requests[name] = request
        for seq in self.state.submit(request):
            key = name, seq.index
            self.tokens[key], self.rows[key], self.caps[key] = [], [], seq.cap

    def step(self) -> None:
        state = self.state
        step = decide(state, self.budget)
        self.walks += len(step.shared)
        state.now += 0.1
        if not step.spans:
            return
        self.program.forward(step)
        logits, drawn = self.program.logits(), list[int]()
        for item in state.draws:
            seq = state.sequences[item.seq]
            row = logits[item.row].copy()
            drawn.append(draw(row, seq.index, seq.known))
            self.tokens[seq.request.id, seq.index].append(drawn[-1])
            self.rows[seq.request.id, seq.index].append(row.tobytes())
        apply(state, step, drawn)

    def run(self, arrivals: int) -> Counter[str]:
        while arrivals or self.state.alive:
            if arrivals and self.rng.random() < 0.3:
                arrivals -= 1
                self.arrive()
            if self.rng.random() < 0.02 and self.state.by_request:
                victim = str(self.rng.choice(list(self.state.by_request)))
                self.state.abort(victim)
                self.aborted.add(victim)
            if not arrivals:
                self.state.faults = Faults()
            self.step()
        self.kv.check()
        return Counter(self.state.counts) + Counter(self.kv.counts) + Counter(walks=self.walks)

    def verify(self) -> None:
        for (name, index), tokens in self.tokens.items():
            wanted, rows = alone(self.family, self.requests[name].prompt, index, self.caps[name, index], self.kv_dtype)
            assert name in self.aborted or len(tokens) == len(wanted)
            same = tokens == wanted[: len(tokens)] and self.rows[name, index] == rows[: len(tokens)]
            assert same, f"{self.family}: {name}/{index} differs"


@pytest.mark.parametrize("count", [10, pytest.param(500, marks=pytest.mark.long)])
def test_schedules_on_the_native_backend_equal_each_request_alone(count: int) -> None:
    events: Counter[str] = Counter()
    for seed in range(count):
        run = Run(seed)
        events += run.run(arrivals=6)
        run.verify()
    wanted = ["walks", "preemptions", "forks", "hits_inside_block", "copies_on_write", "evictions", "window_releases", "ended_abort"]
    assert all(events[name] > 0 for name in wanted), events
