"""The trade-off triangle: quality, latency, throughput. A preset pins one, chases another and solves the third. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.errors import UserError


@dataclass(frozen=True, slots=True)
class Preset:
    """context: tokens held; output: tokens generated; itl_s: promise or None; min_batch: what pays for the device; formats: weights that
    may be tried beside the model's own (each needs an evaluation); pins, chases, solves: corners of the triangle."""

    context: int
    output: int
    itl_s: float | None
    min_batch: int | None
    formats: tuple[str, ...]
    pins: str
    chases: str
    solves: str


PRESETS: Mapping[str, Preset] = {
    "premium-chat": Preset(4096, 256, 0.010, 7, (), "latency: every token within 10 ms", "quality: weights as published", "price"),
    "async-agent": Preset(16384, 1024, 0.050, None, ("fp8",), "quality: at most fp8 weights", "throughput", "latency, up to 50 ms a token"),
    "batch": Preset(4096, 512, None, None, ("fp8", "int4"), "throughput: as many tokens per dollar as can be", "price", "latency"),
}  # fmt: skip


def preset(name: str) -> Preset:
    """Raises `UserError` naming those that exist."""
    found = PRESETS.get(name.casefold())
    if found is None:
        raise UserError(
            f"preset {name!r} is not known", field="--preset", value=name, limit=tuple(PRESETS), remedy=f"one of {', '.join(PRESETS)}"
        )
    return found
