"""A `bench serve` result as one JSON document, and as the report's document. Shapes only: every number was computed elsewhere."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ridgeline.bench.client_metrics import DEFINITIONS, Outcome
from ridgeline.bench.load_workloads import Preset
from ridgeline.bench.plots_bars import MOST_ROWS
from ridgeline.bench.record import machine_name, now
from ridgeline.bench.report_json import to_json
from ridgeline.bench.report_schema import (
    Bar,
    Cell,
    Curve,
    Distribution,
    Gantt,
    Line,
    LoadPoint,
    Percentiles,
    Plot,
    Prediction,
    ReportDocument,
    Setup,
    TurnPoint,
)
from ridgeline.bench.serve import ServeResult
from ridgeline.bench.serve_cells import Cell as LoadCell
from ridgeline.bench.stats import Summary, interval_of_median, quantiles
from ridgeline.planner.units import milliseconds

MAX_VALUES = 2000


def document(result: ServeResult, ours: str = "") -> dict[str, Any]:
    """Plain values: what a run says of itself, cells, definitions, and the report's document under "report". ours: our version."""
    asked, server = result.asked, result.server
    promise = asked.promise
    return {
        "kind": "bench serve", "date": now(), "command": result.command,
        "engine": {
            "name": server.name, "url": server.target.url, "model": server.model, "command": server.command, "version": server.version,
            "start_s": server.ready_s, "log": server.log,
        },
        "workload": _workload(asked.preset) | {
            "trace": None if asked.trace is None else str(asked.trace), "requests": asked.count, "seed": asked.seed, "salt": result.salt,
            "kept_cache": asked.keep_cache, "scale": asked.scale, "ignore_eos": asked.ignore_eos, "temperature": asked.temperature,
            "burst": asked.burst, "slo_ttft_ms": milliseconds(promise.ttft_s), "slo_tpot_ms": milliseconds(promise.tpot_s),
            "characters_per_token": result.warm.characters, "characters_per_token_from": result.warm.characters_from,
        },
        "machine": machine(), "warm_up": asdict(result.warm), "cells": [cell_json(c) for c in result.cells],
        "tokens": None if result.tokens is None else asdict(result.tokens) | {"agrees": result.tokens.agrees},
        "knee": result.knee, "saturated": result.saturated, "definitions": DEFINITIONS, "report": to_json(report(result, ours)),
    }  # fmt: skip


def cell_json(cell: LoadCell) -> dict[str, Any]:
    """figures of the cell and of each turn; what the server said; who disturbed it."""
    view = cell.server
    told = None
    if view is not None:
        told = {"queue_ms_mean": view.queue_ms, "prefill_ms_mean": view.prefill_ms, "preemptions": view.preemptions}
    return {
        "load": {cell.kind: cell.load}, "started": cell.started, "salt": cell.salt, "tries": cell.tries, "unsent_sessions": cell.unsent,
        "peak_sessions": cell.peak_active, "growing": cell.growing, "figures": cell.figures.as_json(),
        "turns": [t.as_json() for t in cell.turns],
        "predicted": None if cell.forecast is None else asdict(cell.forecast) | {"error": errors(cell)},
        "server": told,
        "noise": None if cell.noise is None else asdict(cell.noise) | {"disturbed": cell.noise.disturbed},
        "late_ms_max": max(((o.sent_s - o.arrival_s) * 1e3 for o in cell.outcomes), default=None),
        "lengths": {"prompt": [o.reading.prompt_tokens for o in cell.outcomes], "output": [o.reading.output_tokens for o in cell.outcomes]},
    }  # fmt: skip


def records(cell: LoadCell) -> list[dict[str, Any]]:
    """One plain object per request, times in seconds from the first arrival: what the figures can be computed from again."""
    zero = min((o.arrival_s for o in cell.outcomes), default=0.0)
    return [
        {
            "load": cell.load, "id": o.id, "turn": o.turn, "arrival_s": o.arrival_s - zero, "sent_s": o.sent_s - zero,
            "end_s": o.end_s - zero,
            "piece_s": [p.at_s - zero for p in o.reading.pieces], "choice": [p.choice for p in o.reading.pieces],
            "prompt_tokens": o.reading.prompt_tokens, "output_tokens": o.reading.output_tokens, "cached_tokens": o.reading.cached_tokens,
            "finish": o.reading.finish, "error": o.reading.error, "text": o.reading.text,
        }
        for o in cell.outcomes
    ]  # fmt: skip


