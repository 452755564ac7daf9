"""Seconds of a step of a deployment, quickly: what `Deployment.step` says, without walking every decode span in Python objects.

Knows the planner's demand and ceilings. A decode's costs depend on its context only, so contexts are summed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ridgeline.graph.step import SharedWalk, Span
from ridgeline.planner.demand import Demand
from ridgeline.planner.deployment import Deployment, StepTime
from ridgeline.planner.linear import Numbers


class StepSeconds:
    """Callable: seconds of one step."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        kept, kv = deployment.facts.kept, deployment.kv
        # Per kind of cache: bytes and FLOPs of an entry, entries per token, and how many tokens a decode sees and reads at most.
        self._kinds = [
            (k.bytes_per_entry(kv), k.flops_per_entry(), k.every, k.cache.window, None if k.top is None else k.top * k.every) for k in kept
        ]
        self._state_bytes = 2 * deployment.facts.state_bytes()

    def __call__(self, spans: Sequence[Span], shared: Sequence[SharedWalk] = ()) -> float:
        return self._time(self.numbers(spans, shared)).seconds

    def demand(self, spans: Sequence[Span], shared: Sequence[SharedWalk] = ()) -> Demand:
        """Equal to `ModelDemand.step`."""
        return self._demand(self.numbers(spans, shared))

    def numbers(self, spans: Sequence[Span], shared: Sequence[SharedWalk] = ()) -> Numbers:
        """(spans, rows, wanted rows, attention FLOPs, KV bytes read) of a step: all that its time depends on."""
        contexts = [s.past + 1 for s in spans if s.new == 1]
        others = [s for s in spans if s.new > 1]
        kv, flops = self._decodes(contexts)
        if others or shared:
            more = self.deployment.demand.step(others, shared)
            kv, flops = kv + more.kv_bytes, flops + more.attention_flops
        rows = len(contexts) + sum([s.new for s in others])
        return np.array((len(spans), rows, sum([s.want for s in spans if s.new]), flops, kv), np.float64)

    def upper_parts(self, numbers: Numbers) -> tuple[float, float]:
        """Memory and arithmetic one after the other: seconds of attention, and of all else."""
        time = self._time(numbers)
        return sum(time.attention), sum(time.linear) + time.messages_s + time.overhead_s

    def _demand(self, numbers: Numbers) -> Demand:
        _, rows, wanted, flops, kv = numbers.tolist()
        return self.deployment.demand.combined(int(rows), int(wanted), flops, kv)

    def _time(self, numbers: Numbers) -> StepTime:
        return self.deployment.time(self._demand(numbers), int(numbers[0]))

    def _decodes(self, contexts: list[int]) -> tuple[float, float]:
        """(KV bytes read, attention FLOPs) of one new token at each context."""
        kv = float(self._state_bytes * len(contexts))
        flops = 0.0
        whole = sum(contexts)
        for entry, entry_flops, every, window, top in self._kinds:
            unbounded = window is None and top is None
            entries = (whole if unbounded else sum(min(c, window or c, top or c) for c in contexts)) / every
            kv += entry * entries
            flops += entry_flops * entries
        return kv, flops
