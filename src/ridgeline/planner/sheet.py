"""What the page shows beyond a plan's document: series for its plots, the terms in force, providers' prices beside our own.

Every number is a deployment's own; this module only asks for them at many points. Draws nothing, reads no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ridgeline.encodings import BY_NAME
from ridgeline.errors import UserError
from ridgeline.graph.step import Span
from ridgeline.planner.calibration import Calibration
from ridgeline.planner.deployment import Deployment
from ridgeline.planner.facts import ModelFacts
from ridgeline.planner.ledger import Compared, Offer, compare, offer
from ridgeline.planner.price import TokenPrices, rounded
from ridgeline.planner.search import Goal
from ridgeline.planner.setup import Setup

MAX_PROVIDERS, MAX_PROVIDERS_TEXT = 12, 2000
CALIBRATED_ROWS = (1, 16, 256)  # tokens a step at which a calibrated format is shown


@dataclass(frozen=True, slots=True)
class Point:
    """On a roofline of one device: FLOP/byte and FLOP/s. label: fitted, assumed, measured ..."""

    name: str
    intensity: float
    flop_s: float
    label: str


def memory_against_context(d: Deployment, users: Sequence[int], most: int, points: int = 24) -> list[tuple[int, list[tuple[int, float]]]]:
    """For each number of users: (context, bytes of a replica), from one token to `most`."""
    contexts = sorted({1, most, *(round(most * i / points) for i in range(1, points))} - {0})
    return [(n, [(c, d.memory(n, c).total) for c in contexts]) for n in users]


def memory_against_users(d: Deployment, contexts: Sequence[int], most: int, points: int = 24) -> list[tuple[int, list[tuple[int, float]]]]:
    """For each context: (users, bytes of a replica), from one user to `most`."""
    users = sorted({1, most, *(round(most * i / points) for i in range(1, points))} - {0})
    return [(c, [(n, d.memory(n, c).total) for n in users]) for c in contexts]


def operating_points(d: Deployment, batch: int, context: int, label: str) -> list[Point]:
    """Decode of one sequence and of `batch`, and one chunk of a prompt, as the plan times them, per device of a replica."""
    tp = d.layout.tp * d.layout.ep
    found = []
    for n in dict.fromkeys((1, batch)):
        asked = d.decode_demand(n, context)
        found.append(Point(f"decode, batch {n}", asked.flops / asked.bytes, asked.flops / tp / d.decode(n, context).seconds, label))
    new = min(context, d.chunk)
    asked = d.demand.step([Span(0, context - new, new, 1)])
    seconds = d.ideal_prefill(new) if d.ideal else d.step([Span(0, context - new, new, 1)]).seconds
    # The lecture's time leaves out a few products that the demand counts: never above the ceiling.
    most = d.ceilings.linear_flops_per_s if d.ideal else max(d.ceilings.linear_flops_per_s, d.ceilings.attention_flops_per_s)
    rate = min(asked.flops / tp / seconds, most)
    found.append(Point(f"prefill, {new} tokens", asked.flops / asked.bytes, rate, label))
    return found


def calibrated_points(c: Calibration) -> list[Point]:
    """Products as they were measured on this host: each format at a few rows."""
    found = []
    for form in c.linear_s:
        if form not in BY_NAME:
            continue
        per_weight = BY_NAME[form].bits_per_value / 8
        for rows in CALIBRATED_ROWS:
            if rows in c.rows:
                intensity, rate = 2 * rows / per_weight, 2 * rows / c.weight_seconds(form, rows)
                found.append(Point(f"{form}, {rows} row{'s' if rows > 1 else ''}", intensity, rate, "measured"))
    return found


def in_force(setup: Setup) -> dict[str, Any]:
    """The terms as they count now, for the fields that a user may overwrite."""
    device = setup.device
    return {
        "memory": setup.memory_bytes, "bandwidth": setup.bandwidth or device.bandwidth_gb_s * 1e9, "overhead": setup.overhead_bytes,
        "weights_bytes": setup.weights.total, "price": None if device.usd_low is None else float(device.usd_low),
        "price_high": None if device.usd_high is None else float(device.usd_high), "price_dates": device.price_dates,
        "price_sources": device.price_sources, "math": setup.chosen_math, "peaks": dict(device.tflops),
        "weight_dtype": setup.form.name if setup.form else "as stored", "kv_heads": setup.facts.kv_heads,
        "device": device.name, "spec_source": device.spec_source, "model": setup.facts.name, "max_context": setup.facts.max_context,
        "fewer_kv_heads": fewer_kv_heads(setup.facts) if setup.facts.source.startswith("models.csv") else None,
    }  # fmt: skip


def fewer_kv_heads(facts: ModelFacts) -> int | None:
    """A fifth of the KV heads or the next fewer that divides the query heads (row 46: 40 to 8); None where there is nothing to share."""
    if not facts.heads or facts.kv_heads < 5 or any(k.cache.v_aliases_k for k in facts.kept):
        return None
    return next(n for n in range(facts.kv_heads // 5, 0, -1) if facts.heads % n == 0)


def offers_of(text: str) -> list[Offer]:
    """"NAME=IN/CACHED/OUT; ..." in USD per million tokens. Raises `UserError` naming the row."""
    if len(text) > MAX_PROVIDERS_TEXT:
        limit = MAX_PROVIDERS_TEXT
        raise UserError(f"provider rows of {len(text)} characters, at most {limit}", field="--providers", value=len(text), limit=limit)
    found = [offer(row, "--providers") for row in text.split(";") if row.strip()]
    if len(found) > MAX_PROVIDERS:
        raise UserError(f"{len(found)} provider rows, at most {MAX_PROVIDERS}", field="--providers", value=len(found), limit=MAX_PROVIDERS)
    return found


def providers_beside(
    document: Mapping[str, Any], goal: Goal, output: int, rows: Sequence[Offer], per_day: int = 0
) -> list[dict[str, Any]]:
    """Our own row first, then each provider's, with the price of one request of this size and of a month of `per_day` of them. Own: None
    where the plan has no price."""
    cached = goal.traffic.cached if goal.traffic else 0
    kinds, flat = document.get("usd_per_mtok_by_kind"), document["usd_per_mtok"]
    own = None
    if kinds:
        own = TokenPrices(*(Decimal(str(kinds[k])) for k in ("input", "cached", "output")))
    elif flat is not None:
        own = TokenPrices(Decimal(0), Decimal(0), Decimal(str(flat)))
    label = "by device time" if kinds else "output tokens carry the whole cost"
    if own is None:
        unpriced: dict[str, Any] = dict.fromkeys(("input", "cached", "output", "usd_per_request", "usd_per_month", "times_own"))
        unpriced |= {"name": "own", "label": label}
        theirs = compare(list(rows), goal.context, cached, output, per_day)
        return [unpriced, *(_price_row(c, "given") | {"times_own": None} for c in theirs)]
    found = compare([Offer("own", own), *rows], goal.context, cached, output, per_day)
    return [_price_row(c, label if i == 0 else "given") for i, c in enumerate(found)]


def _price_row(c: Compared, label: str) -> dict[str, Any]:
    return {
        "name": c.name, "input": rounded(c.prices.input), "cached": rounded(c.prices.cached), "output": rounded(c.prices.output),
        "usd_per_request": rounded(c.usd_per_request, 9), "usd_per_month": rounded(c.usd_per_month, 2),
        "times_own": None if c.ratio is None else float(c.ratio), "label": label,
    }  # fmt: skip
