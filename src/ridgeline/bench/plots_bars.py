"""Plots of bars: grouped, stacked, waterfall, and the Gantt of requests. Knows how to draw, not what is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite

from ridgeline.bench.report_schema import Bar
from ridgeline.bench.svg import EM, WIDTH, Axis, Scale, colour, figure, key, nothing, path, rect, scale_of, short, text

MOST_ROWS = 48  # requests of a Gantt
ROW = 26.0  # pixels of a horizontal bar with its gap
PHASES = (("waits", "ghost", 6), ("computes its prompt", "bar c1", 1), ("generates", "bar c0", 0))


@dataclass(frozen=True, slots=True)
class Group:
    """Bars beside or upon one another under one name. None is a bar that is not there."""

    name: str
    values: Sequence[float | None]
    note: str = ""


def bar_plot(
    title: str, x: Axis, names: Sequence[str], groups: Sequence[Group], *, note: str = "", width: float = WIDTH
) -> str:
    """Horizontal bars, `names` the series: long words fit, and narrow screens too."""
    values = [v for g in groups for v in g.values if v is not None and isfinite(v)]
    left = 8.0
    scale = scale_of(values, x, left, width - 86)
    if scale is None:
        return nothing(title)
    each = 15.0 if len(names) > 1 else 17.0
    parts, y = [], 14.0
    for g in groups:
        parts.append(text(left, y + 10, g.name + (f": {g.note}" if g.note else "")))
        y += 16
        for i, value in enumerate(g.values):
            if value is None or not isfinite(value):
                parts.append(text(left + 4, y + 11, "-", "quiet"))
            else:
                said = f"{g.name}, {names[i]}: {x.show(value)} {x.label}"
                parts.append(rect(scale(0), y, scale(value) - scale(0), each - 3, f"bar {colour(i)}", said))
                parts.append(text(scale(value) + 5, y + 10, x.show(value), "tick"))
            y += each
        y += 8
    parts.append(text(left, y + 8, x.label, "quiet"))
    keys = [key(i, name, "bar") for i, name in enumerate(names)] if len(names) > 1 else []
    said = "; ".join(f"{g.name}: {', '.join('-' if v is None else x.show(v) for v in g.values)}" for g in groups)
    return figure(title, note, (width, y + 16), parts, keys, said)


def stack_plot(
    title: str, x: Axis, parts_of: Sequence[str], groups: Sequence[Group], *, limit: float | None = None, limit_words: str = "",
    note: str = "", width: float = WIDTH,
) -> str:  # fmt: skip
    """Horizontal stacked bars, one a group, and a line that none should pass."""
    totals = [sum(v for v in g.values if v) for g in groups]
    scale = scale_of([*totals, *([limit] if limit is not None else [])], x, 8, width - 12)
    if scale is None or not groups:
        return nothing(title)
    out, y = [], 18.0
    for g, total in zip(groups, totals, strict=True):
        over = limit is not None and total > limit
        out.append(text(8, y + 10, f"{g.name}: {x.show(total)} {x.label}" + (f", {g.note}" if g.note else ""), "bad" if over else ""))
        y += 16
        at = 0.0
        for i, value in enumerate(g.values):
            if value:
                said = f"{g.name}, {parts_of[i]}: {x.show(value)} {x.label}"
                out.append(rect(scale(at), y, max(1.0, scale(at + value) - scale(at)), ROW - 4, f"bar {colour(i)}", said))
                at += value
        y += ROW + 6
    out += _ruler(scale, x, y)
    if limit is not None:
        at = scale(limit)
        out.append(path([(at, 14), (at, y)], "rule bad"))
        left = at > width / 2
        out.append(text(at - 4 if left else at + 4, 12, limit_words, f"bad {'end' if left else ''}".strip()))
    keys = [key(i, name, "bar") for i, name in enumerate(parts_of)]
    said = "; ".join(f"{g.name}: {x.show(t)} {x.label}" for g, t in zip(groups, totals, strict=True))
    return figure(title, note, (width, y + 36), out, keys, said)


def _ruler(scale: Scale, x: Axis, y: float) -> list[str]:
    out, until = [], -1.0
    for value in scale.ticks():
        here, said = scale(value), x.show(value)
        out.append(path([(here, y), (here, y + 5)], "axis"))
        half = EM * len(said) / 2
        if here - half > until:
            out.append(text(max(here, half), y + 17, said, "tick mid"))
            until = here + half + 4
    return [*out, path([(scale.start, y), (scale.end, y)], "axis"), text(scale.end, y + 32, x.label, "quiet end")]


def waterfall_plot(title: str, unit: str, steps: Sequence[tuple[str, float, float]], *, note: str = "", width: float = WIDTH) -> str:
    """steps: (name, value before, value after); the first one begins at nothing. Rises and falls differ in colour and in sign."""
    x = Axis(unit)
    scale = scale_of([v for _, a, b in steps for v in (a, b)], x, 8, width - 120)
    if scale is None or not steps:
        return nothing(title)
    out, y = [], 6.0
    for i, (name, before, after) in enumerate(steps):
        out.append(text(8, y + 12, name))
        y += 18
        low, high = min(before, after), max(before, after)
        kind = "bar c6" if i == 0 else "bar c2" if after >= before else "bar bad"
        out.append(rect(scale(low), y, max(1.5, scale(high) - scale(low)), 14, kind, f"{name}: {short(before)} to {short(after)} {unit}"))
        gain = f"  x{after / before:.2f}" if i and before > 0 else ""
        out.append(text(scale(high) + 5, y + 11, f"{short(after)}{gain}", "tick"))
        if i + 1 < len(steps):
            out.append(path([(scale(after), y + 14), (scale(after), y + 36)], "grid"))
        y += 22
    out += _ruler(scale, x, y + 2)
    said = "; ".join(f"{name}: {short(after)} {unit}" for name, _, after in steps)
    return figure(title, note, (width, y + 40), out, (), said)


def gantt_plot(
    title: str, bars: Sequence[Bar], *, until: float | None = None, note: str = "", width: float = 760.0
) -> str:
    """One row a request in order of arrival, at most MOST_ROWS of them. until: end of the time scale, to draw several alike."""
    shown = sorted(bars, key=lambda b: b.arrival_s)[:MOST_ROWS]
    if not shown:
        return nothing(title, "no request had an answer")
    x = Axis("seconds")
    left = 12 + EM * min(14, max(len(b.name) for b in shown))
    longest = until if until is not None else max(b.last_s for b in shown)
    scale = scale_of([0.0, longest], Axis("seconds", high=longest or 1.0), left, width - 12)
    if scale is None:
        return nothing(title)
    row = 12.0
    out = []
    for i, b in enumerate(shown):
        y = 4 + i * row
        out.append(text(left - 6, y + 9, b.name[:14], "tick end"))
        for (words, kind, _), (start, end) in zip(PHASES, pairwise((b.arrival_s, b.admitted_s, b.first_s, b.last_s)), strict=True):
            if end > start:
                said = f"{b.name} {words}: {end - start:.3f} s"
                out.append(rect(scale(start), y + 1, max(0.6, scale(end) - scale(start)), row - 3, kind, said))
    y = 6 + len(shown) * row
    out += _ruler(scale, x, y)
    if len(bars) > len(shown):
        note = f"{note}{'. ' if note else ''}The first {len(shown)} of {len(bars)} requests"
    keys = [key(index, name, kind.split()[0]) for name, kind, index in PHASES]
    return figure(title, note, (width, y + 36), out, keys)
