"""`bench batches`: the time of a decode step against the batch, as the planner's formula has it and as this machine does it.

The formula is written down before anything is measured. Knows steps of the engine in this process; no server, no queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

from ridgeline.bench.clocked import fitted_or_least
from ridgeline.bench.core_speed import CoreSpeed, Taken, counted, enough
from ridgeline.bench.engine_run import Job, Runner, prompts
from ridgeline.bench.probe import machine
from ridgeline.engine.loader import LoadedModel, isa_of, load, open_model
from ridgeline.errors import UserError, within
from ridgeline.graph.step import Span
from ridgeline.options import Options

Say = Callable[[str], None]
STEPS = 12  # of a batch that are timed; their contexts lie around --context
MOST = 256  # sequences at once
NEARLY = 0.9  # of the best throughput: the knee without a promise, as `bench serve` has it


@dataclass(frozen=True, slots=True)
class BatchesOptions:
    """batches: sequences that decode at once, rising; context: tokens that each holds; itl_s: the promise, None for none."""

    options: Options
    batches: tuple[int, ...]
    context: int = 128
    itl_s: float | None = None
    repeat: int = 3

    def __post_init__(self) -> None:
        within("--repeat", self.repeat, 1)
        within("--context", self.context, 2 * STEPS, 1 << 20)
        for n in self.batches:
            within("--batch", n, 1, MOST)
        if not self.batches or list(self.batches) != sorted(set(self.batches)):
            text = ",".join(map(str, self.batches))
            raise UserError(f"--batch is {text}: give rising numbers, e.g. 1,2,4,8,16", field="--batch", value=text)


@dataclass(frozen=True, slots=True)
class BatchRow:
    """Seconds of one step that gives each of `batch` sequences a token."""

    batch: int
    measured_s: float
    formula_s: float

    @property
    def error(self) -> float:
        return self.formula_s / self.measured_s - 1


@dataclass(frozen=True, slots=True)
class BatchesReport:
    """best_*: of the batches tried, the largest within the promise (None: not even one sequence), or the knee without a promise.
    formula: where its seconds are from. speeds: of the cores beside each measurement of a batch."""

    model: str
    threads: int
    isa: str
    context: int
    itl_s: float | None
    formula: str
    rows: tuple[BatchRow, ...]
    best_measured: int | None
    best_formula: int | None
    speeds: dict[str, tuple[float, ...]]

    def as_json(self) -> dict[str, Any]:
        rows = [asdict(r) | {"error": r.error, "measured_tok_s": r.batch / r.measured_s, "formula_tok_s": r.batch / r.formula_s}
                for r in self.rows]  # fmt: skip
        return asdict(self) | {"rows": rows}


def run(asked: BatchesOptions, say: Say = lambda line: None) -> BatchesReport:
    """The formula first, then the steps, in rounds. Raises `UserError` for what cannot be loaded."""
    model = open_model(asked.options)
    seconds, source = fitted_or_least(model)
    formula = {n: seconds([Span(i, asked.context - 1, 1, 1) for i in range(n)], ()) for n in asked.batches}
    loaded = load(asked.options)
    isa = isa_of(loaded.program, loaded.plan)
    speed = CoreSpeed(machine(loaded.plan.threads, isa))
    _step_seconds(loaded, 1, asked.context, 0)  # pages, scratch memory
    taken: dict[int, list[Taken[float]]] = {n: [] for n in asked.batches}
    turn = 0
    while left := [n for n in asked.batches if not enough(taken[n], asked.repeat)]:
        turn += 1
        say(f"round {turn}: batches of {', '.join(map(str, left))}")
        for n in left:
            taken[n].append(speed.beside(partial(_step_seconds, loaded, n, asked.context, turn)))
    rows = tuple(BatchRow(n, median(counted(taken[n])), formula[n]) for n in asked.batches)
    return BatchesReport(
        loaded.plan.model, loaded.plan.threads, isa, asked.context, asked.itl_s, source, rows,
        best([(r.batch, r.measured_s) for r in rows], asked.itl_s), best([(r.batch, r.formula_s) for r in rows], asked.itl_s),
        {str(n): tuple(t.speed for t in taken[n]) for n in asked.batches},
    )  # fmt: skip


def late(batch: int, context: int, chunk: int) -> int:
    """Steps from the first sequence's first token until the last prompt is read, at most."""
    return -(-batch * context // max(1, chunk - batch)) + 1


def best(steps: Sequence[tuple[int, float]], itl_s: float | None) -> int | None:
    """Of (batch, seconds): the largest batch within the promise; without one the smallest with nearly the best throughput."""
    if itl_s is not None:
        return max((n for n, seconds in steps if seconds <= itl_s), default=None)
    most = max(n / seconds for n, seconds in steps)
    return min(n for n, seconds in steps if n / seconds >= NEARLY * most)


def _step_seconds(model: LoadedModel, batch: int, context: int, seed: int) -> float:
    """Median over the steps in which all sequences decode and no prompt is read. Sequences share nothing."""
    runner, after = Runner(model, prefix_cache="off"), late(batch, context, model.plan.chunk)
    before = max(1, context - (STEPS + after) // 2)
    steps = runner.run([Job(p, STEPS + after) for p in prompts(batch, before, model.limits.vocab, seed)])
    return median(s.seconds for s in steps if s.decodes == batch and s.chunk == 0)


def render(report: BatchesReport) -> str:
    """The report for people."""
    r = report
    promise = "no promise" if r.itl_s is None else f"promise {r.itl_s * 1e3:g} ms"
    lines = [
        f"{r.model}, {r.threads} threads, {r.context} tokens a sequence, {promise}",
        f"  {'batch':>6}{'measured, ms':>14}{'formula, ms':>13}{'error':>8}{'tok/s':>10}",
    ]
    for row in r.rows:
        words = [w for w, n in (("best measured", r.best_measured), ("best by the formula", r.best_formula)) if n == row.batch]
        over = r.itl_s is not None and row.measured_s > r.itl_s
        mark = ("  <- " + ", ".join(words) if words else "") + ("  over the promise" if over else "")
        ms = f"{row.measured_s * 1e3:>14.2f}{row.formula_s * 1e3:>13.2f}"
        lines.append(f"  {row.batch:>6}{ms}{row.error:>+8.1%}{row.batch / row.measured_s:>10.1f}{mark}")
    if r.best_measured is None:
        lines.append("  not even one sequence keeps the promise")
    return "\n".join([*lines, f"  formula: {r.formula}"])
