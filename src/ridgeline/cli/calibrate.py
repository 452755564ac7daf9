"""`ridgeline calibrate`: measure this host so that its plans are fitted, not assumed."""

from __future__ import annotations

from dataclasses import asdict

from ridgeline.bench.calibrate import FORMATS, MOST_SECONDS, calibrate
from ridgeline.cli.output import note, print_json, table
from ridgeline.cli.plan import model_facts
from ridgeline.errors import UnsupportedError, within
from ridgeline.planner.calibration import linear_formats
from ridgeline.planner.question import MAX_THREADS


def run(model: str | None, threads: int | None, seconds: float, *, as_json: bool) -> None:
    """Raises `UserError` for a budget out of range. Of a model only the formats of its tensors are looked at; it is never run."""
    within("--seconds", seconds, 0.1, MOST_SECONDS)
    if threads is not None:
        within("--threads", threads, 1, MAX_THREADS)
    wanted: tuple[str, ...] = ()
    if model is not None:
        facts = model_facts(model)
        if facts.partial:
            remedy = "calibrate without a model measures every format that has kernels"
            raise UnsupportedError(facts.partial, field="MODEL", value=model, remedy=remedy)
        wanted = linear_formats(facts.graph, facts.formats) if facts.graph is not None and facts.formats else ()
    found = calibrate(threads, wanted or FORMATS, seconds, note)
    if as_json:
        print_json(asdict(found))
        return
    print(f"{found.host}, {found.isa}, {found.threads} threads, in {found.seconds:.1f} s\n")
    picked = [i for i, r in enumerate(found.rows) if r in (1, 8, 64, 512)]
    rows = [[name, *(f"{2e-9 * found.rows[i] / values[i]:.1f}" for i in picked)] for name, values in found.linear_s.items()]
    print(table(rows, ["GFLOP/s, rows", *(str(found.rows[i]) for i in picked)]))
    read = [[n, *(f"{speed:.1f}" for speed in speeds.values())] for n, speeds in found.read_gb_s.items()]
    print("\n" + table(read, ["threads reading, GB/s", *(f"of {mb} MB" for mb in next(iter(found.read_gb_s.values()), {}))]))
    engine = f"a step of the engine {found.step_s * 1e6:.0f} us and {found.sequence_s * 1e6:.0f} us a sequence"
    draw = f"a draw {found.sample_row_s * 1e6:.1f} us and {found.sample_value_s * 1e9:.2f} ns an id"
    other = "" if found.float_chunk is None else f" ({2e-9 / found.float_chunk.pair_s:.1f} over a cache that is neither bf16 nor int8)"
    print(f"\nan op {found.op_s * 1e6:.1f} us, {engine}\na chunk's attention {2e-9 / found.chunk.pair_s:.1f} GFLOP/s{other}, {draw}")
