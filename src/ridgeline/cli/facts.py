"""`ridgeline hardware` and `ridgeline models`: the tables that plans are made from, with the source of every row."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from ridgeline.cli.output import note, print_json, table
from ridgeline.cli.plan import model_facts
from ridgeline.planner.catalog import model_of, models
from ridgeline.planner.facts import ModelFacts
from ridgeline.planner.hardware import Device, devices, find_device, workshop_devices
from ridgeline.planner.units import plain_number


def hardware(name: str | None, file: Path | None, *, workshop: bool, as_json: bool) -> None:
    """The table of devices, or one of them with its sources."""
    listed: Mapping[str, Device] = workshop_devices() if workshop else devices(file)
    chosen = list(listed.values()) if name is None else [find_device(name, listed)]
    rows = [device_row(d) for d in chosen]
    if as_json:
        print_json({"devices": rows})
    elif name is not None:
        for key, value in rows[0].items():
            print(f"{key:>22}  {'unknown' if value is None else value}")
    else:
        header = ["device", "GB", "GB/s", "bf16", "fp8", "int8", "fp4", "link", "ridge", "$/h", "dates"]
        keys = ("memory_gb", "bandwidth_gb_s", "bf16_tflops", "fp8_tflops", "int8_tops", "fp4_tflops", "link_gb_s")
        cells = [
            [
                r["name"],
                *(_cell(r[k]) for k in keys),
                "-" if r["ridge_bf16"] is None else f"{r['ridge_bf16']:.1f}",
                _band(r),
                r["price_dates"],
            ]
            for r in rows
        ]
        print(table(cells, header))
        note("dense peaks in TFLOP/s; - is unknown and stays unknown; `ridgeline hardware NAME` shows the sources")


def device_row(d: Device) -> dict[str, Any]:
    return {
        "name": d.name, "class": d.kind, "memory_gb": d.memory_gb, "bandwidth_gb_s": d.bandwidth_gb_s,
        "bf16_tflops": d.tflops.get("bf16"), "fp8_tflops": d.tflops.get("fp8"), "int8_tops": d.tflops.get("int8"),
        "fp4_tflops": d.tflops.get("fp4"), "link_gb_s": d.link_gb_s, "link_kind": d.link_kind, "tdp_w": d.tdp_w,
        "ridge_bf16": d.ridge("bf16"), "ridge_fp8": d.ridge("fp8"), "ridge_int8": d.ridge("int8"),
        "usd_per_hour_low": _usd(d.usd_low), "usd_per_hour_high": _usd(d.usd_high), "price_dates": d.price_dates,
        "price_sources": d.price_sources, "spec_source": d.spec_source, "provenance": d.provenance, "notes": d.notes,
    }  # fmt: skip


def _usd(value: Decimal | None) -> float | None:
    return None if value is None else float(value)


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _band(row: Mapping[str, Any]) -> str:
    low, high = row["usd_per_hour_low"], row["usd_per_hour_high"]
    return "-" if low is None else f"{low:g}" if low == high else f"{low:g}-{high:g}"


def list_models(name: str | None, *, as_json: bool) -> None:
    """The table of models, or one of them."""
    found = [model_facts(name)] if name is not None else [model_of(row) for row in models().values()]
    rows = [model_row(f) for f in found]
    if as_json:
        print_json({"models": rows})
    elif name is not None:
        for key, value in rows[0].items():
            print(f"{key:>34}  {f'{value:,}' if isinstance(value, int) else 'unknown' if value is None else value}")
    else:
        header = ["model", "kind", "params B", "active B", "layers", "heads", "KV", "KV B/token", "fixed MB", "counted from"]
        cells = [
            [
                r["name"], r["kind"], f"{r['params'] / 1e9:.3f}", f"{r['active_params'] / 1e9:.2f}", r["layers"], r["heads"], r["kv_heads"],
                f"{r['kv_bytes_per_token_beyond_windows']:,}", f"{r['fixed_bytes_per_sequence'] / 1e6:.1f}", r["counted"],
            ]
            for r in rows
        ]  # fmt: skip
        print(table(cells, header))
        note("KV in bf16 as a long sequence grows; fixed: full windows and states; `ridgeline models NAME` shows one with its source")


def model_row(f: ModelFacts) -> dict[str, Any]:
    """KV bytes in bf16."""
    whole = {"params": f.params, "active_params": round(f.active_params), "formula_params": f.formula_params}
    per_token = f.kv_bytes_per_token("bf16"), f.kv_bytes_per_token("bf16", beyond_windows=True)
    fixed = f.state_bytes() + sum(k.entries(1 << 40) * k.bytes_per_entry("bf16") for k in f.kept if k.cache.window is not None)
    return {
        "name": f.name, "kind": f.kind, "counted": f.counted, **whole, "published_params_b": f.published[0],
        "published_active_b": f.published[1], "layers": f.layers, "dim": f.dim, "heads": f.heads, "kv_heads": f.kv_heads,
        "head_dim": f.head_dim, "ffn": f.ffn, "vocab": f.vocab, "experts": f.experts, "experts_per_token": f.top_k, "window": f.window,
        "kv_bytes_per_token": plain_number(per_token[0]),
        "kv_bytes_per_token_beyond_windows": plain_number(per_token[1]), "fixed_bytes_per_sequence": fixed,
        "state_elems": f.state_elems, "native_dtype": f.native, "max_context": f.max_context, "source": f.source, "notes": f.notes,
    }  # fmt: skip
