"""Seconds of a step of a deployment, quickly: what `Deployment.step` says, without walking every decode span in Python objects.

Knows the planner's demand and ceilings. A decode's costs depend on its context only, so contexts are summed.
"""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.graph.step import SharedWalk, Span
from ridgeline.planner.demand import Demand
from ridgeline.planner.deployment import Deployment


class StepSeconds:
    """Callable: seconds of one step. `add_s`: what the engine itself takes per step, beside the devices."""

    def __init__(self, deployment: Deployment, add_s: float = 0.0) -> None:
        self.deployment, self.add_s = deployment, add_s
        kept, kv = deployment.facts.kept, deployment.kv
        # Per kind of cache: bytes and FLOPs of an entry, entries per token, and how many tokens a decode sees and reads at most.
        self._kinds = [
            (k.bytes_per_entry(kv), k.flops_per_entry(), k.every, k.cache.window, None if k.top is None else k.top * k.every) for k in kept
        ]
        self._state_bytes = 2 * deployment.facts.state_bytes()

    def __call__(self, spans: Sequence[Span], shared: Sequence[SharedWalk] = ()) -> float:
        return self.deployment.time(self.demand(spans, shared), len(spans)).seconds + self.add_s

    def demand(self, spans: Sequence[Span], shared: Sequence[SharedWalk] = ()) -> Demand:
        """Equal to `ModelDemand.step`."""
        contexts = [s.past + 1 for s in spans if s.new == 1]
        others = [s for s in spans if s.new > 1]
        kv, flops = self._decodes(contexts)
        model = self.deployment.demand
        if others or shared:
            more = model.step(others, shared)
            kv, flops = kv + more.kv_bytes, flops + more.attention_flops
        rows = len(contexts) + sum(s.new for s in others)
        wanted = sum(s.want for s in spans if s.new)
        return model.combined(rows, wanted, flops, kv)

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
