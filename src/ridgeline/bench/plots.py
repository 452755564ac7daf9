"""Plots in a frame of two axes: lines, points, steps, CDFs, rooflines, with rules and notes. Knows how to draw, not what is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from ridgeline.bench.svg import (
    EM,
    HEIGHT,
    WIDTH,
    Axis,
    Scale,
    colour,
    dash,
    figure,
    key,
    marker,
    nothing,
    path,
    scale_of,
    text,
    usable,
)

Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, right, bottom
Kind = Literal["line", "points", "both", "step"]
MOST = 600  # points of a path; longer series are thinned evenly


@dataclass(frozen=True, slots=True)
class Series:
    """Points in order. colour: index of another series to share the colour with (predicted beside measured); dash, mark: likewise the kind
    of line and the shape of points; None: its own."""

    name: str
    points: Sequence[Point]
    kind: Kind = "both"
    colour: int | None = None
    quiet: bool = False  # not in the legend
    dash: int | None = None
    mark: int | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A dashed line across at x or y, with words. bad: in the colour of limits."""

    at: Literal["x", "y"]
    value: float
    words: str
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Note:
    """Words at a point, which is ringed."""

    x: float
    y: float
    words: str


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a plot is: pixels of the area, and both scales."""

    x: Scale
    y: Scale
    width: float
    height: float


def frame(xs: Iterable[float], ys: Iterable[float], x: Axis, y: Axis, size: tuple[float, float]) -> Frame | None:
    """Scales of a plot of `size` pixels; None where there is nothing to show."""
    width, height = size
    top, bottom = 26.0, height - 42.0
    vertical = scale_of(ys, y, bottom, top)
    if vertical is None:
        return None
    left = max(34.0, 12 + EM * max((len(y.show(t)) for t in vertical.ticks()), default=1))
    across = scale_of(xs, x, left, width - 20)
    return None if across is None else Frame(across, vertical, width, height)


def axes(f: Frame, x: Axis, y: Axis) -> list[str]:
    """Grid, ticks with numbers, and both labels: y's above its axis, so that nobody turns the head."""
    left, right, bottom, top = f.x.start, f.x.end, f.y.start, f.y.end
    parts = [text(4, 14, y.label, "quiet"), text(right, f.height - 6, x.label, "quiet end")]
    for t in f.y.ticks():
        parts.append(path([(left, f.y(t)), (right, f.y(t))], "grid"))
        parts.append(text(left - 6, f.y(t) + 4, y.show(t), "tick end"))
    said_until = -1.0
    for t in f.x.ticks():
        at, said = f.x(t), x.show(t)
        parts.append(path([(at, bottom), (at, bottom + 5)], "axis"))
        half = EM * len(said) / 2
        if at - half > said_until:
            parts.append(text(at, bottom + 18, said, "tick mid"))
            said_until = at + half + 4
    return [*parts, path([(left, top), (left, bottom), (right, bottom)], "axis")]


def line_plot(
    title: str, x: Axis, y: Axis, series: Sequence[Series], *, rules: Sequence[Rule] = (), notes: Sequence[Note] = (), note: str = "",
    size: tuple[float, float] = (WIDTH, HEIGHT),
) -> str:  # fmt: skip
    """Any number of series over two axes. Values that are not finite, or not above 0 on a log axis, are left out."""
    shown = [(i, s, _usable(s.points, x, y)) for i, s in enumerate(series)]
    points = [p for _, _, found in shown for p in found]
    xs = [p[0] for p in points] + [r.value for r in rules if r.at == "x"]
    ys = [p[1] for p in points] + [r.value for r in rules if r.at == "y"]
    f = frame(xs, ys, x, y, size) if points else None
    if f is None:
        return nothing(title)
    parts, keys = axes(f, x, y), []
    for i, s, found in shown:
        parts += _drawn(f, x, y, s, i, found)
        if not s.quiet:
            keys.append(key(i if s.mark is None else s.mark, s.name, s.kind, colour(i if s.colour is None else s.colour), _dash(s, i)))
    parts += [p for i, r in enumerate(rules) for p in _rule(f, r, i)]
    taken: list[Box] = []
    parts += [p for n in notes for p in _note(f, n, taken)]
    said = "; ".join(f"{s.name}: {len(found)} points" for _, s, found in shown)
    return figure(title, note, size, parts, keys if len(keys) > 1 or series[0].kind != "line" else keys[:1], said)


