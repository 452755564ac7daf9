"""What others reported: rows of `data/reported.csv`, each with its source, link, date and set-up. Never mixed with own measurements."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.resources import files

from ridgeline.bench.report_blocks import Block, Cell, Grid, Heading, Words
from ridgeline.bench.report_cells import cells_grid, reported
from ridgeline.bench.report_ladder import others, rungs_grid
from ridgeline.bench.report_schema import ReportDocument

WORKSHOP = "Workshop on inference at scale (demo F)"  # one run on one machine, rung by rung
NUMBERS = {
    "output_tok_s": "output tok/s", "total_tok_s": "total tok/s", "tok_s": "tok/s (output or total is not said)", "ttft_ms": "TTFT ms",
    "itl_ms": "ITL ms", "tpot_ms": "TPOT ms",
}  # fmt: skip


def rows() -> list[dict[str, str]]:
    """Every row as text; an empty cell is a number that is not held."""
    text = (files("ridgeline.bench") / "data" / "reported.csv").read_text("utf8")
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


def reported_part(documents: Sequence[ReportDocument] = ()) -> Iterator[Block]:
    """One table a source, drawn apart, with date and link; then what the documents themselves mark as reported."""
    found = rows()
    yield Heading("Reported by others")
    yield Words(
        "None of these numbers was measured here, and none is comparable with the ones above: other machines, models and workloads. "
        "They stand here because readers know them."
    )
    for source, date, link, setup in dict.fromkeys((r["source"], r["date"], r["link"], r["setup"]) for r in found):
        group = [r for r in found if (r["source"], r["setup"], r["link"]) == (source, setup, link)]
        kept = [k for k in NUMBERS if any(r[k] for r in group)]
        columns = ["engine", "workload", *(NUMBERS[k] for k in kept), "remark"]
        cells: list[list[Cell]] = [
            [r["engine"], r["workload"], *(float(r[k]) if r[k] else None for k in kept), r["note"]] for r in group
        ]
        yield Grid(f"{source}, {date}: {setup}", columns, cells, f"Source: {link} ({date}).", "reported", apart=True)
    for d in documents:
        grids = [cells_grid(c) for c in d.curves if reported(c.label)] + [rungs_grid(x) for x in d.ladders if others(x)]
        grids += [Grid(t.title, t.columns, t.rows, t.note, t.label, sources=t.sources) for t in d.tables if reported(t.label)]
        for g in grids:
            yield replace(g, title=f"{d.title}: {g.title}", note=g.note or "Source: as the document gives it.", apart=True)
