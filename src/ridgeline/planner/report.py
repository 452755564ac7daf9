"""One plan as a document: every number of a deployment at a batch and a context, each with its label. The page and the CLI show it.

Knows setups and prices; prints nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from decimal import Decimal
from math import isfinite
from typing import Any

from ridgeline.planner.deployment import Deployment
from ridgeline.planner.formats import native_format
from ridgeline.planner.load import Steady, Traffic, steady
from ridgeline.planner.parallel import tp_limit
from ridgeline.planner.price import Share, rounded, split_by_device_time
from ridgeline.planner.search import Goal, Option, judge
from ridgeline.planner.setup import Setup
from ridgeline.planner.units import milliseconds, plain_number
from ridgeline.planner.whatif import what_if

ALL_OUTPUT = "output tokens carry the whole cost"
QUEUE = (
    "assumed: Poisson arrivals, M/D/1 for the prompts ahead (all alike, before decodes) + half a step + M/M/c for a place; "
    "`ridgeline simulate` runs the real scheduler"
)


@dataclass(frozen=True)
class Asked:
    """context: tokens held per sequence; output: tokens generated. batch, users, traffic as in `search.Goal`."""

    goal: Goal
    output: int = 256


def plan_document(setup: Setup, asked: Asked) -> dict[str, Any]:
    """Plain numbers; None where there is none to give. Raises `UserError` for a setup that cannot be."""
    goal, context = asked.goal, asked.goal.context
    d = setup.deployment()
    option = judge(setup, goal)
    busy = steady(d, goal.traffic, option.setup.layout.replicas) if goal.traffic is not None else None
    batch = max(1, option.batch)
    setup = option.setup
    time, memory = d.decode(batch, context), d.memory(batch, context)
    facts, replicas, ceiling = d.facts, setup.layout.replicas, d.asymptote(context)
    found: dict[str, Any] = {
        "model": facts.name, "device": setup.device.name, "devices": setup.layout.devices,
        "context": context, "batch": batch,
        "params": facts.params, "params_exact": setup.facts.params, "params_formula": setup.facts.formula_params,
        "active_params": round(facts.active_params), "weight_dtype": setup.form.name if setup.form else "as stored",
        "kv_dtype": setup.kv.name,
        "math": setup.chosen_math, "weights_bytes": round(memory.weights),
        "kv_bytes_per_token": plain_number(facts.kv_bytes_per_token(setup.kv)),
        "kv_bytes_per_token_beyond_windows": plain_number(facts.kv_bytes_per_token(setup.kv, beyond_windows=True)),
        "kv_bytes_per_sequence": d.sequence_bytes(context), "state_bytes_per_sequence": facts.state_bytes(),
        "memory_bytes": round(memory.total), "memory": {k: round(v) for k, v in asdict(memory).items()},
        "step_time_ms": time.seconds * 1e3, "step": _step(time), "bound": time.bound,
        "throughput_tok_s": option.tok_s, "requests_s": option.tok_s / asked.output,
        "asymptote_tok_s": None if ceiling is None else ceiling * replicas,
        "ttft_ms": d.ttft(context) * 1e3, "ridge_batch": d.ridge_batch(),
        "ridge_flop_per_byte": d.ceilings.linear_flops_per_s / d.ceilings.bytes_per_s, "fits": memory.fits,
        "max_users": option.max_users * replicas, "max_context": d.max_context(batch) if memory.fits else None,
        "usd_per_hour": None, "usd_per_mtok": None, "usd_per_mtok_high": None,
        "slo": {
            "itl_ms": milliseconds(goal.itl_s), "ttft_ms": milliseconds(goal.ttft_s), "met": option.passes, "reason": option.reason,
            "fix": option.fix,
        },
    }  # fmt: skip
    labels = setup.labels() | {"usd_per_mtok": "not given: does not fit"}
    if memory.fits:
        found |= _money(setup, goal, option)
        labels["usd_per_mtok"] = _price_label(setup, goal)
    if busy is not None and goal.traffic is not None:
        found["load"] = _load(goal.traffic, busy, option, d.ttft(goal.traffic.prompt, goal.traffic.cached))
        labels["queue_ms"] = QUEUE
        served = min(goal.traffic.rate, busy.max_rate * replicas)
        found["throughput_tok_s"], found["requests_s"] = served * goal.traffic.output, served
        if memory.fits and busy.stable and option.usd_per_hour is not None:
            found["usd_per_mtok_by_kind"] = kinds(option.usd_per_hour, goal.traffic, busy)
        hourly = None if option.usd_per_hour is None else option.usd_per_hour / replicas
        found["what_if"] = [
            {"change": w.change, "usd_per_mtok": rounded(w.usd_per_mtok), "saved": w.saved, "device_s": w.device_s}
            for w in what_if(setup, goal.traffic, hourly)
        ]
    found["parallel"] = _parallel(d, setup, batch, context)
    found["curve"] = curve(d, context, goal.itl_s)
    found["notes"] = notes(setup, context)
    found["labels"] = labels
    return found


def _step(time: Any) -> dict[str, float]:
    (a, b), (c, e) = time.linear, time.attention
    return {
        "weights_ms": a * 1e3, "linear_math_ms": b * 1e3, "kv_ms": c * 1e3, "attention_math_ms": e * 1e3,
        "messages_ms": time.messages_s * 1e3, "overhead_ms": time.overhead_s * 1e3,
    }  # fmt: skip


def _money(setup: Setup, goal: Goal, option: Option) -> dict[str, Any]:
    high = None if goal.price is not None or setup.device.usd_high is None else setup.device.usd_high * setup.layout.devices
    usd_high = None
    if high is not None and option.usd_per_hour and option.usd_per_mtok is not None:
        usd_high = option.usd_per_mtok * high / option.usd_per_hour
    usd = option.usd_per_mtok
    return {"usd_per_hour": rounded(option.usd_per_hour), "usd_per_mtok": rounded(usd), "usd_per_mtok_high": rounded(usd_high)}


def _price_label(setup: Setup, goal: Goal) -> str:
    device = setup.device
    if goal.price is not None:
        where = f"given: {goal.price} USD/h a device"
    elif device.usd_low is not None:
        where = f"table: {device.usd_low} to {device.usd_high} USD/h ({device.price_dates}; {device.price_sources}), the lower figure"
    else:
        return "unknown: no price in the table, give --price"
    used = (
        "at the arrival rate"
        if goal.traffic is not None
        else f"at {goal.utilization:.0%} utilization" + (" (assumed)" if goal.utilization == 1 else "")
    )
    return f"{where}; {used}; {ALL_OUTPUT}"


def kinds(usd_per_hour: Decimal, traffic: Traffic, busy: Steady) -> dict[str, float | None] | None:
    """USD per million input, cached and output tokens: the hour divided by device seconds."""
    prices = split_by_device_time(
        usd_per_hour, traffic.rate, Share(traffic.prompt - traffic.cached, busy.prefill_s), Share(traffic.cached, busy.cached_s),
        Share(traffic.output, busy.decode_s),
    )  # fmt: skip
    if prices is None:
        return None
    return {"input": rounded(prices.input), "cached": rounded(prices.cached), "output": rounded(prices.output)}


def _load(traffic: Traffic, busy: Steady, option: Option, prompt_s: float) -> dict[str, Any]:
    """ttft_ms: queue and prompt. None where the queue grows without end."""
    return {
        "rate_s": traffic.rate, "prompt": traffic.prompt, "cached": traffic.cached, "output": traffic.output,
        "in_flight_per_replica": busy.in_flight, "itl_ms": busy.itl_s * 1e3,
        "queue_ms": busy.queue_s * 1e3 if isfinite(busy.queue_s) else None,
        "ttft_ms": (busy.queue_s + prompt_s) * 1e3 if isfinite(busy.queue_s) else None,
        "utilization": busy.utilization, "stable": busy.stable,
        "max_rate_s": busy.max_rate * option.setup.layout.replicas, "replicas": option.setup.layout.replicas,
    }  # fmt: skip


def _parallel(d: Deployment, setup: Setup, batch: int, context: int) -> dict[str, Any]:
    lay, link = setup.layout, d.ceilings.link_bytes_per_s
    group = lay.group(batch)
    shards, w = lay.kv_shards(d.facts, group), d.weights
    limit = tp_limit(d.facts, batch, d.ceilings.bytes_per_s / 1e9, link / 1e9) if link else None
    return {
        "tp": lay.tp, "pp": lay.pp, "ep": lay.ep, "replicas": lay.replicas,
        "weights_bytes_per_device": (w.total - w.routed * (1 - 1 / lay.ep)) / (lay.tp * lay.pp),
        "kv_shards": shards, "kv_bytes_per_device": group * d.sequence_bytes(context) / (shards * lay.pp),
        "message_bytes_per_step": lay.message_bytes(d.facts, group) * lay.pp,
        "expert_message_bytes_per_step": lay.expert_bytes(d.facts, group), "messages_per_step": lay.collectives(d.facts) + lay.pp - 1,
        "kv_heads": d.facts.kv_heads, "tp_limit": limit,
    }  # fmt: skip


def curve(d: Deployment, context: int, itl_s: float | None) -> list[dict[str, Any]]:
    """The batch-latency curve: powers of two up to what fits, the batch that fits last, and the best one: the last
    under the ITL promise, or the knee without one."""
    most = d.max_users(context)
    best = d.knee(context) if itl_s is None else d.best_batch(context, itl_s)
    batches = {b for b in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if b <= most} | {b for b in (most, best) if b}
    rows = []
    for b in sorted(batches):
        seconds = d.decode(b, context).seconds
        within = itl_s is None or seconds <= itl_s
        rows.append({"batch": b, "step_ms": seconds * 1e3, "tok_s": d.throughput(b, context), "within": within, "best": b == best})
    return rows


def notes(setup: Setup, context: int) -> list[str]:
    """What a reader must know to read the numbers rightly."""
    facts, found = setup.facts, list[str]()
    if facts.partial:
        found.append(f"warning: {facts.partial}")
    if setup.uncalibrated:
        found.append(
            f"{', '.join(setup.uncalibrated)} is not calibrated on this host: run `ridgeline calibrate MODEL` with a model of that format. "
            "Until then: the roofline of this host's measured ceilings"
        )
    window = facts.window
    if window is not None and context > window and any(k.cache.window is not None and k.every == 1 for k in facts.kept):
        whole = facts.without_windows().sequence_bytes(context, setup.kv)
        held = facts.sequence_bytes(context, setup.kv)
        kept = f"sliding window {window}: a sequence holds {held / 1e6:.0f} MB"
        found.append(f"{kept}; an engine that keeps every token (--ignore-window) {whole / 1e6:.0f} MB")
    if facts.counted == "cited":
        found.append("parameters are the published total: this family has no graph here")
    if facts.counted == "config" and facts.published[0]:
        found.append(f"{facts.params / 1e9:.1f} B parameters counted from config facts, {facts.published[0]:g} B published")
    if facts.experts and not setup.ideal:
        found.append("a step reads the experts that its tokens meet, evenly spread (assumed)")
    if facts.state_elems:
        per = facts.kv_bytes_per_token("bf16", beyond_windows=True)
        cross = f"; as much as {facts.state_bytes() / per:,.0f} tokens of its KV in bf16" if per else ""
        found.append(f"recurrent state {facts.state_bytes() / 1e6:.1f} MB a sequence in f32, whatever the context{cross}")
    if setup.draft is not None:
        found.append(f"the draft {setup.draft.name} is counted in memory; what it costs and gains in time depends on what is accepted")
    if facts.state_unknown:
        found.append("the recurrent state's size is unknown and not counted")
    if setup.form is not None and setup.form.bits < 16 and setup.form != native_format(facts.native):
        found.append(f"{setup.form.name} weights are lossy: check quality with an evaluation before they serve")
    if facts.max_context and context > facts.max_context:
        found.append(f"{context} tokens are more than the {facts.max_context} the model was made for")
    if setup.weights_total is None and setup.form is not None and facts.kind == "diffusion":
        found.append("a diffusion model keeps no causal KV: a generation costs steps x a whole forward")
    return found
