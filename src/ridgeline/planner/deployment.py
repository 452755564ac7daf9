"""A model on devices: what fits, how long a step takes, how fast tokens come. Demand and ceilings in, seconds and bytes out.

A step takes max(weights' bytes, linear FLOPs) + max(KV bytes, attention FLOPs), each over its ceiling, plus messages and overhead: the
scaling-book's bound. `ideal` is the lecture's arithmetic: every parameter read once, efficiency one, nothing else. Measures nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from ridgeline.graph.step import Span
from ridgeline.kv.layout import KvFormat
from ridgeline.planner.calibration import CalibratedSeconds
from ridgeline.planner.demand import Demand, ModelDemand, chunks
from ridgeline.planner.facts import BLOCK_SIZE, ModelFacts, Parts
from ridgeline.planner.hardware import Provenance
from ridgeline.planner.parallel import Layout

MOST_CHUNKS = 256  # of a prompt, each reckoned by itself
CHUNK = 2048  # prompt tokens a step, as servers have it by default


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What of the ceilings a real engine gets. memory and math: shares of bandwidth and peak; op_s: seconds of every op whatever it does;
    message_s: latency of a collective. Defaults: 0.8 and 3 us as aiconfigurator has them, 0.5 near the 45% that a Mistral prompt got."""

    memory: float = 0.8
    math: float = 0.5
    op_s: float = 3e-6
    message_s: float = 10e-6
    provenance: Provenance = "assumed"


ASSUMED = Efficiency()
PERFECT = Efficiency(1.0, 1.0, 0.0, 0.0)
SINGLE = Layout()


@dataclass(frozen=True, slots=True)
class Ceilings:
    """One device: bytes, bytes/s, FLOP/s of linear layers and of attention, link bytes/s one way (None: no link known)."""

    name: str
    memory_bytes: float
    bytes_per_s: float
    linear_flops_per_s: float
    attention_flops_per_s: float
    link_bytes_per_s: float | None = None
    provenance: Provenance = "assumed"


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on all devices of one replica together; `capacity` is theirs. draft: a draft model's weights and KV."""

    weights: float
    kv: float
    activations: float
    overhead: float
    capacity: float
    draft: float = 0.0

    @property
    def total(self) -> float:
        return self.weights + self.kv + self.activations + self.overhead + self.draft

    @property
    def fits(self) -> bool:
        return self.total <= self.capacity


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step, by what they are spent on. Each pair is (memory, math): the greater of the two counts."""

    linear: tuple[float, float]
    attention: tuple[float, float]
    messages_s: float
    overhead_s: float

    @property
    def seconds(self) -> float:
        return max(self.linear) + max(self.attention) + self.messages_s + self.overhead_s

    @property
    def bound(self) -> str:
        """What most of the time waits for: memory, compute, messages or overhead."""
        spent = {"memory": 0.0, "compute": 0.0, "messages": self.messages_s, "overhead": self.overhead_s}
        for memory, math in (self.linear, self.attention):
            spent["memory" if memory >= math else "compute"] += max(memory, math)
        return max(spent, key=lambda k: spent[k])


@dataclass(frozen=True, slots=True)
class Draft:
    """A model whose guesses the served one checks: its weights and its cache lie beside the other's, once a replica."""

    facts: ModelFacts
    weights_bytes: float

    def bytes(self, batch: int, context: int, kv: KvFormat, block: int) -> float:
        return self.weights_bytes + batch * self.facts.sequence_bytes(context, kv, block)


