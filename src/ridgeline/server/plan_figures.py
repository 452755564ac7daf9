"""The planner page's figures, drawn here with the reports' own plots at the width that the reader's screen has. Computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.bench.plots import Note, Rule, Series, line_plot, roofline_plot
from ridgeline.bench.plots_bars import Group, bar_plot, stack_plot
from ridgeline.bench.svg import Axis, short
from ridgeline.planner.deployment import Deployment
from ridgeline.planner.explain import four_cells
from ridgeline.planner.setup import Setup
from ridgeline.planner.sheet import calibrated_points, memory_against_context, memory_against_users, operating_points

USERS = (1, 8, 32, 80, 160)
PARTS = ("weights", "activations", "rest", "KV")
TALL = 300.0


def figures(setup: Setup, p: Mapping[str, Any], width: float) -> dict[str, str]:
    """HTML of every figure by its place on the page."""
    d = setup.deployment()
    half = (width - 32) / 2 if width >= 672 else width  # as the style sheet lays pairs out
    return {
        "memory": _memory(d, p, width), "kv_context": _kv_context(d, p, half), "kv_users": _kv_users(d, p, half),
        "roofline": _roofline(setup, d, p, width), "curve": _curve(d, p, half), "batch": _batch(p, half),
        "intensity": _intensity(d, p, half), "cells": _cells(d, p, half),
    }  # fmt: skip


def _memory(d: Deployment, p: Mapping[str, Any], width: float) -> str:
    """The stack of one replica: what is always there, and KV on top of it, against what the devices have."""
    context, batch = p["context"], p["batch"]
    most = d.max_users(context)
    counts = sorted({1, batch, most} - {0}) if most < 1 << 32 else [1, batch]
    groups = []
    for n in counts:
        m = d.memory(n, context)
        values = [v / 1e9 for v in (m.weights, m.activations, m.overhead, m.kv)]
        words = [w for w, yes in (("shown here", n == batch), ("the most that fit", n == most)) if yes]
        groups.append(Group(f"{n:,} user{'s' if n > 1 else ''}", values, ", ".join(words)))
    limit = d.memory(1, context).capacity / 1e9
    return stack_plot(
        "Memory of a replica", Axis("GB"), PARTS, groups, limit=limit, limit_words=f"out of memory beyond {limit:,.4g} GB",
        note=f"{context:,} tokens a user", width=width,
    )  # fmt: skip


def _kv_context(d: Deployment, p: Mapping[str, Any], width: float) -> str:
    context, batch = p["context"], p["batch"]
    most = max(2 * context, 8192)
    chosen = sorted({batch, *USERS[:4]} if batch > 160 else {batch, *(u for u in USERS if u != 8 or batch < 32)})[:6]
    lines = memory_against_context(d, chosen, most)
    series = [Series(f"{n:,} user{'s' if n > 1 else ''}", [(c, b / 1e9) for c, b in at], "line") for n, at in lines]
    here = (context, d.memory(batch, context).total)
    return _against("Memory against context", "tokens a user", series, d, here, f"{batch:,} users", width)


def _kv_users(d: Deployment, p: Mapping[str, Any], width: float) -> str:
    context, batch = p["context"], p["batch"]
    chosen = sorted({max(1, context // 4), context, 2 * context, 4 * context})
    lines = memory_against_users(d, chosen, max(160, min(2 * batch, 100_000)))
    series = [Series(f"{c:,} tokens", [(n, b / 1e9) for n, b in at], "line") for c, at in lines]
    here = (batch, d.memory(batch, context).total)
    return _against("Memory against users", "users at once", series, d, here, f"{context:,} tokens", width)


def _against(
    title: str, x: str, series: Sequence[Series], d: Deployment, here: tuple[float, float], words: str, width: float
) -> str:
    """The vertical axis ends a little above the limit: what lies far beyond it is out of memory, however far."""
    limit = d.ceilings.memory_bytes * d.layout.of_replica / 1e9
    high = max(1.5 * limit, 1.1 * min(here[1] / 1e9, 3 * limit))
    clipped = [Series(s.name, [(a, b) for a, b in s.points if b <= high], s.kind) for s in series]
    notes = [Note(here[0], here[1] / 1e9, words)] if here[1] / 1e9 <= high else []
    rules = [Rule("y", limit, f"out of memory: {limit:,.4g} GB", bad=True)]
    return line_plot(title, Axis(x), Axis("GB", high=high), clipped, rules=rules, notes=notes, size=(width, TALL))


def _roofline(setup: Setup, d: Deployment, p: Mapping[str, Any], width: float) -> str:
    """Datasheet or measured ceilings of one device, the plan's own points, and what was measured on this host."""
    kind = setup.labels()["step_time_ms"].split()[0].rstrip(":")
    points = operating_points(d, p["batch"], p["context"], kind)
    shown = [(f"{q.name} ({q.label})", q.intensity, q.flop_s / 1e9) for q in points]
    if setup.calibration is not None:
        shown += [(f"{q.name} ({q.label})", q.intensity, q.flop_s / 1e9) for q in calibrated_points(setup.calibration)[:9]]
    alike: dict[float, list[str]] = {}
    for name, peak in setup.device.tflops.items():
        alike.setdefault(peak, []).append(name)
    roofs = [(", ".join(names), peak * 1e3) for peak, names in alike.items()]
    source = "measured on this host" if setup.host else "datasheet"
    note = f"ceilings of one device ({source}); points as the plan times them"
    return roofline_plot("Roofline", d.ceilings.bytes_per_s / 1e9, roofs, shown, note=note, size=(width, 360.0))


