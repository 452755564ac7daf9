"""A `bench ab` result for a terminal, as JSON and as the report's document. Shapes only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ridgeline.bench.ab import AbResult
from ridgeline.bench.client_metrics import DEFINITIONS, Figures
from ridgeline.bench.record import now
from ridgeline.bench.report_json import to_json
from ridgeline.bench.report_schema import Cell, Comparison, ReportDocument, Setup
from ridgeline.bench.serve_document import cell_json, machine
from ridgeline.bench.stats import Ratio

METHOD = (
    "each round runs both sides with the same prompts but for the mark that begins them, in turns A B, B A; the ratio of a round is one "
    "observation; the interval is a bootstrap of the geometric mean over rounds, its tails widened for few rounds; no difference is "
    "claimed when 1 lies inside"
)


def render(result: AbResult) -> str:
    """Sentences first."""
    asked = result.asked
    load_text = f"workload {asked.asked.workload}, {asked.asked.count} sessions a cell, {asked.rounds} rounds"
    lines = [f"A: {asked.name_a}, B: {asked.name_b}; {load_text}"]
    lines += [f"  {name}: {s.command}" for name, s in zip("AB", result.servers, strict=True) if s.command]
    load = None
    for c in result.compared:
        if c.load != load:
            load = c.load
            lines += ["", f"at {load:g} {'sessions/s' if asked.asked.rates else 'at once'} (medians of A and B on the left)"]
        lines.append(f"  {c.a:>10.2f} {c.b:>10.2f}  {c.metric}: {c.sentence}")
    defined = (f"  {k}: {DEFINITIONS[k]}" for k in ("output_tok_s", "ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"))
    lines += ["", *hits(result), f"method: {METHOD}", *defined]
    return "\n".join([*lines, *(f"note: {r}" for r in result.remarks)])


def hits(result: AbResult) -> list[str]:
    """Cached prompt tokens of each side and turn: what explains a difference under workloads that share prefixes."""
    found = []
    for name in (result.asked.name_a, result.asked.name_b):
        cells = [cell.figures for _, n, cell in result.rounds if n == name]
        turns = [cell.turns for _, n, cell in result.rounds if n == name]
        whole = _share(cells)
        if whole is not None:
            each = [_share([t[i] for t in turns if len(t) > i]) for i in range(max(map(len, turns), default=0))]
            parts = ", ".join(f"turn {i + 1} {share:.0%}" for i, share in enumerate(each) if share is not None)
            found.append(f"{name} found {whole:.0%} of prompt tokens in its cache{f' ({parts})' if parts else ''}")
    return [*found, ""] if found else []


def _share(figures: Sequence[Figures]) -> float | None:
    asked = sum(f.prompt_tokens for f in figures if f.cached_tokens is not None)
    return sum(f.cached_tokens or 0 for f in figures) / asked if asked else None


def document(result: AbResult) -> dict[str, Any]:
    """Plain values."""
    asked = result.asked
    return {
        "kind": "bench ab", "date": now(), "command": result.command, "machine": machine(),
        "sides": [
            {"name": name, "url": s.target.url, "model": s.model, "command": s.command, "version": s.version}
            for name, s in zip((asked.name_a, asked.name_b), result.servers, strict=True)
        ],
        "workload": asked.asked.workload, "sessions": asked.asked.count, "seed": asked.asked.seed, "rounds": asked.rounds, "method": METHOD,
        "compared": [asdict(c) | {"ratio": _ratio(c.ratio)} for c in result.compared],
        "cells": [{"round": n, "side": name} | cell_json(cell) for n, name, cell in result.rounds],
        "remarks": list(result.remarks), "definitions": DEFINITIONS, "report": to_json(report(result)),
    }  # fmt: skip


def report(result: AbResult) -> ReportDocument:
    asked = result.asked
    commands = (result.command, *(s.command for s in result.servers if s.command))
    versions = {name: text for s in result.servers for name, text in s.versions.items()}
    settings: dict[str, Cell] = {"workload": asked.asked.workload, "rounds": asked.rounds}
    setup = Setup(machine(), versions, {"workload": asked.asked.seed}, settings, commands, date=now())
    found = tuple(
        Comparison(
            asked.name_a, asked.name_b, f"{c.metric} at {c.load:g}", c.ratio.value, c.ratio.low, min(c.ratio.high, 1e9), c.sentence,
            c.ratio.rounds, c.ratio.significant, c.higher_is_better, asked.asked.workload, c.a, c.b,
        )
        for c in result.compared
    )  # fmt: skip
    title = f"{asked.name_a} against {asked.name_b}: {asked.asked.workload}"
    notes = (*(h for h in hits(result) if h), *result.remarks)
    return ReportDocument("bench ab", title, setup, comparisons=found, definitions=DEFINITIONS | {"in turns": METHOD}, notes=notes)


def _ratio(r: Ratio) -> dict[str, Any]:
    high = r.high if math.isfinite(r.high) else None
    return {"value": r.value, "low": r.low, "high": high, "rounds": r.rounds, "significant": r.significant}
