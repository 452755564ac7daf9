"""Random schedules of the whole engine on tiny models: a fixed stock of requests, each with its answer alone, run together in any way.

The answer alone is the definition: one request, no prefix cache, no cascade, whole prompt in one step, one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from tests.engine.fakes import ByteWords
from tests.models.tiny import VOCAB, tiny

from ridgeline.backends import cpu
from ridgeline.backends.base import LoadPlan
from ridgeline.backends.cpu.program import Fault
from ridgeline.engine.core import EngineCore
from ridgeline.engine.request import EngineRequest, Limits, RequestState, prepare
from ridgeline.formats.checkpoint import open_checkpoint
from ridgeline.formats.pull import find_cached
from ridgeline.graph.caches import cache_groups
from ridgeline.graph.ops import Embed
from ridgeline.kv.manager import CachePolicy, KvCache
from ridgeline.models import load_spec
from ridgeline.scheduler.budget import Budget
from ridgeline.scheduler.state import Faults, Policy, SchedulerConfig, SchedulerState
from ridgeline.types import CompletionOutput, RequestOutput, SamplingParams

FAMILIES = ("llama", "qwen3", "gemma3")
REAL = ("smollm2", "gemma3-270m")
CODES = ("int8", "int4", "int8/int4")
STOCK = 20
MODEL_LEN = 1000
END = 3
Break = Callable[[EngineCore], None]


@cache
def model(family: str) -> Any:
    """(graph, tensors) of a tiny family, or of a real model in the cache."""
    if family not in REAL:
        return tiny(family)
    path = find_cached(family)
    assert path is not None
    spec = load_spec(open_checkpoint(path), 2048)
    return spec.graph, spec.tensors


@cache
def real_program(family: str, size: int, kv: str, threads: int) -> Any:
    """Packed once per kind: a schedule uses the first of its many blocks."""
    graph, tensors = model(family)
    return cpu.load(graph, tensors, LoadPlan((3000 // size,) * len(cache_groups(graph.caches)), size, kv, threads))


def limits_of(family: str) -> Limits:
    vocab = next(op.vocab for op in model(family)[0].ops if isinstance(op, Embed))
    return Limits(MODEL_LEN, vocab, frozenset({END}))


def make_core(
    family: str, blocks: Sequence[int], block_size: int, policy: CachePolicy, budget: Budget, *, kv: str, threads: int,
    order: Policy = "fcfs", cascade: bool = True, faults: Sequence[Fault] = (),
) -> EngineCore:  # fmt: skip
    """An engine on a tiny model, its KV pool full of NaN."""
    graph, tensors = model(family)
    windows = [g.window for g in cache_groups(graph.caches)]
    if family in REAL:
        program = real_program(family, block_size, kv, threads)
    else:
        program = cpu.load(graph, tensors, LoadPlan(tuple(blocks), block_size, kv, threads), faults=faults)
    program.native.fill_kv(0xFF)
    config = SchedulerConfig(order, MODEL_LEN, cascade=cascade)
    return EngineCore(program, lambda: SchedulerState(KvCache(windows, blocks, block_size, policy), config), budget, limits_of(family))


@cache
def stock(family: str) -> list[EngineRequest]:
    """Requests of every kind. Prompts begin with one of two stems, or a part of one, so that they share what ends in mid-block."""
    rng = np.random.default_rng((*FAMILIES, *REAL).index(family))
    stems = rng.integers(4, VOCAB, (2, 330))
    made = []
    for i in range(STOCK):
        head = stems[i % 2][: int(rng.choice([0, 9, 37, 261, 300, 330] if family in FAMILIES else [0, 9, 37, 261]))]
        prompt = np.concatenate((head, rng.integers(4, VOCAB, int(rng.integers(1, 30))))).tolist()
        made.append(EngineRequest(str(i), prompt, params(i, rng)))
    return made


def params(i: int, rng: np.random.Generator) -> SamplingParams:
    # Tied heads repeat the last token unless the temperature is high or it is penalized.
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0, "repetition_penalty": 1.5},
        {"temperature": 4.0, "top_p": 0.95},
        {"temperature": 6.0, "top_k": 50, "n": 3},
        {"temperature": 2.0, "frequency_penalty": 0.7, "presence_penalty": 0.3, "repetition_penalty": 1.2},
        {"temperature": 5.0, "min_p": 0.02, "min_tokens": 5, "stop_token_ids": tuple(range(20, 60))},
        {"temperature": 3.0, "logit_bias": ((7, 12.0), (8, 12.0)), "bad_words": ("\x07\x08", "\x08\x08\x08"), "n": 2},
        {"temperature": 4.0, "prompt_logprobs": 1, "allowed_token_ids": tuple(range(0, VOCAB, 3)), "ignore_eos": True},
    ]
    kind = kinds[i % len(kinds)]
    return SamplingParams(max_tokens=int(rng.integers(6, 14)), seed=i, logprobs=i % 3, **kind)


def submit(core: EngineCore, request: EngineRequest) -> RequestState:
    asked = prepare(request, core.limits, ByteWords())
    core.submit(asked)
    return asked


@cache
def alone(family: str, number: int, kv: str) -> RequestOutput:
    groups = len(cache_groups(model(family)[0].caches))
    budget = Budget(MODEL_LEN, 4, itl_slack=None)
    core = make_core(family, (180,) * groups, 16, "off", budget, kv=kv, threads=1, cascade=False)
    asked = submit(core, stock(family)[number])
    while core.busy:
        core.step()
    return asked.output()


@dataclass
class Schedule:
    """One random run. `bad` counts choices that are not what they are alone; `events` what happened on the way."""

    seed: int
    faults: Sequence[Fault] = ()
    breaks: Break | None = None
    families: Sequence[str] = FAMILIES

    def run(self, events: Counter[str]) -> int:
        self.rng = rng = np.random.default_rng(self.seed)
        self.family = self.families[self.seed % len(self.families)]
        floats = ("f32", "bf16", "f16")[int(rng.integers(3))]
        self.kv = CODES[self.seed // 2 % 3] if self.seed % 2 else floats
        core = self._core()
        if self.breaks is not None:
            self.breaks(core)
        asked, aborted = self._play(core)
        core.state.kv.check()
        assert not core.state.sequences and all(used == 0 for _, _, used in core.state.kv.usage()), "something was left behind"
        events += core.state.counts + core.state.kv.counts + core.metrics.counts
        return sum(self._differs(one, one.id in aborted) for one in asked)

    def _core(self) -> EngineCore:
        rng = self.rng
        windows = [g.window for g in cache_groups(model(self.family)[0].caches)]
        size = int(rng.choice([4, 5, 16, 32] if self.family in FAMILIES else [5, 16]))
        blocks = [-(-int(rng.integers(420, 1500)) // size) if w is None else 6 + int(rng.integers(60)) for w in windows]
        if self.family in REAL:  # a real window is longer than these prompts
            blocks = [-(-int(rng.integers(320, 900)) // size) for _ in windows]
        slots = int(rng.integers(1, 9))
        budget = Budget(
            slots + int(rng.integers(8, 500)), slots, itl_slack=None, max_chunk=(None, 7, 100)[int(rng.integers(3))],
            prompt_rows=(None, 5, 64)[int(rng.integers(3))],
        )  # fmt: skip
        policy: CachePolicy = ("radix", "radix", "hash", "off")[int(rng.integers(4))]  # type: ignore[assignment]
        order: Policy = ("fcfs", "lpm", "priority")[int(rng.integers(3))]  # type: ignore[assignment]
        threads = int(rng.integers(1, 3))
        core = make_core(self.family, blocks, size, policy, budget, kv=self.kv, threads=threads, order=order, faults=self.faults)
        core.dial(Faults(int(rng.choice([0, 0, 5, 11])), int(rng.choice([0, 0, 7]))))
        return core

    def _play(self, core: EngineCore) -> tuple[list[RequestState], set[str]]:
        rng, asked, aborted = self.rng, list[RequestState](), set[str]()
        waiting = list(rng.permutation(STOCK)[: int(rng.integers(3, 8 if self.family in FAMILIES else 5))])
        for _ in range(3000):
            while waiting and (not core.busy or rng.random() < 0.25):
                request = stock(self.family)[int(waiting.pop())]
                asked.append(submit(core, request))
            if rng.random() < 0.01 and core.requests:
                victim = str(rng.choice(list(core.requests)))
                aborted.add(victim)
                core.abort(victim)
            if not core.busy and not waiting:
                return asked, aborted
            core.step()
        raise AssertionError(f"schedule {self.seed} does not end")

    def _differs(self, one: RequestState, aborted: bool) -> int:
        want, got = alone(self.family, int(one.id), self.kv), one.output()
        bad = sum(_choice_differs(a, b, aborted) for a, b in zip(want.outputs, got.outputs, strict=True))
        if want.prompt_logprobs is not None and got.prompt_logprobs is not None:
            known = len(got.prompt_logprobs) if aborted else len(want.prompt_logprobs)
            bad += got.prompt_logprobs != want.prompt_logprobs[:known]
        return bad


def _choice_differs(want: CompletionOutput, got: CompletionOutput, aborted: bool) -> int:
    made = len(got.token_ids)
    whole = got.finish_reason == want.finish_reason and made == len(want.token_ids)
    if not whole and not (aborted and got.finish_reason == "abort"):
        return 1
    same = got.token_ids == want.token_ids[:made] and (got.logprobs or []) == (want.logprobs or [])[:made]
    return int(not same)