def report(result: ServeResult, ours: str = "") -> ReportDocument:
    """Curve, distributions, Gantt and KV over time for `bench report`."""
    asked, server = result.asked, result.server
    name, promise = server.name, asked.promise
    closed = all(c.kind == "concurrency" for c in result.cells)
    curve = Curve(
        name, asked.workload, tuple(point(c) for c in result.cells), "concurrency" if closed else "rate",
        milliseconds(promise.ttft_s), milliseconds(promise.tpot_s), result.knee, result.saturated,
    )  # fmt: skip
    return ReportDocument(
        "bench serve", f"{name}: {asked.workload}", setup(result, ours), (curve,), tuple(_distributions(name, result.cells)),
        plots=tuple(_kv_plots(name, result.cells)), gantts=tuple(_gantt(name, c) for c in result.cells[:1] + result.cells[1:][-1:]),
        predictions=tuple(p for c in result.cells for p in predictions(result, c)),
        definitions=DEFINITIONS | {f"workload {asked.workload}": about(result)}, notes=tuple(notes(result)),
    )  # fmt: skip


def setup(result: ServeResult, ours: str = "") -> Setup:
    asked, server = result.asked, result.server
    versions = {"ridgeline": ours, "python": platform.python_version()} | server.versions
    settings: dict[str, Cell] = {
        "workload": asked.workload, "requests": asked.count, "scale": asked.scale, "ignore_eos": asked.ignore_eos, "model": server.model,
        "url": server.target.url, "salt": result.salt,
    }  # fmt: skip
    fixed = {"input_len": asked.input_len, "output_len": asked.output_len, "file": server.file}
    settings |= {name: value for name, value in fixed.items() if value is not None}
    commands = (result.command, *([server.command] if server.command else []))
    return Setup(machine(), versions, {"workload": asked.seed}, settings, commands, date=now())


def about(result: ServeResult) -> str:
    """What the workload is for, and how requests come."""
    asked, p = result.asked, result.asked.preset
    if asked.trace is not None:
        return f"A trace replays requests as they came: arrivals and lengths are the file's, only the promise is that of {p.name}."
    return f"{p.name} optimises {p.metric}: {p.why}. Arrival: {p.arrival}."


def notes(result: ServeResult) -> list[str]:
    """What a reader must know before believing the numbers."""
    found = []
    if result.tokens is not None and not result.tokens.agrees:
        t = result.tokens
        found.append(f"the server says {t.usage} output tokens, the tokenizer counts {t.counted} in the same text: tok/s do not compare")
    if result.server.log is not None and any(c.figures.failed for c in result.cells):
        found.append(f"what the engine said is in {result.server.log}")
    for c in result.cells:
        at, f = f"at {c.kind} {c.load:g}", c.figures
        if f.failed:
            found.append(f"{at}: {f.failed} of {f.requests} requests failed ({'; '.join(f'{n}x {why}' for why, n in f.failures.items())})")
        if c.unsent:
            found.append(f"{at}: the time limit left {c.unsent} sessions out")
        if c.noise is not None and c.noise.disturbed:
            found.append(f"{at}: others took {c.noise.taken:.0%} of the CPUs, in the best of {c.tries} tries")
        if c.noise is not None and c.noise.client > 0.5:
            found.append(f"{at}: this client used {c.noise.client:.0%} of a core: it may be what is measured")
        if f.usage_missing:
            found.append(f"{at}: the server gave no usage for {f.usage_missing} requests, their tokens are counted as events")
        if f.itl_basis.get("events") and f.events_per_token is not None and f.events_per_token < 0.95:
            found.append(f"{at}: {f.events_per_token:.2f} events a token: ITL is of events, compare TPOT instead")
    return found


def point(cell: LoadCell) -> LoadPoint:
    f, noise, p = cell.figures, cell.noise, cell.forecast
    return LoadPoint(
        cell.load, f.requests, f.failed, f.output_tok_s, f.total_tok_s, f.requests_s, f.goodput_s,
        percentiles(f.ttft_ms, [o.ttft_s * 1e3 for o in cell.outcomes if o.ok]), percentiles(f.itl_ms), percentiles(f.tpot_ms),
        percentiles(f.e2e_ms), hit_rate=f.hit_rate, steal=None if noise is None else noise.steal,
        others=None if noise is None else noise.others, predicted_output_tok_s=None if p is None else p.output_tok_s,
        predicted_ttft_ms=None if p is None else p.ttft_ms, predicted_tpot_ms=None if p is None else p.tpot_ms, seconds=f.seconds,
        turns=tuple(
            TurnPoint(i, t.requests, t.failed, percentiles(t.ttft_ms), percentiles(t.e2e_ms), t.hit_rate)
            for i, t in enumerate(cell.turns, 1)
        ),
    )  # fmt: skip


