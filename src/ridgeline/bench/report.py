"""`ridgeline bench report`: documents of bench commands to one page, Markdown and JSON. Knows the order of sections; measures nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.bench.report_blocks import Block, Grid, Heading, Words, html_page, markdown
from ridgeline.bench.report_json import read_documents, to_json
from ridgeline.bench.report_ladder import gains, ladder_part, others
from ridgeline.bench.report_parts import (
    curve_part,
    distribution_part,
    gantt_part,
    plot_part,
    prediction_part,
    roofline_part,
    setup_part,
    table_part,
)
from ridgeline.bench.report_reported import reported_part
from ridgeline.bench.report_schema import ReportDocument
from ridgeline.errors import UserError


@dataclass(frozen=True)
class Report:
    """A report in its three forms."""

    html: str
    markdown: str
    json: str


def read(paths: Sequence[Path]) -> list[ReportDocument]:
    """Documents of all files, in their order. Raises `FileFormatError` naming the file that is no result."""
    if not paths:
        raise UserError("no results were given", field="RESULT", remedy="name files that bench commands wrote with --json")
    return [d for path in paths for d in read_documents(path)]


def report(documents: Sequence[ReportDocument], title: str | None = None, *, reported: bool = True) -> Report:
    """One report of everything. reported: with the third-party rows, which stand apart."""
    name = title or (documents[0].title if len(documents) == 1 else "Ridgeline benchmarks")
    dates = sorted(d.setup.date for d in documents if d.setup.date)
    when = f"measured {dates[0]}" + (f" to {dates[-1]}" if dates[-1] != dates[0] else "") if dates else "no dates given"
    under = f"{when}; {', '.join(dict.fromkeys(f'{d.kind}: {d.title}' for d in documents))}"
    found = blocks(documents, reported=reported)
    whole = {"report": [to_json(d) for d in documents]}
    text = json.dumps(whole, ensure_ascii=False, indent=1) + "\n"
    return Report(*(_written(form) for form in (html_page(name, under, found), markdown(name, under, found), text)))


def _written(text: str) -> str:
    """Lone surrogates, which JSON can carry, cannot be written."""
    return text.encode("utf8", "replace").decode("utf8")


def blocks(documents: Sequence[ReportDocument], *, reported: bool = True) -> list[Block]:
    """All sections that have something to say."""
    found: list[Block] = [*_findings(documents), *setup_part(documents)]
    for part in (curve_part, distribution_part, roofline_part, plot_part, ladder_part, gantt_part, prediction_part, table_part):
        found += part(documents)
    definitions = {k: v for d in documents for k, v in d.definitions.items()}
    if definitions:
        found += [Heading("Definitions"), Grid("", ("metric", "is"), sorted(definitions.items()))]
    if reported:
        found += reported_part(documents)
    return found


def _findings(documents: Sequence[ReportDocument]) -> list[Block]:
    """The sentences of all comparisons, losses among them marked, and the remarks."""
    pairs = [c for d in documents for c in d.comparisons]
    notes = [n for d in documents for n in d.notes]
    steps = [(ladder, gains(ladder)) for d in documents for ladder in d.ladders if not others(ladder)]
    found: list[Block] = []
    for c in pairs:
        found.append(Words(f"{c.metric}: {c.sentence}", "loss" if c.lost else ""))
    for ladder, rungs in steps:
        if len(rungs) > 1 and rungs[0][0].output_tok_s:
            whole = (rungs[-1][0].output_tok_s or 0.0) / rungs[0][0].output_tok_s
            best, gain = max(rungs[1:], key=lambda pair: pair[1] or 0.0)
            said = f"{rungs[-1][0].name} is {whole:.2f}x {rungs[0][0].name}; most came from {best.name} ({gain or 0.0:.2f}x)."
            found.append(Words(f"{ladder.title}: {said}"))
    if pairs:
        rows = [(c.metric, c.a, c.b, c.ratio, c.low, c.high, c.pairs, c.significant) for c in pairs]
        found.append(Grid("Comparisons in turns", ("metric", "A", "B", "A / B", "95% low", "95% high", "pairs", "significant"), rows))
    found += [Words(n) for n in notes]
    return [Heading("Findings"), *found] if found else []
