"""What a report is made of: headings, words, tables, figures and command lines, and how they become one HTML page or Markdown.

Knows no measurement. The page holds everything it needs: no script, no font, no request; it follows the reader's light or dark setting.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ridgeline.bench.svg import STYLE, esc, short

Cell = str | float | int | bool | None


@dataclass(frozen=True, slots=True)
class Heading:
    words: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Words:
    """A paragraph. kind: "" or "loss", which stands out."""

    words: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table. note: below it; label: measured, fitted, simulated, reported ... after the title. apart: of somebody else, drawn apart.
    sources: nothing, or what each cell opens; an empty text opens nothing."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    label: str = ""
    apart: bool = False
    sources: Sequence[Sequence[str]] = ()


@dataclass(frozen=True, slots=True)
class Figure:
    """HTML of `plots`. instead: what Markdown says in its place, nothing where it is empty."""

    drawn: str
    instead: str


@dataclass(frozen=True, slots=True)
class Commands:
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Beside:
    """Small tables side by side where there is room."""

    grids: Sequence[Grid]


@dataclass(frozen=True, slots=True)
class Folded:
    """(term, meaning) pairs that open when asked for."""

    title: str
    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Opening:
    """Tables that open when asked for."""

    title: str
    grids: Sequence[Grid]


Block = Heading | Words | Grid | Figure | Commands | Beside | Folded | Opening

PAGE_STYLE = """
:root { color-scheme: light dark; --paper: light-dark(#fbfbfa, #16181a); --ink: light-dark(#1d2022, #e7e6e3);
  --quiet: light-dark(#5f6569, #a3a8ac); --line: light-dark(#dcdcd8, #383d41); --own: light-dark(#eef1ec, #202528);
  --accent: light-dark(#1f6f5c, #6cc5ab); }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 74rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .4rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; border-top: 1px solid var(--line); padding-top: 1rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; } p { margin: .5rem 0; max-width: 46rem; overflow-wrap: anywhere; }
a { color: var(--accent); } :focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
nav { display: flex; flex-wrap: wrap; gap: .25rem .9rem; margin: 1rem 0; font-size: .9rem; }
.label { font-weight: 400; font-size: .8rem; color: var(--quiet); border: 1px solid var(--line); border-radius: .6rem; padding: 0 .5rem;
  white-space: nowrap; }
.loss { border-left: 3px solid light-dark(#b3261e, #ff9b8f); padding-left: .7rem; }
.wide { overflow-x: auto; } .wide svg { min-width: 34rem; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; font-size: 1rem; }
th, td { text-align: left; padding: .25rem .7rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; max-width: 34rem;
  overflow-wrap: break-word; }
th { font-weight: 600; color: var(--quiet); } td.n, th.n { text-align: right; white-space: nowrap; } td.short { white-space: nowrap; }
td:not(.n, .short) { min-width: 13rem; }
.apart { border: 1px dashed var(--quiet); border-radius: .5rem; padding: .5rem 1rem; margin: 1rem 0; background: var(--own); }
.under { color: var(--quiet); font-size: .85rem; }
td summary { list-style: none; text-decoration: underline dotted; text-underline-offset: .2em; }
td summary::-webkit-details-marker { display: none; }
td details p { margin: .2rem 0; min-width: 13rem; max-width: 20rem; white-space: normal; text-align: left; color: var(--quiet); }
summary { cursor: pointer; font-size: .875rem; } dl { margin: .3rem 0 1rem; font-size: .875rem; max-width: 46rem; }
dt { font-weight: 600; } dd { margin: 0 0 .3rem; color: var(--quiet); }
pre { background: var(--own); border-radius: .4rem; padding: .6rem .8rem; font-size: .82rem; margin: .5rem 0;
  white-space: pre-wrap; overflow-wrap: anywhere; }
pre div { padding-left: 1.5rem; text-indent: -1.5rem; }
.many, .two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 18rem), 1fr)); gap: 0 1.5rem; }
.two { grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr)); }
.many .wide svg, .two .wide svg { min-width: 0; }
@media print { :root { color-scheme: light; }
  body { max-width: none; } h2, h3, caption { break-after: avoid; } .plot, tr { break-inside: avoid; } nav { display: none; }
  .wide { overflow: visible; } table { font-size: .7rem; } td, th { padding-right: .45rem; }
  td.n, th.n, td.short { white-space: normal; } td:not(.n, .short) { min-width: 0; } .many, .two { display: block; columns: 2; }
  .plot { margin-top: 0; } details::details-content { content-visibility: visible; } }