def _curve(d: Deployment, p: Mapping[str, Any], width: float) -> str:
    """Latency against throughput, one mark a batch; the promise, the asymptote, the knee and the best batch."""
    rows, itl = p["curve"], p["slo"]["itl_ms"]
    if not rows:
        return line_plot("Latency against throughput", Axis("output tok/s"), Axis("ms a token"), [Series("", [])])
    words = {r["batch"]: f"best batch {r['batch']:,}" if itl is not None else f"knee at batch {r['batch']:,}" for r in rows if r["best"]}
    notes = [Note(r["tok_s"], r["step_ms"], words[r["batch"]]) for r in rows if r["batch"] in words]
    knee = d.knee(p["context"]) if itl is not None else 0
    if knee and knee not in words:
        notes.append(Note(d.throughput(knee, p["context"]), d.decode(knee, p["context"]).seconds * 1e3, f"knee at batch {knee:,}"))
    rules = [Rule("y", itl, f"promise {itl:g} ms", bad=True)] if itl is not None else []
    ceiling = d.asymptote(p["context"])
    if ceiling is not None and ceiling < 4 * max(r["tok_s"] for r in rows):
        rules.append(Rule("x", ceiling, f"asymptote {ceiling:,.0f}"))
    series = [Series("batches 1, 2, 4 ... of one replica", [(r["tok_s"], r["step_ms"]) for r in rows])]
    x, y = Axis("output tok/s"), Axis("ms a token")
    return line_plot("Latency against throughput", x, y, series, rules=rules, notes=notes, size=(width, TALL))


def _batch(p: Mapping[str, Any], width: float) -> str:
    rows, itl = p["curve"], p["slo"]["itl_ms"]
    rules = [Rule("y", itl, f"promise {itl:g} ms", bad=True)] if itl is not None else []
    series = [Series("ms a token", [(r["batch"], r["step_ms"]) for r in rows])]
    notes = [Note(r["batch"], r["step_ms"], f"batch {r['batch']:,}") for r in rows if r["best"]]
    x, y = Axis("batch", log=True), Axis("ms a token")
    return line_plot("Time per token against batch", x, y, series, rules=rules, notes=notes, size=(width, TALL))


BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def _intensity(d: Deployment, p: Mapping[str, Any], width: float) -> str:
    """More sequences raise the intensity of the MLP and leave that of attention where it is."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for batch in BATCHES:
        for cell in four_cells(d, batch, p["context"]):
            if cell.name.startswith("generation"):
                lines.setdefault(cell.name.removeprefix("generation "), []).append((batch, cell.intensity))
    series = [Series(name, at, "line") for name, at in lines.items()]
    ridge = p["ridge_flop_per_byte"]
    rules = [Rule("y", ridge, f"ridge {ridge:,.0f}: below it memory is the limit")]
    x, y = Axis("sequences that generate", log=True), Axis("FLOP per byte", log=True)
    return line_plot("Intensity against batch", x, y, series, rules=rules, note="of one layer, weights in 16 bits", size=(width, TALL))


def _cells(d: Deployment, p: Mapping[str, Any], width: float) -> str:
    """What memory and arithmetic alone would take in one layer, as shares of the longer of the two, which is the bound."""
    groups = []
    for c in four_cells(d, p["batch"], p["context"]):
        longer = max(c.memory_s, c.math_s) or 1.0
        words = f"{short(c.intensity)} FLOP/byte; {short(c.memory_s * 1e6)} and {short(c.math_s * 1e6)} us"
        groups.append(Group(c.name, [c.memory_s / longer, c.math_s / longer], words))
    note = f"times of one layer, batch {p['batch']:,}, {p['context']:,} tokens; the longer bar is the bound"
    title, x = "Memory and math of the four cells", Axis("of the longer time", percent=True)
    return bar_plot(title, x, ("memory", "math"), groups, note=note, width=width)


def ranking(rows: Sequence[Mapping[str, Any]], width: float) -> str:
    """Dollars per million output tokens of what passes, cheapest first."""
    priced = [r for r in rows if r["passes"] and r["usd_per_mtok"] is not None][:16]
    groups = [Group(f"{r['devices']} x {r['device']}", [r["usd_per_mtok"]], f"batch {r['batch']:,}, {r['weight_dtype']}") for r in priced]
    title = "Devices that keep the promise, by price of a token"
    return bar_plot(title, Axis("USD per million output tokens"), ("",), groups, width=width)

