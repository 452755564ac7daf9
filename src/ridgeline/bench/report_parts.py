"""Sections of a report that stand for themselves: set-up, roofline, KV usage, requests in time, and the tables of each kind of command.

Computes shares only; nothing is smoothed, and what is worse stands there like what is better.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ridgeline.bench.plots import Series, line_plot, roofline_plot
from ridgeline.bench.plots_bars import MOST_ROWS, gantt_plot
from ridgeline.bench.report_blocks import Beside, Block, Commands, Figure, Grid, Heading, Opening, Words, shown
from ridgeline.bench.report_cells import percent, reported, side_by_side
from ridgeline.bench.report_predicted import FIGURE
from ridgeline.bench.report_schema import Bar, Cell, Gantt, Plot, ReportDocument
from ridgeline.bench.svg import Axis, short

# Kind of a document -> the heading of its own figures and tables.
SUBJECTS = {
    "ladder": "Ladder: every rung in numbers", "bench peers": "Beside the peers", "bench engine": "The engine in one process",
    "bench micro": "One sequence: where its time goes", "bench lengths": "What a longer context costs", "bench spec": "Guessing ahead",
    "quality": "Quality: what lossy switches cost",
}  # fmt: skip
NAMED = 3  # documents that a row of the set-up names
OPEN = 2  # tables of the set-up that stand open where documents differ: machine and versions


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
            rows = [(k, v) if alike else (k, v, _titles(where)) for (k, v), where in merged.items()]
            sides.append(Grid(name.capitalize(), columns, [tuple(_fact(*pair) for pair in enumerate(row)) for row in rows]))
    alone = [g for g in sides if len(g.columns) > 2]
    yield Beside([g for g in sides if g not in alone])
    yield from alone[:OPEN]
    if alone[OPEN:]:
        yield Opening("Seeds and settings", alone[OPEN:])
    yield from _ceilings(documents)
    lines = list(dict.fromkeys(line for d in documents for line in d.setup.commands))
    if lines:
        yield Words("Commands, as they ran:")
        yield Commands(lines)


def _ceilings(documents: Sequence[ReportDocument]) -> Iterator[Grid]:
    """Each once; where two runs measured other values, whose they are."""
    found: dict[tuple[str, float, str, str], list[str]] = {}
    for d in documents:
        for c in d.setup.ceilings:
            found.setdefault((c.name, c.value, c.unit, c.label), []).append(d.title)
    names = [key[0] for key in found]
    several = len(names) > len(set(names))
    columns = ("ceiling", "value", "unit", "label", *(("in",) if several else ()))
    if found:
        rows = [(*key, *((_titles(where),) if several else ())) for key, where in sorted(found.items())]
        yield Grid("Machine ceilings", columns, rows)


def _titles(where: Sequence[str]) -> str:
    """The first few documents, and how many more."""
    names = list(dict.fromkeys(where))
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _fact(column: int, value: Cell) -> Cell:
    """Values stand to the left, under one another, whatever they are."""
    return shown(value) if column == 1 else value


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


def kv_part(documents: Sequence[ReportDocument]) -> Iterator[Block]:
    """KV usage over time, against users and context; of several documents each figure says whose it is."""
    found = [(d, p) for d in documents for p in d.plots if p.kind != "other"]
    if not found:
        return
    yield Heading("KV usage")
    titles = [p.title for _, p in found]
    drawn = [replace(p, title=f"{p.title}: {d.title}") if titles.count(p.title) > 1 else p for d, p in found]
    yield Figure(side_by_side(map(plot_figure, drawn), "two"), FIGURE.format(", ".join(p.title for p in drawn)))


def subject_part(documents: Sequence[ReportDocument]) -> Iterator[Block]:
    """Figures and tables of the commands, those of one kind under one heading."""
    found: dict[str, list[ReportDocument]] = {}
    for d in documents:
        shown_above = d.kind == "bench peers" and d.comparisons  # the same rows
        if any(p.kind == "other" for p in d.plots) or (any(not reported(t.label) for t in d.tables) and not shown_above):
            found.setdefault(SUBJECTS.get(d.kind, "Tables"), []).append(d)
    for heading, group in found.items():
        yield Heading(heading)
        for d in group:
            plots = [p for p in d.plots if p.kind == "other"]
            if len(group) > 1 and [t.title for t in d.tables] != [d.title]:
                yield Heading(d.title, 3)
            if plots:
                yield Figure(side_by_side(map(plot_figure, plots), "two"), FIGURE.format(", ".join(p.title for p in plots)))
            for t in d.tables:
                if not reported(t.label):
                    yield Grid(t.title, t.columns, t.rows, t.note, t.label, sources=t.sources)


def plot_figure(p: Plot) -> str:
    y = Axis(p.y_label, log=p.log_y, percent=p.y_unit == "%")
    labels = {line.label.partition(":")[0] for line in p.lines}
    kind = "line" if any(len(line.points) > 40 for line in p.lines) else "both"
    series = [Series(line.name, line.points, "line" if kind == "line" else "both") for line in p.lines]
    return line_plot(p.title, Axis(p.x_label, log=p.log_x), y, series, note=", ".join(sorted(labels)), size=(430, 300))


def gantt_part(documents: Sequence[ReportDocument]) -> Iterator[Block]:
    """Charts of one group under one time scale, each with its idle share in words, and what one gained over the other."""
    found = list(_gantts(documents))
    if not found:
        return
    yield Heading("Requests in time")
    for group in dict.fromkeys(g.group or g.title for g in found):
        if any(g.group == group and g.title != group for g in found):
            yield Heading(group, 3)
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


def _gantts(documents: Sequence[ReportDocument]) -> Iterator[Gantt]:
    """All; of several sweeps only the most load of each, and those of one workload and load under one time scale."""
    sweeps = [d for d in documents if d.kind == "bench serve" and d.curves]
    for d in documents:
        if len(sweeps) < 2 or d not in sweeps:
            yield from d.gantts
        for g in d.gantts[-1:] if len(sweeps) > 1 and d in sweeps else ():
            yield replace(g, group=f"{d.curves[0].workload}, {g.title.rpartition(', ')[2]}")


def first_bars(g: Gantt) -> list[Bar]:
    """Those that are drawn."""
    return sorted(g.bars, key=lambda b: b.arrival_s)[:MOST_ROWS]
