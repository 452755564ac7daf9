"""Where serving hurts, on this machine: memory before and after loading and by input, and five people who wait for one another.

All of it is measured in this process; nothing is compared with other machines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from time import sleep
from typing import Any

from ridgeline.bench.drive import drive
from ridgeline.bench.lengths import PromptFit, check_rising
from ridgeline.bench.machine_load import cpu_time, forget_peak, own_peak, own_rss
from ridgeline.bench.workloads import Job, Lengths, OpenLoop, Tokens
from ridgeline.engine.loader import LoadedModel, load, make_core
from ridgeline.errors import within
from ridgeline.graph.ops import Attend
from ridgeline.options import Options

Say = Callable[[str], None]
BAR = 46
BEYOND = "what was resident at most while the prompt was read, above what was before; N x N: one layer's scores, were they ever held"


@dataclass(frozen=True, slots=True)
class FeelOptions:
    """lengths: tokens of the prompts, rising, at least three for the fit; users: who ask at the same moment, each `prompt` tokens in and
    `output` out."""

    options: Options
    lengths: tuple[int, ...] = (128, 512, 1024, 2048)
    users: int = 5
    prompt: int = 256
    output: int = 64

    def __post_init__(self) -> None:
        check_rising(self.lengths)
        for name in ("users", "prompt", "output"):
            within(f"--{name}", getattr(self, name), 1, 4096)


@dataclass(frozen=True, slots=True)
class LengthRow:
    """A prompt of so many tokens: seconds to its first token, resident bytes of the process after it, KV bytes it holds. peak_bytes: the
    most that were resident while it was read, beyond those before, None where the system does not say; scores_bytes: what all scores of
    one layer would take at once, N x N of each head in float32, which tiles never hold."""

    tokens: int
    ttft_s: float
    resident_bytes: int
    kv_bytes: int
    peak_bytes: int | None
    scores_bytes: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """One person: seconds in the queue, until the first token, and until the answer was whole, all from the moment of asking."""

    name: str
    queue_s: float
    first_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class FeelReport:
    """output: tokens of each one's answer; others: share of the processors that others had meanwhile, steal included."""

    model: str
    threads: int
    before_bytes: int
    loaded_bytes: int
    weights_bytes: int
    load_s: float
    rows: tuple[LengthRow, ...]
    ttft_fit: PromptFit
    one_by_one: tuple[Waiting, ...]
    together: tuple[Waiting, ...]
    others: float
    output: int

    def tok_s(self, people: Sequence[Waiting]) -> float:
        """Output tokens of all over the time until the last of them."""
        return len(people) * self.output / max(w.end_s for w in people)

    def itl_s(self, people: Sequence[Waiting]) -> float:
        """Mean time between the tokens of one answer."""
        return sum(w.end_s - w.first_s for w in people) / len(people) / max(1, self.output - 1)

    def as_json(self) -> dict[str, Any]:
        rates = {name: {"tok_s": self.tok_s(of), "itl_ms": self.itl_s(of) * 1e3}
                 for name, of in (("one_by_one", self.one_by_one), ("together", self.together))}  # fmt: skip
        return asdict(self) | {"rates": rates}


def run(asked: FeelOptions, say: Say = lambda line: None) -> FeelReport:
    """Raises `UserError` for a model that cannot be loaded or prompts that do not fit."""
    before, begun = own_rss(), cpu_time()
    model = load(asked.options)
    loaded = own_rss()
    say("prompts of rising length")
    drive(make_core(model), model.text, OpenLoop("warm", [Job("w", 0.0, Tokens(1).fresh(asked.lengths[0]), 4)]), sleep)
    rows = tuple(_length(model, n) for n in asked.lengths)
    fit = PromptFit.to([r.tokens for r in rows], [r.ttft_s for r in rows])
    say(f"{asked.users} people, one after the other, then together")
    alone, together = (_people(model, asked, seqs) for seqs in (1, max(2, asked.users)))
    during = cpu_time() - begun
    return FeelReport(
        model.plan.model, model.plan.threads, before, loaded, int(getattr(model.program, "weight_bytes", 0)), model.load_s, rows,
        fit, alone, together, during.steal + during.others, asked.output,
    )  # fmt: skip


