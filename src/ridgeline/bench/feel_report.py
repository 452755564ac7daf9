"""A `bench feel` run as a report document: memory, first tokens by length, and who waited for whom. Measures nothing."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from ridgeline.bench.feel import FeelReport, Waiting
from ridgeline.bench.record import command_line, machine_name, now
from ridgeline.bench.report_schema import Bar, Gantt, Line, Plot, ReportDocument, Setup, Table

FITTED, COUNTED = "fitted: to the measured points", "predicted: bytes a token of the pool"
COUNTED_SCORES = "predicted: 4 heads N^2 bytes"


def document(r: FeelReport, version: str) -> ReportDocument:
    """Memory, waits and speeds of one run in figures."""
    setup = Setup(
        {"host": machine_name(), "threads": r.threads}, {"ridgeline": version, "python": platform.python_version()},
        settings={"model": r.model}, commands=(command_line(),), date=now(),
    )  # fmt: skip
    end = max(w.end_s for w in (*r.one_by_one, *r.together))
    queues = tuple(_queue(title, people, end) for title, people in (("one after the other", r.one_by_one), ("together", r.together)))
    memory = Table(
        "Memory of the process", ("when", "MB"),
        (("before loading", r.before_bytes / 1e6), ("after loading", r.loaded_bytes / 1e6), ("of it weights", r.weights_bytes / 1e6)),
    )  # fmt: skip
    alone, together = r.one_by_one[-1].queue_s, r.together[-1].queue_s
    rates = (f"{r.tok_s(p):.1f} tok/s with {r.itl_s(p) * 1e3:.1f} ms between one's tokens {how}"
             for how, p in (("one after the other", r.one_by_one), ("together", r.together)))  # fmt: skip
    notes = (
        f"TTFT = {r.ttft_fit}, fitted to the measured lengths n.",
        f"The last of {len(r.one_by_one)} people waits {alone:.2f} s one after the other, {together:.2f} s when they are served together.",
        f"{', '.join(rates)}.",
        f"Others had {r.others:.0%} of the processors meanwhile.",
    )
    title = f"{r.model}: where serving hurts"
    return ReportDocument("bench feel", title, setup, plots=_plots(r), gantts=queues, tables=(memory,), notes=notes)


def _plots(r: FeelReport) -> tuple[Plot, ...]:
    first = tuple((float(row.tokens), row.ttft_s * 1e3) for row in r.rows)
    fit = tuple((n, r.ttft_fit.at(n) * 1e3) for n, _ in first)
    resident = tuple((float(row.tokens), row.resident_bytes / 1e6) for row in r.rows)
    held = tuple((float(row.tokens), row.kv_bytes / 1e6) for row in r.rows)
    peak = tuple((float(row.tokens), row.peak_bytes / 1e6) for row in r.rows if row.peak_bytes is not None)
    scores = tuple((float(row.tokens), row.scores_bytes / 1e6) for row in r.rows)
    beyond = (Line("most beyond what was there before", peak), Line("N x N scores of one layer, never held", scores, COUNTED_SCORES))
    return (
        Plot("Time to the first token", "tokens of the prompt", "ms", (Line("measured", first), Line("fit", fit, FITTED))),
        Plot("Memory by prompt", "tokens of the prompt", "MB", (Line("resident", resident), Line("KV it holds", held, COUNTED))),
        *((Plot("What reading a prompt takes", "tokens of the prompt", "MB", beyond),) if peak else ()),
    )


def _queue(title: str, people: Sequence[Waiting], end_s: float) -> Gantt:
    bars = tuple(Bar(w.name, 0.0, w.queue_s, w.first_s, w.end_s) for w in people)
    return Gantt(f"{len(people)} people who ask at once, {title}", bars, end_s=end_s, group="people")
