"""The ladder in a report: what each rung gained over the one before, waterfall, five metrics in one figure, batching told from kernels.

Gains are ratios of measured throughputs of neighbouring rungs that ran, in the same round; a rung that lost is shown losing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ridgeline.bench.ladder_numbers import Waterfall, waterfall
from ridgeline.bench.plots import Series, line_plot
from ridgeline.bench.plots_bars import Group, bar_plot, waterfall_plot
from ridgeline.bench.report_blocks import Block, Commands, Figure, Grid, Heading, Words, shown
from ridgeline.bench.report_cells import reported
from ridgeline.bench.report_schema import Cell, Ladder, ReportDocument, Rung
from ridgeline.bench.svg import Axis


def ladder_part(documents: Sequence[ReportDocument]) -> Iterator[Block]:
    found = [(d, ladder) for d in documents for ladder in d.ladders if not others(ladder)]
    if found:
        yield Heading("Ladder: one optimization at a time")
    for d, ladder in found:
        yield from _ladder(ladder, d.setup.commands)


def others(ladder: Ladder) -> bool:
    """Whether somebody else climbed it."""
    return any(reported(r.label) for r in ladder.rungs)


def ran(ladder: Ladder) -> list[Rung]:
    return [r for r in ladder.rungs if r.status == "done" and r.output_tok_s]


def climbed(ladder: Ladder) -> Waterfall | None:
    """The same factors as the command prints: medians of what each round measured."""
    return waterfall([(r.name, r.round_tok_s or (r.output_tok_s or 0.0,)) for r in ran(ladder)])


def gains(ladder: Ladder) -> list[tuple[Rung, float | None]]:
    """Each rung that ran with its throughput over that of the one before; None for the first."""
    fall = climbed(ladder)
    factors = [None, *(s.factor for s in fall.steps)] if fall else [None]
    return list(zip(ran(ladder), factors, strict=False))


def _ladder(ladder: Ladder, told: Sequence[str]) -> Iterator[Block]:
    """told: commands that the set-up lists anyway."""
    yield Heading(ladder.title, 3)
    yield Words(f"Workload: {ladder.workload}.")
    steps, fall = gains(ladder), climbed(ladder)
    if fall is not None:
        before = [0.0, *((r.output_tok_s or 0.0) for r, _ in steps)]
        bars = [(r.name, b, r.output_tok_s or 0.0) for (r, _), b in zip(steps, before, strict=False)]
        drawn = waterfall_plot("What each rung changes", "output tok/s", bars, note="measured steps only; green rises, red falls")
        yield Figure(drawn, "Waterfall of the rungs: see the HTML report.")
        yield Words(_check(fall))
    yield rungs_grid(ladder)
    yield from _batching(ladder)
    five = five_figure(ladder)
    if five:
        yield Figure(five, "The five metrics in one figure: see the HTML report.")
    losses = [(r, g) for r, g in steps if g is not None and g < 1]
    for r, g in losses:
        yield Words(f"{r.name} lost throughput: {g:.3g}x of the rung before.", "loss")
    for r in ladder.rungs:
        if r.lossy and r.status == "done" and not r.quality:
            yield Words(f"{r.name} changes the numbers of the model and its quality was not measured here.", "loss")
    commands = [f"# {r.name}\n{r.command}" for r in ladder.rungs if r.command and r.command not in told]
    if commands:
        yield Commands(commands)


def _check(fall: Waterfall) -> str:
    """The product of the factors beside the last rung over the first as each round measured it."""
    product = f"{' x '.join(f'{s.factor:.2f}' for s in fall.steps)} = {fall.product:.2f}"
    if len(fall.rounds) < 2:
        return f"{product}; with one round that is the last rung over the first by construction."
    verdict = "which agrees" if fall.agrees else "which does NOT agree"
    return f"Check: {product}; the last rung over the first, round by round: {', '.join(f'{x:.2f}' for x in fall.rounds)}, {verdict}."


def rungs_grid(ladder: Ladder) -> Grid:
    """Every rung with its state, numbers and gain."""
    gain = {id(r): g for r, g in gains(ladder)}
    rows: list[list[Cell]] = []
    for r in ladder.rungs:
        g = gain.get(id(r))
        state = "" if r.status == "done" else f"{r.status}: {r.why}" if r.why else r.status
        rows.append([
            r.name, state, r.output_tok_s, r.predicted_output_tok_s, None if g is None else f"{g:.2f}x",
            r.ttft_ms.p50 if r.ttft_ms else None, r.predicted_ttft_ms, r.itl_ms.p50 if r.itl_ms else None, r.predicted_itl_ms,
            None if r.hit_rate is None else f"{r.hit_rate:.0%}", ", ".join(f"{k} {shown(v)}" for k, v in r.quality.items()),
        ])  # fmt: skip
    columns = [
        "rung", "state", "output tok/s", "predicted", "over the one before", "TTFT p50 ms", "predicted ms", "ITL p50 ms", "predicted  ms",
        "cache hits", "quality",
    ]  # fmt: skip
    kept = [i for i in range(len(columns)) if i == 0 or any(row[i] not in (None, "") for row in rows)]
    label = ", ".join(dict.fromkeys(r.label for r in ladder.rungs if r.status == "done"))
    return Grid("Rungs", [columns[i] for i in kept], [[row[i] for i in kept] for row in rows], "", label)


def _batching(ladder: Ladder) -> Iterator[Block]:
    """N at once against one, apart from what faster kernels give."""
    done = ran(ladder)
    first = next((r for r in done if r.one_tok_s), None)
    last = next((r for r in reversed(done) if r.one_tok_s), None)
    if first is None or last is None or first is last or not first.one_tok_s or not last.one_tok_s or not last.output_tok_s:
        return
    if last.output_tok_s == last.one_tok_s:  # nothing ran many at once
        return
    kernels, batching = last.one_tok_s / first.one_tok_s, last.output_tok_s / last.one_tok_s
    yield Words(
        f"Of {last.name} over {first.name}: one request at a time is {kernels:.2f}x as fast (kernels and overhead), many at once make "
        f"{batching:.2f}x the tokens of one at a time (batching). The first rung serves one request at a time."
    )


def five_figure(ladder: Ladder) -> str:
    """Throughput, TTFT, ITL, KV in use against users and against context, side by side; "" when there is nothing."""
    done = ran(ladder)
    parts = []
    for title, unit, values in (
        ("Throughput", "output tok/s", [r.output_tok_s for r in done]),
        ("TTFT", "p50, ms", [r.ttft_ms.p50 if r.ttft_ms else None for r in done]),
        ("ITL", "p50, ms", [r.itl_ms.p50 if r.itl_ms else None for r in done]),
    ):
        if any(v is not None for v in values):
            groups = [Group(r.name, [v]) for r, v in zip(done, values, strict=True)]
            parts.append(bar_plot(title, Axis(unit), ("",), groups, width=340))
    for title, x, points in (
        ("KV in use against users", "users", [(r, r.kv_users) for r in done]),
        ("KV in use against context", "tokens a sequence", [(r, r.kv_context) for r in done]),
    ):
        series = [Series(r.name, at) for r, at in points if at]
        if series:
            parts.append(line_plot(title, Axis(x), Axis("share of the KV pool", percent=True), series, size=(340, 260)))
    if not parts:
        return ""
    return f'<section><h3>Five metrics of the ladder</h3><div class="many">{"".join(parts)}</div></section>'
