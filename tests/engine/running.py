"""An engine core on the fake program, and how to run requests through it."""

from __future__ import annotations

from itertools import count
from typing import Any

from tests.engine.fakes import EOS, VOCAB, ByteWords, FakeProgram, hashed_logits

from ridgeline.engine.core import EngineCore
from ridgeline.engine.request import EngineRequest, Limits, RequestState, prepare
from ridgeline.graph.caches import cache_groups
from ridgeline.kv.manager import CachePolicy, KvCache
from ridgeline.scheduler.budget import Budget
from ridgeline.scheduler.state import Policy, SchedulerConfig, SchedulerState
from ridgeline.types import SamplingParams

LIMITS = Limits(max_model_len=64, vocab=VOCAB, stop_ids=frozenset({EOS}))
WORDS = ByteWords()
NUMBERS = count()


def make_core(
    program: FakeProgram, *, chunk: int = 16, seqs: int = 8, policy: CachePolicy = "radix", limits: Limits = LIMITS,
    order: Policy = "fcfs", **more: Any,
) -> EngineCore:  # fmt: skip
    windows = [g.window for g in cache_groups(program.graph.caches)]
    config = SchedulerConfig(order, limits.max_model_len)

    def state() -> SchedulerState:
        return SchedulerState(KvCache(windows, program.plan.blocks, program.plan.block_size, policy), config)

    budget = Budget(max(chunk, seqs), seqs, itl_slack=None, prompt_rows=more.pop("prompt_rows", None))
    return EngineCore(program, state, budget, limits, **more)


def submit(core: EngineCore, prompt: list[int], params: SamplingParams, name: str | None = None, **more: Any) -> RequestState:
    asked = prepare(EngineRequest(name or f"r{next(NUMBERS)}", prompt, params, **more), core.limits, WORDS)
    core.submit(asked)
    return asked


def run(core: EngineCore, *asked: RequestState) -> list[list[int]]:
    while core.busy:
        core.step()
        core.state.kv.check()
    assert all(used == 0 for _, _, used in core.state.kv.usage())
    assert all(c.finish is not None for one in asked for c in one.choices)
    return [c.token_ids for one in asked for c in one.choices]


def alone(prompt: list[int], params: SamplingParams, windows: tuple[int | None, ...] = (None,)) -> list[list[int]]:
    program = FakeProgram(hashed_logits(), windows=windows, blocks=(200,) * len(windows))
    core = make_core(program, chunk=512, policy="off")
    return run(core, submit(core, prompt, params))