def percentiles(s: Summary | None, values: Sequence[float] = ()) -> Percentiles | None:
    """values: all of them, where an interval of the median is wanted."""
    if s is None:
        return None
    low, high = interval_of_median(values) or (None, None)
    return Percentiles(s.p50, s.p90, s.p95, s.p99, s.mean, s.max, low, high)


def pairs(cell: LoadCell) -> list[tuple[str, float, float]]:
    """(metric, predicted, measured) where both are known."""
    f, p = cell.figures, cell.forecast
    if p is None:
        return []
    found = [
        ("throughput tok/s", p.output_tok_s, f.output_tok_s), ("TTFT p50 ms", p.ttft_ms, None if f.ttft_ms is None else f.ttft_ms.p50),
        ("TPOT p50 ms", p.tpot_ms, None if f.tpot_ms is None else f.tpot_ms.p50),
    ]  # fmt: skip
    return [(name, a, b) for name, a, b in found if a and b]


def errors(cell: LoadCell) -> dict[str, float]:
    """predicted / measured - 1 of each metric."""
    return {name: a / b - 1 for name, a, b in pairs(cell)}


def predictions(result: ServeResult, cell: LoadCell) -> list[Prediction]:
    what = f"{result.server.model}, {result.asked.workload}, {cell.kind} {cell.load:g}"
    steal = None if cell.noise is None else cell.noise.steal
    label = "fitted" if cell.forecast is None else f"fitted: calibrated {cell.forecast.calibrated}"
    return [Prediction(what, name, a, b, steal, label) for name, a, b in pairs(cell)]


def _distributions(name: str, cells: Sequence[LoadCell]) -> list[Distribution]:
    found = []
    for c in cells:
        done = [o for o in c.outcomes if o.ok]
        for metric, values in (
            ("TTFT", [o.ttft_s for o in done]), ("ITL", [g for o in done for g in o.reading.gaps()]),
            ("TPOT", [t for o in done if (t := o.tpot_s) is not None]), ("e2e", [o.e2e_s for o in done]),
        ):  # fmt: skip
            if values:
                found.append(Distribution(metric, f"{name}, {c.kind} {c.load:g}", quantiles([v * 1e3 for v in values], MAX_VALUES)))
    return found


def _kv_plots(name: str, cells: Sequence[LoadCell]) -> list[Plot]:
    lines = tuple(Line(f"{name}, {c.kind} {c.load:g}", c.server.kv) for c in cells if c.server is not None and len(c.server.kv) > 1)
    return [Plot("KV cache in use", "seconds", "share of KV blocks", lines, "kv_time", "%")] if lines else []


def _gantt(name: str, cell: LoadCell) -> Gantt:
    """Waiting is told from reading only where the server says how long it read."""
    done = sorted((o for o in cell.outcomes if o.ok), key=lambda o: o.arrival_s)[:MOST_ROWS]
    zero = min((o.arrival_s for o in done), default=0.0)
    bars = tuple(_bar(o, zero) for o in done)
    end = max((b.last_s for b in bars), default=None)
    return Gantt(f"{name}, {cell.kind} {cell.load:g}", bars, output_tok_s=cell.figures.output_tok_s, end_s=end)


def _bar(o: Outcome, zero: float) -> Bar:
    first = o.arrival_s + o.ttft_s
    admitted = o.arrival_s if o.reading.prefill_s is None else max(o.arrival_s, first - o.reading.prefill_s)
    return Bar(o.id, o.arrival_s - zero, admitted - zero, first - zero, o.arrival_s + o.e2e_s - zero)


def _workload(p: Preset) -> dict[str, Any]:
    return {"name": p.name, "about": p.about, "optimises": p.metric, "why": p.why, "arrival": p.arrival, "endpoint": p.endpoint,
            "prompt_tokens": asdict(p.prompt), "output_tokens": asdict(p.output), "shared_tokens": p.shared, "variants": p.variants,
            "turns": p.turns, "n": p.n}  # fmt: skip


def machine() -> dict[str, str]:
    return {"host": machine_name(), "system": platform.platform()}
