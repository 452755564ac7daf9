"""The ladder for people, and as a document of `bench report`: every rung with its losses, its prediction and its quality. Draws nothing."""

from __future__ import annotations

import sys
from dataclasses import asdict
from statistics import median
from typing import Any

from ridgeline.bench import report_schema as schema
from ridgeline.bench.ladder import LadderResult, RungResult
from ridgeline.bench.ladder_numbers import Numbers, Spread, Waterfall, middle, same_words, waterfall
from ridgeline.bench.ladder_plan import PRESETS
from ridgeline.bench.machine_load import LIMIT
from ridgeline.bench.record import command_line, machine_name, now
from ridgeline.bench.report_reported import WORKSHOP, rows

DEFINITIONS = {
    "tok/s": "output tokens of all requests over the time from the first request to the last token",
    "TTFT": "from the moment a request could begin (one at a time: when the one before had ended) to its first token",
    "TTFT with queue": "from the moment all requests were there to the first token",
    "ITL": "gaps between the arrivals of a request's tokens; tokens of one step arrive together",
    "TPOT": "(last token - first token) / (tokens - 1), mean over requests",
    "KV %": "share of the KV cache's blocks that running sequences hold; the cache has the same bytes on every rung",
    "factor": "throughput over that of the rung before in the same round: median of the rounds, in brackets least and greatest",
    "words": "answers that are token for token those of the named rung: the first of ours, above a lossy rung that one",
}


def climbed(result: LadderResult) -> Waterfall | None:
    """Factors between the rungs that were measured."""
    return waterfall([(r.rung.name, [n.output_tok_s for n in r.runs]) for r in result.rungs if r.runs])


def render(result: LadderResult) -> str:
    """Table, waterfall, gains."""
    lines = [
        f"{result.model}: {result.load}",
        f"{result.threads} threads, {result.rounds} rounds, a fresh process per cell; files in {result.folder}",
        "",
    ]
    head = f"{'rung':<28}{'tok/s':>9}{'predicted':>11}{'TTFT ms':>10}{'pred.':>9}{'queue':>9}{'ITL ms':>9}{'pred.':>8}"
    lines.append(f"{head}{'KV % max':>10}{'hits':>7}  words, quality")
    models = models_of_words(result)
    for r in result.rungs:
        lines.append(_line(r, models.get(r.rung.key), result.load.requests))
    fall = climbed(result)
    if fall is not None:
        lines += ["", *_fall_lines(fall)]
    lines += ["", *gains(result), *_cold(result)]
    lines += _noise(result)
    if result.left:
        lines.append(f"{result.left} cells have not run: the same command goes on with them")
    if _is_workshop(result):
        source, told = reported()
        lines += ["", f"reported ({source}):"]
        for t in told:
            gain = float(t["output_tok_s"]) / float(told[0]["output_tok_s"])
            lines.append(f"  {t['engine']:<44}{t['output_tok_s']:>5} tok/s {gain:>5.1f}x   TTFT {t['ttft_ms']} ms   ITL {t['itl_ms']} ms")
    return "\n".join(lines)


def reported() -> tuple[str, list[dict[str, str]]]:
    """(source, rows) of the workshop's own run, not measured here."""
    found = [r for r in rows() if r["source"] == WORKSHOP]
    return "{source}, {date}: {setup}".format_map(found[0]), found


def _is_workshop(result: LadderResult) -> bool:
    return result.load == PRESETS["workshop"]


def models_of_words(result: LadderResult) -> dict[str, RungResult]:
    """Rung -> the rung whose words it should say: the first measured one of ours, above a lossy one that one."""
    found: dict[str, RungResult] = {}
    model: RungResult | None = None
    for r in result.rungs:
        if not r.raw:
            continue
        if model is not None:
            found[r.rung.key] = model
        if r.rung.engine == "ridgeline" and (model is None or r.rung.lossy):
            model = r
    theirs = next((r for r in result.rungs if r.raw and r.rung.engine != "ridgeline"), None)
    ours = next((r for r in result.rungs if r.raw and r.rung.engine == "ridgeline"), None)
    return found | ({theirs.rung.key: ours} if theirs is not None and ours is not None else {})


def _line(r: RungResult, model: RungResult | None, count: int) -> str:
    if not r.runs:
        return f"{r.rung.name:<28}{r.status}{': ' + r.why if r.why else ''}"
    n, p = middle(r.runs), r.predicted
    tok = median(x.output_tok_s for x in r.runs)

    guess = ("-", "-", "-") if p is None else tuple(f"{v:.1f}" for v in (p.output_tok_s, p.ttft.mean, p.itl.mean))
    cells = f"{r.rung.name:<28}{tok:>9.1f}{guess[0]:>11}{n.ttft.mean:>10.1f}{guess[1]:>9}"
    cells += f"{n.ttft_queue.mean:>9.1f}{n.itl.mean:>9.2f}{guess[2]:>8}"
    most = max((s for _, s in n.kv_users), default=None)
    cells += f"{'-' if most is None else f'{most:.1%}':>10}{n.hit_rate:>7.1%}"
    return f"{cells}  {', '.join(_words(r, n, model, count))}"


