"""Cells of sweeps as tables, which documents may be compared, and figures side by side: what sections of a report share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ridgeline.bench.machine_load import LIMIT
from ridgeline.bench.report_blocks import Grid
from ridgeline.bench.report_schema import Cell, Curve, LoadPoint, Percentiles, ReportDocument
from ridgeline.bench.svg import short

OURS = "ridgeline"
SAME = ("requests", "scale", "input_len", "output_len", "ignore_eos")  # settings without which two sweeps are no comparison


def reported(label: str) -> bool:
    """Whether somebody else measured it: such numbers never stand among our own."""
    return label.partition(":")[0] == "reported"


def told_apart(documents: Sequence[ReportDocument]) -> Iterator[tuple[ReportDocument, Curve]]:
    """Own curves; an engine of the same name in another document is named with that document."""
    found = [(d, c) for d in documents for c in d.curves if not reported(c.label)]
    names = [(c.engine, c.workload, c.load) for _, c in found]
    titles = [d.title for d in documents]
    for d, c in found:
        alone = names.count((c.engine, c.workload, c.load)) == 1
        file = d.setup.settings.get("file") if titles.count(d.title) > 1 else None
        yield d, c if alone else replace(c, engine=f"{c.engine} ({file or d.title})")


def beside(found: Sequence[tuple[ReportDocument, Curve]], other: ReportDocument) -> tuple[ReportDocument, Curve]:
    """What `other` is compared with: this engine on the same file, else this engine, else the first."""
    ours = [pair for pair in found if pair[1].engine.startswith(OURS)] or [found[0]]
    file = other.setup.settings.get("file")
    return next((pair for pair in ours if pair[0].setup.settings.get("file") == file), ours[0])


def unlike(a: ReportDocument, b: ReportDocument) -> list[str]:
    """Settings in which two documents differ so that their numbers do not compare, in words; machines too."""
    pairs = [(k, a.setup.settings.get(k), b.setup.settings.get(k)) for k in SAME]
    pairs.append(("host", a.setup.machine.get("host"), b.setup.machine.get("host")))
    pairs.append(("seed", a.setup.seeds.get("workload"), b.setup.seeds.get("workload")))
    return [f"{k} {x} against {y}" for k, x, y in pairs if x != y]


def weights(a: ReportDocument, b: ReportDocument) -> str:
    """A sentence where two engines read other files: they still compare, as a choice between them does."""
    x, y = a.setup.settings.get("file"), b.setup.settings.get("file")
    return f" Other weights: {x} against {y}." if x and y and x != y else ""


def ms(value: float) -> str:
    return f"{short(value)} ms" if value < 10_000 else f"{value / 1e3:.1f} s"


def percent(share: float | None) -> Cell:
    return None if share is None else f"{share:.1%}"


def loud(*cells: tuple[str, LoadPoint]) -> str:
    """Whose CPU time others took so much of that a number is not to be relied on; "" where nobody did."""
    found = [f"{name} {taken:.0%}" for name, p in cells if (taken := (p.steal or 0.0) + (p.others or 0.0)) > LIMIT]
    return f" Not to be relied on: others had over {LIMIT:.0%} of the CPUs ({', '.join(found)})." if found else ""


def side_by_side(figures: Iterable[str], kind: str = "many") -> str:
    """kind: many for small figures, two for larger ones."""
    return f'<div class="{kind}">{"".join(figures)}</div>'


def cells_grid(c: Curve) -> Grid:
    """Every cell of a sweep."""

    def three(p: Percentiles | None) -> str:
        if p is None:
            return "-"
        return short(p.p50) if p.p95 is p.p99 is None else " / ".join("-" if v is None else short(v) for v in (p.p50, p.p95, p.p99))

    def row(p: LoadPoint) -> tuple[Cell, ...]:
        failed = f"{p.failed} of {p.requests}" if p.failed else str(p.requests or "-")
        return (
            p.load, failed, p.output_tok_s, p.total_tok_s, p.requests_s, p.goodput_s, three(p.ttft_ms), three(p.itl_ms), three(p.tpot_ms),
            percent(p.hit_rate), percent(p.steal), percent(p.others),
        )  # fmt: skip

    columns = [
        "at once" if c.load == "concurrency" else "requests/s sent", "requests (failed)", "output tok/s", "total tok/s", "requests/s",
        "goodput/s", "TTFT ms", "ITL ms", "TPOT ms", "cache hits", "steal", "others' CPU",
    ]  # fmt: skip
    rows = [row(p) for p in c.points]
    kept = [i for i in range(len(columns)) if any(r[i] not in (None, "-") for r in rows)]
    said = ["Latencies are p50 / p95 / p99."] if any(x and x.p95 is not None for p in c.points for x in (p.ttft_ms, p.tpot_ms)) else []
    if c.knee is not None:
        said.append(f"Knee at {c.knee:g}.")
    if c.saturated is not None:
        said.append(f"Over-saturated, and stopped, at {c.saturated:g}.")
    goals = [f"{n} within {v:g} ms" for n, v in (("TTFT", c.slo_ttft_ms), ("TPOT", c.slo_tpot_ms)) if v is not None]
    if goals:
        said.append(f"Goodput counts requests with {' and '.join(goals)}.")
    title = f"{c.engine}, {c.workload}"
    return Grid(title, [columns[i] for i in kept], [[r[i] for i in kept] for r in rows], " ".join(said), c.label)
