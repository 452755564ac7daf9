"""Attention variants side by side: what each keeps and how many users that serves, computed on one shape; quality as papers reported it.

The shape is Mistral-7B's (32 layers, 32 heads of 128) with its cache replaced, so that nothing but the variant differs. Quality is never
computed here and no winner is drawn: the tables contradict each other. Every computed figure says what it was computed from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ridgeline.graph.caches import Paged
from ridgeline.kv.layout import KvFormat
from ridgeline.planner.catalog import find_model
from ridgeline.planner.deployment import Deployment
from ridgeline.planner.facts import Kept, ModelFacts
from ridgeline.planner.formats import WeightFormat
from ridgeline.planner.hardware import Device
from ridgeline.planner.parallel import Layout
from ridgeline.planner.setup import Setup
from ridgeline.planner.tables import package_rows

SHAPE = "Mistral-7B-v0.3"
HEADS, HEAD_DIM = 32, 128
LATENT, ROPE, WINDOW = 512, 64, 4096
# Numbers of a layer's state, kept in float32: d_k x d_v for each head as Qwen3-Next has it, d_inner x d_state as Falcon-Mamba (models.csv).
LINEAR_STATE, MAMBA_STATE = 32 * 128 * 128, 8192 * 16


@dataclass(frozen=True, slots=True)
class Quality:
    """One figure of one paper: what was measured, beside what, on what, where it stands, and whether we saw it or recall it."""

    variant: str
    metric: str
    value: float
    beside: str
    setup: str
    source: str
    checked: str

    @property
    def link(self) -> str:
        """Where the source can be read; empty for one that is not on arXiv."""
        number = self.source.partition("arXiv:")[2].partition(" ")[0]
        return f"https://arxiv.org/abs/{number}" if number else ""


@dataclass(frozen=True, slots=True)
class Score:
    """users and tok_s: as many sequences of `context` tokens as fit the device beside the weights, and their throughput (roofline, ideal).
    flop_per_byte: of one decode's attention. note: what a reader must know. sources: field -> what it was computed from, with the numbers.
    """

    variant: str
    kv_bytes_per_token: float
    sequence_bytes: int
    users: int
    tok_s: float
    flop_per_byte: float
    quality: tuple[Quality, ...]
    note: str
    sources: Mapping[str, str]


def scorecard(device: Device, context: int, form: WeightFormat, kv: KvFormat) -> tuple[Score, ...]:
    """Every variant on one device. Raises `UserError` like a plan."""
    found = []
    for name, facts, reads, note in variants():
        held = Setup(facts, device, form, kv, Layout(), ideal=True).deployment()
        step = Setup(reads, device, form, kv, Layout(), ideal=True).deployment()
        users = held.max_users(context)
        tok_s = step.throughput(users, context) if users else 0.0
        read = reads.sequence_bytes(context, kv) + reads.state_bytes()
        flops = sum(k.flops_per_entry() * k.entries(context) for k in reads.kept) + 4 * facts.state_elems
        found.append(Score(
            name, facts.kv_bytes_per_token(kv, beyond_windows=True), facts.sequence_bytes(context, kv), users, tok_s, flops / read,
            tuple(q for q in reported() if q.variant == name), note,
            _bytes_sources(facts, context, kv) | _speed_sources(held, step, users, context)
            | {"flop_per_byte": f"{flops:,} FLOPs of attention over {read:,} bytes read, one token of one sequence, all layers"},
        ))  # fmt: skip
    return tuple(found)


def _bytes_sources(f: ModelFacts, context: int, kv: KvFormat) -> dict[str, str]:
    if not f.kept:
        state = f"{f.layers} layers x {f.state_elems // f.layers:,} numbers of 4 bytes = {f.state_bytes():,} B"
        return {"kv_bytes_per_token": "a state does not grow with the text", "sequence_bytes": state}
    (k,) = f.kept
    c = k.cache
    heads = f"{c.kv_heads} heads" if c.kv_heads > 1 else "1 head"
    values = f"{c.k_dim} values, stored once" if c.v_aliases_k else f"{heads} x ({c.k_dim} + {c.v_dim})"
    each = f"{k.layers} layers x {values} in {kv.name} = {k.bytes_per_entry(kv):,} B a token"
    if c.window is None:
        return {"kv_bytes_per_token": each, "sequence_bytes": f"{each}, x {context:,} tokens"}
    grows = f"{each} up to {c.window:,} tokens; then one token leaves the window for each that comes"
    return {"kv_bytes_per_token": grows, "sequence_bytes": f"{each}, x {k.entries(context):,} of {context:,} tokens"}


def _speed_sources(held: Deployment, step: Deployment, users: int, context: int) -> dict[str, str]:
    capacity, weights, each = held.ceilings.memory_bytes, held.weights.total, held.sequence_bytes(context)
    fits = f"({capacity / 1e9:g} GB - {weights / 1e9:.2f} GB of weights) / {each / 1e6:,.1f} MB a sequence, rounded down"
    if not users:
        return {"users": fits, "tok_s": "none fits"}
    asked, speed = step.decode_demand(users, context), step.ceilings.bytes_per_s
    cache = (asked.kv_bytes + asked.write_bytes) / 1e9
    read = f"{asked.weight_bytes / 1e9:.2f} GB of weights and {cache:.2f} GB of cache at {speed / 1e9:,g} GB/s"
    found = step.decode(users, context)
    return {"users": fits, "tok_s": f"{users:,} users / {found.seconds * 1e3:.2f} ms a step, {found.bound} bound: {read}"}


def reported() -> tuple[Quality, ...]:
    """All figures of quality, in the table's order."""
    rows = package_rows("quality.csv", "id")
    return tuple(
        Quality(
            r.text("variant"), r.text("metric"), r.number("value") or 0.0, r.text("beside"), r.text("setup"), r.text("source"),
            r.text("checked"),
        )
        for r in rows
    )  # fmt: skip


