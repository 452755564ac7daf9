"""System designs that people are asked to size: inputs to devices, dollars and simulated percentiles.

A template is traffic in people's terms (users, requests, peak) on named models. The planner finds the replicas that the rate needs; the
simulator then serves a share of that traffic by the real scheduler, and replicas are added while its p99 breaks the promise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from math import ceil
from typing import Any

from ridgeline.bench.client_metrics import Slo
from ridgeline.bench.outcome import outcome
from ridgeline.bench.simulate import fleet_of, simulate
from ridgeline.bench.workloads import Lengths, poisson
from ridgeline.engine.pace import paced_budget
from ridgeline.errors import UserError, one_of, within
from ridgeline.planner.catalog import find_model
from ridgeline.planner.formats import kv_format_named, native_format
from ridgeline.planner.hardware import Device
from ridgeline.planner.load import Traffic
from ridgeline.planner.parallel import Layout
from ridgeline.planner.price import rounded
from ridgeline.planner.search import Goal, Option, judge
from ridgeline.planner.setup import Setup

SIMULATED = 480  # requests of one replica
MOST_USERS = 10_000_000_000
HOURS_PER_MONTH = Decimal(730)
SEQUENCES, STEP_TOKENS, MOST_ADDED = 64, 2048, 6


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests to one model. share: of the template's requests; prompt tokens, of which `cached` are a prefix that all share."""

    model: str
    share: float
    prompt: int
    cached: int
    output: int
    tp: int = 1


@dataclass(frozen=True, slots=True)
class Template:
    """users a day, requests of each, and how much busier than the mean the busiest hour is; seconds promised at p99."""

    about: str
    users: int
    requests_per_day: float
    peak: float
    ttft_s: float
    itl_s: float
    streams: tuple[Stream, ...]

    @property
    def peak_rate(self) -> float:
        return self.users * self.requests_per_day / 86400 * self.peak


TEMPLATES: Mapping[str, Template] = {
    "chatbot": Template(
        "a chatbot for a million users a day", 1_000_000, 8, 3.0, 1.0, 0.05, (Stream("Llama-3.1-8B", 1.0, 1536, 1024, 256),)
    ),
    "copilot": Template(
        "code completion for 10,000 developers", 10_000, 400, 4.0, 0.3, 0.02, (Stream("Llama-3.1-8B", 1.0, 2048, 1536, 48),)
    ),
    "rag": Template(
        "answers from documents, 100,000 questions a day", 100_000, 1, 4.0, 2.0, 0.05, (Stream("Llama-3.1-8B", 1.0, 6144, 512, 320),)
    ),
    "gateway": Template(
        "one gateway before a small, a middle and a large model", 200_000, 5, 3.0, 2.0, 0.08,
        (
            Stream("Llama-3.1-8B", 0.6, 1024, 512, 200), Stream("Qwen3-32B", 0.3, 2048, 512, 300, 2),
            Stream("Llama-3.1-70B", 0.1, 2048, 512, 400, 4),
        ),
    ),
}  # fmt: skip


