"""`bench engine`, scenarios of batching: requests of unlike lengths in static batches and in a continuous one; a step of unlike spans.

What is compared are the same requests on the same engine; only who may begin when differs. Knows no terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from ridgeline.bench.engine_run import Job, Runner, prompts
from ridgeline.bench.runner import Ids
from ridgeline.bench.turns import Turns
from ridgeline.engine.loader import LoadedModel
from ridgeline.engine.request import RequestState
from ridgeline.graph.caches import cache_groups
from ridgeline.graph.step import Span, Step

Words = list[list[int]]


@dataclass(frozen=True, slots=True)
class BatchingResult:
    """Answers of low .. high tokens, few of them long, `slots` at once. static: a batch ends before the next begins. idle: share of the
    slots that made no token while steps ran. late_*: seconds from asking for `short` tokens to the last of them, while an answer of `long`
    is under way, and late_static_s where it waits for that one's end; before_long: whether it ended first. same: words of both ways."""

    requests: int
    slots: int
    prompt: int
    low: int
    high: int
    tok_s: float
    static_tok_s: float
    gain: float
    idle: float
    static_idle: float
    short: int
    long: int
    late_s: float
    late_static_s: float
    before_long: bool
    same: bool


@dataclass(frozen=True, slots=True)
class RaggedResult:
    """Sequences with so many new tokens in one step, then unlike steps of the same. rows: of the one matrix that linear layers see.
    identical: all logits are those of each sequence computed by itself, bit for bit; seconds of the first step, and of its parts."""

    new: tuple[int, ...]
    rows: int
    steps: int
    identical: bool
    together_s: float
    apart_s: float


class Batching:
    """Runs both on one model. Figures go to `turns`."""

    def __init__(self, model: LoadedModel, turns: Turns) -> None:
        self.model, self.turns = model, turns

    def batching(
        self, count: int = 40, slots: int = 8, prompt: int = 32, low: int = 8, high: int = 96, late: tuple[int, int] = (16, 160)
    ) -> BatchingResult:
        """Lengths rise by equal factors, as those of chats about do, in an order drawn once."""
        model = replace(self.model, plan=replace(self.model.plan, max_num_seqs=slots))
        outputs = np.random.default_rng(640).permutation(np.geomspace(low, high, count).round().astype(int)).tolist()
        jobs = [Job(p, n) for p, n in zip(prompts(count, prompt, self.model.limits.vocab, 641), outputs, strict=True)]
        said: dict[int, Words] = {}

        def once(wave: int) -> dict[str, float]:
            seconds, steps, said[wave] = _answered(model, jobs, wave)
            name, made = "static" if wave < count else "continuous", sum(outputs)
            return {f"{name}_tok_s": made / seconds, f"{name}_idle": 1 - made / (steps * slots)}

        _answered(model, jobs[:slots], slots)  # pages, scratch memory
        for _ in self.turns.wanted("static_tok_s", "continuous_tok_s"):
            for wave in (slots, count):
                self.turns.note(partial(once, wave))
        for _ in self.turns.wanted("late_s"):
            self.turns.note(partial(self._late, model, prompt, *late))
        m = self.turns.median
        ours, static = m("continuous_tok_s"), m("static_tok_s")
        return BatchingResult(
            count, slots, prompt, low, high, ours, static, ours / static, m("continuous_idle"), m("static_idle"), *late, m("late_s"),
            m("late_static_s"), m("late_s") < m("long_left_s"), said[slots] == said[count],
        )  # fmt: skip

    def _late(self, model: LoadedModel, prompt: int, short: int, long: int) -> dict[str, float]:
        """The short one comes when a tenth of the long one is there."""
        first, second = prompts(2, prompt, model.limits.vocab, 642)
        found: dict[str, float] = {}
        for static in (False, True):
            runner = Runner(model, prefix_cache="off")
            before = runner.submit(Job(first, long))
            while runner.steps < long // 10:
                runner.step()
            asked = perf_counter()
            if static:
                _finish(runner)
            after = runner.submit(Job(second, short))
            _finish(runner)
            found["late_static_s" if static else "late_s"] = after.times.finished - asked
            if not static:
                found["long_left_s"] = before.times.finished - asked
        return found

    def ragged(self, new: tuple[int, ...] = (3, 9, 5), repeat: int = 20) -> RaggedResult:
        """The lecture's [3, H] + [9, H] + [5, H]; then one of them decodes while the others read on."""
        then = (1, *new[1:])
        table = _Tables(self.model, [a + b for a, b in zip(new, then, strict=True)])
        steps = [[Span(i, 0, n, n) for i, n in enumerate(new)], [Span(i, p, n, n) for i, (p, n) in enumerate(zip(new, then, strict=True))]]
        together = [table.logits(spans) for spans in steps]
        apart = [np.concatenate([table.logits([span]) for span in spans]) for spans in steps]
        whole, parts = [], []
        for _ in range(repeat):
            whole.append(table.seconds([steps[0]]))
            parts.append(table.seconds([[span] for span in steps[0]]))
        same = all(np.array_equal(a, b) for a, b in zip(together, apart, strict=True))
        return RaggedResult(new, sum(new), len(steps), same, median(whole), median(parts))


