"""The table of `bench peers`: Markdown for a README, lines for a terminal, JSON, and the report's document. Shapes only."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ridgeline.bench.peers import PeersResult, Row
from ridgeline.bench.record import machine_name, now
from ridgeline.bench.report_blocks import shown
from ridgeline.bench.report_json import to_json
from ridgeline.bench.report_other import comparisons
from ridgeline.bench.report_schema import Comparison, ReportDocument, Setup, Table
from ridgeline.bench.serve_document import machine
from ridgeline.errors import FileFormatError

BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"


def markdown(result: PeersResult) -> str:
    """Numbers with ratios first, then who was not there, then every command."""
    measured = [r for r in result.rows if r.ratio is not None]
    versions = "; ".join(text if text.startswith(name) else f"{name} {text}" for name, text in result.versions.items())
    lines = [f"Measured {now()[:10]} on {machine_name()}. {versions}.", ""]
    lines += ["| model | measure | ridgeline | peer | ratio | 95% | |", "|---|---|--:|--:|--:|---|---|"]
    for r in measured:
        numbers = f"{shown(r.ours)} | {shown(r.theirs)} ({r.peer}) | {r.ratio:.2f} | {_interval(r)}"
        lines.append(f"| {r.model} | {r.measure} | {numbers} | {_verdict(r)} |")
    lines += ["", *(f"- {r.note}" for r in result.rows if r.ratio is None), *(f"- {r}" for r in result.remarks)]
    commands = dict.fromkeys(c for r in measured for c in (r.our_command, r.peer_command) if c)
    lines += ["", "```", *commands, "```"]
    return "\n".join(lines)


def insert(path: Path, text: str) -> None:
    """Replaces what stands between the markers. Raises `FileFormatError` when the file or its markers are not there."""
    try:
        old = path.read_text("utf8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"--into {path}: {error}", field="--into", value=str(path)) from None
    head, begin, rest = old.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        remedy = f"put {BEGIN} and {END} where the table shall stand"
        raise FileFormatError(f"--into {path}: has no place for the table", field="--into", value=str(path), remedy=remedy)
    path.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}", "utf8")


def document(result: PeersResult) -> dict[str, Any]:
    rows = [asdict(r) | {"ahead": r.ahead} for r in result.rows]
    return {
        "kind": "bench peers", "date": now(), "machine": machine(), "versions": result.versions, "rows": rows,
        "remarks": list(result.remarks), "report": to_json(report(result)),
    }  # fmt: skip


def report(result: PeersResult) -> ReportDocument:
    columns = ("model", "measure", "peer", "ridgeline", "theirs", "ratio", "95% low", "95% high", "verdict")
    rows = tuple((r.model, r.measure, r.peer, r.ours, r.theirs, r.ratio, r.low, r.high, _verdict(r) or r.note) for r in result.rows)
    commands = tuple(dict.fromkeys(c for r in result.rows for c in (r.our_command, r.peer_command) if c))
    setup = Setup(machine(), result.versions, commands=commands, date=now())
    note = "ratio: ours over theirs, in turns; llama-bench and llama-server with the fastest of their own settings"
    table = Table("This engine beside its peers", columns, rows, note)
    pairs = tuple(Comparison(**c) for c in comparisons([asdict(r) for r in result.rows]))
    notes = (*result.remarks, *(r.note for r in result.rows if r.ratio is None and r.note))
    return ReportDocument("bench peers", "Peers on this machine", setup, comparisons=pairs, tables=(table,), notes=notes)


def _interval(r: Row) -> str:
    return "" if r.low is None or r.high is None else f"{r.low:.2f}-{r.high:.2f}"


def _verdict(r: Row) -> str:
    """Where we lose, it says so and by how much."""
    if r.ratio is None:
        return ""
    if r.disturbed:
        return f"not to be relied on: others took up to {r.disturbed:.0%} of the CPUs"
    if r.ahead is None:
        return "no significant difference"
    factor = r.ratio if r.ratio >= 1 else 1 / r.ratio
    what = ("more" if r.ratio > 1 else "less") if r.better == "higher" else ("longer" if r.ratio > 1 else "shorter")
    return f"{factor:.2f}x {what}" + ("" if r.ahead else ", we lose")