def size(name: str, device: Device, price: Decimal | None = None, users: int | None = None) -> dict[str, Any]:
    """The template on devices of one kind. Raises `UserError` for an unknown name, or what no number of replicas serves."""
    one_of("TEMPLATE", name.casefold(), TEMPLATES)
    template = TEMPLATES[name.casefold()]
    if users is not None:
        within("--users", users, 1, MOST_USERS)
        template = replace(template, users=users)
    parts = [_stream(template, stream, device, price) for stream in template.streams]
    hourly = [Decimal(str(p["usd_per_hour"])) for p in parts if p["usd_per_hour"] is not None]
    total = sum(hourly, Decimal(0)) if len(hourly) == len(parts) else None
    requests = Decimal(template.users) * Decimal(str(template.requests_per_day)) * 30
    return {
        "template": name.casefold(), "about": template.about, "users": template.users, "requests_per_day": template.requests_per_day,
        "peak": template.peak, "peak_rate_s": template.peak_rate, "device": device.name, "devices": sum(p["devices"] for p in parts),
        "usd_per_hour": rounded(total), "usd_per_month": None if total is None else rounded(total * HOURS_PER_MONTH, 2),
        "usd_per_1k_requests": None if total is None else rounded(total * HOURS_PER_MONTH / requests * 1000),
        "slo": {"ttft_ms": template.ttft_s * 1e3, "itl_ms": template.itl_s * 1e3}, "met": all(p["met"] for p in parts), "streams": parts,
        "labels": {
            "devices": "sized for the peak rate; all hours paid for",
            "p99": f"simulated: {SIMULATED} requests of one replica at the peak rate",
            "times": parts[0]["times"],
        },
    }  # fmt: skip


def _stream(template: Template, stream: Stream, device: Device, price: Decimal | None) -> dict[str, Any]:
    facts = find_model(stream.model)
    setup = Setup(facts, device, native_format(facts.native), kv_format_named("bf16"), Layout(stream.tp))
    traffic = Traffic(template.peak_rate * stream.share, stream.prompt, stream.output, stream.cached)
    # One request alone must keep both promises; how long others wait before it is the simulator's to find.
    option = judge(setup, Goal(stream.prompt, template.itl_s, template.ttft_s, batch=1))
    if option.passes:
        option = judge(setup, Goal(stream.prompt, template.itl_s, traffic=traffic, price=price))
    if not option.passes:
        raise UserError(
            f"{facts.name} on {stream.tp} x {device.name}: {option.reason}", field="--device", value=device.name, remedy=option.fix
        )
    planned = replicas = option.setup.layout.replicas
    found = _served(setup, stream, template, traffic.rate / replicas)
    # Sized by the mean: add an eighth at a time while the simulated p99 breaks the promise.
    for _ in range(MOST_ADDED):
        if _met(found, template):
            break
        replicas += max(1, ceil(replicas / 8))
        found = _served(setup, stream, template, traffic.rate / replicas)
    return _row(option, stream, traffic, planned, replicas, found, _met(found, template))


def _row(
    option: Option, stream: Stream, traffic: Traffic, planned: int, replicas: int, found: dict[str, Any], met: bool
) -> dict[str, Any]:  # fmt: skip
    each = option.usd_per_hour / option.setup.layout.replicas if option.usd_per_hour is not None else None
    return {
        "model": option.setup.facts.name, "rate_s": traffic.rate, "prompt": stream.prompt, "cached": stream.cached, "output": stream.output,
        "tp": stream.tp, "replicas_by_mean": planned, "replicas": replicas, "devices": replicas * stream.tp,
        "usd_per_hour": None if each is None else rounded(each * replicas), "ttft_p99_ms": found["ttft_ms"]["p99"],
        "tpot_p99_ms": found["tpot_ms"]["p99"], "busy": found["utilization"]["mean"], "goodput_share": found["goodput_share"], "met": met,
        "times": option.setup.labels()["step_time_ms"],
    }  # fmt: skip


def _served(setup: Setup, stream: Stream, template: Template, rate: float) -> dict[str, Any]:
    """One replica under its share of the peak."""
    fleet = fleet_of(setup, paced_budget(STEP_TOKENS, SEQUENCES, template.itl_s), 2 * (stream.prompt + stream.output))
    workload = poisson(SIMULATED, rate, Lengths(stream.prompt - stream.cached, stream.output, 0.5), prefix=stream.cached)
    return outcome(simulate(fleet, workload), Slo(template.ttft_s, template.itl_s))


def _met(found: Mapping[str, Any], template: Template) -> bool:
    return bool(found["ttft_ms"]["p99"] <= template.ttft_s * 1e3 and found["tpot_ms"]["p99"] <= template.itl_s * 1e3)