"""


def html_page(title: str, under: str, blocks: Sequence[Block]) -> str:
    """One self-contained document with a table of contents."""
    names = [b.words for b in blocks if isinstance(b, Heading) and b.level == 2]
    links = "".join(f'<a href="#{anchor(n)}">{esc(n)}</a>' for n in names)
    body = "\n".join(_html(b) for b in blocks)
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head += f'<meta http-equiv="Content-Security-Policy" content="{policy}"><title>{esc(title)}</title><style>{PAGE_STYLE}{STYLE}</style>'
    contents = f'<nav aria-label="Contents">{links}</nav>' if len(names) > 1 else ""
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n<h1>{esc(title)}</h1>\n<p class="under">{esc(under)}</p>\n'
        f"{contents}\n<main>\n{body}\n</main>\n</body></html>\n"
    )


def anchor(words: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in words.casefold()).strip("-")


def _html(b: Block) -> str:
    match b:
        case Heading():
            return f'<h{b.level} id="{anchor(b.words)}">{esc(b.words)}</h{b.level}>'
        case Words():
            return f"<p{f' class={chr(34)}{b.kind}{chr(34)}' if b.kind else ''}>{esc(b.words)}</p>"
        case Grid():
            return _html_grid(b)
        case Figure():
            return b.drawn
        case Beside():
            return f'<div class="many">{"".join(f"<div>{_html_grid(g)}</div>" for g in b.grids)}</div>'
        case Folded():
            inner = "".join(f"<dt>{esc(k)}</dt><dd>{esc(v)}</dd>" for k, v in b.pairs)
            return f"<details><summary>{esc(b.title)}</summary><dl>{inner}</dl></details>"
        case Opening():
            return f"<details><summary>{esc(b.title)}</summary>{''.join(_html_grid(g) for g in b.grids)}</details>"
        case Commands():
            lines = "".join(f"<div>{esc(line)}</div>" for line in b.lines)
            return f'<pre tabindex="0">{lines}</pre>' if b.lines else ""


def _html_grid(b: Grid) -> str:
    right = _numeric_columns(b)

    def row(cells: Sequence[Cell], tag: str, sources: Sequence[str]) -> str:
        said = [shown(c) for c in cells]
        kinds = [' class="n"' if r else ' class="short"' if len(s) <= 28 else "" for r, s in zip(right, said, strict=True)]
        inner = [_opening(s, w) for s, w in zip(said, sources, strict=True)]
        return "<tr>" + "".join(f"<{tag}{k}>{s}</{tag}>" for s, k in zip(inner, kinds, strict=True)) + "</tr>"

    nothing = [""] * len(b.columns)

    label = f' <span class="label">{esc(b.label)}</span>' if b.label else ""
    caption = f"<caption>{esc(b.title)}{label}</caption>" if b.title or label else ""
    head = f"<thead>{row(b.columns, 'th', nothing)}</thead>" if any(b.columns) else ""
    body = "".join(row(r, "td", w) for r, w in zip(b.rows, b.sources or [nothing] * len(b.rows), strict=True))
    note = f'<p class="under">{esc(b.note)}</p>' if b.note else ""
    table = f"<table>{caption}{head}<tbody>{body}</tbody></table>"
    inner = f'<div class="wide" tabindex="0" role="region" aria-label="{esc(b.title or "table")}">{table}</div>{note}'
    return f'<section class="apart">{inner}</section>' if b.apart else inner


def _opening(said: str, source: str) -> str:
    return f"<details><summary>{esc(said)}</summary><p>{_linked(source)}</p></details>" if source else esc(said)


def _linked(words: str) -> str:
    """Escaped, with web addresses as links."""
    parts = re.split(r"(https?://[^\s;,]+)", words)
    return "".join(f'<a href="{esc(p)}" rel="noreferrer">{esc(p)}</a>' if i % 2 else esc(p) for i, p in enumerate(parts))


def _numeric_columns(b: Grid) -> list[bool]:
    def numeric(c: Cell) -> bool:
        return c is None or (isinstance(c, int | float) and not isinstance(c, bool))

    return [bool(b.rows) and all(numeric(r[i]) for r in b.rows) for i in range(len(b.columns))]


def shown(cell: Cell) -> str:
    """A cell for people; None is a dash."""
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}" if abs(cell) >= 10_000 else str(cell)
    return short(cell) if isinstance(cell, float) else cell


def markdown(title: str, under: str, blocks: Iterable[Block]) -> str:
    """The same in GitHub's Markdown; figures are left to the page."""
    return "\n".join([f"# {_md(title)}", "", _md(under), "", *(line for b in blocks for line in _markdown(b))]).rstrip() + "\n"


def _markdown(b: Block) -> list[str]:
    match b:
        case Heading():
            return ["#" * b.level + " " + _md(b.words), ""]
        case Words():
            return [f"**{_md(b.words)}**" if b.kind == "loss" else _md(b.words), ""]
        case Grid():
            title = [f"**{_md(b.title)}**" + (f" ({_md(b.label)})" if b.label else ""), ""] if b.title else []
            rows = ["| " + " | ".join(_md(shown(c)) for c in r) + " |" for r in b.rows]
            rule = "|" + "|".join("---:" if n else "---" for n in _numeric_columns(b)) + "|"
            found = [*title, "| " + " | ".join(_md(c) for c in b.columns) + " |", rule, *rows, "", *([_md(b.note), ""] if b.note else [])]
            return [*found, *_markdown_sources(b)]
        case Folded():
            return [f"{_md(b.title)}:", "", *(f"- {_md(k)}: {_md(v)}" for k, v in b.pairs), ""]
        case Beside():
            return [line for g in b.grids for line in _markdown(g)]
        case Opening():
            return [f"{_md(b.title)}:", "", *(line for g in b.grids for line in _markdown(g))]
        case Figure():
            return [f"*{_md(b.instead)}*", ""] if b.instead else []
        case Commands():
            return ["```", *(" ".join(line.split()) for line in b.lines), "```", ""] if b.lines else []


def _markdown_sources(b: Grid) -> list[str]:
    """Markdown cannot open a cell: what it would open is listed below the table."""
    found = [
        f"- {_md(shown(cells[0]))}, {_md(column)}: {_md(words)}"
        for cells, texts in zip(b.rows, b.sources, strict=False)
        for column, words in zip(b.columns, texts, strict=True)
        if words
    ]
    return [*found, ""] if found else []


def _md(words: str) -> str:
    """One line, without what Markdown or its HTML would obey."""
    line = re.sub(r"([\\|*`])", r"\\\1", " ".join(words.split())).replace("<", "&lt;")
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", line)
