"""A `bench batches` run as a report document: one curve, the formula's numbers beside the measured ones. Measures nothing."""

from __future__ import annotations

import platform

from ridgeline.bench.batches import BatchesReport
from ridgeline.bench.record import command_line, machine_name, now
from ridgeline.bench.report_schema import Curve, LoadPoint, Percentiles, ReportDocument, Setup
from ridgeline.planner.units import milliseconds


def document(r: BatchesReport, version: str) -> ReportDocument:
    """Step time against batch, measured and by the formula, promise and best batch."""
    setup = Setup(
        {"host": machine_name(), "threads": r.threads, "kernels": r.isa}, {"ridgeline": version, "python": platform.python_version()},
        settings={"model": r.model, "context": r.context}, commands=(command_line(),), date=now(),
    )  # fmt: skip
    points = tuple(
        LoadPoint(
            row.batch, output_tok_s=row.batch / row.measured_s, tpot_ms=Percentiles(row.measured_s * 1e3),
            predicted_output_tok_s=row.batch / row.formula_s, predicted_tpot_ms=row.formula_s * 1e3,
        )
        for row in r.rows
    )  # fmt: skip
    curve = Curve(
        "ridgeline", f"decode steps at {r.context} tokens", points, slo_tpot_ms=milliseconds(r.itl_s), knee=r.best_measured,
        predicted=r.formula,
    )  # fmt: skip
    chosen = f"Best batch: measured {_batch(r.best_measured)}, formula {_batch(r.best_formula)}."
    notes = (f"The formula's seconds are {r.formula}.", chosen)
    return ReportDocument("bench batches", f"{r.model}: step time against batch", setup, (curve,), notes=notes)


def _batch(n: int | None) -> str:
    return "none" if n is None else str(n)
