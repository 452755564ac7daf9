"""The scorecard of attention variants as a report document: every cell opens what it was computed from, or who reported it.

Computes nothing; draws no winner.
"""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.bench.record import command_line, now
from ridgeline.bench.report_blocks import Grid, Words, html_page
from ridgeline.bench.report_cells import reported
from ridgeline.bench.report_schema import Cell, ReportDocument, Setup, Table
from ridgeline.planner.scorecard import SHAPE, Quality, Score

COLUMNS = {
    "kv_bytes_per_token": "cache B/token", "sequence_bytes": "MB/sequence", "users": "users", "tok_s": "tok/s",
    "flop_per_byte": "FLOP/B of attention",
}  # fmt: skip
NOTES = (
    "Memory and speed are computed on one shape, so that nothing but the variant differs; the roofline at efficiency 1 is a bound.",
    "Quality is cited, never computed: no winner is drawn, the tables disagree, and models of different papers do not compare.",
)


def document(scores: Sequence[Score], device: str, context: int, version: str) -> ReportDocument:
    """Both halves of the card: what a variant costs, and what papers found of its quality."""
    computed = Table(
        f"{SHAPE} with each cache, {context:,} tokens a sequence, one {device}",
        ("variant", *COLUMNS.values(), "quality, as papers report it", "to know"),
        tuple(_row(s) for s in scores), "A cell opens what it comes from.", "predicted: roofline at efficiency 1",
        tuple(("", *(s.sources[name] for name in COLUMNS), "; ".join(_source(q) for q in s.quality), "") for s in scores),
    )  # fmt: skip
    cited = [q for s in scores for q in s.quality]
    quality = Table(
        "Quality as papers report it", ("variant", "metric", "value", "beside", "set-up"),
        tuple((q.variant, q.metric, q.value, q.beside, q.setup) for q in cited), "", "reported",
        tuple(("", "", _source(q), "", "") for q in cited),
    )  # fmt: skip
    setup = Setup({}, {"ridgeline": version}, settings={"device": device, "context": context}, commands=(command_line(),), date=now())
    title = "Attention variants: what they cost and what is known of their quality"
    return ReportDocument("scorecard", title, setup, tables=(computed, quality), notes=NOTES)


def page(made: ReportDocument) -> str:
    """The document by itself: one file, whose cells open without a script."""
    grids = [Grid(t.title, t.columns, t.rows, t.note, t.label, reported(t.label), t.sources) for t in made.tables]
    return html_page(made.title, f"{made.setup.date}; {made.setup.commands[0]}", [*(Words(n) for n in made.notes), *grids])


def _row(s: Score) -> tuple[Cell, ...]:
    said = "; ".join(f"{q.metric} {q.value:g}" for q in s.quality)
    cells = (round(s.kv_bytes_per_token), s.sequence_bytes / 1e6, s.users, s.tok_s, s.flop_per_byte)
    return (s.variant, *cells, said or "no figure is kept", s.note)


def _source(q: Quality) -> str:
    seen = "read in a copy of it" if q.checked == "seen" else "from memory: verify before use"
    return f"{q.source} ({seen}): {q.metric} {q.value:g} beside {q.beside}; {q.setup} {q.link}".rstrip()
