"""Marks on paper: scales, ticks, text, swatches, and the one style sheet of all our plots. Knows numbers and words, not their meaning.

Everything is an escaped string of HTML or SVG with classes and attributes only: no script, no style attribute (pages with a strict
Content-Security-Policy show it too), nothing fetched. Colours are Okabe and Ito's, which the colour-blind tell apart; lines differ in
dash and marker as well.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\ud800-\udfff\ufffe\uffff]")
WIDTH, HEIGHT = 640, 340  # pixels of a figure unless asked otherwise
EM = 6.6  # pixels of an average glyph of the plots' 12 px text
SERIES = 7  # colours; more series begin anew with other dashes
MARKERS, DASHES = 5, 4
TINY = 1e-30  # less is 0 on a plot, more than its inverse is not shown

STYLE = """
.plot { margin: 1.25rem 0; color: var(--ink); max-width: 62rem; container-type: inline-size; }
.plot figcaption { font-weight: 600; margin-bottom: .3rem; }
.plot figcaption small { display: block; font-weight: 400; color: var(--quiet); }
.plot svg { display: block; max-width: 100%; height: auto; font: 12px system-ui, "DejaVu Sans", sans-serif; overflow: visible; }
.plot text { fill: currentColor; }
.plot text.quiet, .plot text.tick { fill: var(--quiet); font-variant-numeric: tabular-nums; }
.plot .end { text-anchor: end; } .plot .mid { text-anchor: middle; } .plot .strong { font-weight: 600; }
.plot .halo { paint-order: stroke; stroke: var(--paper); stroke-width: 3px; stroke-linejoin: round; }
.plot .axis { stroke: var(--quiet); fill: none; } .plot .grid { stroke: var(--line); fill: none; }
.plot .line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke: var(--c); }
.plot .bar, .plot .mark { fill: var(--c); } .plot .mark { stroke: var(--paper); stroke-width: 1; }
.plot .error { stroke: currentColor; stroke-width: 1.5; fill: none; }
.plot .rule { fill: none; stroke-width: 1.5; stroke-dasharray: 5 4; stroke: var(--c, currentColor); }
.plot .ghost { fill: var(--line); }
.plot .d1 { stroke-dasharray: 7 3; } .plot .d2 { stroke-dasharray: 2 3; } .plot .d3 { stroke-dasharray: 8 3 2 3; }
.c0 { --c: light-dark(#0072b2, #56a8dd); } .c1 { --c: light-dark(#d55e00, #f08a45); } .c2 { --c: light-dark(#00805d, #33c197); }
.c3 { --c: light-dark(#a3507f, #dd93bd); } .c4 { --c: light-dark(#b37a00, #edb33d); } .c5 { --c: light-dark(#3d8fc0, #8fd0f5); }
.c6 { --c: light-dark(#6b6b6b, #a9a9a9); } .bad { --c: light-dark(#b3261e, #ff9b8f); } .plot text.bad { fill: var(--c); }
.plot .keys { display: flex; flex-wrap: wrap; gap: .2rem 1rem; list-style: none; margin: .3rem 0 0; padding: 0; font-size: .85rem; }
.plot .keys li { display: flex; align-items: center; gap: .4rem; } .plot .keys svg { flex: none; }
"""


@dataclass(frozen=True, slots=True)
class Axis:
    """label: what and in which unit. zero: a linear axis begins at 0. low, high: fixed ends. percent: shares shown as percent."""

    label: str
    log: bool = False
    zero: bool = True
    low: float | None = None
    high: float | None = None
    percent: bool = False

    def show(self, value: float) -> str:
        return f"{short(100 * value)}%" if self.percent else short(value)


@dataclass(frozen=True, slots=True)
class Scale:
    """Values from low to high onto pixels from start to end."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            at = (math.log(max(value, self.low * 1e-9)) - low) / (high - low)
        else:
            at = (value - self.low) / (self.high - self.low)
        return self.start + min(2.0, max(-1.0, at)) * (self.end - self.start)

    def ticks(self) -> list[float]:
        about = max(2, int(abs(self.end - self.start) / (80 if self.end > self.start else 45)))
        return log_ticks(self.low, self.high, about) if self.log else linear_ticks(self.low, self.high, about)


def scale_of(values: Iterable[float], axis: Axis, start: float, end: float) -> Scale | None:
    """A scale that holds all finite values (above 0 on a log axis); None when there is none."""
    found = [v if abs(v) > TINY else 0.0 for v in values if usable(v, axis)]
    if axis.log:
        if not found:
            return None
        low, high = axis.low or min(found) / 1.3, axis.high or max(found) * 1.3
        return Scale(low, high if high > low else low * 10, start, end, True)
    if not found and (axis.low is None or axis.high is None):
        return None
    low = axis.low if axis.low is not None else min(0.0, *found) if axis.zero else min(found)
    high = axis.high if axis.high is not None else max(0.0, *found) if axis.zero else max(found)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        middle, half = (low + high) / 2, 0.5 * max(abs(low), abs(high)) or 0.5
        low, high = (low, low + 1) if low == high == 0 else (middle - half, middle + half)
    step = step_of(low, high, max(2, int(abs(end - start) / 60)))
    low = low if axis.low is not None else math.floor(low / step + 1e-9) * step
    return Scale(low, high if axis.high is not None else math.ceil(high / step - 1e-9) * step, start, end)


def usable(value: float, axis: Axis) -> bool:
    """Whether a value can be shown: finite, within 30 powers of ten, above 0 where logarithms are taken."""
    return math.isfinite(value) and abs(value) < 1 / TINY and (value > TINY or not axis.log)


def step_of(low: float, high: float, about: int) -> float:
    """1, 2 or 5 times a power of ten, for at most about `about` steps."""
    rough = (high - low) / max(1, about)
    ten = 10.0 ** math.floor(math.log10(rough))
    return next(ten * m for m in (1, 2, 5, 10) if ten * m >= rough * (1 - 1e-9))


def linear_ticks(low: float, high: float, about: int) -> list[float]:
    step = step_of(low, high, about)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, about: int) -> list[float]:
    """Powers of ten; between few of them 2 and 5 as well; of many only some."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 3, 4, 5, 6, 8), (1, 2, 5), (1,)):
        found = [f * 10.0**d for d in decades for f in factors if low <= f * 10.0**d * (1 + 1e-9) and f * 10.0**d <= high * (1 + 1e-9)]
        if 1 < len(found) <= about + 1:
            return found
    if len(found) < 2:
        return [t for t in linear_ticks(low, high, about) if t > 0]
    return found[:: -(-len(found) // (about + 1))]


def esc(text: object) -> str:
    """Text for HTML and SVG; characters that XML forbids become a replacement mark."""
    return html.escape(_FORBIDDEN.sub("\ufffd", str(text)), quote=True)


def short(value: float) -> str:
    """Three significant digits for people: 0.012, 3.4, 120, 1.2k, 3.5M."""
    if value == 0:
        return "0"
    size = abs(value)
    for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):.3g}{letter}"
    return f"{value:,.0f}" if size >= 1000 else f"{value:.3g}"


def text(x: float, y: float, words: object, kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"' + (f' class="{kind}"' if kind else "") + f">{esc(words)}</text>"


def path(points: Sequence[tuple[float, float]], kind: str) -> str:
    """A line through pixels; nothing for fewer than two."""
    return f'<path class="{kind}" d="M' + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + '"/>' if len(points) > 1 else ""


def rect(x: float, y: float, width: float, height: float, kind: str, said: str = "") -> str:
    """`said` is shown on hover."""
    inner = f"<title>{esc(said)}</title>" if said else ""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{max(0.0, height):.1f}" class="{kind}">{inner}</rect>'


def marker(x: float, y: float, index: int, kind: str, said: str = "") -> str:
    """Circle, square, triangle, diamond, triangle on its head: as many shapes as MARKERS."""
    inner = f"<title>{esc(said)}</title>" if said else ""
    r = 4.5
    shapes = (
        "", f"M{x - r:.1f} {y - r:.1f}h{2 * r}v{2 * r}h{-2 * r}z", f"M{x:.1f} {y - 1.2 * r:.1f}l{1.15 * r} {2 * r}h{-2.3 * r}z",
        f"M{x:.1f} {y - 1.3 * r:.1f}l{1.3 * r} {1.3 * r}l{-1.3 * r} {1.3 * r}l{-1.3 * r} {-1.3 * r}z",
        f"M{x:.1f} {y + 1.2 * r:.1f}l{1.15 * r} {-2 * r}h{-2.3 * r}z",
    )  # fmt: skip
    shape = shapes[index % MARKERS]
    if not shape:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}" class="{kind}">{inner}</circle>'
    return f'<path d="{shape}" class="{kind}">{inner}</path>'


def colour(index: int) -> str:
    return f"c{index % SERIES}"


def dash(index: int) -> str:
    return f"d{(index // SERIES + index) % DASHES}"


def key(index: int, name: str, kind: str, own: str | None = None, stroke: str | None = None) -> str:
    """A legend's entry. kind: line, step, points, both, bar or ghost; own, stroke: another series' colour and dashes."""
    inner = rect(2, 2, 20, 8, kind)
    if kind not in ("bar", "ghost"):
        inner = path([(0, 6), (24, 6)], f"line {stroke or dash(index)}") if kind != "points" else ""
        inner += marker(12, 6, index, "mark") if kind in ("points", "both") else ""
    return f'<li class="{own or colour(index)}"><svg width="24" height="12" aria-hidden="true">{inner}</svg>{esc(name)}</li>'


def figure(title: str, note: str, size: tuple[float, float], parts: Iterable[str], keys: Iterable[str] = (), said: str = "") -> str:
    """A titled picture with its legend. said: what it shows, in words, for who cannot see it."""
    width, height = size
    legend = "".join(keys)
    label = esc(f"{title}. {said or note}".strip())
    box = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    under = f"<small>{esc(note)}</small>" if note else ""
    return (
        f'<figure class="plot"><figcaption>{esc(title)}{under}</figcaption>'
        f'<div class="wide"><svg {box} role="img" aria-label="{label}">{"".join(parts)}</svg></div>'
        + (f'<ul class="keys">{legend}</ul>' if legend else "")
        + "</figure>"
    )


def nothing(title: str, why: str = "nothing to show") -> str:
    """A figure that says that it is empty."""
    return f'<figure class="plot"><figcaption>{esc(title)}<small>{esc(why)}</small></figcaption></figure>'
