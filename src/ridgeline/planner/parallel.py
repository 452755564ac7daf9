"""Tensor, pipeline, expert and data parallel: how weights, caches and messages divide over devices. Knows sizes, and no time beyond
link speed.

Source of the limits: the scaling-book's chapter on inference. Heads shard a cache at most K ways; beyond that it goes by sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.errors import UserError, within
from ridgeline.planner.facts import ModelFacts


@dataclass(frozen=True, slots=True)
class Layout:
    """One replica: tp devices share every layer, pp groups of them share the layers; `replicas` such groups serve side by side.

    ep: a replica is so many of those groups, each with all but the experts and with sequences of its own; the experts are spread over
    them, and every token's vector goes to the groups of its experts and back (data-parallel attention, as DeepSeek-V3 is served).
    """

    tp: int = 1
    pp: int = 1
    replicas: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "replicas", "ep"):
            within(f"--{name}", getattr(self, name), 1, 1 << 16)

    @property
    def devices(self) -> int:
        return self.of_replica * self.replicas

    @property
    def of_replica(self) -> int:
        """Devices of one replica."""
        return self.tp * self.pp * self.ep

    def group(self, sequences: int) -> int:
        """Sequences of the busiest of `ep` groups."""
        return -(-sequences // self.ep)

    def check(self, facts: ModelFacts) -> None:
        """Raises `UserError` where heads, layers or experts cannot be divided so."""
        if facts.heads and facts.heads % self.tp:
            raise UserError(
                f"--tp is {self.tp}, {facts.name} has {facts.heads} query heads, which must divide evenly", field="--tp", value=self.tp,
                limit=[n for n in range(1, facts.heads + 1) if facts.heads % n == 0],
            )  # fmt: skip
        if self.pp > facts.layers:
            raise UserError(f"--pp is {self.pp}, {facts.name} has {facts.layers} layers", field="--pp", value=self.pp, limit=facts.layers)

        if self.ep > 1 and (not facts.experts or facts.experts % self.ep):
            text = f"{facts.name} has {facts.experts or 'no'} experts" + (", which must divide evenly" if facts.experts else "")
            remedy = "use --replicas" if not facts.experts else ""
            raise UserError(f"--ep is {self.ep}, {text}", field="--ep", value=self.ep, limit=facts.experts, remedy=remedy)

    def kv_shards(self, facts: ModelFacts, batch: int) -> int:
        """Into how many equal parts the KV of a stage is cut: by KV heads, then by sequences, never beyond tp."""
        heads = max((k.cache.kv_heads for k in facts.kept), default=self.tp)
        return min(self.tp, heads * max(1, batch))

    def message_bytes(self, facts: ModelFacts, rows: float, value_bytes: int = 2) -> float:
        """Bytes that each device sends in a step of one stage: two ring all-reduces of [rows, D] a layer."""
        layers = facts.layers / self.pp
        ring = 2 * (self.tp - 1) / self.tp
        return layers * 2 * ring * rows * facts.dim * value_bytes

    def expert_bytes(self, facts: ModelFacts, rows: float, value_bytes: int = 2) -> float:
        """Bytes that each device sends in a step over all stages for the experts of its group's `rows` rows: vectors out, results back.

        The tp devices of a group send a share each. A vector goes once to a group however many of its experts lie there: to
        (ep - 1) (1 - (1 - 1/ep)^k) others, the router spreading tokens evenly.
        """
        others = (self.ep - 1) * (1.0 - (1.0 - 1.0 / self.ep) ** facts.top_k)
        return 2.0 * facts.expert_layers * others * rows / self.tp * facts.dim * value_bytes

    def collectives(self, facts: ModelFacts) -> float:
        """All-reduces, and all-to-alls there and back, of a step over all stages."""
        return (2.0 * facts.layers if self.tp > 1 else 0.0) + (2.0 * facts.expert_layers if self.ep > 1 else 0.0)


def tp_limit(facts: ModelFacts, batch: int, bandwidth_gb_s: float, link_gb_s: float) -> float:
    """Beyond so many devices the messages of decode take longer than the weights: F / (B beta), beta = memory / link bandwidth."""
    return facts.ffn / (max(1, batch) * bandwidth_gb_s / link_gb_s)
