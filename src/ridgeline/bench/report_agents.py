"""The agents' test in a report: two turns, many branches of one role prompt, engine beside engine. Computes ratios only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ridgeline.bench.plots_bars import Group, bar_plot
from ridgeline.bench.report_blocks import Block, Figure, Grid, Heading, Words
from ridgeline.bench.report_cells import beside, cells_grid, loud, ms, percent, side_by_side, told_apart, unlike, weights
from ridgeline.bench.report_schema import Cell, Curve, LoadPoint, Percentiles, ReportDocument, TurnPoint
from ridgeline.bench.svg import Axis, short

WORKLOAD = "agents"
ABOUT = (
    "An agent asks the same model for {n} answers at one moment: {n} branches of one role prompt, which they share. Each branch then reads "
    "its own answer again and rates it from 1 to 10: a second turn whose prompt is the first one and what was just written. The agent goes "
    "on when the last branch has ended, so the time until then is what counts, and how much of a prompt was found in the cache decides it."
)


def agent_curves(documents: Sequence[ReportDocument]) -> list[tuple[ReportDocument, Curve]]:
    return [(d, c) for d, c in told_apart(documents) if c.workload == WORKLOAD and c.points]


def seconds(p: LoadPoint) -> float | None:
    """Until the last branch had ended; of requests per second where the document is older than the field."""
    if p.seconds is not None:
        return p.seconds
    return (p.requests - p.failed) / p.requests_s if p.requests_s else None


def agent_findings(documents: Sequence[ReportDocument]) -> Iterator[Words]:
    """The first engine beside each other one, at the most branches of both."""
    found = agent_curves(documents)
    if not found:
        return
    for d, c in found:
        first, own = beside(found, d)
        a, b = own.points[-1], c.points[-1]
        ours, theirs = seconds(a), seconds(b)
        if c is own or ours is None or theirs is None:
            continue
        said = f"{own.engine} has all answers after {ours:.1f} s, {c.engine} after {theirs:.1f} s: {_times(ours, theirs)}"
        said += f"; {short(a.requests_s or 0.0)} against {short(b.requests_s or 0.0)} requests/s"
        if a.ttft_ms and b.ttft_ms:
            said += f"; TTFT p50 {ms(a.ttft_ms.p50)} against {ms(b.ttft_ms.p50)}"
        if a.hit_rate is not None and b.hit_rate is not None:
            said += f"; {a.hit_rate:.0%} against {b.hit_rate:.0%} of prompt tokens from the cache"
        different = unlike(first, d) + ([] if a.requests == b.requests else [f"{a.requests} against {b.requests} requests"])
        end = f". Not the same load: {', '.join(different)}" if different else ". One run each"
        words = f"{_branches(a)}: {said}{_failed(c, b)}{_failed(own, a)}{end}.{loud((own.engine, a), (c.engine, b))}{weights(first, d)}"
        yield Words(words, "loss" if ours > theirs else "")
    alone, p = found[0][1].engine, found[0][1].points[-1]
    if len(found) == 1 and (took := seconds(p)) is not None:
        yield Words(f"{_branches(p)}: {alone} has all answers after {took:.1f} s, {short(p.requests_s or 0.0)} requests/s. One run.")


def _times(ours: float, theirs: float) -> str:
    return f"{theirs / ours:.1f}x as fast" if ours <= theirs else f"{ours / theirs:.1f}x as long"


def _failed(c: Curve, p: LoadPoint) -> str:
    return f"; {p.failed} of {p.requests} requests of {c.engine} failed" if p.failed else ""


def _count(p: LoadPoint) -> int:
    return p.turns[0].requests if p.turns else p.requests // 2


def _branches(p: LoadPoint) -> str:
    return f"{_count(p)} branches, two turns"


def agent_part(documents: Sequence[ReportDocument]) -> Iterator[Block]:
    """What it is, bars an engine, and the numbers."""
    found = agent_curves(documents)
    if not found:
        return
    yield Heading("Agents: many branches of one prompt")
    yield Words(ABOUT.format(n=_count(beside(found, found[0][0])[1].points[-1])))
    yield from agent_findings(documents)
    last = [(c.engine, c.points[-1]) for _, c in found]
    yield Figure(side_by_side(_bars(last), "two"), "Figures in the HTML report: seconds, requests/s, TTFT and cache hits of each engine.")
    yield _grid(last)
    for _, c in found:
        yield cells_grid(c)


def _bars(last: Sequence[tuple[str, LoadPoint]]) -> Iterator[str]:
    for title, unit, values in (
        ("Until all have ended: shorter is better", "seconds", [seconds(p) for _, p in last]),
        ("Requests per second: longer is better", "requests/s", [p.requests_s for _, p in last]),
    ):
        yield bar_plot(title, Axis(unit), ("",), [Group(name, [v]) for (name, _), v in zip(last, values, strict=True)], width=420)
    turns = max((len(p.turns) for _, p in last), default=0)
    names = [f"turn {i + 1}, {which}" for i in range(turns) for which in ("p50", "p95")] or ["p50", "p95"]
    groups = [Group(name, _first_tokens(p, turns)) for name, p in last]
    yield bar_plot("Time to the first token", Axis("ms"), names, groups, width=420)
    if any(p.hit_rate is not None for _, p in last):
        shares = [Group(name, [p.hit_rate]) for name, p in last]
        yield bar_plot("Prompt tokens found in the cache", Axis("share", percent=True, high=1.0), ("",), shares, width=420)


def _first_tokens(p: LoadPoint, turns: int) -> list[float | None]:
    """p50 and p95 of every turn, or of all requests where turns are not known."""

    def two(of: Percentiles | None) -> list[float | None]:
        return [None, None] if of is None else [of.p50, of.p95]

    if not turns:
        return two(p.ttft_ms)
    return [v for i in range(turns) for v in two(p.turns[i].ttft_ms if i < len(p.turns) else None)]


def _grid(last: Sequence[tuple[str, LoadPoint]]) -> Grid:
    """A row a turn; of documents without turns a row an engine."""
    rows: list[list[Cell]] = []
    for name, p in last:
        rows += [[name, str(t.turn), t.requests, t.failed, *_times_of(t)] for t in p.turns]
        rows += [] if p.turns else [[name, "both", p.requests, p.failed, *_times_of(p)]]
    return Grid("Turn by turn", ("engine", "turn", "requests", "failed", "TTFT p50 ms", "TTFT p95 ms", "whole p50 ms", "cache hits"), rows)


def _times_of(p: TurnPoint | LoadPoint) -> list[Cell]:
    first, whole = p.ttft_ms, p.e2e_ms
    return [first.p50 if first else None, first.p95 if first else None, whole.p50 if whole else None, percent(p.hit_rate)]
