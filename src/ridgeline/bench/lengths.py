"""`bench lengths`: what a longer context costs. Time to the first token, of one more token and of whole answers, with the KV cache and
without it.

Without a cache every token is a whole prompt again: what the cache saves is measured, not argued. Knows one sequence and no terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from math import log
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ridgeline.bench.clocked import fitted
from ridgeline.bench.held import Held, held, window_lines
from ridgeline.bench.machine_load import LIMIT, cpu_time
from ridgeline.bench.mfu import PromptModel, PromptWork, prompt_work
from ridgeline.bench.probe import machine
from ridgeline.bench.runner import Ids, OneSequence, random_tokens, timed_ops
from ridgeline.bench.slope import DecodeSlope, decode_slope
from ridgeline.engine.loader import isa_of, load_program, open_model
from ridgeline.errors import UserError, within
from ridgeline.graph.ops import Attend
from ridgeline.graph.step import Span
from ridgeline.kv.layout import bytes_per_token
from ridgeline.options import Options
from ridgeline.planner.hardware import Machine
from ridgeline.planner.roofline import predict, predict_generation, predict_prompt

Say = Callable[[str], None]
STEPS = 5  # of one token at each context, for each run
SAME_TOKENS, SAME_PAST = 24, 40  # tokens generated both ways, after a prompt of so many
BATCH = 4  # prompts, to say what reading them as one batch costs the first token
FIRST_ANSWER, ANSWER_S = 16, 8.0  # tokens of the shortest whole answer; the longest takes about so long without a cache


@dataclass(frozen=True, slots=True)
class LengthOptions:
    """options: how to load; lengths: tokens of context, rising; repeat: runs whose medians are reported; answers: tokens of whole answers,
    rising, at least two; () for as many as seconds allow."""

    options: Options
    lengths: tuple[int, ...]
    repeat: int = 3
    answers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        within("--repeat", self.repeat, 1)
        check_rising(self.lengths)
        if self.answers and (len(self.answers) < 2 or any(b <= a for a, b in pairwise(self.answers)) or self.answers[0] < 1):
            text = ",".join(map(str, self.answers))
            remedy = "give at least two rising numbers of tokens, e.g. 64,128,256"
            raise UserError(f"--answers is {text}: {remedy}", field="--answers", value=text)


@dataclass(frozen=True, slots=True)
class LengthRow:
    """At a context of `tokens`: seconds to the first token of a prompt that long, of one more token with the cache, of one more without
    it; attention_s: of the one with the cache, in its attention; predicted_*: the roofline's, never slower than that. kv_bytes: of the
    blocks that the engine's allocator gives such a sequence."""

    tokens: int
    ttft_s: float
    cached_s: float
    attention_s: float
    uncached_s: float
    predicted_ttft_s: float
    predicted_cached_s: float
    predicted_uncached_s: float
    work: PromptWork
    kv_bytes: int


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """A whole answer of `tokens` tokens to a prompt of one: seconds with the cache and without it, and the roofline's least of both."""

    tokens: int
    cached_s: float
    uncached_s: float
    predicted_cached_s: float
    predicted_uncached_s: float


@dataclass(frozen=True, slots=True)
class LengthReport:
    """growth, answer_growth: exponents of the time of a token, and of a whole answer, without the cache over the last two lengths,
    measured and by the roofline. slope: what a token of context adds to a cached step, measured, by the roofline and as calibrated.
    identical: the same tokens and logits, bit for bit, both ways. prompt_model: TTFT by FLOPs and fitted MFU. held: KV blocks by window.
    taken: share of the CPUs that others and the hypervisor had while lengths and answers were measured."""

    model: str
    threads: int
    rows: tuple[LengthRow, ...]
    ttft_fit: PromptFit
    growth_measured: float
    growth_predicted: float
    answers: tuple[AnswerRow, ...]
    answer_growth_measured: float
    answer_growth_predicted: float
    prompt_model: PromptModel
    slope: DecodeSlope
    kv_bytes_per_token: int
    held: tuple[Held, ...]
    block_size: int
    identical: bool
    taken: float
    machine: Machine

    @property
    def disturbed(self) -> str | None:
        """What a reader must know before believing the times."""
        return f"not to be relied on: others had {self.taken:.0%} of the CPUs meanwhile" if self.taken > LIMIT else None

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"slope": self.slope.as_json()}


def check_rising(lengths: Sequence[int]) -> None:
    """Raises `UserError` for lengths through which no curve can be fitted."""
    if len(lengths) < 3 or any(b <= a for a, b in pairwise(lengths)) or lengths[0] < 1:
        text = ",".join(map(str, lengths))
        remedy = "give at least three rising numbers of tokens, e.g. 128,256,512,1024"
        raise UserError(f"--lengths is {text}: {remedy}", field="--lengths", value=text)


