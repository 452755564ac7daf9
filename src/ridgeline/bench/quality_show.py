"""The quality report for people, and as a document of `bench report`. Draws nothing, judges nothing."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ridgeline.bench.accuracy import Divergence, interval_text
from ridgeline.bench.quality import Asked, QualityReport, Worst
from ridgeline.bench.record import command_line, machine_name, now
from ridgeline.bench.report_schema import ReportDocument, Setup, Table

DEFINITIONS = {
    "KL": "Kullback-Leibler divergence of the candidate's next-token distribution from the base's, nats per position",
    "KL 99.9%": "its 99.9th percentile over positions: the worst that words in a thousand see",
    "top-1": "share of positions where both find the same token likeliest",
    "perplexity": "exp of the mean negative log-probability of the text's own next token",
    "95%": "interval of the rise of perplexity: Student's t on the differences of both losses, token by token, in runs of 64",
    "needles": "greedy answers that begin with the hidden number",
}


def render(report: QualityReport) -> str:
    """Tables and the verdict."""
    lines = [f"base: {report.base}", ""]
    width = 2 + max(len(name) for name in ("prose", *(t.text for t in report.texts)))
    header = f"{'text':<{width}}{'candidate':<34}{'ppl':>12}{'base':>9}{'rise':>12}{'95%':>17}"
    header += f"{'KL mean':>10}{'KL 99.9%':>10}{'KL max':>9}{'top-1':>8}"
    lines.append(header)
    for t in report.texts:
        for d in t.candidates:
            lines.append(
                f"{t.text:<{width}}{d.name:<34}{_ppl(d.ppl):>12}{t.base_ppl:>9.3f}{_rise(t.rise(d)):>12}{_interval(d):>17}{d.kl_mean:>10.5f}"
                f"{d.kl_p999:>10.4f}{d.kl_max:>9.4f}{d.top1:>8.2%}"
            )
    if report.asked:
        lines += ["", *_questions(report.asked), ""]
    for c in report.checks:
        if not c.passed:
            lines.append(f"FAILED  {c.candidate}: {c.measure} {c.value:.4g}, limit {c.limit:g}")
    lines += undecided(report)
    lines.append(
        f"{'passed' if report.passed else 'not passed'}: {sum(c.passed for c in report.checks)} of {len(report.checks)} limits kept"
    )
    return "\n".join(lines)


def _ppl(value: float) -> str:
    return f"{value:.3f}" if value < 10_000 else f"{value:,.0f}"


def _rise(share: float) -> str:
    """A percentage while that says something; beyond ten times the base, how many times."""
    return f"{share:+.2%}" if share < 9 else f"x {1 + share:,.0f}"


def _interval(found: Divergence) -> str:
    return interval_text(found) if found.rise_high is not None and found.rise_high < 1 else "-"


def undecided(report: QualityReport) -> tuple[str, ...]:
    """Where chance alone may have put a perplexity on its side of the limit, and what to do about it."""
    limits = {c.candidate: c.limit for c in report.checks if c.measure == "perplexity rise"}
    return tuple(
        f"{d.name}, {t.text}: {t.positions} positions do not tell whether perplexity rises by more than {limits[d.name]:.2%}"
        f" ({_rise(t.rise(d))}, 95% {interval_text(d)}): --positions N and a longer --text do"
        for t in report.texts
        for d in t.candidates
        if d.name in limits and d.rise_low is not None and d.rise_high is not None and d.rise_low <= limits[d.name] < d.rise_high
    )


def _questions(asked: Sequence[Asked]) -> list[str]:
    names = [t.task for t in asked[0].tasks]
    width = max(len(a.name) for a in asked) + 2
    lines = [f"{'right answers':<{width}}" + "".join(f"{n:>10}" for n in names) + f"{'same as base':>14}{'needles':>10}"]
    for a in asked:
        cells = "".join(f"{f'{sum(t.right)}/{len(t.right)}':>10}" for t in a.tasks)
        found = f"{sum(n.found for n in a.needles)}/{sum(n.asked for n in a.needles)}"
        lines.append(f"{a.name:<{width}}{cells}{'-' if a.same is None else f'{a.same:.1%}':>14}{found:>10}")
    missed = [f"{n.tokens} tokens at depth {n.depth:g}" for n in asked[0].needles if n.found < n.asked]
    if missed:
        lines.append(f"needles that the base itself misses: {', '.join(missed)}")
    return lines


def verdicts(report: QualityReport) -> tuple[str, ...]:
    """A sentence a candidate: how far it is in the worst text, and what the gate says."""
    said = []
    for i, name in enumerate(report.candidates):
        worst = Worst.of(report.texts, i)
        broken = [c.measure for c in report.checks if c.candidate == name and not c.passed]
        verdict = f"breaks the limit of {', '.join(broken)}" if broken else "keeps every limit"
        loss = f"KL {worst.kl:.4f} nats, top-1 {worst.top1:.1%}, perplexity {worst.ppl:+.2%} in the worst text"
        said.append(f"{name} {verdict}: {loss}, beside {report.base}")
    return tuple(said)


def document(report: QualityReport, version: str) -> ReportDocument:
    """What `bench report` draws."""
    rows = tuple(
        (t.text, d.name, t.positions, t.base_ppl, d.ppl, t.rise(d), interval_text(d), d.kl_mean, d.kl_p999, d.top1)
        for t in report.texts
        for d in t.candidates
    )
    columns = ("text", "candidate", "positions", "base perplexity", "perplexity", "rise", "95%", "KL mean", "KL 99.9%", "top-1")
    tables = [Table(f"Distance from {report.base}", columns, rows)]
    if report.asked:
        names = tuple(t.task for t in report.asked[0].tasks)
        answers = tuple((a.name, *(f"{sum(t.right)}/{len(t.right)}" for t in a.tasks), a.same) for a in report.asked)
        tables.append(Table("Right answers", ("model", *names, "same as base"), answers))
        depths = tuple((a.name, n.tokens, n.depth, f"{n.found}/{n.asked}") for a in report.asked for n in a.needles)
        tables.append(Table("Needle in a haystack", ("model", "tokens", "depth", "found"), depths))
    checks = tuple((c.candidate, c.measure, c.value, c.limit, "kept" if c.passed else "broken") for c in report.checks)
    tables.append(Table("Gate", ("candidate", "measure", "value", "limit", "verdict"), checks))
    setup = Setup(
        {"host": machine_name()}, {"ridgeline": version, "python": sys.version.split()[0]}, {"needles, lookup": 0},
        {f"text {t.text}": t.digest for t in report.texts} | {"window": report.window}, (command_line(),), (), now(),
    )  # fmt: skip
    return ReportDocument(
        "quality", f"Quality beside {report.base}", setup, tables=tuple(tables), definitions=DEFINITIONS,
        notes=(*verdicts(report), *undecided(report)),
    )  # fmt: skip
