"""`ridgeline inspect`: what a model is made of and what it needs. Opens and plans, packs nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from ridgeline.backends.table import techniques
from ridgeline.bench.probe import machine
from ridgeline.cli.output import note, print_json, printable, size, table
from ridgeline.engine.loader import OpenModel, load_cpu, open_model
from ridgeline.errors import UserError
from ridgeline.graph.ops import results
from ridgeline.graph.step import Span
from ridgeline.kv.layout import bytes_per_token
from ridgeline.options import Options
from ridgeline.planner.cost import Cost, parameters
from ridgeline.planner.hardware import Machine
from ridgeline.planner.roofline import times

SHOWN = 200  # longest metadata value that is printed whole


@dataclass(frozen=True, slots=True)
class Asked:
    """Which parts to show, and the step of `--ops`: `batch` sequences of `new` tokens after `past`."""

    ops: bool
    new: int
    past: int
    batch: int
    kernels: bool
    tensors: bool


def show(options: Options, asked: Asked, *, as_json: bool) -> None:
    """Raises `UserError` for a model that cannot be used, as a load would."""
    for name, value, low in (("--new", asked.new, 1), ("--past", asked.past, 0), ("--batch", asked.batch, 1)):
        if value < low or value > 2**24:
            raise UserError(f"{name} is {value}, must be from {low} to {2**24}", field=name, value=value, limit=(low, 2**24))
    model = open_model(options)
    parts: dict[str, Any] = {"model": summary(model), "metadata": dict(metadata(model)), "formats": formats(model)}
    if asked.tensors:
        parts["tensors"] = [
            {"name": name, "shape": t.shape, "format": t.encoding.name, "bytes": t.nbytes} for name, t in model.spec.tensors.items()
        ]
    if asked.ops:
        parts["step"] = {"new": asked.new, "past": asked.past, "batch": asked.batch}
        parts["ops"] = op_rows(model, asked)
    if asked.kernels:
        program = load_cpu(model)
        parts["kernels"] = [asdict(row) for row in program.kernels()]
        used = techniques(program.graph, model.plan.threads, program.native.instructions(), program.isa, model.plan.kv_dtype)
        parts["techniques"] = [asdict(row) for row in used]
    if as_json:
        print_json(parts)
    else:
        _print(parts)
        for line in model.plan.notes:
            note(f"note: {line}")


def summary(model: OpenModel) -> dict[str, Any]:
    """Sizes in bytes, lengths in tokens."""
    spec, plan = model.spec, model.plan
    weights = sum(t.nbytes for t in spec.tensors.values())
    return {
        "name": plan.model, "path": plan.path, "architecture": model.checkpoint.architecture, "parameters": parameters(spec.graph),
        "trained_context": spec.trained_context_len, "max_model_len": plan.max_model_len, "file_bytes": model.checkpoint.file_bytes,
        "weight_bytes": weights, "bits_per_parameter": round(8 * weights / parameters(spec.graph), 3),
        "kv_dtype": plan.kv_dtype, "kv_bytes_per_token": bytes_per_token(spec.graph.caches, plan.kv_dtype),
        "kv_bytes_per_token_beyond_windows": bytes_per_token(spec.graph.caches, plan.kv_dtype, beyond_windows=True),
        "kv_bytes_at_max_model_len": plan.kv_bytes, "memory_bytes": weights + plan.kv_bytes,
    }  # fmt: skip


def metadata(model: OpenModel) -> Iterable[tuple[str, Any]]:
    """What the file says about itself; long values are described, not printed."""
    for key, value in _flat(model.checkpoint.metadata):
        if isinstance(value, str):
            yield key, value if len(value) <= SHOWN else f"{value[:SHOWN]}... ({len(value)} characters)"
        elif isinstance(value, bool | int | float) or value is None:
            yield key, value
        else:
            length = len(value) if hasattr(value, "__len__") else "?"
            yield key, list(value) if isinstance(length, int) and length <= 8 else f"({length} values)"


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def formats(model: OpenModel) -> list[dict[str, Any]]:
    """Per encoding: how many tensors, values and bytes, largest first."""
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for tensor in model.spec.tensors.values():
        row = found[tensor.encoding.name]
        row[0], row[1], row[2] = row[0] + 1, row[1] + prod(tensor.shape), row[2] + tensor.nbytes
    total = sum(r[2] for r in found.values())
    rows = [{"format": n, "tensors": r[0], "parameters": r[1], "bytes": r[2], "share": round(r[2] / total, 4)} for n, r in found.items()]
    return sorted(rows, key=lambda r: -r["bytes"])


def op_rows(model: OpenModel, asked: Asked) -> list[dict[str, Any]]:
    """One row per op of the graph as it was built, then the sum. Times: what memory and arithmetic alone would take here."""
    book, host = model.costs(), machine(model.plan.threads, model.plan.isa)
    step = book.work([Span(i, asked.past, asked.new, 1) for i in range(asked.batch)])
    rows, total = [], Cost()
    for op, cost in book.ops(step):
        rows.append(_op_row(type(op).__name__, ", ".join(results(op)) or getattr(op, "cache", ""), cost, host))
        total += cost
    return [*rows, _op_row("total", "", total, host)]


def _op_row(kind: str, makes: str, cost: Cost, host: Machine) -> dict[str, Any]:
    t = times(cost, host)
    return {"op": kind, "makes": makes, "flops": cost.flops, "bytes": cost.bytes, "weight_bytes": cost.weight_bytes,
            "kv_bytes": cost.kv_read_bytes + cost.kv_write_bytes, "intensity": round(cost.intensity, 3),
            "memory_us": round(t.memory_s * 1e6, 2), "math_us": round(t.math_s * 1e6, 2), "bound": t.bound}  # fmt: skip


def _print(parts: Mapping[str, Any]) -> None:
    """What was asked for stands last, where a terminal stops."""
    for key, value in parts["model"].items():
        shown = f"{value:,}" if isinstance(value, int) else value
        print(f"{key.replace('_', ' '):>34}  {shown}" + (f"  ({size(value)})" if "bytes" in key and value >= 1000 else ""))
    print("\nmetadata")
    for key, value in parts["metadata"].items():
        print(f"  {key} = {printable(str(value))}")
    print("\nformats")
    print(_rows(parts["formats"]))
    for name in ("ops", "kernels", "techniques", "tensors"):
        if name in parts:
            step = parts.get("step", {})
            print(f"\n{name}" + (f" for a step of {step['batch']} x {step['new']} tokens after {step['past']}" if name == "ops" else ""))
            print(_rows(parts[name]))


def _rows(rows: list[dict[str, Any]]) -> str:
    header = [key.replace("_", " ") for key in rows[0]] if rows else ["nothing"]
    return table([[f"{v:,}" if isinstance(v, int) else str(v) for v in row.values()] for row in rows], header)