def _length(model: LoadedModel, tokens: int) -> LengthRow:
    core, told, before = make_core(model), forget_peak(), own_rss()
    done = drive(core, model.text, OpenLoop("one", [Job("r", 0.0, Tokens(2).fresh(tokens), 1)]), sleep)
    peak = max(0, own_peak() - before) if told else None
    per_token = model.plan.kv_bytes / max(1, model.plan.blocks[0] * model.plan.block_size)
    heads = max(op.heads for op in model.program.graph.ops if isinstance(op, Attend))
    return LengthRow(tokens, done.lives[0].first_s, own_rss(), round(tokens * per_token), peak, 4 * heads * tokens**2)


def _people(model: LoadedModel, asked: FeelOptions, seqs: int) -> tuple[Waiting, ...]:
    """All ask at once; the engine takes `seqs` of them at a time."""
    core = make_core(replace(model, plan=replace(model.plan, max_num_seqs=seqs)), prefix_cache="off")
    tokens, lengths = Tokens(3), Lengths(asked.prompt, asked.output)
    jobs = [Job(f"user {i + 1}", 0.0, tokens.fresh(lengths.prompt), lengths.output) for i in range(asked.users)]
    done = drive(core, model.text, OpenLoop("people", jobs), sleep)
    return tuple(Waiting(live.job.id, live.admitted_s, live.first_s, live.end_s) for live in done.lives)


def render(report: FeelReport) -> str:
    """For people, with bars."""
    grown = report.loaded_bytes - report.before_bytes
    lines = [
        f"{report.model}, {report.threads} threads; others had {report.others:.0%} of the processors\n",
        f"memory  before loading {_mb(report.before_bytes)}, after {_mb(report.loaded_bytes)}: {_mb(grown)} more, of it weights"
        f" {_mb(report.weights_bytes)}",
        "", "prompt  TTFT s   resident     its KV  most beyond   N x N scores",
    ]  # fmt: skip
    most = max(r.ttft_s for r in report.rows)
    for r in report.rows:
        bar = "#" * max(1, round(BAR * r.ttft_s / most))
        most_mb = "-" if r.peak_bytes is None else _mb(r.peak_bytes)
        memory = f"{_mb(r.resident_bytes):>9}  {_mb(r.kv_bytes):>9}  {most_mb:>11}  {_mb(r.scores_bytes):>13}"
        lines.append(f"{r.tokens:6}  {r.ttft_s:6.3f}  {memory}  {bar}")
    lines += [f"fit: {report.ttft_fit}", f"most beyond: {BEYOND}\n"]
    for title, people in (("one after the other", report.one_by_one), ("together", report.together)):
        lines += _queue(title, people, max(w.end_s for w in report.one_by_one))
        lines.append(f"         {report.tok_s(people):.1f} tok/s in all, {report.itl_s(people) * 1e3:.1f} ms between one's tokens\n")
    saved = report.one_by_one[-1].first_s / max(1e-9, report.together[-1].first_s)
    lines.append(f"the last one's first word comes {saved:.1f}x sooner when they are served together")
    return "\n".join(lines)


def _queue(title: str, people: Sequence[Waiting], whole_s: float) -> list[str]:
    """Dots: waiting; #: reading the prompt; =: answering."""
    lines = [f"{title}: . waits, # prompt is read, = answer comes"]
    for w in people:
        wait, read, answer = (round(BAR * s / whole_s) for s in (w.queue_s, w.first_s - w.queue_s, w.end_s - w.first_s))
        lines.append(f"{w.name:>8} {w.queue_s:6.2f} s {'.' * wait}{'#' * max(1, read)}{'=' * answer}")
    lines.append(f"         the last waits {people[-1].queue_s:.2f} s, all is done after {max(w.end_s for w in people):.2f} s")
    return lines


def _mb(count: float) -> str:
    return f"{count / 1e6:.1f} MB"
