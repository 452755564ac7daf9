"""A `bench lengths` run as a report document: first and next token against context, measured, fitted and predicted. Measures nothing."""

from __future__ import annotations

import platform

from ridgeline.bench.lengths import LengthReport
from ridgeline.bench.record import command_line
from ridgeline.bench.report_schema import Ceiling, Line, Plot, Prediction, ReportDocument, Setup

FITTED, FASTEST = "fitted: to the measured points", "predicted: roofline's fastest"


def document(r: LengthReport, version: str) -> ReportDocument:
    """First and next tokens against the length, with and without a cache, in figures."""
    m = r.machine
    ceilings = (Ceiling("read bandwidth", m.read_gb_s, "GB/s", m.provenance), Ceiling("int8 products", m.int8_gops, "GOP/s", m.provenance))
    setup = Setup(
        {"host": m.name, "threads": r.threads}, {"ridgeline": version, "python": platform.python_version()},
        settings={"model": r.model}, commands=(command_line(),),
        ceilings=ceilings, date=m.date,
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
        f"Without the cache the time of a token grows with power {r.growth_measured:.2f} of the context (roofline: "
        f"{r.growth_predicted:.2f}), and the whole answer with one power more.",
        f"With it each token of context adds {r.slope_s * 1e9:.3g} ns to a step; its {r.kv_bytes_per_token:,} bytes of KV over the "
        f"bandwidth are {r.slope_predicted_s * 1e9:.3g} ns.",
        "The same tokens and logits, bit for bit, with the cache and without." if r.identical else "The two ways DIFFER in their tokens.",
    )
    title = f"{r.model}: what a longer context costs"
    return ReportDocument("bench lengths", title, setup, plots=_plots(r), predictions=predictions, notes=notes)


def _plots(r: LengthReport) -> tuple[Plot, ...]:
    def line(name: str, value: str, label: str = "measured") -> Line:
        return Line(name, tuple((float(row.tokens), 1e3 * getattr(row, value)) for row in r.rows), label)

    fit = Line("fit", tuple((float(row.tokens), 1e3 * r.ttft_fit.at(row.tokens)) for row in r.rows), FITTED)
    first = (line("measured", "ttft_s"), fit, line("roofline's fastest", "predicted_ttft_s", FASTEST))
    following = (
        line("with the KV cache", "cached_s"), line("without it", "uncached_s"),
        line("with it, roofline's fastest", "predicted_cached_s", FASTEST),
        line("without it, roofline's fastest", "predicted_uncached_s", FASTEST),
    )  # fmt: skip
    return (
        Plot("Time to the first token", "tokens of the prompt", "ms", first, log_x=True, log_y=True),
        Plot("Time of one more token", "tokens of context", "ms", following, log_x=True, log_y=True),
    )
