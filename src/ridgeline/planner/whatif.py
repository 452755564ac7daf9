"""What if: shorter prompts, cached prefixes, smaller weights, larger batches, on one axis, dollars per million output tokens.

Each change alone, against the same traffic; what it saves is what the smaller fleet costs. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal

from ridgeline.errors import UserError
from ridgeline.planner.formats import WEIGHT_FORMATS, kv_format_named
from ridgeline.planner.load import Traffic, steady
from ridgeline.planner.setup import Setup


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One change. device_s: device seconds of a request; usd_per_mtok: of output, at full use of the devices; saved: share of before."""

    change: str
    device_s: float
    usd_per_mtok: Decimal | None
    saved: float


def what_if(setup: Setup, traffic: Traffic, usd_per_hour: Decimal | None) -> list[WhatIf]:
    """The traffic as it is, then each change alone. usd_per_hour: of one replica's devices. Empty when nothing fits."""
    before = _seconds(setup, traffic)
    if before is None:
        return []
    found = []
    for words, changed, load in _changes(setup, traffic):
        try:
            after = _seconds(changed, load)
        except UserError:
            continue
        if after is not None:
            usd = None if usd_per_hour is None else usd_per_hour / 3600 * Decimal(after) / load.output * 1_000_000
            found.append(WhatIf(words, after, usd, 1 - after / before))
    return found


def _seconds(setup: Setup, traffic: Traffic) -> float | None:
    """Device seconds of one request when the devices are full."""
    found = steady(setup.deployment(), traffic)
    return None if found is None else 1.0 / found.max_rate


def _changes(setup: Setup, traffic: Traffic) -> Iterator[tuple[str, Setup, Traffic]]:
    yield "as it is", setup, traffic
    trimmed = max(1, traffic.prompt * 3 // 4)
    yield "prompts a quarter shorter", setup, replace(traffic, prompt=trimmed, cached=min(traffic.cached, trimmed - 1))
    if traffic.cached < traffic.prompt // 2:
        yield "half of every prompt cached", setup, replace(traffic, cached=traffic.prompt // 2)
    yield "answers a quarter shorter", setup, replace(traffic, output=max(1, traffic.output * 3 // 4))
    if setup.form is not None and setup.weights_total is None:
        for name in ("fp8", "int4"):
            if setup.form.bits > WEIGHT_FORMATS[name].bits:
                yield f"{name} weights (needs an evaluation)", setup.change(form=WEIGHT_FORMATS[name]), traffic
    if setup.kv.bits > 8:
        yield "fp8 KV cache (needs an evaluation)", setup.change(kv=kv_format_named("fp8")), traffic
