"""`ridgeline bench report`: documents of bench commands to one page, Markdown and JSON. Knows the order of sections; measures nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.bench.report_agents import agent_part
from ridgeline.bench.report_blocks import Block, Grid, Heading, html_page, markdown
from ridgeline.bench.report_engines import curve_part, distribution_part
from ridgeline.bench.report_findings import comparison_part, findings_part
from ridgeline.bench.report_json import read_documents, to_json
from ridgeline.bench.report_ladder import ladder_part
from ridgeline.bench.report_names import with_names
from ridgeline.bench.report_parts import gantt_part, kv_part, roofline_part, setup_part, subject_part
from ridgeline.bench.report_predicted import prediction_part
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
    told = [with_names(d) for d in documents]
    name = title or (told[0].title if len(told) == 1 else "Ridgeline benchmarks")
    found = blocks(told, reported=reported)
    whole = {"report": [to_json(d) for d in documents]}
    text = json.dumps(whole, ensure_ascii=False, indent=1) + "\n"
    under = _under(told)
    return Report(*(_written(form) for form in (html_page(name, under, found), markdown(name, under, found), text)))


def _under(documents: Sequence[ReportDocument]) -> str:
    """When and where, and what the documents are; of many only their kinds."""
    dates = sorted(d.setup.date[:16].replace("T", " ") for d in documents if d.setup.date)
    when = f"measured {dates[0]}" + (f" to {dates[-1]}" if dates[-1] != dates[0] else "") + " UTC" if dates else "no dates given"
    hosts = dict.fromkeys(str(h) for d in documents if (h := d.setup.machine.get("host")))
    if len(documents) <= 3:
        what = "; ".join(dict.fromkeys(f"{d.kind}: {d.title}" for d in documents))
    else:
        kinds = [d.kind for d in documents]
        what = ", ".join(f"{kind} ({kinds.count(kind)})" if kinds.count(kind) > 1 else kind for kind in dict.fromkeys(kinds))
    return f"{when}{f' on {chr(44).join(hosts)}' if hosts else ''}. From {what}."


def _written(text: str) -> str:
    """Lone surrogates, which JSON can carry, cannot be written."""
    return text.encode("utf8", "replace").decode("utf8")


def blocks(documents: Sequence[ReportDocument], *, reported: bool = True) -> list[Block]:
    """All sections that have something to say: what was found first, how it was measured last."""
    found: list[Block] = []
    for part in (
        findings_part, curve_part, agent_part, ladder_part, comparison_part, prediction_part, distribution_part, roofline_part, kv_part,
        gantt_part, subject_part, setup_part,
    ):  # fmt: skip
        found += part(documents)
    definitions = {k: v for d in documents for k, v in d.definitions.items()}
    if definitions:
        found += [Heading("Definitions"), Grid("", ("metric", "is"), sorted(definitions.items()))]
    if reported:
        found += reported_part(documents)
    return found
