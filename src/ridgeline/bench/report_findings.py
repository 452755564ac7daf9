"""What a report says first: one sentence for each comparison that the documents allow, losses as plainly as gains.

Ratios are of measured numbers. Runs one after the other are no interval, and are called one run each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from ridgeline.bench.report_agents import agent_findings
from ridgeline.bench.report_blocks import Block, Grid, Heading, Words
from ridgeline.bench.report_engines import engine_findings
from ridgeline.bench.report_glance import glance
from ridgeline.bench.report_ladder import climbed, gains, others
from ridgeline.bench.report_predicted import bound, error, errors, predictions
from ridgeline.bench.report_schema import Cell, Comparison, Ladder, ReportDocument
from ridgeline.bench.svg import short

TOO_FEW = "rounds are too few"
REMARKS = ("bench serve", "bench micro", "bench ab", "bench peers", "bench predict", "simulate")  # notes of these are no findings


def findings_part(documents: Sequence[ReportDocument]) -> Iterator[Block]:
    """Sentences by what they compare, then remarks that a reader must know before believing them."""
    found: list[Block] = []
    climbed = [w for d in documents for ladder in d.ladders if not others(ladder) for w in _ladder(ladder)]
    for title, sentences in (
        ("Engine against engine, same workload and load", list(engine_findings(documents))),
        ("The agents' test", list(agent_findings(documents))),
        ("In turns", list(_compared(documents))),
        ("Ladder", [*climbed, *(Words(n) for d in documents if d.kind == "ladder" for n in d.notes)]),
        ("Predictions", list(_predicted(documents))),
        ("What else was measured", [_told(d) for d in documents if d.notes and d.kind not in (*REMARKS, "ladder")]),
    ):
        if sentences:
            found += [Heading(title, 3), *sentences]
    remarks = [Words(f"{d.title}: {n}" if len(documents) > 1 else n) for d in documents for n in d.notes if d.kind in REMARKS]
    if remarks:
        found += [Heading("Before believing the numbers", 3), *remarks]
    table = glance(documents)
    if found or table:
        yield Heading("Findings")
        yield from [table] if table else []
        yield from found


def comparison_part(documents: Sequence[ReportDocument]) -> Iterator[Block]:
    """Every comparison with its interval, those without one told apart by a dash."""
    pairs = [c for d in documents for c in d.comparisons]
    if not pairs:
        return
    yield Heading("Compared in turns")
    rows: list[list[Cell]] = [
        [c.where, c.metric, c.a, c.b, c.a_value, c.b_value, short(c.ratio), _span(c), c.pairs or None, _verdict(c)] for c in pairs
    ]
    columns = ["where", "metric", "A", "B", "A's", "B's", "A / B", "95%", "pairs", "ahead"]
    kept = [i for i in range(len(columns)) if any(r[i] not in (None, "") for r in rows)]
    note = "Where there is no interval, it is the ratio of medians of runs in turns, and nobody is called ahead."
    yield Grid("", [columns[i] for i in kept], [[r[i] for i in kept] for r in rows], note if any(c.low is None for c in pairs) else "")


def _span(c: Comparison) -> str:
    return "" if c.low is None or c.high is None else f"{short(c.low)} to {short(c.high)}"


def _verdict(c: Comparison) -> str:
    """Who is ahead, in one word where it can be said."""
    if c.low is None:
        return c.sentence
    if not c.significant:
        return "too few rounds" if TOO_FEW in c.sentence else c.sentence if c.sentence.startswith("not ") else "no difference shown"
    return c.b if c.lost else c.a


# --- sentences ----------------------------------------------------------------------------------------------------------------------


def _compared(documents: Sequence[ReportDocument]) -> Iterator[Words]:
    """Of `bench ab` its own sentence each; of peers one a load, its metrics in it, and one a metric over all files."""
    pairs = [c for d in documents for c in d.comparisons]
    yield from _undecided([c for c in pairs if TOO_FEW in c.sentence])
    for c in pairs:
        if c.sentence and c.low is not None and TOO_FEW not in c.sentence:
            yield Words(f"{f'{c.where}, ' if c.where else ''}{c.metric}: {c.sentence}", "loss" if c.lost else "")
    quiet = sorted((c for c in pairs if not c.sentence and c.low is not None), key=lambda c: (c.where, c.b))
    for (where, b), group in groupby(quiet, key=lambda c: (c.where, c.b)):
        cells = list(group)
        said = [f"{c.metric} {_interval(c)}" for c in cells]
        lost = [c.metric for c in cells if c.lost]
        end = f"; {b} is better in {', '.join(lost)}" if lost else ""
        yield Words(f"{where}: {cells[0].a} over {b}: {'; '.join(said)}{end}.", "loss" if lost else "")
    yield from (Words(f"{c.where}, {c.metric}: {c.sentence}") for c in pairs if c.low is None and c.sentence)
    bare = [c for c in pairs if c.low is None and not c.sentence]
    for metric, b in dict.fromkeys((_kind(c), c.b) for c in bare):
        yield _over_files(metric, b, [c for c in bare if (_kind(c), c.b) == (metric, b)])
    if bare:
        yield Words("Where no interval is given, the ratio is of the medians of runs in turns.")


def _undecided(cells: Sequence[Comparison]) -> Iterator[Words]:
    """Comparisons of too few rounds, those of one pair in one sentence."""
    for where, a, b, pairs in dict.fromkeys((c.where, c.a, c.b, c.pairs) for c in cells):
        said = [f"{c.metric} {c.ratio:.2f}x" for c in cells if (c.where, c.a, c.b, c.pairs) == (where, a, b, pairs)]
        yield Words(f"{where or 'in turns'}, {a} over {b}: {'; '.join(said)}. {pairs} rounds are too few to tell.")


def _interval(c: Comparison) -> str:
    span = f" (95% {short(c.low)} to {short(c.high)})" if c.low is not None and c.high is not None else ""
    return f"{c.ratio:.2f}x{span}" + ("" if c.significant else ", no significant difference")


def _kind(c: Comparison) -> str:
    """What was measured, whatever the file."""
    return c.metric if "," not in c.where else f"{c.where.partition(', ')[2]}, {c.metric}"


def _over_files(metric: str, b: str, cells: Sequence[Comparison]) -> Words:
    """The least and the greatest ratio, and where b was ahead."""
    low, high = min(cells, key=lambda c: c.ratio), max(cells, key=lambda c: c.ratio)
    behind = [c for c in cells if (c.ratio < 1) == c.higher_is_better and c.ratio != 1]

    def one(c: Comparison) -> str:
        values = f", {short(c.a_value)} against {short(c.b_value)}" if c.a_value is not None and c.b_value is not None else ""
        return f"{c.ratio:.2f}x ({c.where.partition(',')[0]}{values})"

    what = one(low) if low is high else f"{one(low)} to {one(high)}, {len(cells)} files"
    end = f"; {b} is ahead on {', '.join(c.where.partition(',')[0] for c in behind)}" if behind else ""
    return Words(f"{metric}: {low.a} over {b} {what}{end}.", "loss" if behind else "")


def _ladder(ladder: Ladder) -> Iterator[Words]:
    """The whole, and every rung that lost."""
    rungs, fall = gains(ladder), climbed(ladder)
    if fall is None:
        return
    first, last, whole = rungs[0][0], rungs[-1][0], fall.total
    best, gain = max(rungs[1:], key=lambda pair: pair[1] or 0.0)
    said = f"{last.name} is {whole:.2f}x {first.name}; most came from {best.name} ({gain or 0.0:.2f}x)."
    yield Words(f"{ladder.title}: {short(first.output_tok_s or 0.0)} to {short(last.output_tok_s or 0.0)} tok/s, {said}")
    for rung, factor in rungs:
        if factor is not None and factor < 1:
            yield Words(f"{rung.name} loses {1 - factor:.1%} of the throughput of the rung before ({factor:.3g}x).", "loss")


def _predicted(documents: Sequence[ReportDocument]) -> Iterator[Words]:
    """Median and worst error of each source and metric; roofs are bounds, no predictions."""
    said: dict[str, list[str]] = {}
    for source, metric, cells in predictions(documents):
        known = [p for p in cells if p.measured and not bound(p)]
        if known:
            middle, worst = errors(known)
            spread = f" in the median of {len(known)} cells, at worst" if len(known) > 1 else ","
            said.setdefault(source, []).append(f"{metric} {middle:.1%} off{spread} {error(worst):+.1%} ({worst.what})")
    for source, parts in said.items():
        yield Words(f"{source}: {'; '.join(parts)}.")


def _told(d: ReportDocument) -> Words:
    """Sentences that the command itself wrote."""
    return Words(f"{d.title}: {' '.join(n if n.endswith('.') else f'{n}.' for n in d.notes)}")