@dataclass(frozen=True)
class Deployment:
    """A model with weights of `weights` bytes on one replica of `layout`. overhead_bytes: per device, for what is neither weights, KV nor
    activations. reserve: of the memory of a device left unused (0.0 to 1.0)."""

    facts: ModelFacts
    weights: Parts
    kv: KvFormat
    ceilings: Ceilings
    layout: Layout = SINGLE
    efficiency: Efficiency = ASSUMED
    ideal: bool = False
    overhead_bytes: float = 0.0
    chunk: int = CHUNK
    calibrated: CalibratedSeconds | None = None  # step times as fitted to measurements of this host
    value_bytes: int = 2  # of an activation
    draft: Draft | None = None  # counted in memory; its time depends on what is accepted and is not

    @cached_property
    def demand(self) -> ModelDemand:
        return ModelDemand(self.facts, self.weights, self.kv)

    # --- memory -----------------------------------------------------------------------------------------------------------------

    def sequence_bytes(self, context: int) -> int:
        """KV and states of one sequence; whole blocks unless ideal."""
        return self.facts.sequence_bytes(context, self.kv, 1 if self.ideal else BLOCK_SIZE)

    def activation_bytes(self, batch: int) -> float:
        """Peak of one step: live buffers of a full chunk, and float32 logits of every sequence."""
        if self.ideal:
            return 0.0
        rows = max(self.chunk, batch)
        return rows * self.facts.row_bytes * self.value_bytes / 2 + batch * 4.0 * self.facts.vocab

    def memory(self, batch: int, context: int) -> Memory:
        """Of one replica with `batch` sequences of `context` tokens. KV that cannot be cut further is held by several devices; of the
        groups that share experts each is taken to be as full as the busiest."""
        lay, each = self.layout, self.layout.group(batch)
        copies = lay.ep * lay.tp / lay.kv_shards(self.facts, each)
        weights = self.weights.total + (lay.ep - 1) * (self.weights.total - self.weights.routed)
        return Memory(
            weights, each * self.sequence_bytes(context) * copies, lay.ep * self.activation_bytes(each),
            self.overhead_bytes * lay.of_replica, self.ceilings.memory_bytes * lay.of_replica,
            0.0 if self.draft is None else self.draft.bytes(batch, context, self.kv, 1 if self.ideal else BLOCK_SIZE),
        )  # fmt: skip

    def max_users(self, context: int) -> int:
        """The most sequences of `context` tokens that fit one replica; 0 when not even one does."""
        if not self.memory(1, context).fits:
            return 0
        low, high = 1, 2
        while high < 1 << 40 and self.memory(high, context).fits:
            low, high = high, 2 * high
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (middle, high) if self.memory(middle, context).fits else (low, middle)
        return low

    def max_context(self, batch: int) -> int:
        """The longest context at which `batch` sequences fit, at most what the model was made for; 0 for none."""
        limit = self.facts.max_context or 1 << 24
        low, high = 0, limit + 1
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (middle, high) if self.memory(batch, middle).fits else (low, middle)
        return low

    # --- time -------------------------------------------------------------------------------------------------------------------

    def step(self, spans: list[Span]) -> StepTime:
        bound = self.time(self.demand.step(spans), len(spans))
        return bound if self.calibrated is None else _fitted(bound, self.calibrated(spans))

    def decode_demand(self, batch: int, context: int) -> Demand:
        """What one token for each of `batch` sequences of `context` tokens asks of the devices."""
        asked = self.demand.decode(batch, context)
        if self.ideal:
            asked = replace(asked, weight_bytes=self.weights.total, kv_bytes=float(batch * self.sequence_bytes(context)), write_bytes=0.0)
            asked = replace(asked, linear_flops=2.0 * batch * self.facts.active_params, routed_bytes=self.weights.routed)
        return asked

    def decode(self, batch: int, context: int) -> StepTime:
        """One token for each of `batch` sequences that hold `context` tokens."""
        bound = self.time(self.decode_demand(batch, context), batch)
        return bound if self.calibrated is None else _fitted(bound, self.calibrated.decode(batch, context))

    def time(self, asked: Demand, sequences: int) -> StepTime:
        """A pipeline's stages follow one another: a token passes all layers whatever pp is, each on tp devices. Where groups share the
        experts, each has its `part` of everything else."""
        c, e, tp, ep = self.ceilings, self.efficiency, self.layout.tp, self.layout.ep
        group = self.layout.group(sequences)
        part = group / sequences if ep > 1 and sequences else 1.0
        shards = self.layout.kv_shards(self.facts, group)
        speed, math = c.bytes_per_s * e.memory, c.linear_flops_per_s * e.math
        weights = asked.weight_bytes - asked.routed_bytes * (1 - 1 / ep)
        flops = part * (asked.linear_flops - asked.routed_flops) + asked.routed_flops / ep if ep > 1 else asked.linear_flops
        linear = weights / (speed * tp), flops / (math * tp)
        attention_math = 0.0 if self.ideal else part * asked.attention_flops / (c.attention_flops_per_s * e.math * tp)
        attention = part * (asked.kv_bytes + asked.write_bytes) / (speed * shards), attention_math
        ops = 8 * self.facts.layers + 4
        overhead = 0.0 if self.ideal or not asked.rows else ops * e.op_s
        return StepTime(linear, attention, 0.0 if self.ideal else self.message_seconds(part * asked.rows), overhead)

    def message_seconds(self, rows: float) -> float:
        """All-reduces of tensor parallelism, hand-overs of the pipeline, and vectors to experts elsewhere and back, of a group's rows.
        Without a known link they cost their latency only."""
        lay, link = self.layout, self.ceilings.link_bytes_per_s
        sent = lay.message_bytes(self.facts, rows) * lay.pp + (lay.pp - 1) * rows * self.facts.dim * 2 + lay.expert_bytes(self.facts, rows)
        latency = (lay.collectives(self.facts) + lay.pp - 1) * self.efficiency.message_s
        return latency + (sent / link if link else 0.0)

    def ttft(self, prompt: int, cached: int = 0) -> float:
        """Seconds of computing a prompt alone, of which `cached` tokens are in the cache; queueing not counted."""
        if self.ideal:
            return self.ideal_prefill(prompt, cached)
        rest = max(1, prompt - cached)
        spans = list(chunks(rest, self.chunk, prompt - rest)) if rest <= MOST_CHUNKS * self.chunk else self._some(rest, prompt - rest)
        return sum(self.step([span]).seconds for span in spans) * -(-rest // self.chunk) / len(spans)

    def _some(self, rest: int, past: int) -> list[Span]:
        """Chunks spread evenly over a prompt of very many: a chunk's time is nearly linear in what came before it."""
        step = rest / MOST_CHUNKS
        return [Span(0, past + int((i + 0.5) * step), self.chunk, int(i == MOST_CHUNKS - 1)) for i in range(MOST_CHUNKS)]

    def ideal_prefill(self, prompt: int, cached: int = 0) -> float:
        """FLOPs / peak, but no faster than reading the weights once."""
        peak, speed = self.ceilings.linear_flops_per_s * self.layout.tp, self.ceilings.bytes_per_s * self.layout.tp
        return max(self.prompt_flops(prompt, cached) / peak, (self.weights.total - self.weights.routed * (1 - 1 / self.layout.ep)) / speed)

    def prompt_flops(self, prompt: int, cached: int = 0) -> float:
        """Of computing a prompt; ideal: 2 P T + 4 T S N H L, without causal saving."""
        new = max(1, prompt - cached)
        if not self.ideal:
            return self.demand.step([Span(0, prompt - new, new, 1)]).flops
        return 2.0 * new * self.facts.active_params + sum(k.flops_per_entry() * new * k.entries(prompt) for k in self.facts.kept)

    # --- rates ------------------------------------------------------------------------------------------------------------------

    def throughput(self, batch: int, context: int) -> float:
        """Output tokens/s of one replica that decodes `batch` sequences; pp stages work on as many batches at once."""
        return batch * self.layout.pp / self.decode(batch, context).seconds

    def asymptote(self, context: int) -> float | None:
        """Tokens/s that no batch can pass: bandwidth / KV bytes that a sequence reads each step. None for a model that keeps nothing."""
        read = self.sequence_bytes(context) if self.ideal else self.demand.decode(1, context).kv_bytes
        return self.ceilings.bytes_per_s * self.efficiency.memory * self.layout.tp * self.layout.ep / read if read else None

    def ridge_batch(self) -> float:
        """Sequences above which the linear layers of decode wait for arithmetic: peak x bytes a parameter / (2 x bandwidth)."""
        c, e = self.ceilings, self.efficiency
        per_param = self.weights.total / (self.facts.params or 1)
        sparsity = self.facts.params / self.facts.active_params if self.facts.active_params else 1.0
        return c.linear_flops_per_s * e.math * per_param * sparsity / (2 * c.bytes_per_s * e.memory)

    def knee(self, context: int) -> int:
        """The smallest batch with all but a thousandth of the throughput that is to be had; 0 when not even one sequence fits."""
        most = self.max_users(context)
        if most < 2:
            return most
        # A host's own times may turn back: more at once is then less. Of equals the last, as the roofline has it.
        tried = [most, *(1 << n for n in reversed(range(most.bit_length())) if self.calibrated is not None)]
        high = max(tried, key=lambda batch: self.throughput(batch, context))
        enough = 0.999 * self.throughput(high, context)
        low = 0
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.throughput(middle, context) >= enough else (middle, high)
        return high

    def best_batch(self, context: int, itl_s: float | None = None, most: int | None = None) -> int:
        """The most sequences that fit and keep the inter-token time; 0 when one alone does not. Throughput never falls with the batch."""
        high = self.max_users(context) if most is None else min(most, self.max_users(context))
        if itl_s is None or high == 0 or self.decode(high, context).seconds <= itl_s:
            return high
        low = 0
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (middle, high) if self.decode(middle, context).seconds <= itl_s else (low, middle)
        return low


def _fitted(bound: StepTime, seconds: float) -> StepTime:
    """What was measured beyond the roofline's bound is overhead, of whatever kind."""
    return replace(bound, overhead_s=seconds - bound.seconds + bound.overhead_s)