def variants() -> tuple[tuple[str, ModelFacts, ModelFacts, str], ...]:
    """(name, the shape with what is kept, with what a step reads, what to know)."""
    base = replace(find_model(SHAPE), graph=None)
    layers = base.layers

    def paged(name: str, cache: Paged, note: str, held: int = layers) -> tuple[str, ModelFacts, ModelFacts, str]:
        kept, read = (replace(base, kept=(Kept(cache, n, HEADS),), kv_heads=cache.kv_heads) for n in (held, layers))
        return name, kept, read, note

    def state(name: str, elements: int, note: str) -> tuple[str, ModelFacts, ModelFacts, str]:
        facts = replace(base, kept=(), state_elems=layers * elements)
        return name, facts, facts, note

    grouped = Paged("kv", 8, HEAD_DIM, HEAD_DIM)
    latent = Paged("kv", 1, LATENT + ROPE, LATENT, v_aliases_k=True)
    return (
        paged("MHA", Paged("kv", HEADS, HEAD_DIM, HEAD_DIM), "every head keeps its own keys and values"),
        paged("GQA-8", grouped, "four heads share one"),
        paged("MQA", Paged("kv", 1, HEAD_DIM, HEAD_DIM), "all heads share one"),
        paged("MLA", latent, "absorbed: one latent of 512 and 64 for positions, read by all heads"),
        paged("sliding 4096", replace(grouped, window=WINDOW), "GQA-8 that forgets behind the window: a needle there is lost"),
        paged("cross-layer (CLA2)", grouped, "GQA-8, two layers share a cache: half is held, but each layer reads it", layers // 2),
        state("linear", LINEAR_STATE, "a matrix of 128 x 128 for each head and layer, whatever the context; served in hybrids"),
        state("Mamba", MAMBA_STATE, "8192 x 16 a layer, whatever the context"),
    )
