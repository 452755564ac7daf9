"""The sections of a report: what each part of a `ReportDocument` looks like in figures and tables. Computes ratios, gains and errors only.

Ratios are of measured numbers; nothing is smoothed, and what is worse stands there like what is better.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from ridgeline.bench.plots import Note, Rule, Series, cdf_plot, line_plot, roofline_plot
from ridgeline.bench.plots_bars import MOST_ROWS, gantt_plot
from ridgeline.bench.report_blocks import Beside, Block, Commands, Figure, Folded, Grid, Heading, Words, shown
from ridgeline.bench.report_schema import Bar, Cell, Curve, Gantt, LoadPoint, Percentiles, Plot, Prediction, ReportDocument
from ridgeline.bench.svg import Axis, short

# Columns of a sweep's table -> the key of their definition.
COLUMNS = {
    "output tok/s": "output_tok_s", "total tok/s": "total_tok_s", "requests/s": "requests_s", "goodput/s": "goodput_s", "TTFT": "ttft_ms",
    "ITL": "itl_ms", "TPOT": "tpot_ms", "cache hits": "hit_rate",
}  # fmt: skip
FIGURE = "Figure in the HTML report: {}."


def reported(label: str) -> bool:
    """Whether somebody else measured it: such numbers never stand among our own."""
    return label.partition(":")[0] == "reported"


def setup_part(documents: Sequence[ReportDocument]) -> Iterator[Block]:
    """Machine, versions, seeds, settings, ceilings and commands; what several documents share is said once."""
    yield Heading("Set-up")
    sides = []
    for name in ("machine", "versions", "seeds", "settings"):
        merged: dict[tuple[str, Cell], list[str]] = {}
        for d in documents:
            facts: Mapping[str, Cell] = getattr(d.setup, name)
            for k, v in facts.items():
                merged.setdefault((k, v), []).append(d.title)
        if merged:
            alike = all(len(set(where)) == len({d.title for d in documents}) for where in merged.values())
            columns = ("", "") if alike else ("", "", "in")
            rows = [(k, v) if alike else (k, v, ", ".join(dict.fromkeys(where))) for (k, v), where in merged.items()]
            sides.append(Grid(name.capitalize(), columns, [tuple(_fact(*pair) for pair in enumerate(row)) for row in rows]))
    alone = [g for g in sides if len(g.columns) > 2]
    yield Beside([g for g in sides if g not in alone])
    yield from alone
    ceilings = {(c.name, c.value, c.unit, c.label) for d in documents for c in d.setup.ceilings}
    if ceilings:
        yield Grid("Machine ceilings", ("ceiling", "value", "unit", "label"), sorted(ceilings))
    lines = list(dict.fromkeys(line for d in documents for line in d.setup.commands))
    if lines:
        yield Words("Commands, as they ran:")
        yield Commands(lines)


def _fact(column: int, value: Cell) -> Cell:
    """Values stand to the left, under one another, whatever they are."""
    return shown(value) if column == 1 else value


def curve_part(documents: Sequence[ReportDocument]) -> Iterator[Block]:
    """Latency against throughput, engines of a workload in one figure, and every cell in a table."""
    curves = list(_told_apart(documents))
    if not curves:
        return
    yield Heading("Latency and throughput")
    for workload, load in dict.fromkeys((c.workload, c.load) for c in curves):
        group = [c for c in curves if (c.workload, c.load) == (workload, load)]
        title = f"{workload}: latency against throughput"
        yield Figure(_curve_figure(title, group, load), FIGURE.format(title))
        yield Figure(_load_figure(f"{workload}: throughput against {_load_words(load)}", group, load), "")
        yield Figure(_time_figure(f"{workload}: time per token against {_load_words(load)}", group, load), "")
        for curve in group:
            yield cells_grid(curve)
        meant = {k: v for d in documents for k, v in d.definitions.items() if d.curves}
        pairs = [(name, meant[key]) for name, key in COLUMNS.items() if key in meant]
        if pairs:
            yield Folded("What the columns mean", pairs)


def _told_apart(documents: Sequence[ReportDocument]) -> Iterator[Curve]:
    """Own curves; an engine of the same name in another document is named with that document."""
    found = [(d.title, c) for d in documents for c in d.curves if not reported(c.label)]
    names = [(c.engine, c.workload, c.load) for _, c in found]
    for title, c in found:
        alone = names.count((c.engine, c.workload, c.load)) == 1
        yield c if alone else replace(c, engine=f"{c.engine} ({title})")


def _load_words(load: str) -> str:
    return "requests at once" if load == "concurrency" else "requests per second"


def _curve_figure(title: str, group: Sequence[Curve], load: str) -> str:
    series, notes = [], []
    for c in group:
        points = [(p.output_tok_s, p.tpot_ms.p50, p.load) for p in c.points if p.output_tok_s is not None and p.tpot_ms is not None]
        series.append(Series(c.engine, [(x, y) for x, y, _ in points]))
        notes += [Note(x, y, f"knee at {at:g}") for x, y, at in points if c.knee == at]
    promises = {c.slo_tpot_ms for c in group if c.slo_tpot_ms is not None}
    rules = [Rule("y", v, f"SLO {v:g} ms", bad=True) for v in sorted(promises)]
    note = f"Each mark is one load ({_load_words(load)}, rising along the line); to the right and down is better."
    return line_plot(title, Axis("output tok/s"), Axis("TPOT p50, ms"), series, rules=rules, notes=notes, note=note)


def _load_figure(title: str, group: Sequence[Curve], load: str) -> str:
    series = [Series(c.engine, [(p.load, p.output_tok_s) for p in c.points if p.output_tok_s is not None]) for c in group]
    for i, c in enumerate(group):
        predicted = [(p.load, p.predicted_output_tok_s) for p in c.points if p.predicted_output_tok_s is not None]
        if predicted:
            series.append(Series(f"{c.engine}, predicted", predicted, "line", i))
    return line_plot(title, Axis(_load_words(load)), Axis("output tok/s"), series)


def _time_figure(title: str, group: Sequence[Curve], load: str) -> str:
    """TPOT, with what was predicted for it, the promise, and the best load: the last that keeps it, or the knee."""
    timed = [[(p.load, p.tpot_ms.p50) for p in c.points if p.tpot_ms is not None] for c in group]
    series, notes = [Series(c.engine, at) for c, at in zip(group, timed, strict=True)], []
    for i, (c, at) in enumerate(zip(group, timed, strict=True)):
        predicted = [(p.load, p.predicted_tpot_ms) for p in c.points if p.predicted_tpot_ms is not None]
        if predicted:
            series.append(Series(f"{c.engine}, predicted", predicted, "line", i))
        kept = [p for p in at if c.slo_tpot_ms is not None and p[1] <= c.slo_tpot_ms]
        chosen = [p for p in at if p[0] == c.knee] if c.slo_tpot_ms is None else kept[-1:]
        notes += [Note(x, y, f"best: {x:g}") for x, y in chosen]
    promises = {c.slo_tpot_ms for c in group if c.slo_tpot_ms is not None}
    rules = [Rule("y", v, f"SLO {v:g} ms", bad=True) for v in sorted(promises)]
    return line_plot(title, Axis(_load_words(load)), Axis("TPOT p50, ms"), series, rules=rules, notes=notes)


def cells_grid(c: Curve) -> Grid:
    """Every cell of a sweep."""

    def three(p: Percentiles | None) -> str:
        return "-" if p is None else " / ".join("-" if v is None else short(v) for v in (p.p50, p.p95, p.p99))

    def row(p: LoadPoint) -> tuple[Cell, ...]:
        failed = f"{p.failed} of {p.requests}" if p.failed else str(p.requests)
        return (
            p.load, failed, p.output_tok_s, p.total_tok_s, p.requests_s, p.goodput_s, three(p.ttft_ms), three(p.itl_ms), three(p.tpot_ms),
            percent(p.hit_rate), percent(p.steal), percent(p.others),
        )  # fmt: skip

    columns = [
        "at once" if c.load == "concurrency" else "requests/s sent", "requests (failed)", "output tok/s", "total tok/s", "requests/s",
        "goodput/s", "TTFT ms", "ITL ms", "TPOT ms", "cache hits", "steal", "others' CPU",
    ]  # fmt: skip
    rows = [row(p) for p in c.points]
    kept = [i for i in range(len(columns)) if any(r[i] not in (None, "-") for r in rows)]
    said = ["Latencies are p50 / p95 / p99."]
    if c.knee is not None:
        said.append(f"Knee at {c.knee:g}.")
    if c.saturated is not None:
        said.append(f"Over-saturated, and stopped, at {c.saturated:g}.")
    goals = [f"{n} within {v:g} ms" for n, v in (("TTFT", c.slo_ttft_ms), ("TPOT", c.slo_tpot_ms)) if v is not None]
    if goals:
        said.append(f"Goodput counts requests with {' and '.join(goals)}.")
    title = f"{c.engine}, {c.workload}"
    return Grid(title, [columns[i] for i in kept], [[r[i] for i in kept] for r in rows], " ".join(said), c.label)


def percent(share: float | None) -> Cell:
    return None if share is None else f"{share:.1%}"


def distribution_part(documents: Sequence[ReportDocument]) -> Iterator[Block]:
    """One CDF for each metric; what was simulated or predicted never shares a figure with what was measured."""
    found = [(document.title, d) for document in documents for d in document.distributions]
    if found:
        yield Heading("Distributions")
    drawn = []
    for metric, unit, kind in dict.fromkeys((d.metric, d.unit, d.label.partition(":")[0]) for _, d in found):
        group = [(title, d) for title, d in found if (d.metric, d.unit, d.label.partition(":")[0]) == (metric, unit, kind)]
        names = [d.name for _, d in group]
        samples = [(d.name if names.count(d.name) == 1 else f"{title}: {d.name}", d.values) for title, d in group]
        words = f"{metric}: cumulative distribution" + ("" if kind == "measured" else f", {kind}")
        drawn.append(cdf_plot(words, f"{metric}, {unit}", samples, size=(350, 250)))
    if drawn:
        names = list(dict.fromkeys(d.metric for _, d in found))
        yield Figure(f'<div class="many">{"".join(drawn)}</div>', FIGURE.format(f"CDFs of {', '.join(names)}"))


def roofline_part(documents: Sequence[ReportDocument]) -> Iterator[Block]:
    found = [r for d in documents for r in d.rooflines]
    if found:
        yield Heading("Roofline")
    for r in found:
        points = [(f"{p.name} ({p.label.partition(':')[0]})", p.intensity, p.gflop_s) for p in r.points]
        drawn = roofline_plot(f"Roofline of {r.title}", r.read_gb_s, [(f.name, f.gflop_s) for f in r.roofs], points, note=r.label)
        yield Figure(drawn, "")
        rows = []
        peak = max((f.gflop_s for f in r.roofs), default=0.0)
        for p in r.points:
            slope = p.intensity * r.read_gb_s
            best, bound = min(peak, slope), "memory" if slope < peak else "compute"
            rows.append((p.name, p.intensity, p.gflop_s, best, percent(p.gflop_s / best if best else None), bound, p.label))
        columns = ("point", "FLOP/byte", "GFLOP/s", "roof there", "of the roof", "bound by", "label")
        if rows:
            yield Grid(f"Points on the roofline of {r.title}", columns, rows)


def plot_part(documents: Sequence[ReportDocument]) -> Iterator[Block]:
    """KV usage over time, against users and context, and whatever else was plotted."""
    plots = [p for d in documents for p in d.plots]
    for heading, chosen in (
        ("KV usage", [p for p in plots if p.kind != "other"]),
        ("More figures", [p for p in plots if p.kind == "other"]),
    ):
        if chosen:
            yield Heading(heading)
        for p in chosen:
            yield Figure(plot_figure(p), FIGURE.format(p.title))


def plot_figure(p: Plot) -> str:
    y = Axis(p.y_label, log=p.log_y, percent=p.y_unit == "%")
    labels = {line.label.partition(":")[0] for line in p.lines}
    kind = "line" if any(len(line.points) > 40 for line in p.lines) else "both"
    series = [Series(line.name, line.points, "line" if kind == "line" else "both") for line in p.lines]
    return line_plot(p.title, Axis(p.x_label, log=p.log_x), y, series, note=", ".join(sorted(labels)))


def gantt_part(documents: Sequence[ReportDocument]) -> Iterator[Block]:
    """Charts of one group under one time scale, each with its idle share in words, and what one gained over the other."""
    found = [g for d in documents for g in d.gantts]
    if not found:
        return
    yield Heading("Requests in time")
    for group in dict.fromkeys(g.group or g.title for g in found):
        charts = [g for g in found if (g.group or g.title) == group]
        until = max((b.last_s for g in charts for b in first_bars(g)), default=None)
        for g in charts:
            rest = [f"{g.idle:.1%} of the sequence slots are idle while a step runs"] if g.idle is not None else []
            rest += [f"{short(g.output_tok_s)} tok/s"] if g.output_tok_s is not None else []
            rest += [f"all done after {g.end_s:.2f} s"] if g.end_s is not None else []
            said = f"{g.title} ({g.label}): {', '.join(rest)}"
            yield Figure(gantt_plot(g.title, g.bars, until=until, note=", ".join([*rest, g.label])), said)
        rated = [g for g in charts if g.output_tok_s]
        if len(rated) == 2 and rated[0].output_tok_s and rated[1].output_tok_s:
            a, b = rated[0], rated[1]
            yield Words(f"{b.title} makes {rated[1].output_tok_s / rated[0].output_tok_s:.2f}x the tokens per second of {a.title}.")


def first_bars(g: Gantt) -> list[Bar]:
    """Those that are drawn."""
    return sorted(g.bars, key=lambda b: b.arrival_s)[:MOST_ROWS]


def prediction_part(documents: Sequence[ReportDocument]) -> Iterator[Block]:
    """Predicted beside measured, each cell's error, and the medians."""
    found = [p for d in documents for p in (*d.predictions, *(p for c in d.curves for p in curve_predictions(c)))]
    if not found:
        return
    yield Heading("Predicted beside measured")
    drawn = []
    for metric in dict.fromkeys(p.metric for p in found):
        cells = [p for p in found if p.metric == metric]
        errors = [abs(error(p)) for p in cells if p.measured]
        rows = [(p.what, p.predicted, p.measured, f"{error(p):+.1%}" if p.measured else None, percent(p.steal), p.label) for p in cells]
        worst = max(cells, key=lambda p: abs(error(p)) if p.measured else 0.0)
        words = f"Median error {median(errors):.1%}, worst {max(errors):.1%} ({worst.what})." if errors else ""
        yield Grid(metric, ("cell", "predicted", "measured", "error", "steal", "prediction is"), rows, words)
        drawn.append(_agreement(metric, cells))
    yield Figure(f'<div class="many">{"".join(drawn)}</div>', FIGURE.format("predicted against measured"))


