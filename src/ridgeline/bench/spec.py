"""`bench spec`: one answer at a time, with each number of guesses in turns, per kind of text; medians, and the best number.

Every loop's time stands beside its prediction from steps measured on the same machine. Knows no terminal. Losses are reported as
they are: a kind of text that gets slower says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from ridgeline.bench.spec_text import QUOTES, degenerate, quoted
from ridgeline.bench.spec_times import NarrowTimes
from ridgeline.engine.core import EngineCore
from ridgeline.engine.loader import LoadedModel, isa_of, load, make_core
from ridgeline.engine.request import EngineRequest, prepare
from ridgeline.engine.speculate import Speculator
from ridgeline.engine.speculators import make_speculator
from ridgeline.engine.trace import StepTrace, Trace
from ridgeline.errors import one_of, within
from ridgeline.options import Options, SpeculativeConfig, speculative_config
from ridgeline.types import SamplingParams

Say = Callable[[str], None]
DOMAINS = ("code", "extraction", "chat", "creative")
QUOTING = frozenset({"code", "extraction"})
_PROMPTS = Path(__file__).parent / "data" / "spec_prompts.json"


@dataclass(frozen=True, slots=True)
class SpecBenchOptions:
    """options: how to load; its speculative_config says how to guess. drafts: numbers of guesses to try beside none and the adaptive
    number; gen: tokens of an answer; repeat: rounds."""

    options: Options
    drafts: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    domains: tuple[str, ...] = DOMAINS
    gen: int = 128
    repeat: int = 1
    temperature: float = 0.0

    def __post_init__(self) -> None:
        for name in self.domains:
            one_of("--domain", name, DOMAINS)
        for count in self.drafts or (0,):
            within("--drafts", count, 1, 16)
        within("--gen", self.gen, 2)
        within("--repeat", self.repeat, 1)


@dataclass(frozen=True, slots=True)
class Row:
    """One number of guesses (0: none; adaptive: up to the most) on one kind of text. speedup: median over answers of their tokens/s over
    those without guesses; loop_s: mean seconds of a loop, guessing included; predicted_loop_s: from `spec_times` of target and draft;
    predicted_over_measured: median over loops, which a disturbed one does not move."""

    domain: str
    drafts: int
    adaptive: bool
    answers: int
    tok_s: float
    speedup: float
    acceptance: float | None
    tokens_per_step: float
    loop_s: float
    predicted_loop_s: float
    predicted_over_measured: float
    best: bool = False


@dataclass(frozen=True, slots=True)
class DomainText:
    """What the answers were like: share that quote the prompt (only those count for code and extraction), share that go in circles."""

    domain: str
    answers: int
    quoting: float
    degenerate: float
    quoted_tokens: float


@dataclass(frozen=True)
class SpecReport:
    """differing: answers that were not the same with and without guesses; promise 1 says 0."""

    model: str
    method: str
    draft_model: str | None
    threads: int
    isa: str
    gen: int
    temperature: float
    rows: list[Row]
    texts: list[DomainText]
    differing: int
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class _Answer:
    tokens: list[int]
    seconds: float  # first token to last
    steps: int
    drafted: int
    accepted: int
    loops: list[float] = field(default_factory=list)  # seconds of each loop but the first, in which a draft model reads the prompt
    predicted: list[float] = field(default_factory=list)
    draws: list[int] = field(default_factory=list)

    @property
    def tok_s(self) -> float:
        return (len(self.tokens) - 1) / self.seconds if self.seconds > 0 else 0.0


Setting = tuple[int, bool]  # guesses, adaptive


def prompts_of(domain: str) -> list[str]:
    """The shipped prompts of one kind of text."""
    found: list[str] = json.loads(_PROMPTS.read_text("utf8"))["domains"][domain]
    return found


def run(asked: SpecBenchOptions, say: Say = lambda line: None) -> SpecReport:
    """Load, then every prompt with every setting in turns. Raises `UserError` for what cannot be run."""
    config = speculative_config(asked.options.speculative_config) or SpeculativeConfig("ngram")
    model = load(replace(asked.options, speculative_config=config))
    bench = _Bench(asked, model, config, say)
    return bench.run()


class _Bench:
    def __init__(self, asked: SpecBenchOptions, model: LoadedModel, config: SpeculativeConfig, say: Say) -> None:
        self.asked, self.model, self.config, self.say = asked, model, config, say
        adaptive = [] if config.accept == "rejection" else [(max(asked.drafts), True)]
        self.settings: list[Setting] = [(0, False), *((k, False) for k in asked.drafts), *adaptive]
        self.core: EngineCore = make_core(model, paced=False)
        self.differing = 0
        self._adaptive: Speculator | None = None
        self._number = 0

    def _measure(self) -> None:
        """Times of steps by their rows. With each prompt anew: a machine that the host moves is another one a minute later."""
        model, draft = self.model, self.model.draft
        self.core.state.kv.evict()  # what is measured is written over it
        self._times = NarrowTimes.measure(model.program, model.plan.max_model_len, max(self.asked.drafts) + 1)
        self._draft_times = None if draft is None else NarrowTimes.measure(draft.program, draft.plan.max_model_len, 2)

    def run(self) -> SpecReport:
        rows, texts = list[Row](), list[DomainText]()
        for domain in self.asked.domains:
            prompts = prompts_of(domain)
            self.say(f"{domain}: {len(prompts)} prompts, {len(self.settings)} settings")
            found, text = self._domain(domain, prompts)
            rows += found
            texts.append(text)
        plan = self.model.plan
        isa = isa_of(self.model.program, plan)
        return SpecReport(
            plan.model, self.config.method, self.config.model, plan.threads, isa, self.asked.gen, self.asked.temperature, rows, texts,
            self.differing, list(plan.notes),
        )  # fmt: skip

    def _domain(self, domain: str, prompts: list[str]) -> tuple[list[Row], DomainText]:
        answers: dict[Setting, list[list[_Answer]]] = {s: [] for s in self.settings}
        quotes, circles = list[float](), list[bool]()
        for number, prompt in enumerate(prompts):
            ids = self.model.text.render([{"role": "user", "content": prompt}])[1] if self._chats else self.model.text.encode(prompt)
            self._measure()
            self._answer(ids, (0, False), gen=2)  # its prompt is in the cache from now on
            runs: dict[Setting, list[_Answer]] = {s: [] for s in self.settings}
            for turn in range(self.asked.repeat):
                at = (number + turn) % len(self.settings)
                for setting in (*self.settings[at:], *self.settings[:at]):
                    runs[setting].append(self._answer(ids, setting))
            plain = runs[0, False][0].tokens
            self.differing += sum(a.tokens != plain for each in runs.values() for a in each)
            quotes.append(quoted(plain, ids))
            circles.append(degenerate(plain))
            for setting, each in runs.items():
                answers[setting].append(each)
        counted = [i for i, q in enumerate(quotes) if domain not in QUOTING or q >= QUOTES]
        plain_runs = answers[0, False]
        glue_s = _glue(plain_runs)
        rows = [_row(domain, s, [answers[s][i] for i in counted], [plain_runs[i] for i in counted], glue_s) for s in self.settings]
        best = max((r for r in rows if not r.adaptive), key=lambda r: r.speedup)
        rows = [replace(r, best=r is best) for r in rows]
        n = len(quotes)
        return rows, DomainText(domain, n, sum(q >= QUOTES for q in quotes) / n, sum(circles) / n, sum(quotes) / n)

    @property
    def _chats(self) -> bool:
        return self.model.text.tokenizer.chat_template is not None

    def _answer(self, ids: list[int], setting: Setting, gen: int | None = None) -> _Answer:
        drafts, adaptive = setting
        core, plan = self.core, self.model.plan
        config = replace(self.config, num_speculative_tokens=max(1, drafts), adaptive=adaptive)
        used = replace(plan, speculative=config)
        core.speculator = self._adaptive if adaptive else None
        if drafts and core.speculator is None:
            core.speculator = make_speculator(used, self.model.costs, self.model.limits.vocab, self.model.draft)
        if adaptive:  # what it learned from earlier answers stays, as in a server
            self._adaptive = core.speculator
        core.trace = Trace()
        self._number += 1
        params = SamplingParams(max_tokens=gen or self.asked.gen, temperature=self.asked.temperature, seed=1)
        asked = prepare(EngineRequest(f"spec-{self._number}", ids, params), self.model.limits, self.model.text)
        core.submit(asked)
        while core.busy:
            core.step()
        choice, times = asked.choices[0], asked.times
        steps = [s for s, _ in core.trace.steps() if s.record.draws][1:]  # the first token is the prompt's
        found = _Answer(list(choice.token_ids), times.last_token - times.first_token, len(steps), choice.drafted, choice.accepted)
        steady = steps[1:]
        found.loops = [s.times[4] - s.times[0] for s in steady]
        found.predicted = [self._seconds(s) for s in steady]
        found.draws = [1 + (s.record.draft_tokens if self._draft_times is not None else 0) for s in steady]
        return found

    def _seconds(self, step: StepTrace) -> float:
        """A step and the guessing before it, without draws and the loop itself, which `_glue` tells."""
        seconds = self._times.spans(step.step.spans)
        for seq, guesses in step.record.drafts if self._draft_times is not None else ():
            # It reads what was said since its last guess: one token, two when all of them had come true.
            past = next(s.past for s in step.step.spans if s.seq == seq)
            seconds += len(guesses) * self._draft_times.step(past, 1) if self._draft_times is not None else 0.0
        return seconds


def _glue(plain: list[list[_Answer]]) -> float:
    """Seconds that a loop without guesses takes beyond its native work: the draw, and the loop itself."""
    rest = [took - native for each in plain for a in each for took, native in zip(a.loops, a.predicted, strict=True)]
    return median(rest) if rest else 0.0


def _row(domain: str, setting: Setting, runs: list[list[_Answer]], plain: list[list[_Answer]], glue_s: float) -> Row:
    drafts, adaptive = setting
    every = [a for each in runs for a in each if a.steps]
    if not every:
        return Row(domain, drafts, adaptive, 0, 0.0, 0.0, None, 0.0, 0.0, 0.0, 0.0)
    speed = [median(a.tok_s for a in one) / max(1e-9, median(a.tok_s for a in base)) for one, base in zip(runs, plain, strict=True)]
    drafted, steps = sum(a.drafted for a in every), sum(a.steps for a in every)
    tokens, seconds = sum(len(a.tokens) - 1 for a in every), sum(a.seconds for a in every)
    loops = [t for a in every for t in a.loops]
    # Each round of a draft model has a draw of its own.
    predicted = [t + glue_s * n for a in every for t, n in zip(a.predicted, a.draws, strict=True)]
    accepted = sum(a.accepted for a in every) / drafted if drafted else None
    count = max(1, len(loops))
    ratio = median(p / t for p, t in zip(predicted, loops, strict=True)) if loops else 0.0
    per_step = tokens / steps, sum(loops) / count, sum(predicted) / count, ratio
    return Row(domain, drafts, adaptive, len(runs), tokens / seconds, median(speed), accepted, *per_step)


def render(report: SpecReport) -> str:
    """Tables for people."""
    head = f"{report.model}: guesses by {report.method}" + (f" {report.draft_model}" if report.draft_model else "")
    lines = [f"{head}; {report.threads} threads, {report.isa}, answers of up to {report.gen} tokens at temperature {report.temperature:g}"]
    lines.append("one answer at a time, settings in turns; * the best number; loop: a step with its guessing, means; the ratio is a median")
    for text in report.texts:
        rows = [r for r in report.rows if r.domain == text.domain]
        lines.append("")
        quoting = f"{rows[0].answers} of {text.answers} answers count: they quote the prompt"
        counted = quoting if text.domain in QUOTING else f"{text.answers} answers"
        shares = f"{100 * text.degenerate:.0f}% go in circles, {100 * text.quoted_tokens:.0f}% of tokens quoted"
        lines.append(f"{text.domain}: {counted}; {shares}")
        lines.append("  guesses  tok/s  speed-up  accepted  tokens/step  loop ms  predicted ms  predicted/measured")
        for r in rows:
            name = f"<={r.drafts} adapt" if r.adaptive else str(r.drafts)
            share = "-" if r.acceptance is None else f"{100 * r.acceptance:.0f}%"
            lines.append(
                f"{'*' if r.best else ' '} {name:>7} {r.tok_s:6.0f} {r.speedup:8.2f}x {share:>9} {r.tokens_per_step:12.2f}"
                f" {1e3 * r.loop_s:8.2f} {1e3 * r.predicted_loop_s:13.2f} {r.predicted_over_measured:19.2f}"
            )
    lines.append("")
    lines.append("the words were the same with every setting" if not report.differing else f"{report.differing} ANSWERS DIFFER: a fault")
    return "\n".join(lines)