class PromptFit(NamedTuple):
    """Seconds of a prompt of n tokens: start + per_token n + per_pair n^2."""

    start: float
    per_token: float
    per_pair: float

    @classmethod
    def to(cls, tokens: Sequence[float], seconds: Sequence[float]) -> PromptFit:
        """Least squares."""
        return cls(*(float(v) for v in np.polyfit(tokens, seconds, 2)[::-1]))

    def at(self, n: float) -> float:
        return self.start + self.per_token * n + self.per_pair * n**2

    def __str__(self) -> str:
        return f"{self.start * 1e3:.2f} ms {self.per_token * 1e6:+.2f} us n {self.per_pair * 1e9:+.3f} ns n^2"


class _Lengths:
    def __init__(self, asked: LengthOptions) -> None:
        model = self.model = open_model(asked.options)
        self.asked, self.plan, self.program = asked, model.plan, load_program(model)
        self._one = OneSequence(self.program)
        self._tokens = random_tokens(asked.lengths[-1] + 1, self._one.vocab)
        self.book = model.costs()
        self.machine = machine(self.plan.threads, isa_of(self.program, self.plan))
        self.held = held(self.program.graph.caches, self.plan.kv_dtype, self.plan.block_size, asked.lengths)

    def prompts(self, n: int) -> tuple[float, float]:
        """Seconds of prompts of n and of n + 1 tokens, medians."""
        runs = [[self._one.prompt_seconds(self._tokens[:k], self.plan.chunk) for k in (n, n + 1)] for _ in range(self.asked.repeat)]
        return median(first for first, _ in runs), median(second for _, second in runs)

    def steps(self) -> dict[int, tuple[float, float]]:
        """Of one more token at each context: seconds, and those in attention. The longest prompt is in the cache; all contexts in turns,
        so that a slow moment does not bend the slope."""
        runs: dict[int, list[tuple[float, float]]] = {n: [] for n in self.asked.lengths}
        for _ in range(STEPS * self.asked.repeat):
            for n, found in runs.items():
                whole = self._one_more(n)
                ops = timed_ops(self.program, partial(self._one_more, n))
                found.append((whole, sum(t.seconds for t in ops if any(isinstance(op, Attend) for op in t.ops))))
        return {n: (median(whole for whole, _ in found), median(part for _, part in found)) for n, found in runs.items()}

    def row(self, n: int, prompts: tuple[float, float], step: tuple[float, float]) -> LengthRow:
        """What was measured of a context, beside the roofline's least."""
        return LengthRow(
            n, prompts[0], *step, prompts[1],
            predict_prompt(self.book, n, self.machine, chunk=self.plan.chunk).lower_s,
            predict(self.book, [Span(0, n, 1, 1)], self.machine).lower_s,
            predict_prompt(self.book, n + 1, self.machine, chunk=self.plan.chunk).lower_s,
            prompt_work(self.book, n, self.machine, self.plan.chunk), sum(h.bytes[self.asked.lengths.index(n)] for h in self.held),
        )  # fmt: skip

    def slope(self, rows: Sequence[LengthRow]) -> DecodeSlope:
        """Of the steps in rows, beside this host's calibration where there is one."""
        try:
            by = fitted(self.model)
        except UserError:
            by = None
        least = [predict(self.book, [Span(0, n, 1, 1)], self.machine) for n in self.asked.lengths]
        steps, attention = [r.cached_s for r in rows], [r.attention_s for r in rows]
        return decode_slope(self.asked.lengths, steps, attention, least, self.machine.read_gb_s, by)

    def _one_more(self, past: int) -> float:
        start = perf_counter()
        self.program.forward(self._one.step(past, self._tokens[past : past + 1], 1))
        return perf_counter() - start

    def identical(self) -> bool:
        """Greedy tokens of both ways after a prompt, and the logits that chose them."""
        prompt = self._tokens[: min(SAME_PAST, self.asked.lengths[-1])]
        count = min(SAME_TOKENS, self.plan.max_model_len - len(prompt))
        return _same(self._answer(prompt, count, True)[0], self._answer(prompt, count, False)[0])

    def answer(self, count: int) -> tuple[AnswerRow, bool]:
        """A whole greedy answer both ways, and whether it was the same to the bit."""
        (kept, cached_s), (again, uncached_s) = (self._answer(self._tokens[:1], count, cached) for cached in (True, False))
        least = predict_generation(self.book, 0, count, self.machine).lower_s
        naive = sum(predict_prompt(self.book, n, self.machine, chunk=self.plan.chunk).lower_s for n in range(1, count + 1))
        return AnswerRow(count, cached_s, uncached_s, least, naive), _same(kept, again)

    def _answer(self, prompt: Ids, count: int, cached: bool) -> tuple[list[Any], float]:
        """Tokens and the logits of each draw; the seconds of it."""
        known, past, logits = prompt, 0, []
        start = perf_counter()
        for _ in range(count):
            for first in range(past, len(known), self.plan.chunk):
                part = known[first : first + self.plan.chunk]
                self.program.forward(self._one.step(first, part, int(first + len(part) == len(known))))
            logits.append(self.program.logits()[0].copy())
            past = len(known) if cached else 0
            known = np.append(known, np.int32(logits[-1].argmax()))
        return [known, *logits], perf_counter() - start


