"""What is asked of the planner, from the command line or the page: names and quantities, to a setup, a goal and a search.

Knows which answers fit which question and their defaults; reads no file but the tables, measures nothing, prints nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from ridgeline.errors import UserError, one_of, within
from ridgeline.planner.facts import ModelFacts
from ridgeline.planner.formats import WeightFormat, kv_format_named, native_format, weight_format
from ridgeline.planner.hardware import MATH_TYPES, Device, devices, find_device, workshop_devices
from ridgeline.planner.load import Traffic
from ridgeline.planner.parallel import Layout
from ridgeline.planner.presets import Preset, preset
from ridgeline.planner.price import rounded
from ridgeline.planner.report import Asked, plan_document
from ridgeline.planner.search import Goal, Option, search, ways
from ridgeline.planner.setup import Overhead, Setup
from ridgeline.planner.units import milliseconds

MAX_TOKENS, MAX_THREADS, MAX_RATE = 1 << 30, 1024, 1e6


@dataclass(frozen=True)
class Question:
    """What was asked, parsed; None where nothing was. bytes, bytes/s, seconds, tokens."""

    model: str
    device: str | None = None
    this_host: bool = False
    search: bool = False
    workshop: bool = False
    hardware_file: Path | None = None
    preset: str | None = None
    context: int | None = None
    output: int | None = None
    users: int | None = None
    batch: int | None = None
    rate: float | None = None
    cached: int = 0
    ttft: float | None = None
    itl: float | None = None
    price: Decimal | None = None
    utilization: Decimal = Decimal(1)
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    kv_heads: int | None = None
    weights_bytes: float | None = None
    bandwidth: float | None = None
    memory: float | None = None
    overhead: tuple[float, float] | None = None
    math: str | None = None
    tp: int = 1
    pp: int = 1
    replicas: int = 1
    threads: int | None = None
    ideal: bool = False
    ignore_window: bool = False
    explain: bool = False
    draft: str | None = None
    ep: int = 1


def check(args: Question) -> None:
    """Raises `UserError` for answers that exclude each other or cannot be."""
    given = [name for name in ("users", "batch", "rate") if getattr(args, name) is not None]
    if len(given) > 1:
        both = " and ".join(f"--{n}" for n in given)
        raise UserError(f"{both} say different things about the load", field=f"--{given[0]}", value=both, remedy="give one of them")
    if args.device is not None and args.this_host:
        raise UserError("--device and --this-host exclude each other", field="--device", value=args.device, remedy="give one of them")
    for name, low in (("context", 1), ("output", 1), ("users", 1), ("batch", 1), ("cached", 0), ("kv_heads", 1), ("threads", 1)):
        value, most = getattr(args, name), MAX_THREADS if name == "threads" else MAX_TOKENS
        if value is not None:
            within("--" + name.replace("_", "-"), value, low, most)
    if args.rate is not None and args.rate > MAX_RATE:
        raise UserError(f"--rate is {args.rate:g}/s, at most {MAX_RATE:g}/s is reckoned", field="--rate", value=args.rate, limit=MAX_RATE)
    if args.math is not None:
        one_of("--math", args.math, MATH_TYPES)


def preset_of(args: Question) -> Preset | None:
    return None if args.preset is None else preset(args.preset)


def asked_of(args: Question, chosen: Preset | None) -> Asked:
    return Asked(goal_of(args, chosen), args.output or (chosen.output if chosen else 256))


def table_of(args: Question) -> Mapping[str, Device]:
    """The devices that may be named."""
    return workshop_devices() if args.workshop else devices(args.hardware_file)


def device_of(args: Question) -> Device:
    """The device that was named, or the first of the table. Raises `UserError` with the candidates."""
    listed = table_of(args)
    return next(iter(listed.values())) if args.device is None else find_device(args.device, listed)


def unchanged(facts: ModelFacts, args: Question) -> ModelFacts:
    """A model that is no row of the table. Raises `UserError` for --kv-heads, which a file has its own of."""
    if args.kv_heads is not None:
        raise UserError("--kv-heads changes a row of the table, not a file", field="--kv-heads", value=args.kv_heads, remedy="name a model")
    return facts


def setup_for(args: Question, facts: ModelFacts, device: Device) -> Setup:
    """One way to serve `facts` on `device`, with everything that was said about them."""
    form: WeightFormat | None = None
    if args.weight_dtype is not None and args.weight_dtype.casefold() != "native":
        form = weight_format(args.weight_dtype)
    elif facts.stored is None:
        form = native_format(facts.native)
    math = next((m for m in MATH_TYPES if m == args.math), None)
    overhead = None if args.overhead is None else Overhead(*args.overhead)
    facts = facts.without_windows() if args.ignore_window else facts
    return Setup(
        facts, device, form, kv_format_named(args.kv_dtype or "bf16"), Layout(args.tp, args.pp, args.replicas, args.ep), args.ideal, math,
        args.weights_bytes, args.bandwidth, args.memory, overhead,
    )  # fmt: skip


def goal_of(args: Question, chosen: Preset | None) -> Goal:
    """What is wanted; what was not said comes from the preset."""
    context = args.context or (chosen.context if chosen else 4096)
    output = args.output or (chosen.output if chosen else 256)
    batch = args.batch
    if batch is None and chosen is not None and args.users is None and args.rate is None:
        batch = chosen.min_batch
    traffic = None if args.rate is None else Traffic(args.rate, context, output, args.cached)
    if args.cached > context:
        raise UserError(f"--cached is {args.cached}, more than the {context} tokens of --context", field="--cached", value=args.cached)
    itl = args.itl if args.itl is not None else chosen.itl_s if chosen else None
    return Goal(context, itl, args.ttft, batch, args.users, traffic, args.price, args.utilization)


def options_of(args: Question, base: Setup, goal: Goal, chosen: Preset | None) -> list[Option]:
    """Every device (or the one that was named), in every format and count that may be tried."""
    listed = table_of(args).values() if args.device is None else [base.device]
    fixed = args.weight_dtype is not None or args.weights_bytes is not None or args.ideal
    formats = () if fixed else chosen.formats if chosen else ("fp8", "int4")
    tps = (args.tp,) if args.tp > 1 or args.ideal else (1, 2, 4, 8)
    return search(ways(base, listed, formats, tps), goal)


def document_of(args: Question, setup: Setup) -> dict[str, Any]:
    """The plan of a setup as plain values."""
    document = plan_document(setup, asked_of(args, preset_of(args)))
    if args.kv_heads is not None:
        document["notes"].append(f"{args.kv_heads} KV heads instead of the model's own: accuracy needs an evaluation")
    return document


def option_row(option: Option) -> dict[str, Any]:
    """One option of a search as plain values."""
    setup = option.setup
    return {
        "device": setup.device.name, "passes": option.passes, "usd_per_mtok": rounded(option.usd_per_mtok),
        "usd_per_hour": rounded(option.usd_per_hour), "devices": setup.layout.devices,
        "tp": setup.layout.tp, "replicas": setup.layout.replicas, "weight_dtype": setup.form.name if setup.form else "as stored",
        "batch": option.batch, "itl_ms": option.itl_s * 1e3, "ttft_ms": option.ttft_s * 1e3, "throughput_tok_s": option.tok_s,
        "max_users": option.max_users, "reason": option.reason, "fix": option.fix,
    }  # fmt: skip


def search_document(facts: ModelFacts, goal: Goal, found: Sequence[Option]) -> dict[str, Any]:
    """A search as plain values: the best, all options, labels."""
    rows = [option_row(o) for o in found]
    passing = [r for r in rows if r["passes"]]
    priced = [r for r in passing if r["usd_per_mtok"] is not None]
    labels = found[0].setup.labels() if found else {}
    return {
        "model": facts.name, "context": goal.context, "slo": {"itl_ms": milliseconds(goal.itl_s), "ttft_ms": milliseconds(goal.ttft_s)},
        "best": next(iter(priced or passing), None), "passing": len(passing), "options": rows, "labels": labels,
    }  # fmt: skip
