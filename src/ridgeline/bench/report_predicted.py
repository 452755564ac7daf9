"""Predicted beside measured: errors of every source and metric, every cell on demand, what was fitted said once.

A roofline's fastest is a bound that no run passes: it is shown as the share that was reached, and counted in no error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from ridgeline.bench.plots import Series, line_plot
from ridgeline.bench.report_blocks import Block, Figure, Grid, Heading, Opening, Words
from ridgeline.bench.report_schema import Cell, Curve, Prediction, ReportDocument
from ridgeline.bench.svg import Axis

FIGURE = "Figure in the HTML report: {}."
LEAST_DRAWN = 2  # cells of a figure
BOUNDS = ("roofline's fastest", "roofline's least time")


def bound(p: Prediction) -> bool:
    """Whether it is no prediction but the fastest that the ceilings allow."""
    return any(words in p.label for words in BOUNDS)


def error(p: Prediction) -> float:
    """Of the prediction, as a share of what was measured; infinite where nothing was."""
    return p.predicted / p.measured - 1 if p.measured else float("inf")


def errors(measured: Sequence[Prediction]) -> tuple[float, Prediction]:
    """(median size of the errors, the cell that is furthest off)"""
    return median(abs(error(p)) for p in measured), max(measured, key=lambda p: abs(error(p)))


def load_words(load: str) -> str:
    return "requests at once" if load == "concurrency" else "requests per second"


def curve_predictions(c: Curve) -> Iterator[Prediction]:
    """Cells of a sweep whose numbers were predicted before they were measured."""
    for p in c.points:
        cell = f"{c.engine}, {c.workload}, {p.load:g} {load_words(c.load)}"
        for metric, predicted, measured in (
            ("output tok/s", p.predicted_output_tok_s, p.output_tok_s),
            ("TPOT p50, ms", p.predicted_tpot_ms, p.tpot_ms.p50 if p.tpot_ms else None),
            ("TTFT p50, ms", p.predicted_ttft_ms, p.ttft_ms.p50 if p.ttft_ms else None),
        ):
            if predicted is not None and measured is not None:
                yield Prediction(cell, metric, predicted, measured, p.steal, c.predicted)


def of_document(d: ReportDocument) -> list[Prediction]:
    """All of one document; a cell of a sweep that it names twice counts once, with the words of its calibration."""
    drawn = [p for c in d.curves for p in curve_predictions(c)]
    twice = {(p.predicted, p.measured): p.label for p in d.predictions}
    seen = {(p.predicted, p.measured) for p in drawn}
    told = [Prediction(p.what, p.metric, p.predicted, p.measured, p.steal, twice.get((p.predicted, p.measured), p.label)) for p in drawn]
    return [*(p for p in d.predictions if (p.predicted, p.measured) not in seen), *told]


def predictions(documents: Sequence[ReportDocument]) -> Iterator[tuple[str, str, list[Prediction]]]:
    """(source, metric, cells): documents of one kind together."""
    found: dict[tuple[str, str], list[Prediction]] = {}
    for d in documents:
        for p in of_document(d):
            found.setdefault((d.kind, p.metric), []).append(p)
    for (kind, metric), cells in found.items():
        yield kind, metric, cells


def prediction_part(documents: Sequence[ReportDocument]) -> Iterator[Block]:
    """A line a source and metric, figures of agreement, and every cell, to be opened."""
    groups = [(kind, metric, [p for p in cells if not bound(p)]) for kind, metric, cells in predictions(documents)]
    groups = [g for g in groups if g[2]]
    bounds = [p for _, _, cells in predictions(documents) for p in cells if bound(p)]
    if not groups and not bounds:
        return
    yield Heading("Predicted beside measured")
    if groups:
        yield Grid("", ("from", "metric", "cells", "median error", "worst", "where"), [_summary(*g) for g in groups])
        yield from _from(list(dict.fromkeys(p.label for _, _, cells in groups for p in cells if ": " in p.label)))
        metrics = dict.fromkeys(metric for _, metric, _ in groups)
        drawn = [_agreement(metric, cells) for metric in metrics if len(cells := _of(metric, groups)) >= LEAST_DRAWN]
        yield Figure(f'<div class="many">{"".join(drawn)}</div>', FIGURE.format("predicted against measured"))
        for kind in dict.fromkeys(k for k, _, _ in groups):
            inner = [_cells(metric, cells) for k, metric, cells in groups if k == kind]
            yield Opening(f"Every cell of {kind}", inner)
    if bounds:
        yield _roofs(bounds)


def _of(metric: str, groups: Sequence[tuple[str, str, list[Prediction]]]) -> list[Prediction]:
    return [p for _, m, cells in groups if m == metric for p in cells]


def _from(labels: Sequence[str]) -> Iterator[Words]:
    """What predictions are from, once, not in every row."""
    for kind in dict.fromkeys(label.partition(": ")[0] for label in labels):
        sources = "; ".join(label.partition(": ")[2] for label in labels if label.partition(": ")[0] == kind)
        yield Words(f"Predictions that are {kind}: {sources}. Nothing that is measured here goes back into them.")


def _summary(kind: str, metric: str, cells: Sequence[Prediction]) -> tuple[Cell, ...]:
    known = [p for p in cells if p.measured]
    if not known:
        return (kind, metric, 0, None, None, "")
    middle, worst = errors(known)
    return (kind, metric, len(known), f"{middle:.1%}", f"{error(worst):+.1%}", worst.what)


def _cells(metric: str, cells: Sequence[Prediction]) -> Grid:
    known = [p for p in cells if p.measured]
    middle, worst = errors(known) if known else (0.0, None)
    words = f"Median error {middle:.1%}, worst {abs(error(worst)):.1%} ({worst.what})." if worst else ""
    shares = any(p.steal is not None for p in cells)
    rows: list[list[Cell]] = []
    for p in cells:
        stolen: list[Cell] = [None if p.steal is None else f"{p.steal:.1%}"] if shares else []
        rows.append([p.what, p.predicted, p.measured, f"{error(p):+.1%}" if p.measured else None, *stolen])
    return Grid(metric, ["cell", "predicted", "measured", "error", *(["steal"] if shares else [])], rows, words)


def _roofs(bounds: Sequence[Prediction]) -> Grid:
    """Of a speed the share is measured over bound, of a time bound over measured."""
    rows: list[list[Cell]] = []
    for p in bounds:
        both = p.predicted and p.measured
        share = None if not both else p.measured / p.predicted if "tok/s" in p.metric else p.predicted / p.measured
        rows.append([p.what, p.metric, p.predicted, p.measured, None if share is None else f"{share:.0%}"])
    note = "The roofline's time is the fastest that the measured ceilings allow; 100% would be all that the machine can do."
    return Grid("Share of the roofline that was reached", ("what", "metric", "roofline", "measured", "share"), rows, note)


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
