"""A `bench spec` run as a report document: speed-up, acceptance and loop time against the number of guesses, per kind of text, with losses.

Measures nothing, draws nothing.
"""

from __future__ import annotations

import platform
from collections.abc import Callable

from ridgeline.bench.record import command_line, machine_name, now
from ridgeline.bench.report_schema import Line, Plot, Prediction, ReportDocument, Setup, Table
from ridgeline.bench.spec import DomainText, Row, SpecReport

DEFINITIONS = {
    "speed-up": "median over answers of their tokens/s over those of the same answer without guesses; below 1 is a loss",
    "accepted": "guesses that came true, as a share of those verified",
    "loop": "one step with the guessing before it",
}


def document(r: SpecReport, version: str) -> ReportDocument:
    """The sweep in figures. Kinds of text of which no answer counts have rows, but no points."""
    guesses = r.method + (f" {r.draft_model}" if r.draft_model else "")
    setup = Setup(
        {"host": machine_name(), "threads": r.threads}, {"ridgeline": version, "python": platform.python_version()}, {"sampling": 1},
        {"model": r.model, "guesses": guesses, "isa": r.isa, "answers of": f"{r.gen} tokens", "temperature": r.temperature},
        (command_line(),), (), now(),
    )  # fmt: skip
    predictions = tuple(
        Prediction(f"{row.domain}, {_name(row)} guesses", "loop ms", 1e3 * row.predicted_loop_s, 1e3 * row.loop_s)
        for row in r.rows
        if row.loop_s > 0
    )
    notes = (*(_verdict(r, text) for text in r.texts), *((f"{r.differing} ANSWERS DIFFER: a fault",) if r.differing else ()), *r.notes)
    tables = (_table(r),)
    title = f"{r.model}: guessing ahead by {guesses}"
    return ReportDocument(
        "bench spec", title, setup, plots=_plots(r), predictions=predictions, tables=tables, definitions=DEFINITIONS, notes=notes
    )


def _name(row: Row) -> str:
    return f"up to {row.drafts} (adaptive)" if row.adaptive else str(row.drafts)


def _verdict(r: SpecReport, text: DomainText) -> str:
    rows = [row for row in r.rows if row.domain == text.domain and row.answers]
    if not rows:
        return f"{text.domain}: none of {text.answers} answers quotes its prompt, so none counts."
    best = next((row for row in rows if row.best), rows[0])
    how = f"{best.drafts} guesses are best, {best.speedup:.2f}x" if best.drafts else "no number of guesses beats none"
    adaptive = [f"; adaptive {row.speedup:.2f}x" for row in rows if row.adaptive]
    return f"{text.domain}: {how}{''.join(adaptive)} ({rows[0].answers} of {text.answers} answers count)."


def _table(r: SpecReport) -> Table:
    columns = ("text", "guesses", "answers", "tok/s", "speed-up", "accepted", "tokens a step", "loop ms", "predicted ms", "best")
    rows = tuple(
        (
            row.domain, _name(row), row.answers, row.tok_s, row.speedup, row.acceptance, row.tokens_per_step, 1e3 * row.loop_s,
            1e3 * row.predicted_loop_s, "*" if row.best else "",
        )
        for row in r.rows
    )  # fmt: skip
    return Table("Guesses, per kind of text", columns, rows)


def _plots(r: SpecReport) -> tuple[Plot, ...]:
    """Against fixed numbers of guesses; the adaptive number has none, it is in the table."""

    def lines(value: Callable[[Row], float | None]) -> tuple[Line, ...]:
        found = []
        for text in r.texts:
            rows = sorted((row for row in r.rows if row.domain == text.domain and row.answers and not row.adaptive), key=lambda x: x.drafts)
            points = tuple((float(row.drafts), y) for row in rows if (y := value(row)) is not None)
            if points:
                found.append(Line(text.domain, points))
        return tuple(found)

    asked = "guesses a step"
    loops = lines(lambda row: 1e3 * row.loop_s)
    predicted = tuple(Line(f"{line.name}, predicted", line.points, "predicted") for line in lines(lambda row: 1e3 * row.predicted_loop_s))
    found = (
        Plot("Speed-up", asked, "times without guesses", lines(lambda row: row.speedup)),
        Plot("Guesses that came true", asked, "accepted", lines(lambda row: row.acceptance), y_unit="%"),
        Plot("Time of a loop", asked, "ms", loops + predicted),
    )
    return tuple(plot for plot in found if plot.lines)
