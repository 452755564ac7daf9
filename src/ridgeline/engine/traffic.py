"""Bytes and operations of the steps that ran, in all and per second of the last busy seconds. From the graph's costs; measures nothing.

Knows the numbers of steps and their seconds. Refuses to know the machine's ceilings: who publishes a share of them has measured them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp

from ridgeline.graph.step import SharedWalk
from ridgeline.planner.linear import LinearCosts, Numbers

_MEMORY_S = 5.0  # busy seconds after which a step counts for a third in the rates


class Traffic:
    """Mutable, one writer (the engine's thread); others may read at any time."""

    def __init__(self, costs: LinearCosts) -> None:
        self._costs = costs
        self._total = costs.saved(())
        self._recent = (self._total, 0.0)  # numbers of steps and their seconds, fading

    def add(self, numbers: Numbers, shared: Sequence[SharedWalk], seconds: float) -> None:
        """A step of these numbers, shared walks left out in them, ran for so long."""
        if shared:
            numbers = numbers - self._costs.saved(shared)
        fade = exp(-seconds / _MEMORY_S)
        asked, spent = self._recent
        self._total = self._total + numbers
        self._recent = fade * asked + numbers, fade * spent + seconds

    def figures(self) -> Mapping[str, float]:
        """Totals by name: operations by arithmetic, bytes of weights, KV and activations; recent_*_per_s: while steps ran."""
        total, (asked, spent) = self._costs.cost(self._total), self._recent
        recent = self._costs.cost(asked)
        rates = (recent.memory_bytes, recent.int8_flops, recent.f32_flops, recent.bf16_flops)
        moved, whole, real, paired = (value / spent if spent else 0.0 for value in rates)
        return {
            "flops_integer": total.int8_flops, "flops_float": total.f32_flops, "flops_bfloat16": total.bf16_flops,
            "bytes_weights": total.weight_bytes,
            "bytes_kv_read": total.kv_read_bytes, "bytes_kv_written": total.kv_write_bytes, "bytes_activations": total.activation_bytes,
            "recent_memory_bytes_per_s": moved, "recent_flops_integer_per_s": whole, "recent_flops_float_per_s": real,
            "recent_flops_bfloat16_per_s": paired,
        }  # fmt: skip
