"""The one table that a hurried reader needs: this engine beside each other one, and how sure each ratio is. Ratios above 1 are gains.

Holds no number that is not in a section below.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ridgeline.bench.report_agents import agent_curves, seconds
from ridgeline.bench.report_blocks import Grid
from ridgeline.bench.report_cells import beside, loud, unlike, weights
from ridgeline.bench.report_engines import groups, shared_loads
from ridgeline.bench.report_ladder import climbed, others, ran
from ridgeline.bench.report_schema import Cell, ReportDocument
from ridgeline.bench.svg import short

LEAD = "output tok/s"  # the metric of a comparison in turns that stands here
COLUMNS = ("what", "ratio", "first", "beside", "how sure")


def glance(documents: Sequence[ReportDocument]) -> Grid | None:
    """None where nothing is compared."""
    rows = [*_sweeps(documents), *_agents(documents), *_turns(documents), *_ladders(documents)]
    note = "Ratios above 1 are gains of the first; sentences, intervals and losses follow."
    return Grid("At a glance", COLUMNS, rows, note) if rows else None


def _sweeps(documents: Sequence[ReportDocument]) -> Iterator[list[Cell]]:
    for workload, load, group in groups(documents):
        for d, c in group:
            first, own = beside(group, d)
            both = shared_loads([own, c])
            if c is own or not both or unlike(first, d):
                continue
            a, b = (next(p for p in x.points if p.load == both[-1]) for x in (own, c))
            if a.output_tok_s and b.output_tok_s:
                at = f"{both[-1]:g} at once" if load == "concurrency" else f"{both[-1]:g} requests/s"
                sure = ("disturbed" if loud(("", a), ("", b)) else "one run each") + (", other weights" if weights(first, d) else "")
                this, that = f"{own.engine} {short(a.output_tok_s)}", f"{c.engine} {short(b.output_tok_s)}"
                yield [f"{workload}, {at}, output tok/s", f"{a.output_tok_s / b.output_tok_s:.2f}x", this, that, sure]


def _agents(documents: Sequence[ReportDocument]) -> Iterator[list[Cell]]:
    found = agent_curves(documents)
    if len(found) < 2:
        return
    for d, c in found:
        first, own = beside(found, d)
        a, b = own.points[-1], c.points[-1]
        ours, theirs = seconds(a), seconds(b)
        if c is not own and ours and theirs and not unlike(first, d) and a.requests == b.requests:
            sure = "disturbed" if loud(("", a), ("", b)) else "one run each"
            this, that = f"{own.engine} {ours:.1f} s", f"{c.engine} {theirs:.1f} s"
            yield ["agents, until all branches have ended", f"{theirs / ours:.2f}x", this, that, sure]


def _turns(documents: Sequence[ReportDocument]) -> Iterator[list[Cell]]:
    for d in documents:
        for c in d.comparisons:
            if not c.metric.startswith(LEAD) or c.low is None or c.high is None:
                continue
            sure = f"95% {short(c.low)} to {short(c.high)}, {c.pairs} rounds in turns" + ("" if c.significant else ": not significant")
            values = [f"{name} {short(v)}" if v is not None else name for name, v in ((c.a, c.a_value), (c.b, c.b_value))]
            yield [f"{c.where}, {c.metric}" if c.where else c.metric, f"{c.ratio:.2f}x", *values, sure]


def _ladders(documents: Sequence[ReportDocument]) -> Iterator[list[Cell]]:
    for ladder in (x for d in documents for x in d.ladders if not others(x)):
        rungs, fall = ran(ladder), climbed(ladder)
        if fall is not None:
            first, last = rungs[0], rungs[-1]
            this, that = f"{last.name} {short(last.output_tok_s or 0.0)}", f"{first.name} {short(first.output_tok_s or 0.0)}"
            sure = f"rounds: {', '.join(f'{x:.1f}x' for x in fall.rounds)}" if len(fall.rounds) > 1 else "one round"
            yield [f"{ladder.title}, output tok/s", f"{fall.total:.2f}x", this, that, sure]
