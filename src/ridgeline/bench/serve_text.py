"""A `bench serve` result for a terminal: the figures, what each of them means, and what a reader must know."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.bench.client_metrics import DEFINITIONS, Figures
from ridgeline.bench.serve import KNEE, ServeResult
from ridgeline.bench.serve_cells import Cell
from ridgeline.bench.serve_document import about, notes, pairs
from ridgeline.bench.stats import Summary

_LATENCIES = ("ttft_ms", "queue_ms", "prefill_ms", "itl_ms", "tpot_ms", "e2e_ms", "first_event_ms")


def render(result: ServeResult) -> str:
    """Lines of at most about 120 columns."""
    asked, server, p = result.asked, result.server, result.asked.preset
    slo = asked.promise
    lines = [
        f"{server.name} ({server.model}) at {server.target.url}" + (f", {server.version}" if server.version else ""),
        *([f"  started with  {server.command}"] if server.command else []),
        f"  workload {p.name}: {p.about}" if asked.trace is None else f"  trace {asked.trace}",
        f"  {about(result)} Seed {asked.seed}, salt {result.salt}" + (f", {asked.count} sessions a cell" if asked.trace is None else ""),
        f"  first request, cold: TTFT {_n(result.warm.cold_ms)} ms; warm: {_n(result.warm.warm_ms)} ms (not in the figures below)", "",
    ]  # fmt: skip
    head = ["load", "ok/asked", "out tok/s", "total tok/s", "req/s", "goodput/s", "in SLO", "hit rate", "TTFT p50", "TPOT p50", "others"]
    lines += _table(head, [_row(c) for c in result.cells])
    promised = [f"{name} <= {value * 1e3:.0f} ms" for name, value in (("TTFT", slo.ttft_s), ("TPOT", slo.tpot_s)) if value is not None]
    lines += [f"  SLO: {' and '.join(promised) or 'none'}", ""]
    for cell in result.cells:
        lines += [f"{_load(cell)}, {cell.figures.seconds:.1f} s", *_latencies(cell.figures)]
        if cell.server is not None and cell.server.queue_ms is not None:
            told = f"queue {_n(cell.server.queue_ms)} ms, prompt {_n(cell.server.prefill_ms)} ms a request (means)"
            lines.append(f"  the server says: {told}")
        beside = [f"{name} {a:.1f} for {b:.1f} ({a / b - 1:+.0%})" for name, a, b in pairs(cell)]
        if beside:
            lines.append("  predicted for measured: " + ", ".join(beside))
        for number, turn in enumerate(cell.turns):
            ttft = None if turn.ttft_ms is None else turn.ttft_ms.p50
            lines.append(
                f"  turn {number + 1}: {turn.completed}/{turn.requests}, TTFT p50 {_n(ttft)} ms, {turn.prompt_tokens} prompt tokens, "
                f"{_percent(turn.hit_rate)} of them cached"
            )
    if result.tokens is not None:
        t = result.tokens
        lines.append(
            f"tokens: {t.usage} by the server's usage, {t.counted} by the tokenizer over the text of {t.answers} answers, "
            f"{t.within} of them the same or one apart"
        )
    if result.knee is not None:
        lines += ["", f"knee: {result.knee:g}, the smallest load with {KNEE:.0%} of the best output tok/s"]
    elif len(result.cells) >= 3:
        lines.append(f"no knee up to {max(c.load for c in result.cells):g}: output tok/s still grow")
    if result.saturated is not None:
        lines.append(f"stopped at {result.saturated:g}: the server cannot do more, only waiting grows")
    lines += ["", "definitions", *(f"  {name}: {text}" for name, text in DEFINITIONS.items() if _shown(name, result.cells))]
    return "\n".join([*lines, "", *(f"note: {n}" for n in notes(result))])


def _load(cell: Cell) -> str:
    if cell.kind == "trace":
        return f"trace, {cell.load:.3g}/s"
    return f"{cell.load:g} at once" if cell.kind == "concurrency" else f"{cell.load:.3g} sessions/s"


def _row(cell: Cell) -> list[str]:
    f, noise = cell.figures, cell.noise
    others = "-" if noise is None else f"{noise.taken:.1%}" + ("" if noise.others is not None else "?")
    return [
        _load(cell), f"{f.completed}/{f.requests}", _n(f.output_tok_s), _n(f.total_tok_s), _n(f.requests_s, 2), _n(f.goodput_s, 2),
        _percent(f.attainment), _percent(f.hit_rate), _median(f.ttft_ms), _median(f.tpot_ms), others,
    ]  # fmt: skip


def _latencies(f: Figures) -> list[str]:
    rows = []
    for name in _LATENCIES:
        found: Summary | None = getattr(f, name)
        if found is not None:
            rows.append([name, *(_n(v) for v in (found.mean, found.p50, found.p90, found.p95, found.p99, found.max)), str(found.count)])
    return _table(["ms", "mean", "p50", "p90", "p95", "p99", "max", "count"], rows)


def _shown(name: str, cells: Sequence[Cell]) -> bool:
    """Definitions of figures that nobody sees explain nothing."""
    return name not in _LATENCIES or any(getattr(c.figures, name) is not None for c in cells)


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(len(r[i]) for r in [head, *rows]) for i in range(len(head))]
    cells = ([c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True))] for r in (head, *rows))
    return ["  " + "  ".join(row) for row in cells]


def _n(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _median(found: Summary | None) -> str:
    return _n(None if found is None else found.p50)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
