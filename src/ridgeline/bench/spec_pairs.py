"""`bench spec --draft A --draft B`: one target with several ways to guess, acceptance per pair and kind of text. `bench.spec` measures."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ridgeline.bench.record import command_line, machine_name, now
from ridgeline.bench.report_schema import Cell, Line, Plot, ReportDocument, Setup, Table
from ridgeline.bench.spec import Row, SpecBenchOptions, SpecReport, run
from ridgeline.bench.spec_report import DEFINITIONS
from ridgeline.errors import UserError
from ridgeline.options import SpeculativeConfig, speculative_config

Say = Callable[[str], None]
MEASURES: dict[str, Callable[[Row], float | None]] = {
    "accepted": lambda r: r.acceptance, "tokens a step": lambda r: r.tokens_per_step, "speed-up": lambda r: r.speedup,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PairsReport:
    """One report a pair, named by what guesses. All of one target, one after the other."""

    names: tuple[str, ...]
    pairs: tuple[SpecReport, ...]

    def as_json(self) -> dict[str, Any]:
        return {"pairs": [{"draft": name} | asdict(found) for name, found in zip(self.names, self.pairs, strict=True)]}


def config_of(draft: str, base: SpeculativeConfig | None) -> SpeculativeConfig:
    """ngram and self by name; anything else is a model. base: what else was asked for."""
    common = base or SpeculativeConfig("ngram")
    if draft in ("ngram", "self"):
        return replace(common, method=draft, model=None)  # type: ignore[arg-type]
    return replace(common, method="draft_model", model=draft)


def run_pairs(asked: SpecBenchOptions, drafts: Sequence[str], say: Say = lambda line: None) -> PairsReport:
    """Every pair is loaded anew, so that no two drafts are in memory at once. Raises `UserError` for a draft of another vocabulary."""
    names = tuple(Path(d).name if d.endswith(".gguf") else d for d in drafts)
    if len(set(drafts)) != len(drafts):
        raise UserError(f"--draft names one twice: {', '.join(drafts)}", field="--draft", value=list(drafts), remedy="name each once")
    base = speculative_config(asked.options.speculative_config)
    found = []
    for name, draft in zip(names, drafts, strict=True):
        say(f"draft {name}")
        options = replace(asked.options, speculative_config=config_of(draft, base))
        found.append(run(replace(asked, options=options), say))
    return PairsReport(names, tuple(found))


def _cells(r: PairsReport, measure: Callable[[Row], float | None]) -> Iterator[tuple[str, str, list[float | None]]]:
    """(draft, guesses, the measure per kind of text); None where no answer counts."""
    domains = [t.domain for t in r.pairs[0].texts]
    for name, pair in zip(r.names, r.pairs, strict=True):
        for key in dict.fromkeys((row.drafts, row.adaptive) for row in pair.rows if row.drafts):
            rows = {row.domain: row for row in pair.rows if (row.drafts, row.adaptive) == key}
            yield name, f"<={key[0]} adapt" if key[1] else str(key[0]), [measure(rows[d]) if rows[d].answers else None for d in domains]


def render(r: PairsReport) -> str:
    """Tables for people: a row per draft and number of guesses, a column per kind of text."""
    first, width = r.pairs[0], max(len(n) for n in (*r.names, "draft"))
    domains = [t.domain for t in first.texts]
    how = f"{first.threads} threads, {first.isa}, answers of up to {first.gen} tokens at temperature {first.temperature:g}"
    lines = [f"target {first.model}; {how}"]
    for title, measure in MEASURES.items():
        lines += ["", f"{title}", f"  {'draft':<{width}}    guesses" + "".join(f"{d:>12}" for d in domains)]
        for name, guesses, values in _cells(r, measure):
            said = (_shown(title, v) for v in values)
            lines.append(f"  {name:<{width}}  {guesses:>9}" + "".join(f"{s:>12}" for s in said))
    counted = [(name, text, row) for name, pair in zip(r.names, r.pairs, strict=True) for text in pair.texts
               for row in pair.rows if row.domain == text.domain and not row.drafts and row.answers < text.answers]  # fmt: skip
    few = dict.fromkeys(f"{text.domain}: {row.answers} of {text.answers} answers quote their prompt and count" for _, text, row in counted)
    differing = sum(p.differing for p in r.pairs)
    words = "the words were the same with every draft and setting" if not differing else f"{differing} ANSWERS DIFFER: a fault"
    return "\n".join([*lines, "", *few, words])


def _shown(title: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0%}" if title == "accepted" else f"{value:.2f}x" if title == "speed-up" else f"{value:.2f}"


def document(r: PairsReport, version: str) -> ReportDocument:
    """Tables by pair, and acceptance against guesses for each kind of text."""
    first = r.pairs[0]
    domains = tuple(t.domain for t in first.texts)
    setup = Setup(
        {"host": machine_name(), "threads": first.threads}, {"ridgeline": version, "python": platform.python_version()}, {"sampling": 1},
        {"target": first.model, "drafts": ", ".join(r.names), "isa": first.isa, "answers of": f"{first.gen} tokens"},
        (command_line(),), (), now(),
    )  # fmt: skip
    tables = []
    for title, measure in MEASURES.items():
        rows: list[tuple[Cell, ...]] = [(name, guesses, *values) for name, guesses, values in _cells(r, measure)]
        tables.append(Table(f"By pair: {title}", ("draft", "guesses", *domains), tuple(rows)))
    plots = (
        Plot(f"Guesses that came true: {domain}", "guesses a step", "accepted", tuple(_lines(r, domain)), y_unit="%") for domain in domains
    )
    title = f"{first.model}: acceptance by draft and kind of text"
    shown = tuple(p for p in plots if p.lines)
    return ReportDocument("bench spec", title, setup, plots=shown, tables=tuple(tables), definitions=DEFINITIONS)


def _lines(r: PairsReport, domain: str) -> Iterator[Line]:
    for name, pair in zip(r.names, r.pairs, strict=True):
        rows = (row for row in pair.rows if row.domain == domain and row.answers and row.drafts and not row.adaptive)
        points = tuple((float(row.drafts), row.acceptance) for row in rows if row.acceptance is not None)
        if points:
            yield Line(name, points)