class _Tables:
    """Sequences with blocks of their own, and made-up tokens, for steps that nobody schedules."""

    def __init__(self, model: LoadedModel, lengths: Sequence[int]) -> None:
        self._program, size = model.program, model.plan.block_size
        self._groups = len(cache_groups(model.program.graph.caches))
        each = -(-max(lengths) // size)
        self._blocks = [np.arange(i * each, (i + 1) * each, dtype=np.int32) for i in range(len(lengths))]
        self._tokens: list[Ids] = [prompts(1, n, model.limits.vocab, 650 + i)[0] for i, n in enumerate(lengths)]

    def step(self, spans: Sequence[Span]) -> Step:
        tokens = np.concatenate([self._tokens[s.seq][s.past : s.past + s.new] for s in spans])
        return Step(tuple(spans), tokens, (tuple(self._blocks[s.seq] for s in spans),) * self._groups)

    def logits(self, spans: Sequence[Span]) -> Any:
        """float32 [rows wanted, vocab]."""
        self._program.forward(self.step(spans))
        return self._program.logits().copy()

    def seconds(self, steps: Sequence[Sequence[Span]]) -> float:
        made = [self.step(spans) for spans in steps]
        start = perf_counter()
        for step in made:
            self._program.forward(step)
        return perf_counter() - start


def _answered(model: LoadedModel, jobs: Sequence[Job], wave: int) -> tuple[float, int, Words]:
    """Seconds, steps and words of all jobs, `wave` of them at a time."""
    runner, asked = Runner(model, prefix_cache="off"), list[RequestState]()
    start = perf_counter()
    for first in range(0, len(jobs), wave):
        asked += [runner.submit(job, temperature=0.8, seed=7) for job in jobs[first : first + wave]]
        _finish(runner)
    return perf_counter() - start, runner.steps, [c.token_ids for a in asked for c in a.choices]


def _finish(runner: Runner) -> None:
    while runner.core.busy:
        runner.step()


def lines(mixed: BatchingResult | None, ragged: RaggedResult | None) -> list[str]:
    """The results for people."""
    found = []
    if mixed is not None:
        m, words = mixed, "same words" if mixed.same else "OTHER WORDS"
        order = "before" if m.before_long else "AFTER"
        found += [
            f"  batching  {m.requests} requests, {m.prompt} in, {m.low} to {m.high} out, {m.slots} at once: static batches"
            f" {m.static_tok_s:.1f} tok/s ({m.static_idle:.0%} of the slots idle), continuous {m.tok_s:.1f} ({m.idle:.0%})"
            f" = {m.gain:.2f}x, {words}",
            f"            {m.short} tokens asked for while an answer of {m.long} comes: whole after {m.late_s:.2f} s, {order} the long one;"
            f" in static batches after {m.late_static_s:.2f} s",
        ]
    if ragged is not None:
        r = ragged
        parts = " + ".join(f"[{n}, H]" for n in r.new)
        same = "the same logits as one by one, bit for bit" if r.identical else "OTHER LOGITS than one by one"
        found.append(
            f"  ragged    {parts} in one step: linear layers see [{r.rows}, H], attention each by itself; {same} ({r.steps} steps);"
            f" {r.together_s * 1e3:.2f} ms, apart {r.apart_s * 1e3:.2f} ms"
        )
    return found