def _words(r: RungResult, n: Numbers, model: RungResult | None, count: int) -> list[str]:
    said = []
    if r.raw is not None and len(r.raw["requests"]) < count:
        said.append(f"only {len(r.raw['requests'])} of {count} requests, one like the other")
    if model is not None and r.raw is not None and model.raw is not None:
        equal, both, share = same_words(r.raw, model.raw)
        change = "" if equal == both else f", {share:.0%} of tokens before the first change"
        said.append(f"{equal} of {both} answers as {model.rung.key}{change}")
    if n.accepted is not None:
        said.append(f"{n.accepted:.0%} of drafts accepted")
    if r.rung.lossy:
        q = r.quality
        said.append(
            "quality not measured"
            if q is None
            else f"KL {q['KL mean']:.4f}, top-1 {q['top-1']:.1%}, perplexity {q['perplexity rise']:+.2%}"
        )
    return said


def _fall_lines(fall: Waterfall) -> list[str]:
    lines, total = ["waterfall (measured steps only)"], 1.0
    for s in fall.steps:
        total *= s.factor
        span = f" ({s.low:.2f} to {s.high:.2f})" if len(fall.rounds) > 1 else ""
        lines.append(f"  {s.name:<28}{s.factor:>7.2f}x{span:<18} -> {total:>7.2f}x" + ("   a loss" if s.factor < 1 else ""))
    rounds = ", ".join(f"{r:.2f}x" for r in fall.rounds)
    if len(fall.rounds) == 1:
        return [*lines, f"  {fall.product:.2f}x in all; one round agrees with itself by construction, --rounds 3 checks the product"]
    verdict = "agrees with" if fall.agrees else "does NOT agree with"
    lines.append(f"  check: the product {fall.product:.2f}x {verdict} last over first in the same round: {rounds}")
    return lines


def gains(result: LadderResult) -> list[str]:
    """Batching told apart from kernels: N at once against one, and one against one."""
    by = {r.rung.key: r for r in result.rungs if r.runs}
    lines = [_kernel_gain(by["transformers"], by["one"])] if "transformers" in by and "one" in by else []
    for key in ("static", "continuous"):
        if key in by and "one" in by:
            how = f"{result.load.slots} at once ({key}) over one at a time, no prefix cache"
            lines.append(f"batching gain  {_speed(by[key]) / _speed(by['one']):.2f}x: {how}")
    if "prefix" in by and "continuous" in by:
        gain = _speed(by["prefix"]) / _speed(by["continuous"])
        lines.append(f"prefix gain    {gain:.2f}x: the shared {result.load.shared} tokens are computed once")
    return lines


def _speed(r: RungResult) -> float:
    return median(n.output_tok_s for n in r.runs)


def _kernel_gain(theirs: RungResult, ours: RungResult) -> str:
    """Both at batch 1: in all, on the prompt, and per token."""
    t, o = middle(theirs.runs), middle(ours.runs)
    parts = [
        f"{a.mean / b.mean:.2f}x {what}" for a, b, what in ((t.ttft, o.ttft, "on the prompt"), (t.tpot, o.tpot, "a token")) if b.mean > 0
    ]
    both = "ours over transformers, both one request at a time (batch 1)"
    return f"kernel gain    {_speed(ours) / _speed(theirs):.2f}x: {both}" + (f"; {', '.join(parts)}" if parts else "")


def _noise(result: LadderResult) -> list[str]:
    """Rungs during whose last round somebody else had more than a twentieth of the CPUs."""
    loud = [(r.rung.name, r.raw["steal"] + r.raw["others"]) for r in result.rungs if r.raw]
    return [f"not to be relied on: others had {share:.0%} of the CPUs during {name!r}" for name, share in loud if share > LIMIT]


def _cold(result: LadderResult) -> list[str]:
    raw = next((r.raw for r in result.rungs if r.raw and r.rung.engine == "ridgeline"), None)
    if raw is None:
        return []
    return [
        f"cold start     {raw['load_s']:.2f} s of loading, first token of a short request {raw['cold_s'] * 1e3:.1f} ms the first time,"
        f" {raw['warm_s'] * 1e3:.1f} ms the second; in none of the numbers above"
    ]  # fmt: skip


# --- the document -------------------------------------------------------------------------------------------------------------------


