"""A simulated run as a report document: Gantt of requests (static beside continuous from the same arrivals), KV over time, CDFs, tables.

Every bar and every value is a simulated time; none is drawn by hand. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.bench.outcome import DEFINITIONS, times
from ridgeline.bench.plots_bars import MOST_ROWS
from ridgeline.bench.replica import Live
from ridgeline.bench.report_cells import percent
from ridgeline.bench.report_schema import (
    Bar,
    Cell,
    Distribution,
    Gantt,
    Line,
    Plot,
    ReportDocument,
    Setup,
    Table,
)
from ridgeline.bench.simulate import Run
from ridgeline.bench.stats import quantiles

VALUES = 201  # of a distribution
SERIES = {"ttft_ms": "TTFT", "queue_ms": "queue", "itl_ms": "ITL", "tpot_ms": "TPOT", "e2e_ms": "e2e"}
LABEL = "simulated"
Outcomes = Sequence[tuple[str, Run, Mapping[str, Any]]]


def document(title: str, runs: Outcomes, setup: Setup, notes: Sequence[str] = ()) -> ReportDocument:
    """runs: (name, run, outcome), all of one workload. notes: what a reader must know of the times."""
    usage = tuple(Line(name, tuple(found["kv_over_time"]), LABEL) for name, _, found in runs if found["kv_over_time"])
    plots = (Plot("KV blocks in use over time", "seconds", "share of the KV pool", usage, "kv_time", "%"),) if usage else ()
    return ReportDocument(
        "simulate", title, setup, distributions=tuple(d for name, run, _ in runs for d in _distributions(name, run)), plots=plots,
        gantts=tuple(gantt(name, run, found) for name, run, found in runs),
        tables=(_rates(runs), *(_percentiles(name, found) for name, _, found in runs)),
        definitions={k.removesuffix("_ms"): v for k, v in DEFINITIONS.items()}, notes=(*_gain(runs), *notes),
    )  # fmt: skip


def _gain(runs: Outcomes) -> list[str]:
    """What the second run of two changed, in words."""
    if len(runs) != 2:
        return []
    (first, _, a), (second, _, b) = runs
    if not a["output_tok_s"] or not b["output_tok_s"] or a["slots_idle"] is None or b["slots_idle"] is None:
        return []
    idle = f"{second} leaves {b['slots_idle']:.1%} of the sequence slots idle, {first} {a['slots_idle']:.1%}"
    return [f"{idle}; it makes {b['output_tok_s'] / a['output_tok_s']:.2f}x the tokens per second from the same arrivals."]


def gantt(name: str, run: Run, found: Mapping[str, Any]) -> Gantt:
    """The first requests that had an answer, in order of arrival."""
    shown = sorted((live for live in run.lives if live.token_s), key=lambda live: live.job.arrival_s)[:MOST_ROWS]
    return Gantt(name, tuple(_bar(live) for live in shown), found["slots_idle"], found["output_tok_s"], run.end_s, run.workload, LABEL)


def _bar(live: Live) -> Bar:
    return Bar(live.job.id, live.job.arrival_s, max(live.job.arrival_s, live.admitted_s), live.first_s, live.token_s[-1])


def _distributions(name: str, run: Run) -> list[Distribution]:
    series = times([live for live in run.lives if live.token_s])
    return [Distribution(said, name, quantiles(series[key] * 1e3, VALUES), "ms", LABEL) for key, said in SERIES.items() if len(series[key])]


def _rates(runs: Outcomes) -> Table:
    def column(found: Mapping[str, Any]) -> list[Cell]:
        used = found["kv_used"]
        return [
            f"{found['completed']} of {found['requests']}", found["output_tokens"], found["seconds"], found["output_tok_s"],
            found["total_tok_s"], found["requests_s"], found["goodput_s"], percent(found["goodput_share"]), percent(found["slots_idle"]),
            percent(found["utilization"]["mean"]), percent(used["mean"]) if used else None, percent(used["max"]) if used else None,
            percent(found["prefix_hit_rate"]), found["preemptions"], found["usd_per_mtok"],
        ]  # fmt: skip

    names = (
        "requests done", "output tokens", "seconds", "output tok/s", "total tok/s", "requests/s", "goodput, requests/s", "goodput share",
        "idle sequence slots", "devices busy", "KV in use, mean", "KV in use, most", "prefix hits of prompt tokens", "preemptions",
        "$ per million output tokens",
    )  # fmt: skip
    columns = [column(found) for _, _, found in runs]
    return Table("What it came to", ("", *(name for name, _, _ in runs)), tuple(zip(names, *columns, strict=True)), "", LABEL)


def _percentiles(name: str, found: Mapping[str, Any]) -> Table:
    heads = ("mean", "p50", "p90", "p95", "p99", "max")
    keys = ("ttft_ms", "queue_ms", "prefill_ms", "itl_ms", "tpot_ms", "e2e_ms")
    rows = tuple((key[:-3], *(round(found[key][h], 3) for h in heads)) for key in keys if found[key] is not None)
    return Table(f"{name}, ms", ("", *heads), rows, "", LABEL)