def _usable(points: Sequence[Point], x: Axis, y: Axis) -> list[Point]:
    found = [(a, b) for a, b in points if usable(a, x) and usable(b, y)]
    return found if len(found) <= MOST else [*found[:: -(-len(found) // MOST)], found[-1]]


def _drawn(f: Frame, x: Axis, y: Axis, s: Series, index: int, points: Sequence[Point]) -> list[str]:
    own = colour(index if s.colour is None else s.colour)
    at = [(f.x(a), f.y(b)) for a, b in points]
    if s.kind == "step":
        at = [q for i, p in enumerate(at) for q in ((p,) if i == 0 else ((p[0], at[i - 1][1]), p))]
    parts = [path(at, f"line {own} {_dash(s, index)}")] if s.kind != "points" else []
    if s.kind in ("points", "both") or len(points) == 1:
        shape = index if s.mark is None else s.mark
        parts += [
            marker(f.x(a), f.y(b), shape, f"mark {own}", f"{s.name}: {x.label} {x.show(a)}, {y.label} {y.show(b)}") for a, b in points
        ]
    return parts


def _dash(s: Series, index: int) -> str:
    return dash(index) if s.dash is None else f"d{s.dash}"


def _rule(f: Frame, r: Rule, index: int) -> list[str]:
    kind = "bad" if r.bad else "quiet"
    if r.at == "y":
        at = f.y(r.value)
        words = text(f.x.end - 4, at - 5, r.words, f"end halo {kind}")
        return [path([(f.x.start, at), (f.x.end, at)], f"rule {kind}"), words]
    at = f.x(r.value)
    near_end = at + EM * len(r.words) > f.x.end
    words = text(at - 5 if near_end else at + 5, f.y.start - 6 - 15 * index, r.words, f"{'end ' if near_end else ''}halo {kind}")
    return [path([(at, f.y.start), (at, f.y.end)], f"rule {kind}"), words]


def _note(f: Frame, n: Note, taken: list[Box]) -> list[str]:
    """Ring and words, beside the words before it (`taken`, which grows), not upon them."""
    x, y = f.x(n.x), f.y(n.y)
    ring = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="8" class="error"/>'
    near_end, near_top = x > (f.x.start + f.x.end) / 2, y - 12 < f.y.end + 8
    heights = [y + 22, y + 38, y - 12, y - 28] if near_top else [y - 12, y + 22, y - 28, y - 44]
    places = [(left, at) for left in (near_end, not near_end) for at in heights]
    boxes = [_words_box(x, at, n.words, left) for left, at in places]
    fits = [f.x.start <= box[0] and box[2] <= f.width and f.y.end - 12 <= box[1] and box[3] <= f.y.start for box in boxes]
    free = next((i for i, box in enumerate(boxes) if fits[i] and not any(_overlap(box, other) for other in taken)), 0)
    left, low = places[free]
    taken.append(boxes[free])
    return [ring, text(x - 8 if left else x + 8, low, n.words, f"strong halo {'end' if left else ''}".strip())]


def _words_box(x: float, y: float, words: str, left: bool) -> Box:
    wide = (EM + 0.8) * len(words)
    return (x - 8 - wide, y - 11, x - 8, y + 3) if left else (x + 8, y - 11, x + 8 + wide, y + 3)


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def cdf_plot(
    title: str, unit: str, samples: Sequence[tuple[str, Sequence[float]]], *, note: str = "", size: tuple[float, float] = (WIDTH, HEIGHT)
) -> str:
    """Cumulative shares of samples; a log axis where the values span more than a factor of 50."""
    series, whole = [], []
    for name, values in samples:
        found = sorted(v for v in values if isfinite(v))
        whole += found
        series.append(Series(name, [(v, (i + 1) / len(found)) for i, v in enumerate(found)], "step"))
    if not whole:
        return nothing(title)
    low = min(whole)
    log = low > 0 and max(whole) / low > 50
    return line_plot(title, Axis(unit, log=log), Axis("share of samples at most", high=1.0, percent=True), series, note=note, size=size)


def roofline_plot(
    title: str, read_gb_s: float, roofs: Sequence[tuple[str, float]], points: Sequence[tuple[str, float, float]], *, note: str = "",
    size: tuple[float, float] = (WIDTH, HEIGHT),
) -> str:  # fmt: skip
    """GFLOP/s over FLOP/byte, both logarithmic. roofs: (name, GFLOP/s); points: (name, FLOP/byte, GFLOP/s)."""
    roofs = [r for r in roofs if r[1] > 0]
    if not roofs or read_gb_s <= 0:
        return nothing(title)
    ridges = [peak / read_gb_s for _, peak in roofs]
    low = min([0.5, *(p[1] / 2 for p in points if p[1] > 0)])
    high = max([4 * max(ridges), *(2 * p[1] for p in points)])
    by, unit = (1e3, "TFLOP/s") if max(peak for _, peak in roofs) >= 1e4 else (1.0, "GFLOP/s")
    series = []
    for (name, peak), ridge in zip(roofs, ridges, strict=True):
        bend = [(low, low * read_gb_s / by), (ridge, peak / by), (high, peak / by)]
        series.append(Series(f"{name}: {peak / by:,.4g} {unit}, ridge at {ridge:.3g} FLOP/byte", bend, "line"))
    series += [Series(name, [(at, rate / by)], "points") for name, at, rate in points]
    bandwidth = f"slope {read_gb_s:,.4g} GB/s"
    said = f"{bandwidth}. {note}" if note else bandwidth
    intensity = Axis("FLOP per byte of memory traffic", log=True, low=low, high=high)
    return line_plot(title, intensity, Axis(unit, log=True), series, note=said, size=size)

