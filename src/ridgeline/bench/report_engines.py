"""Engines beside one another under the same workload: figures, cells, and a sentence a load. Agents have a section of their own.

Which numbers compare is decided here: same settings, same machine, same load. What differs is said instead of a ratio being believed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ridgeline.bench.plots import Note, Rule, Series, cdf_plot, line_plot
from ridgeline.bench.report_agents import WORKLOAD as AGENTS
from ridgeline.bench.report_blocks import Block, Figure, Folded, Heading, Words
from ridgeline.bench.report_cells import beside, cells_grid, loud, ms, side_by_side, told_apart, unlike, weights
from ridgeline.bench.report_predicted import FIGURE, load_words
from ridgeline.bench.report_schema import Curve, Distribution, LoadPoint, ReportDocument
from ridgeline.bench.svg import Axis, short

# Columns of a sweep's table -> the key of their definition.
COLUMNS = {
    "output tok/s": "output_tok_s", "total tok/s": "total_tok_s", "requests/s": "requests_s", "goodput/s": "goodput_s", "TTFT": "ttft_ms",
    "ITL": "itl_ms", "TPOT": "tpot_ms", "cache hits": "hit_rate",
}  # fmt: skip
SIZE = (430.0, 300.0)
Own = tuple[ReportDocument, Curve]


def groups(documents: Sequence[ReportDocument]) -> Iterator[tuple[str, str, list[Own]]]:
    """(workload, kind of load, curves), agents left out."""
    found = [(d, c) for d, c in told_apart(documents) if c.workload != AGENTS]
    for workload, load in dict.fromkeys((c.workload, c.load) for _, c in found):
        yield workload, load, [(d, c) for d, c in found if (c.workload, c.load) == (workload, load)]


def shared_loads(curves: Sequence[Curve]) -> list[float]:
    """Loads that all of them ran, rising."""
    return sorted(set.intersection(*({p.load for p in c.points} for c in curves))) if curves else []


# --- sentences ----------------------------------------------------------------------------------------------------------------------


def engine_findings(documents: Sequence[ReportDocument]) -> Iterator[Words]:
    """This engine beside each other one at the most and at the least load that both ran, then the best of each at any load."""
    for workload, load, group in groups(documents):
        if len(group) < 2:
            continue
        for d, c in group:
            first, own = beside(group, d)
            if c is own:
                continue
            different = unlike(first, d)
            if different:
                yield Words(f"{workload}: {own.engine} and {c.engine} did not have the same load ({', '.join(different)}): no comparison.")
                continue
            both = shared_loads([own, c])
            for at in dict.fromkeys(both[-1:] + both[:1]):
                found = _at(workload, load, own, c, at)
                if found is not None:
                    yield replace(found, words=found.words + weights(first, d))
            best = _best(workload, own, c)
            if best is not None:
                yield best


def _at(workload: str, load: str, own: Curve, c: Curve, at: float) -> Words | None:
    a, b = (next(p for p in x.points if p.load == at) for x in (own, c))
    if not a.output_tok_s or not b.output_tok_s:
        return None
    where = f"{workload}, {at:g} at once" if load == "concurrency" else f"{workload}, {at:g} requests/s sent"
    factor = a.output_tok_s / b.output_tok_s
    said = [f"{own.engine} {short(a.output_tok_s)} output tok/s, {c.engine} {short(b.output_tok_s)}: {factor:.2f}x"]
    lost = [] if factor >= 1 else ["throughput"]
    for name, x, y in (("TTFT p50", a.ttft_ms, b.ttft_ms), ("TPOT p50", a.tpot_ms, b.tpot_ms)):
        if x is not None and y is not None:
            said.append(f"{name} {ms(x.p50)} against {ms(y.p50)}")
            lost += [name] if x.p50 > y.p50 else []
    said += [f"{p.failed} of {p.requests} requests of {x.engine} failed" for x, p in ((own, a), (c, b)) if p.failed]
    end = f" {c.engine} is better in {' and '.join(lost)}." if lost else ""
    return Words(f"{where}: {'; '.join(said)}. One run each.{end}{loud((own.engine, a), (c.engine, b))}", "loss" if lost else "")


def _best(workload: str, own: Curve, c: Curve) -> Words | None:
    a, b = _most(own), _most(c)
    if a is None or b is None or not a.output_tok_s or not b.output_tok_s or len(own.points) < 2 or len(c.points) < 2:
        return None
    factor = a.output_tok_s / b.output_tok_s
    said = f"most at any load: {own.engine} {short(a.output_tok_s)} output tok/s (at {a.load:g}), "
    said += f"{c.engine} {short(b.output_tok_s)} (at {b.load:g}): {factor:.2f}x"
    knees = "; ".join(f"{x.engine} at {x.knee:g}" if x.knee is not None else f"{x.engine}: none found" for x in (own, c))
    said += f". Knee: {knees}" if own.knee is not None or c.knee is not None else ""
    return Words(f"{workload}, {said}. One run each.{loud((own.engine, a), (c.engine, b))}", "loss" if factor < 1 else "")


def _most(c: Curve) -> LoadPoint | None:
    return max((p for p in c.points if p.output_tok_s), key=lambda p: p.output_tok_s or 0.0, default=None)


# --- figures and tables -------------------------------------------------------------------------------------------------------------


def curve_part(documents: Sequence[ReportDocument]) -> Iterator[Block]:
    """Latency against throughput, engines of a workload in one figure, and every cell in a table."""
    found = list(groups(documents))
    if not found:
        return
    yield Heading("Latency and throughput")
    order = list(dict.fromkeys(c.engine for _, _, group in found for _, c in group))
    for workload, load, group in found:
        curves = [c for _, c in group]
        yield Heading(workload, 3)
        if any(len(c.points) > 1 for c in curves):
            drawn = [d for d in (make(curves, load, order) for make in (_curve_figure, _load_figure, _first_figure, _time_figure)) if d]
            yield Figure(side_by_side(drawn, "two"), FIGURE.format(f"{workload}: latency against throughput"))
        for curve in curves:
            yield cells_grid(curve)
    meant = {k: v for d in documents for k, v in d.definitions.items() if d.curves}
    pairs = [(name, meant[key]) for name, key in COLUMNS.items() if key in meant]
    if pairs:
        yield Folded("What the columns mean", pairs)


def _series(c: Curve, points: Sequence[tuple[float, float]], order: Sequence[str], predicted: bool = False) -> Series:
    """One colour and one mark an engine in all figures; dashes are predictions."""
    index = order.index(c.engine)
    name = f"{c.engine}, predicted" if predicted else c.engine
    return Series(name, points, "line" if predicted else "both", index, dash=int(predicted), mark=index)


def _loads(curves: Sequence[Curve], load: str) -> Axis:
    """Loads that double are spread by a logarithm."""
    at = [p.load for c in curves for p in c.points if p.load > 0]
    return Axis(load_words(load), log=bool(at) and max(at) >= 8 * min(at))


def _curve_figure(curves: Sequence[Curve], load: str, order: Sequence[str]) -> str:
    series, notes = [], []
    for c in curves:
        points = [(p.output_tok_s, p.tpot_ms.p50, p.load) for p in c.points if p.output_tok_s is not None and p.tpot_ms is not None]
        series.append(_series(c, [(x, y) for x, y, _ in points], order))
        whose = f"{c.engine.partition(' (')[0]}: " if len(curves) > 1 else ""  # colour and mark tell files apart; words must fit
        notes += [Note(x, y, f"{whose}knee at {at:g}") for x, y, at in points if c.knee == at]
    note = f"Each mark is one load ({load_words(load)}, rising along the line); to the right and down is better."
    x, y = Axis("output tok/s"), Axis("TPOT p50, ms")
    title = f"{curves[0].workload}: latency against throughput"
    return line_plot(title, x, y, series, rules=_rules(curves), notes=notes, note=note, size=SIZE)


def _rules(curves: Sequence[Curve], first: bool = False) -> list[Rule]:
    promises = {v for c in curves if (v := c.slo_ttft_ms if first else c.slo_tpot_ms) is not None}
    return [Rule("y", v, f"SLO {v:g} ms", bad=True) for v in sorted(promises)]


def _load_figure(curves: Sequence[Curve], load: str, order: Sequence[str]) -> str:
    series = [_series(c, [(p.load, p.output_tok_s) for p in c.points if p.output_tok_s is not None], order) for c in curves]
    for c in curves:
        predicted = [(p.load, p.predicted_output_tok_s) for p in c.points if p.predicted_output_tok_s is not None]
        series += [_series(c, predicted, order, True)] if predicted else []
    title = f"{curves[0].workload}: throughput against {load_words(load)}"
    return line_plot(title, _loads(curves, load), Axis("output tok/s"), series, size=SIZE)


def _first_figure(curves: Sequence[Curve], load: str, order: Sequence[str]) -> str:
    """TTFT; nothing where nobody has one."""
    timed = [[(p.load, p.ttft_ms.p50) for p in c.points if p.ttft_ms is not None] for c in curves]
    values = [y for at in timed for _, y in at if y > 0]
    if not values:
        return ""
    series = [_series(c, at, order) for c, at in zip(curves, timed, strict=True)]
    for c in curves:
        predicted = [(p.load, p.predicted_ttft_ms) for p in c.points if p.predicted_ttft_ms is not None]
        series += [_series(c, predicted, order, True)] if predicted else []
    title, y = f"{curves[0].workload}: first token against {load_words(load)}", Axis("TTFT p50, ms", log=max(values) > 20 * min(values))
    return line_plot(title, _loads(curves, load), y, series, rules=_rules(curves, True), size=SIZE)


def _time_figure(curves: Sequence[Curve], load: str, order: Sequence[str]) -> str:
    """TPOT, with what was predicted for it, the promise, and the best load: the last that keeps it, or the knee."""
    timed = [[(p.load, p.tpot_ms.p50) for p in c.points if p.tpot_ms is not None] for c in curves]
    series, notes = [_series(c, at, order) for c, at in zip(curves, timed, strict=True)], []
    for c, at in zip(curves, timed, strict=True):
        predicted = [(p.load, p.predicted_tpot_ms) for p in c.points if p.predicted_tpot_ms is not None]
        series += [_series(c, predicted, order, True)] if predicted else []
        kept = [p for p in at if c.slo_tpot_ms is not None and p[1] <= c.slo_tpot_ms]
        chosen = [p for p in at if p[0] == c.knee] if c.slo_tpot_ms is None else kept[-1:]
        notes += [Note(x, y, f"best: {x:g}") for x, y in chosen if len(curves) == 1]
    title = f"{curves[0].workload}: time per token against {load_words(load)}"
    return line_plot(title, _loads(curves, load), Axis("TPOT p50, ms"), series, rules=_rules(curves), notes=notes, size=SIZE)


# --- distributions ------------------------------------------------------------------------------------------------------------------


def distribution_part(documents: Sequence[ReportDocument]) -> Iterator[Block]:
    """One CDF for each workload and metric, of one load of each engine; what was simulated never shares a figure with what was measured."""
    found = [(d, *pair) for d in documents for pair in _chosen(documents, d)]
    if not found:
        return
    yield Heading("Distributions")
    drawn = []
    keys = dict.fromkeys((where, x.metric, x.unit, x.label.partition(":")[0]) for _, where, x in found)
    for where, metric, unit, kind in keys:
        group = [(d.title, x) for d, w, x in found if (w, x.metric, x.unit, x.label.partition(":")[0]) == (where, metric, unit, kind)]
        names = [x.name for _, x in group]
        samples = [(x.name if names.count(x.name) == 1 else f"{title}: {x.name}", x.values) for title, x in group]
        words = f"{metric}: cumulative distribution" + ("" if kind == "measured" else f", {kind}")
        drawn.append(cdf_plot(words, f"{metric}, {unit}", samples, note=where, size=(350, 250)))
    metrics = list(dict.fromkeys(x.metric for _, _, x in found))
    yield Figure(side_by_side(drawn), FIGURE.format(f"CDFs of {', '.join(metrics)}"))


def _chosen(documents: Sequence[ReportDocument], d: ReportDocument) -> Iterator[tuple[str, Distribution]]:
    """(workload and load, distribution): of a sweep the most load that all engines of the workload ran; of one alone the least, the knee
    and the most."""
    alike = [c for x in documents if x.distributions for c in x.curves if d.curves and c.workload == d.curves[0].workload]
    shared = shared_loads(alike)
    loads, where = shared[-1:], f"{alike[0].workload}, {load_words(alike[0].load)}: {shared[-1]:g}" if shared else ""
    if len(alike) == 1 and len(shared) > 1:
        loads, where = [shared[0], *([alike[0].knee] if alike[0].knee in shared[1:-1] else []), shared[-1]], alike[0].workload
    kept = [x for x in d.distributions if any(x.name.endswith(f" {at:g}") for at in loads)]
    for x in kept or d.distributions:
        yield where if kept else "", x
