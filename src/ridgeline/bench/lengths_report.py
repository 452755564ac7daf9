"""A `bench lengths` run as a report document: first and next token against context, measured, fitted and predicted. Measures nothing."""

from __future__ import annotations

import platform

from ridgeline.bench.held import window_lines
from ridgeline.bench.lengths import LengthReport
from ridgeline.bench.micro_report import ceilings
from ridgeline.bench.record import command_line
from ridgeline.bench.report_schema import Line, Plot, Prediction, ReportDocument, Setup

FITTED, FASTEST = "fitted: to the measured points", "predicted: roofline's fastest"


def document(r: LengthReport, version: str) -> ReportDocument:
    """First and next tokens against the length, with and without a cache, in figures."""
    m = r.machine
    setup = Setup(
        {"host": m.name, "threads": r.threads}, {"ridgeline": version, "python": platform.python_version()},
        settings={"model": r.model}, commands=(command_line(),),
        ceilings=ceilings(m), date=m.date,
    )  # fmt: skip
    predictions = tuple(
        Prediction(f"{r.model}, {row.tokens} tokens", metric, predicted * 1e3, measured * 1e3, label=FASTEST)
        for row in r.rows
        for metric, predicted, measured in (
            ("TTFT ms", row.predicted_ttft_s, row.ttft_s), ("next token ms, with the cache", row.predicted_cached_s, row.cached_s),
        )
    )  # fmt: skip
    notes = (
        f"TTFT = {r.ttft_fit}, fitted to the measured lengths n.",
        f"TTFT = {r.prompt_model}; nothing queued here.",
        f"Without the cache the time of a token grows with power {r.growth_measured:.2f} of the context (roofline: "
        f"{r.growth_predicted:.2f}), that of a whole answer with power {r.answer_growth_measured:.2f} ({r.answer_growth_predicted:.2f}).",
        *(f"Next token with the cache: {line}." for line in r.slope.lines()),
        "The same tokens and logits, bit for bit, with the cache and without." if r.identical else "The two ways DIFFER in their tokens.",
    )
    title = f"{r.model}: what a longer context costs"
    windows = (line.strip() for line in window_lines(r.held, [row.tokens for row in r.rows], r.block_size))
    said = (*notes, *windows, *([r.disturbed] if r.disturbed else []))
    return ReportDocument("bench lengths", title, setup, plots=_plots(r), predictions=predictions, notes=said)


def _plots(r: LengthReport) -> tuple[Plot, ...]:
    def line(name: str, value: str, label: str = "measured") -> Line:
        return Line(name, tuple((float(row.tokens), 1e3 * getattr(row, value)) for row in r.rows), label)

    fit = Line("fit", tuple((float(row.tokens), 1e3 * r.ttft_fit.at(row.tokens)) for row in r.rows), FITTED)
    model = Line("by FLOPs and MFU", tuple((float(row.tokens), 1e3 * r.prompt_model.seconds(row.work)) for row in r.rows), FITTED)
    s = r.slope
    first = (line("measured", "ttft_s"), fit, model, line("roofline's fastest", "predicted_ttft_s", FASTEST))
    following = (
        line("with the KV cache", "cached_s"), line("without it", "uncached_s"),
        Line("with it, fitted line", tuple((float(row.tokens), 1e3 * (s.start_s + s.measured_s * row.tokens)) for row in r.rows), FITTED),
        line("with it, roofline's fastest", "predicted_cached_s", FASTEST),
        line("without it, roofline's fastest", "predicted_uncached_s", FASTEST),
    )  # fmt: skip
    tokens = [float(row.tokens) for row in r.rows]
    kept = tuple(
        Line(f"{h.layers} layers, " + ("all tokens" if h.window is None else f"window of {h.window}"),
             tuple((n, size / 1e6) for n, size in zip(tokens, h.bytes, strict=True)), "measured: blocks in use")
        for h in r.held
    )  # fmt: skip
    answers = tuple(
        Line(name, tuple((float(a.tokens), getattr(a, value)) for a in r.answers), label)
        for name, value, label in (
            ("with the KV cache", "cached_s", "measured"), ("without it", "uncached_s", "measured"),
            ("with it, roofline's fastest", "predicted_cached_s", FASTEST),
            ("without it, roofline's fastest", "predicted_uncached_s", FASTEST),
        )
    )  # fmt: skip
    return (
        Plot("Time to the first token", "tokens of the prompt", "ms", first, log_x=True, log_y=True),
        Plot("Time of one more token", "tokens of context", "ms", following, log_x=True, log_y=True),
        Plot("KV of one sequence", "tokens of context", "MB", kept),
        Plot("Time of a whole answer", "tokens of the answer", "s", answers, log_x=True, log_y=True),
    )
