"""What a step costs beside the kernels: the engine's loop per step and sequence, and a draw per row and vocabulary entry.

The engine runs on the clock backend with steps that compute nothing but sweep the caches, as a forward does, so what is measured is the
engine alone, finding its data where it will find it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np

from ridgeline.backends import cpu
from ridgeline.backends.base import LoadPlan
from ridgeline.backends.clock import ClockProgram
from ridgeline.encodings import F32
from ridgeline.engine.core import EngineCore
from ridgeline.engine.request import EngineRequest, Limits, prepare
from ridgeline.errors import InternalError
from ridgeline.formats.tensors import Tensor
from ridgeline.graph.caches import Paged
from ridgeline.graph.graph import Graph
from ridgeline.graph.ops import Embed, Linear, SelectRows
from ridgeline.graph.step import SharedWalk, Span, Step
from ridgeline.kv.manager import KvCache
from ridgeline.sampling.plan import SamplePlan, SampleRow
from ridgeline.scheduler.budget import Budget
from ridgeline.scheduler.state import SchedulerConfig, SchedulerState
from ridgeline.text.stream import TextStream
from ridgeline.types import SamplingParams

VOCAB = 8192
_DRAW_DIM = 32
# As much as the weights of a forward: the loop then finds little of its own data in any cache. 35 us a step behind 8 MB, 190 behind 128.
SWEPT_BYTES = 128 << 20


class _NoText:
    """A `TextSource` for requests that ask for ids only."""

    def out(self, params: SamplingParams) -> TextStream:
        raise InternalError("no text was asked for")

    def spellings(self, words: Sequence[str]) -> list[tuple[int, ...]]:
        return []


def settled(runs: Sequence[float]) -> float:
    """The lower quartile: what a run takes when nobody else has the processor, without trusting a single lucky one."""
    return sorted(runs)[len(runs) // 4]


def engine_overhead(tokens: int = 32) -> tuple[float, float]:
    """(seconds per step, seconds per sequence and step) of decide, sampling in Python, apply and reply."""
    one, many = _engine_step(1, tokens), _engine_step(24, tokens)
    sequence = max(1e-7, (many - one) / 23)
    return max(1e-7, one - sequence), sequence


def sweeper() -> Callable[[], float]:
    """Each call passes over SWEPT_BYTES and returns the seconds it took."""
    swept = np.zeros(SWEPT_BYTES, np.uint8)

    def sweep() -> float:
        begun = perf_counter()
        np.add(swept, 1, out=swept)
        return perf_counter() - begun

    return sweep


def _engine_step(sequences: int, tokens: int) -> float:
    graph, swept, sweeping = Graph("nothing", (), (Paged("c", 1, 8, 8),), {}), sweeper(), 0.0

    def sweep(spans: Sequence[Span], shared: Sequence[SharedWalk]) -> float:
        nonlocal sweeping
        sweeping += swept()
        return 0.0

    program = ClockProgram(graph, LoadPlan((2048,)), sweep, lambda row: 5)
    config = SchedulerConfig(max_model_len=4096)
    budget = Budget(tokens=512, sequences=64, itl_slack=None)
    core = EngineCore(program, lambda: SchedulerState(KvCache((None,), (2048,)), config), budget, Limits(4096, VOCAB, frozenset()))
    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False)
    for i in range(sequences):
        core.submit(prepare(EngineRequest(f"r{i}", [i + 1, 2, 3], params), core.limits, _NoText()))
    core.step()
    took = []
    while core.busy:
        begun, sweeping = perf_counter(), 0.0
        core.step()
        took.append(perf_counter() - begun - sweeping)
    return settled(took)


def sample_overhead(threads: int) -> tuple[float, float]:
    """(seconds of a greedy draw, seconds per id of the vocabulary)."""
    small, large = _draw(256, threads), _draw(32768, threads)
    value = max(1e-12, (large - small) / (32768 - 256))
    return max(1e-8, small - 256 * value), value


def _draw(vocab: int, threads: int, rows: int = 8) -> float:
    """Right after a forward has made the logits: half of them lie in another core's caches."""
    ops = (Embed("x", "embed", rows, _DRAW_DIM), SelectRows("last", "x"), Linear("logits", "last", "head", _DRAW_DIM, vocab))
    rng = np.random.default_rng(0)
    tensors = {
        name: Tensor(name, shape, F32, rng.standard_normal(shape, np.float32).view(np.uint8))
        for name, shape in (("embed", (rows, _DRAW_DIM)), ("head", (vocab, _DRAW_DIM)))
    }
    program = cpu.load(Graph("draw", ops, (), {"logits": "logits"}), tensors, LoadPlan((), threads=threads))
    step = Step((Span(0, 0, rows, rows),), np.arange(rows, dtype=np.int32), ())
    plan = SamplePlan(tuple(SampleRow(i, temperature=0.0) for i in range(rows)), vocab)
    took = []
    for _ in range(15):
        program.forward(step)
        begun = perf_counter()
        program.sample(plan)
        took.append(perf_counter() - begun)
    return settled(took) / rows
