"""What a token of context adds to a decode step: measured, of attention alone, by the roofline and by this host's calibration.

Pure arithmetic over rows that `bench lengths` measured. Knows no model and measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ridgeline.graph.step import SharedWalk, Span
from ridgeline.planner.roofline import Prediction

FLAT = 0.1  # a step counts as constant while context adds less than that to it


@dataclass(frozen=True, slots=True)
class DecodeSlope:
    """Least-squares slopes over the same contexts, in seconds a token of context. measured_s: of the whole step; attention_s: of its
    attention alone; roofline_s: of the least time; apart_s: of reading and arithmetic one after the other, each at its ceiling;
    calibrated_s: of the step as fitted to this host, None where it is not calibrated.

    start_s: the measured step before any context. kv_bytes: that a step reads more for each token of context (windows read no more
    beyond their width). read_gb_s: the bandwidth of the roofline, 1e9 bytes/s.
    """

    start_s: float
    measured_s: float
    attention_s: float
    roofline_s: float
    apart_s: float
    calibrated_s: float | None
    kv_bytes: float
    read_gb_s: float

    @property
    def bytes_s(self) -> float:
        """KV bytes over bandwidth."""
        return self.kv_bytes / (self.read_gb_s * 1e9)

    @property
    def over_roofline(self) -> float:
        """Measured over least."""
        return self.measured_s / self.roofline_s

    @property
    def attention_gb_s(self) -> float:
        """1e9 bytes of keys and values a second that attention takes in."""
        return self.kv_bytes / self.attention_s / 1e9

    def rises_by(self, share: float) -> float:
        """Tokens of context at which a step takes `share` more than before any."""
        return share * self.start_s / self.measured_s

    @property
    def rises(self) -> bool:
        """Whether the times rise at all: noise may be larger than what few short contexts cost, and beyond all windows nothing does."""
        return min(self.measured_s, self.attention_s, self.start_s) > 0 and self.roofline_s > 1e-9 * self.start_s

    def as_json(self) -> dict[str, Any]:
        """All fields, and what follows from them (None where nothing rises)."""
        follows = {"over_roofline": self.over_roofline, "attention_gb_s": self.attention_gb_s} if self.rises else {}
        return asdict(self) | {"over_roofline": None, "attention_gb_s": None} | follows

    def lines(self) -> list[str]:
        """For people; no line claims a ratio where nothing rises."""
        if not self.rises:
            return ["a token of context: no rise that these lengths could tell from noise; give longer ones"]
        by = "not calibrated (`ridgeline calibrate MODEL`)" if self.calibrated_s is None else _beside(self.calibrated_s, self.measured_s)
        least = f"{self.kv_bytes:,.0f} bytes of KV at {self.read_gb_s:.1f} GB/s"
        if self.roofline_s > 1.001 * self.bytes_s:
            least = f"arithmetic; {least} are {_ns(self.bytes_s)}"
        return [
            f"a token of context adds to a step: measured {_ns(self.measured_s)} ({_ns(self.attention_s)} in attention); roofline"
            f" {_ns(self.roofline_s)}: {least}; calibrated planner {by}",
            f"measured over roofline {self.over_roofline:.2f}: attention takes keys and values in at {self.attention_gb_s:.1f} GB/s,"
            f" a plain read {self.read_gb_s:.1f}; reading and arithmetic one after the other, each at its ceiling, would be"
            f" {self.apart_s / self.roofline_s:.2f}",
            f"a step takes {self.start_s * 1e3:.2f} ms before any context, 10% more from {self.rises_by(FLAT):,.0f} tokens on,"
            f" twice as long from {self.rises_by(1.0):,.0f}",
        ]


def decode_slope(
    contexts: Sequence[int], steps_s: Sequence[float], attention_s: Sequence[float], least: Sequence[Prediction],
    read_gb_s: float, fitted: Callable[[Sequence[Span], Sequence[SharedWalk]], float] | None,
) -> DecodeSlope:  # fmt: skip
    """Of steps of one new token at each context. least: the roofline's of each; fitted: seconds of a step on this host as calibrated,
    None where it is not. All lines weigh the contexts alike: errors count relative to the step, so that short
    contexts say where it starts and long ones how it rises."""
    weights = 1 / np.maximum(np.array(steps_s, float), 1e-12)

    def line(values: Sequence[float]) -> tuple[float, float]:
        slope, start = np.polyfit(np.array(contexts, float), np.array(values, float), 1, w=weights)
        return float(start), float(slope)

    start, measured = line(steps_s)
    by = None if fitted is None else line([fitted([Span(0, n, 1, 1)], ()) for n in contexts])[1]
    bounds = line([p.lower_s for p in least])[1], line([p.upper_s for p in least])[1]
    return DecodeSlope(start, measured, line(attention_s)[1], *bounds, by, line([p.cost.kv_read_bytes for p in least])[1], read_gb_s)


def _ns(seconds: float) -> str:
    return f"{seconds * 1e9:,.1f} ns"


def _beside(seconds: float, measured: float) -> str:
    return f"{_ns(seconds)} ({seconds / measured - 1:+.0%})"
