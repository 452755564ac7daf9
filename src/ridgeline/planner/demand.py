"""What a step asks of a machine, in a few sums: the graph's costs (`planner.cost`) by class, and the same for models without a graph.

Knows parameters, caches and formats; knows no device and no time. For graphs it equals `GraphCost` exactly (tests hold it to that).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ridgeline.graph.step import SharedWalk, Span
from ridgeline.kv.layout import KvFormat, first_needed
from ridgeline.planner.cost import pairs
from ridgeline.planner.facts import Kept, ModelFacts, Parts
from ridgeline.planner.formats import WeightFormat


@dataclass(frozen=True, slots=True)
class Demand:
    """linear_flops: of weights; attention_flops: scores and values; bytes of weights, of keys and values (and states), of new entries.
    routed_*: the part of both that a router's experts are."""

    rows: int
    wanted: int
    linear_flops: float
    attention_flops: float
    weight_bytes: float
    kv_bytes: float
    write_bytes: float
    routed_flops: float = 0.0
    routed_bytes: float = 0.0

    @property
    def flops(self) -> float:
        return self.linear_flops + self.attention_flops

    @property
    def bytes(self) -> float:
        return self.weight_bytes + self.kv_bytes + self.write_bytes


def weight_bytes(facts: ModelFacts, form: WeightFormat | None) -> Parts:
    """Bytes of each kind of weights in a format; None: as the file stores them. Norms keep 16 bits."""
    if form is None:
        if facts.stored is None:
            raise ValueError(f"{facts.name} was not opened from a file")
        return facts.stored
    parts, rest = facts.parts, form.rest_bits / 8
    inside = form.bits / 8
    outer = inside if form.scope == "all" else rest
    # A dense model has no experts: their format then holds its linear layers.
    linear = inside if form.scope in ("all", "linear") or not parts.routed else rest
    norm = max(2.0, inside) if form.scope == "all" else 2.0
    return Parts(parts.embed * outer, parts.head * outer, parts.linear * linear, parts.norms * norm, parts.routed * inside)


def touched_experts(experts: int, top_k: int, rows: int) -> float:
    """Experts that `rows` tokens meet if the router spreads them evenly: E (1 - (1 - k/E)^rows)."""
    return float(experts * (1.0 - (1.0 - top_k / experts) ** rows)) if experts else 0.0


class ModelDemand:
    """Demands of one model with given weight bytes and KV format."""

    def __init__(self, facts: ModelFacts, weights: Parts, kv: KvFormat) -> None:
        self.facts, self.weights, self.kv = facts, weights, kv
        p = facts.parts
        head = p.head or p.embed
        self._wanted_flops = 2.0 * head
        self._row_flops = 2.0 * max(0.0, facts.active_params - p.embed - p.head - p.norms)
        self._routed_flops = 2.0 * p.routed * facts.top_k / facts.experts if facts.experts else 0.0
        self._head_bytes = weights.head or weights.embed
        self._write_bytes = facts.kv_bytes_per_token(kv)

    def step(self, spans: Sequence[Span], shared: Sequence[SharedWalk] = ()) -> Demand:
        """Any step. Shared walks save reads of full layers."""
        live = [s for s in spans if s.new]
        rows, wanted = sum(s.new for s in live), sum(s.want for s in live)
        flops = keys = 0.0
        for k in self.facts.kept:
            entry = k.bytes_per_entry(self.kv)
            flops += k.flops_per_entry() * sum(_pairs(k, s) for s in live)
            read = sum(_read(k, s) for s in live)
            if k.cache.window is None and k.top is None:
                read -= sum((len(w.spans) - 1) * (w.tokens // k.every) for w in shared)
            keys += entry * read
        keys += 2 * self.facts.state_bytes() * len(live)
        return self.combined(rows, wanted, flops, keys)

    def decode(self, batch: int, context: int) -> Demand:
        """One token for each of `batch` sequences that then hold `context` tokens each."""
        one = self.step([Span(0, max(0, context - 1), 1, 1)])
        return self.combined(batch, batch, batch * one.attention_flops, batch * one.kv_bytes)

    def combined(self, rows: int, wanted: int, attention: float, kv: float) -> Demand:
        """A step of `rows` tokens, `wanted` rows of logits, and what its spans ask of the caches (FLOPs, bytes read)."""
        weights = routed = 0.0
        if rows:
            touched = touched_experts(self.facts.experts, self.facts.top_k, rows)
            routed = self.weights.routed * touched / self.facts.experts if self.facts.experts else 0.0
            looked_up = rows * self.weights.embed / self.facts.vocab
            weights = self.weights.linear + self.weights.norms + routed + looked_up + (self._head_bytes if wanted else 0.0)
        linear = rows * self._row_flops + wanted * self._wanted_flops
        return Demand(rows, wanted, linear, attention, weights, kv, rows * self._write_bytes, rows * self._routed_flops, routed)


def _pairs(kept: Kept, span: Span) -> float:
    """Query-entry pairs that are multiplied: what windows and sparse selection leave visible."""
    limits = [w for w in (kept.cache.window, None if kept.top is None else kept.top * kept.every) if w is not None]
    return pairs(span, min(limits, default=None)) / kept.every


def _read(kept: Kept, span: Span) -> float:
    """Entries read, once per span."""
    entries = (span.past + span.new - first_needed(kept.cache.window, span.past)) / kept.every
    return entries if kept.top is None else min(entries, kept.top * span.new)


def chunks(tokens: int, size: int, past: int = 0) -> Iterable[Span]:
    """The spans of one prompt computed at most `size` tokens a step, logits of its last token only."""
    for first in range(0, tokens, size):
        new = min(size, tokens - first)
        yield Span(0, past + first, new, int(first + new == tokens))