def _same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def answer_lengths(most: int, token_s: float) -> tuple[int, ...]:
    """16, 32, 64 ... tokens up to `most`: at least three where there is room, then while an answer without the cache takes ANSWER_S."""
    found, n = list[int](), min(FIRST_ANSWER, max(1, most // 4))
    while n <= most and (len(found) < 3 or n * n / 2 * token_s <= ANSWER_S):
        found.append(n)
        n *= 2
    return tuple(found)


def run(asked: LengthOptions, say: Say = lambda line: None) -> LengthReport:
    """Load and measure. Raises `UserError` for what cannot be loaded, and for lengths over the model's."""
    work = _Lengths(asked)
    work.prompts(asked.lengths[0])  # first use of pages and scratch memory is not what is measured
    read, began = [], cpu_time()
    for n in asked.lengths:
        say(f"measuring a context of {n} tokens")
        read.append(work.prompts(n))
    say("one more token at each context")
    steps = work.steps()
    rows = [work.row(n, prompts, steps[n]) for n, prompts in zip(asked.lengths, read, strict=True)]
    say("whole answers, with the cache and without it")
    most = min(asked.lengths[-1], work.plan.max_model_len - 1)
    both = [work.answer(n) for n in asked.answers or answer_lengths(most, rows[0].ttft_s / rows[0].tokens)]
    during = cpu_time() - began
    answers, same = [row for row, _ in both], all(alike for _, alike in both)
    written = [float(a.tokens) for a in answers]
    lengths = [float(r.tokens) for r in rows]
    kv_bytes = bytes_per_token(work.program.graph.caches, work.plan.kv_dtype, beyond_windows=True)
    return LengthReport(
        model=work.plan.model, threads=work.plan.threads, rows=tuple(rows), ttft_fit=PromptFit.to(lengths, [r.ttft_s for r in rows]),
        growth_measured=_growth(lengths, [r.uncached_s for r in rows]),
        growth_predicted=_growth(lengths, [r.predicted_uncached_s for r in rows]), answers=tuple(answers),
        answer_growth_measured=_growth(written, [a.uncached_s for a in answers]),
        answer_growth_predicted=_growth(written, [a.predicted_uncached_s for a in answers]),
        prompt_model=PromptModel.to([r.work for r in rows], [r.ttft_s for r in rows]),
        slope=work.slope(rows), kv_bytes_per_token=kv_bytes,
        held=work.held, block_size=work.plan.block_size, identical=same and work.identical(),
        taken=during.steal + during.others, machine=work.machine,
    )  # fmt: skip


def _growth(lengths: Sequence[float], seconds: Sequence[float]) -> float:
    """Slope between the last two points on logarithmic axes: the local exponent."""
    return log(seconds[-1] / seconds[-2]) / log(lengths[-1] / lengths[-2])


def render(report: LengthReport) -> str:
    """The report for people."""
    r = report
    whole, each = r.prompt_model.together(r.rows[-1].work, BATCH)
    lines = [
        f"{r.model}, {r.threads} threads: medians, in brackets the roofline's least",
        f"  {'context':>8}{'first token, ms':>26}{'next token, cache, ms':>26}{'next token, no cache, ms':>28}{'cache gains':>13}"
        f"{'KV, MB':>10}",
    ]
    for row in r.rows:
        cells = [(row.ttft_s, row.predicted_ttft_s), (row.cached_s, row.predicted_cached_s), (row.uncached_s, row.predicted_uncached_s)]
        ttft, cached, uncached = (f"{1e3 * got:.2f} ({1e3 * least:.2f})" for got, least in cells)
        gains = row.uncached_s / row.cached_s
        lines.append(f"  {row.tokens:>8}{ttft:>26}{cached:>26}{uncached:>28}{gains:>12.0f}x{row.kv_bytes / 1e6:>10.2f}")
    lines += [
        *window_lines(r.held, [row.tokens for row in r.rows], r.block_size),
        f"  first token: {r.ttft_fit}",
        f"  first token: {r.prompt_model}; no queue here",
        f"  {BATCH} prompts of {r.rows[-1].tokens} at once, by that model: first tokens after {1e3 * whole:.0f} ms as one batch,"
        f" {1e3 * each:.0f} ms in the mean one after the other",
        *(f"  next token with the cache: {line}" for line in r.slope.lines()),
        f"  next token without it: like n^{r.growth_measured:.2f}, roofline n^{r.growth_predicted:.2f} (n^2 where attention outweighs"
        " the rest)",
        *(
            f"  an answer of {a.tokens} tokens: {a.cached_s:.3f} s with the cache ({a.predicted_cached_s:.3f}), {a.uncached_s:.3f} s"
            f" without ({a.predicted_uncached_s:.3f})"
            for a in r.answers
        ),
        f"  a whole answer without it: like n^{r.answer_growth_measured:.2f}, roofline n^{r.answer_growth_predicted:.2f} (n^3 where"
        " attention outweighs the rest)",
        f"  same tokens and same logits both ways: {'yes, bit for bit' if r.identical else 'NO'}",
        *([f"  {r.disturbed}"] if r.disturbed else []),
    ]
    return "\n".join(lines)
