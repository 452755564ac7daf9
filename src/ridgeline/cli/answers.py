"""`ridgeline cost`, `numbers`, `scorecard`, `templates` and `engines`: tables around the planner. It prints; arithmetic is elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import typer

from ridgeline import __version__
from ridgeline.bench.claims import TOLERANCE, claims
from ridgeline.bench.report_json import to_json
from ridgeline.bench.scorecard_report import COLUMNS, document, page
from ridgeline.bench.templates import TEMPLATES, size
from ridgeline.bench.which_engine import choose, leaves, walk
from ridgeline.cli.output import note, print_json, table, writable
from ridgeline.errors import UserError
from ridgeline.planner.formats import kv_format_named, weight_format
from ridgeline.planner.hardware import devices, find_device
from ridgeline.planner.ledger import Offer, compare, crossover, per_day
from ridgeline.planner.price import break_even_days, query_price, rounded
from ridgeline.planner.question import MAX_TOKENS
from ridgeline.planner.scorecard import Score, scorecard


@dataclass(frozen=True)
class CostArgs:
    """What was typed; None where nothing was. tokens, USD, USD per million tokens."""

    training_tokens: int | None = None
    training_usd: Decimal | None = None
    tokens_per_day: int | None = None
    usd_per_mtok: Decimal | None = None
    queries_per_day: int | None = None
    tokens_per_query: int | None = None
    ceiling: Decimal | None = None
    providers: tuple[Offer, ...] = ()
    own: Offer | None = None
    prompt: int = 2048
    cached: int = 0
    output: int = 256
    requests_per_day: int = 100_000


def cost(args: CostArgs, *, as_json: bool) -> None:
    """Each sum whose inputs were given. Raises `UserError` when none is complete."""
    found: dict[str, Any] = {}
    if args.training_tokens is not None and args.tokens_per_day is not None:
        days = break_even_days(args.training_tokens, args.tokens_per_day)
        found["tokens"] = {"training": args.training_tokens, "a_day": args.tokens_per_day, "break_even_days": rounded(days, 2)}
    if args.training_usd is not None and args.tokens_per_day is not None and args.usd_per_mtok is not None:
        found["dollars"] = _dollars(args.training_usd, per_day(args.tokens_per_day, args.usd_per_mtok))
    if args.queries_per_day is not None and args.tokens_per_query is not None and args.usd_per_mtok is not None:
        query = query_price(args.usd_per_mtok, args.tokens_per_query, args.queries_per_day, args.ceiling)
        found["query"] = {
            "usd_per_query": rounded(query.usd_per_query, 8), "usd_per_year": rounded(query.usd_per_year, 2),
            "ceiling_usd": rounded(args.ceiling, 8), "within": query.within,
        }  # fmt: skip
    if args.providers:
        found["providers"] = _compared(args)
    if not found:
        raise UserError(
            "nothing to reckon with", field="cost",
            remedy="give --training-tokens or --training-usd with --tokens-per-day, --queries-per-day, or --provider: see --help",
        )  # fmt: skip
    if as_json:
        print_json(found)
    else:
        _print_cost(found)


def _dollars(training: Decimal, daily: Decimal) -> dict[str, Any]:
    today = datetime.now(UTC).date()
    when = crossover(training, daily, today)
    return {
        "training_usd": rounded(training, 2), "serving_usd_a_day": rounded(daily, 2), "days": rounded(when.days, 2),
        "start": today.isoformat(), "day": None if when.day is None else when.day.isoformat(),
        "months": [{"month": m, "serving_usd": rounded(usd, 2), "training_usd": rounded(training, 2)} for m, usd in when.months],
    }  # fmt: skip


def _compared(args: CostArgs) -> list[dict[str, Any]]:
    offers = [*([args.own] if args.own is not None else []), *args.providers]
    rows = compare(offers, args.prompt, args.cached, args.output, args.requests_per_day)
    return [
        {
            "name": r.name, "input": rounded(r.prices.input), "cached": rounded(r.prices.cached), "output": rounded(r.prices.output),
            "usd_per_1k_requests": rounded(r.usd_per_request * 1000), "usd_per_month": rounded(r.usd_per_month, 2),
            "times_the_first": rounded(r.ratio, 3),
        }
        for r in rows
    ]  # fmt: skip


def _print_cost(found: Mapping[str, Any]) -> None:
    if "tokens" in found:
        t = found["tokens"]
        print(f"{t['a_day']:,} tokens a day reach the {t['training']:,} of training after {_or_never(t['break_even_days'])} days")
    if "dollars" in found:
        d = found["dollars"]
        until = f"on {d['day']}, after {d['days']:,} days" if d["day"] else "never, at this rate"
        print(f"serving at ${d['serving_usd_a_day']:,.2f} a day has cost as much as training (${d['training_usd']:,.0f}) {until}")
        most = max(d["training_usd"], d["months"][-1]["serving_usd"]) or 1.0
        rows = [[m["month"], f"{m['serving_usd']:,.0f}", "#" * round(40 * m["serving_usd"] / most)] for m in d["months"]]
        mark = " " * round(40 * d["training_usd"] / most) + "^ training"
        print(table([*rows, ["", "", mark]], ["month", "serving so far, $", ""]))
    if "query" in found:
        q = found["query"]
        judged = "" if q["within"] is None else f": {'within' if q['within'] else 'ABOVE'} the ceiling of ${q['ceiling_usd']:g}"
        print(f"${q['usd_per_query']:g} a query, ${q['usd_per_year']:,.0f} a year{judged}")
    if "providers" in found:
        header = ["$ per million:", "input", "cached", "output", "$/1,000 requests", "$/month", "x first"]
        print(table([list(r.values()) for r in found["providers"]], header))
        note("prices as you gave them; none is built in. Cached tokens are part of the prompt, charged once")


def _or_never(value: float | None) -> str:
    return "no number of" if value is None else f"{value:,.2f}"


def numbers(*, as_json: bool) -> None:
    """The claims of talks, each computed again."""
    found = claims()
    if as_json:
        print_json({"tolerance": TOLERANCE, "claims": [asdict(c) | {"verdict": c.verdict} for c in found]})
        return
    rows = [
        [c.verdict, c.said, f"{c.claimed:g} {c.unit}", "-" if c.found is None else f"{c.found:.4g} {c.unit}", c.kind, c.because]
        for c in found
    ]
    print(table(rows, ["", "said", "claimed", "computed", "how", "because"]))
    note(f"within {TOLERANCE:.0%} passes")
    for source in dict.fromkeys(c.source for c in found if c.source):
        note(f"cited, not measured here: {source}")


def score(
    device: str, context: int, weight_dtype: str, kv_dtype: str, *, as_json: bool, explain: bool = False, html_out: Path | None = None
) -> None:
    """Attention variants on one device, with cited quality. explain: what each cell comes from; html_out: a page whose cells open it."""
    if not 1 <= context <= MAX_TOKENS:
        limit = (1, MAX_TOKENS)
        raise UserError(f"--context is {context}, must be from 1 to {MAX_TOKENS}", field="--context", value=context, limit=limit)
    if html_out is not None:
        writable(html_out)
    on = find_device(device, devices())
    found = scorecard(on, context, weight_format(weight_dtype), kv_format_named(kv_dtype))
    made = document(found, on.name, context, __version__)
    if html_out is not None:
        html_out.write_text(page(made), "utf8")
        note(f"wrote {html_out}")
    if as_json:
        print_json({"context": context, "variants": [asdict(s) for s in found], "report": to_json(made)})
    else:
        _print_score(found, context, explain=explain)


def _print_score(found: Sequence[Score], context: int, *, explain: bool) -> None:
    print(f"Mistral-7B's shape with each cache, {context} tokens a sequence, roofline at efficiency 1\n")
    rows = [
        [
            s.variant, f"{s.kv_bytes_per_token:,.0f}", f"{s.sequence_bytes / 1e6:,.0f}", s.users, f"{s.tok_s:,.0f}",
            f"{s.flop_per_byte:.1f}", s.note,
        ]
        for s in found
    ]  # fmt: skip
    print(table(rows, ["variant", "B/token", "MB/sequence", "users", "tok/s", "FLOP/B", ""]))
    print("\nquality, as reported: no winner is drawn, the tables disagree")
    every = [q for s in found for q in s.quality]
    cited = [[q.variant, q.metric, f"{q.value:g}", q.beside, q.setup, f"{q.source} {q.link}", q.checked] for q in every]
    print(table(cited, ["variant", "metric", "", "beside", "set-up", "source", "checked"]))
    bare = [s.variant for s in found if not s.quality]
    if bare:
        print(f"no figure is kept for {', '.join(bare)}")
    if explain:
        print("\nwhat each cell comes from")
        print(table([[s.variant, COLUMNS[name], s.sources[name]] for s in found for name in COLUMNS], ["variant", "cell", ""]))
    else:
        note("--explain says what each cell was computed from; --html FILE writes a page whose cells open it")


def templates(name: str | None, device: str, users: int | None, price: Decimal | None, *, as_json: bool) -> None:
    """One design sized, or the list of those that there are."""
    if name is None:
        rows = [[n, t.about, f"{t.peak_rate:,.1f}/s", ", ".join(s.model for s in t.streams)] for n, t in TEMPLATES.items()]
        if as_json:
            print_json({"templates": {n: asdict(t) for n, t in TEMPLATES.items()}})
        else:
            print(table(rows, ["template", "", "peak", "models"]))
        return
    found = size(name, find_device(device, devices()), price, users)
    if as_json:
        print_json(found)
        return
    asked = f"{found['users']:,} users x {found['requests_per_day']:g} requests a day, peak {found['peak_rate_s']:,.1f}/s"
    print(f"{found['about']}: {asked}\n")
    rows = [
        [
            s["model"], f"{s['rate_s']:.1f}", f"{s['prompt']} ({s['cached']})", s["output"], s["tp"], f"{s['replicas']}",
            f"{s['ttft_p99_ms']:.0f}", f"{s['tpot_p99_ms']:.1f}", f"{s['goodput_share']:.0%}", "yes" if s["met"] else "NO",
        ]
        for s in found["streams"]
    ]  # fmt: skip
    header = ["model", "peak/s", "prompt (cached)", "output", "tp", "replicas", "TTFT p99 ms", "TPOT p99 ms", "in time", "promise kept"]
    print(table(rows, header))
    money = "no price known" if found["usd_per_hour"] is None else (
        f"${found['usd_per_hour']:.2f}/h, ${found['usd_per_month']:,.0f} a month, ${found['usd_per_1k_requests']:.4f} per 1,000 requests"
    )  # fmt: skip
    print(f"\n{found['devices']} x {found['device']}: {money}")
    for what, words in found["labels"].items():
        note(f"{what}: {words}")


def which_engine(given: Mapping[str, bool], *, as_json: bool) -> None:
    """By what was given; else asked on a terminal, and the whole tree anywhere else."""
    if any(given.values()):
        found = [("", choose(given))]
    elif not as_json and sys.stdin.isatty() and sys.stdout.isatty():
        found = [("", walk(lambda question: typer.confirm(question.words)))]
    else:
        found = list(leaves())
    if as_json:
        print_json({"leaves": [{"if": words or None} | asdict(leaf) for words, leaf in found]})
        return
    for words, leaf in found:
        print(f"{words + ': ' if words else ''}{leaf.engine} ({leaf.because})")
        for e in leaf.evidence:
            print(f"    {e.said}; {e.source}, {e.date}" + (f"; but {e.doubt}" if e.doubt else ""))
    note("reported by others, not measured here: `ridgeline bench ab MODEL --b ENGINE` measures two of them on your machine")
