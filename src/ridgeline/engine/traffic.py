"""Bytes and operations of the steps that ran, in all and per second of the last busy seconds. From the graph's costs; measures nothing.

Knows steps and their seconds. Refuses to know the machine's ceilings: who publishes a share of them has measured them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp

from ridgeline.graph.step import Step
from ridgeline.planner.cost import GraphCost
from ridgeline.planner.tally import CostTally

_MEMORY_S = 5.0  # busy seconds after which a step counts for a third in the rates


class Traffic:
    """Mutable, one writer (the engine's thread); others may read at any time."""

    def __init__(self, book: GraphCost) -> None:
        self._tally = CostTally(book)
        self._recent = (0.0, 0.0, 0.0, 0.0)  # bytes of memory, integer and other operations, seconds; fading

    def add(self, step: Step, seconds: float) -> None:
        """A step ran for so long."""
        cost = self._tally.add(step.spans, step.shared)
        fade = exp(-seconds / _MEMORY_S)
        moved, whole, real, spent = (value * fade for value in self._recent)
        self._recent = moved + cost.memory_bytes, whole + cost.int8_flops, real + cost.f32_flops, spent + seconds

    def figures(self) -> Mapping[str, float]:
        """Totals by name: operations by arithmetic, bytes of weights, KV and activations; recent_*_per_s: while steps ran."""
        total = self._tally.total()
        *recent, spent = self._recent
        moved, whole, real = (value / spent if spent else 0.0 for value in recent)
        return {
            "flops_integer": total.int8_flops, "flops_float": total.f32_flops, "bytes_weights": total.weight_bytes,
            "bytes_kv_read": total.kv_read_bytes, "bytes_kv_written": total.kv_write_bytes, "bytes_activations": total.activation_bytes,
            "recent_memory_bytes_per_s": moved, "recent_flops_integer_per_s": whole, "recent_flops_float_per_s": real,
        }  # fmt: skip