def document(result: LadderResult, version: str) -> list[schema.ReportDocument]:
    """What `bench report` draws; reported rows stand in a document of their own."""
    commands = (command_line(), *(r.command for r in result.rungs if r.command))
    versions: dict[str, schema.Cell] = {"ridgeline": version, "python": sys.version.split()[0]}
    for r in result.rungs:
        if r.raw and r.rung.engine == "transformers":
            versions |= {k: r.raw["setup"][k] for k in ("torch", "transformers")}
    setup = schema.Setup(
        {"host": machine_name()}, versions, {"prompts": result.load.seed},
        {"threads": result.threads, "rounds": result.rounds, "workload": str(result.load)}, commands, (), now(),
    )  # fmt: skip
    title = f"Ladder of {result.model}"
    own = schema.ReportDocument(
        "ladder", title, setup, ladders=(schema.Ladder(title, str(result.load), tuple(_rung(r) for r in result.rungs)),),
        predictions=tuple(p for r in result.rungs for p in _predictions(r)), tables=_tables(result), definitions=DEFINITIONS,
        notes=tuple(gains(result) + _cold(result) + _noise(result)),
    )  # fmt: skip
    if not _is_workshop(result):
        return [own]
    source, found = reported()
    rungs = tuple(
        schema.Rung(
            r["engine"], output_tok_s=float(r["output_tok_s"]), ttft_ms=schema.Percentiles(float(r["ttft_ms"])),
            itl_ms=schema.Percentiles(float(r["itl_ms"])), label=f"reported: {source}",
        )
        for r in found
    )  # fmt: skip
    told = schema.Ladder("Reported by the workshop", str(result.load), rungs)
    return [own, schema.ReportDocument("ladder", f"Reported, not measured here: {source}", ladders=(told,))]


def _rung(r: RungResult) -> schema.Rung:
    status: Any = r.status
    if not r.runs:
        return schema.Rung(r.rung.name, status, r.why, r.command, lossy=r.rung.lossy)
    n, p = middle(r.runs), r.predicted
    tok = median(x.output_tok_s for x in r.runs)
    quality = {k: v for k, v in (r.quality or {}).items() if k != "command"}
    return schema.Rung(
        r.rung.name, status, r.why, r.command, tok, tok if r.rung.wave == "one" else None, _percentiles(n.ttft), _percentiles(n.itl),
        n.kv_users, n.kv_context, p.output_tok_s if p else None, p.ttft.p50 if p else None, p.itl.p50 if p else None, n.hit_rate,
        r.rung.lossy, quality, round_tok_s=tuple(x.output_tok_s for x in r.runs),
    )  # fmt: skip


def _percentiles(s: Spread) -> schema.Percentiles:
    return schema.Percentiles(s.p50, p95=s.p95, p99=s.p99, mean=s.mean)


def _predictions(r: RungResult) -> list[schema.Prediction]:
    if not r.runs or r.predicted is None:
        return []
    n, p = middle(r.runs), r.predicted
    pairs = (
        ("throughput tok/s", p.output_tok_s, n.output_tok_s),
        ("TTFT mean ms", p.ttft.mean, n.ttft.mean),
        ("TPOT mean ms", p.tpot.mean, n.tpot.mean),
    )
    steal = float(r.raw["steal"]) if r.raw else None
    return [schema.Prediction(r.rung.name, metric, guess, found, steal, r.label) for metric, guess, found in pairs if found > 0]


def _tables(result: LadderResult) -> tuple[schema.Table, ...]:
    models = models_of_words(result)
    rows = tuple(
        (r.rung.name, *_cells(r), "; ".join(_words(r, middle(r.runs), models.get(r.rung.key), result.load.requests)) if r.runs else r.why)
        for r in result.rungs
    )
    columns = (
        "rung",
        "status",
        "tok/s",
        "TTFT ms",
        "TTFT with queue ms",
        "ITL ms",
        "TPOT ms",
        "KV % max",
        "prefix hits",
        "words and quality",
    )
    found = [schema.Table("All rungs, losses included", columns, rows, "means of the run with the median throughput")]
    fall = climbed(result)
    if fall is not None:
        steps = tuple((s.before, s.name, s.factor, s.low, s.high) for s in fall.steps)
        rounds = ", ".join(f"{r:.2f}" for r in fall.rounds)
        note = f"product {fall.product:.3f}, last over first in each round {rounds}: {'agrees' if fall.agrees else 'does not agree'}"
        found.append(schema.Table("Waterfall", ("from", "to", "factor", "least", "greatest"), steps, note))
    return tuple(found)


def _cells(r: RungResult) -> tuple[schema.Cell, ...]:
    if not r.runs:
        return (r.status, *(None,) * 7)
    n = middle(r.runs)
    most = max((s for _, s in n.kv_users), default=None)
    tok = median(x.output_tok_s for x in r.runs)
    return (r.status, tok, n.ttft.mean, n.ttft_queue.mean, n.itl.mean, n.tpot.mean, most, n.hit_rate)


def as_json(result: LadderResult) -> dict[str, Any]:
    """Numbers for programs; raw times are in the folder."""
    rungs = [
        {
            "rung": r.rung.key, "name": r.rung.name, "status": r.status, "why": r.why, "command": r.command, "lossy": r.rung.lossy,
            "runs": [asdict(n) for n in r.runs], "predicted": asdict(r.predicted) if r.predicted else None, "label": r.label,
            "quality": r.quality,
        }
        for r in result.rungs
    ]  # fmt: skip
    fall = climbed(result)
    return {
        "model": result.model, "workload": asdict(result.load), "threads": result.threads, "rounds": result.rounds, "rungs": rungs,
        "waterfall": asdict(fall) if fall else None, "gains": gains(result), "folder": result.folder, "left": result.left,
    }  # fmt: skip
