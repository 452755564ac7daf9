"""A `bench micro` run as a report document: its points on the machine's roofline, the prediction beside each speed. Measures nothing."""

from __future__ import annotations

import platform
from collections.abc import Iterator

from ridgeline.bench.components import layers_of
from ridgeline.bench.micro import MicroReport, OpRow
from ridgeline.bench.record import command_line
from ridgeline.bench.report_schema import Ceiling, Prediction, ReportDocument, Roof, Roofline, RoofPoint, Setup, Table
from ridgeline.planner.hardware import Machine

LEAST_SHARE, MOST_OPS = 0.05, 6  # of a phase's time; op points of one phase


def document(r: MicroReport, version: str) -> ReportDocument:
    """Everything of one run. The roofline's roofs are the measured ceilings of the same run."""
    m = r.machine
    setup = Setup(
        {"host": m.name, "threads": r.threads, "kernels": r.isa, "load before": r.load_before},
        {"ridgeline": version, "python": platform.python_version()}, {},
        {"model": r.model, "prompt": r.prompt, "generated": r.gen, "runs": max((len(v) for v in r.runs.values()), default=0)},
        (command_line(),), ceilings(m), m.date,
    )  # fmt: skip
    peaks = {"int8": m.int8_gops, "f32": m.f32_gflops} | ({"bf16 pairs": m.bf16_gflops} if m.pairs else {})
    roofs = tuple(Roof(name, peak, m.provenance) for name, peak in peaks.items())
    roofline = Roofline(f"{m.name}, {r.threads} threads", m.read_gb_s, roofs, tuple(_points(r)), m.provenance)
    fastest = "predicted: roofline's fastest"
    predictions = (
        Prediction(f"{r.model}, prompt of {r.prompt}", "tok/s", r.predicted_prompt_tok_s, r.prompt_tok_s, label=fastest),
        Prediction(f"{r.model}, {r.gen} generated", "tok/s", r.predicted_gen_tok_s, r.gen_tok_s, label=fastest),
    )
    return ReportDocument(
        "bench micro", f"{r.model}, one sequence", setup, rooflines=(roofline,), predictions=predictions, tables=tuple(_tables(r)),
        notes=("The roofline's time is the fastest that the ceilings allow: no run is faster.",),
    )  # fmt: skip


def ceilings(m: Machine) -> tuple[Ceiling, ...]:
    """Of memory and of each kind of product."""
    found = [("read bandwidth", m.read_gb_s, "GB/s"), ("int8 products", m.int8_gops, "GOP/s"), ("f32 products", m.f32_gflops, "GFLOP/s")]
    if m.pairs:
        found.append(("bf16 pairs, attention", m.bf16_gflops, "GFLOP/s"))
    return tuple(Ceiling(*facts, m.provenance) for facts in found)


def _points(r: MicroReport) -> Iterator[RoofPoint]:
    """Both phases as a whole, then the ops that take most of each."""
    for name, gb_s, gops in ((f"prompt of {r.prompt}", r.prompt_gb_s, r.prompt_gops), ("generation, 1 sequence", r.gen_gb_s, r.gen_gops)):
        if gb_s > 0 and gops > 0:
            yield RoofPoint(name, gops / gb_s, gops)
    for phase in ("prompt", "gen"):
        shown = [o for o in r.ops if o.phase == phase and o.share >= LEAST_SHARE and o.gb_s > 0 and o.gflop_s > 0]
        for o in shown[:MOST_OPS]:
            yield RoofPoint(f"{_phase(o)}: {o.label}", o.gflop_s / o.gb_s, o.gflop_s)


def _phase(o: OpRow) -> str:
    return "prompt" if o.phase == "prompt" else "generation"


def _tables(r: MicroReport) -> Iterator[Table]:
    if r.ops:
        inside = (("prompt", "prompt"), ("gen", "generation"))
        totals = {phase: layers_of(r.parts, phase) for phase, _ in inside}
        shown = ((said, p) for phase, said in inside for p in (totals[phase], *(p for p in r.parts if p.phase == phase)))
        cells = tuple((said, p.component, p.seconds * 1e3, f"{p.share:.1%}", p.flops / 1e9, f"{p.flop_share:.1%}") for said, p in shown)
        note = "Norms, attention, FFN and residual sums make up the layers. Outside the ops: planning a step, the draw, Python."
        yield Table("Time and FLOPs by component", ("phase", "component", "ms", "of the time", "GFLOP", "of the FLOPs"), cells, note)
        rows = tuple(
            (_phase(o), o.label, o.calls, o.seconds * 1e3, o.gb_s, o.gflop_s, f"{o.share:.1%}", f"{o.flop_share:.1%}") for o in r.ops
        )
        yield Table("Time of every kind of op", ("phase", "op", "calls", "ms", "GB/s", "GFLOP/s", "of the time", "of the FLOPs"), rows)
    if r.against is not None:
        a = r.against
        peer = (
            ("prompt", r.prompt_tok_s, a.prompt_tok_s, a.prompt_ratio, a.prompt_command),
            ("generation", r.gen_tok_s, a.gen_tok_s, a.gen_ratio, a.gen_command),
        )
        yield Table("Beside the peer, in turns", ("phase", "ours tok/s", "theirs tok/s", "ours / theirs", "their command"), peer)