def curve_predictions(c: Curve) -> Iterator[Prediction]:
    """Cells of a sweep whose numbers were predicted before they were measured."""
    for p in c.points:
        cell = f"{c.engine}, {c.workload}, {p.load:g} {_load_words(c.load)}"
        for metric, predicted, measured in (
            ("output tok/s", p.predicted_output_tok_s, p.output_tok_s),
            ("TPOT p50, ms", p.predicted_tpot_ms, p.tpot_ms.p50 if p.tpot_ms else None),
            ("TTFT p50, ms", p.predicted_ttft_ms, p.ttft_ms.p50 if p.ttft_ms else None),
        ):
            if predicted is not None and measured is not None:
                yield Prediction(cell, metric, predicted, measured, p.steal, "predicted")


def error(p: Prediction) -> float:
    """Of the prediction, as a share of what was measured; infinite where nothing was."""
    return p.predicted / p.measured - 1 if p.measured else float("inf")


def _agreement(metric: str, cells: Sequence[Prediction]) -> str:
    both = [v for p in cells for v in (p.predicted, p.measured) if v > 0]
    if not both:
        return ""
    low, high = min(both) / 1.3, max(both) * 1.3
    x, y = Axis(f"measured {metric}", log=True, low=low, high=high), Axis(f"predicted {metric}", log=True, low=low, high=high)
    lines = [Series("cells", [(p.measured, p.predicted) for p in cells], "points"), Series("exact", [(low, low), (high, high)], "line", 6)]
    over, under = [(low, 1.25 * low), (high / 1.25, high)], [(low / 0.75, low), (high, 0.75 * high)]
    off = [Series("25% off", over, "line", 4), Series("25% off", under, "line", 4, quiet=True)]
    return line_plot(f"{metric}: predicted against measured", x, y, [*lines, *off], size=(350, 300))


def table_part(documents: Sequence[ReportDocument]) -> Iterator[Block]:
    found = [t for d in documents for t in d.tables if not reported(t.label)]
    if found:
        yield Heading("Tables")
    for t in found:
        yield Grid(t.title, t.columns, t.rows, t.note, t.label, sources=t.sources)
