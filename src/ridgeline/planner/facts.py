"""What the planner needs to know of a model, wherever it came from: parameters by kind, what each token leaves in the caches, sizes.

Knows no format, device or step. From a graph everything is counted; from a table's row or a config what its facts say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from ridgeline.errors import UserError
from ridgeline.graph.caches import Paged, State
from ridgeline.graph.graph import Graph
from ridgeline.graph.liveness import assign_buffers
from ridgeline.graph.manifest import manifest
from ridgeline.graph.ops import Attend
from ridgeline.kv.layout import KvFormat, token_bytes

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Kept:
    """Equal caches of `layers` layers, read by `heads` query heads each.

    every: one entry is stored for so many tokens (compressed attention); top: at most so many are read per query (sparse attention).
    """

    cache: Paged
    layers: int
    heads: int
    every: int = 1
    top: int | None = None

    def entries(self, tokens: int) -> int:
        """Entries held per layer by a sequence of `tokens` tokens."""
        window = self.cache.window
        return (tokens if window is None else min(tokens, window)) // self.every

    def bytes_per_entry(self, kv: str | KvFormat) -> int:
        """Of all its layers together. A format of keys and values apart is known to the layout by its name."""
        named = kv.name if isinstance(kv, KvFormat) and "/" in kv.name else kv
        return self.layers * token_bytes(self.cache, named)

    def flops_per_entry(self) -> int:
        """Scores and values of one query over one entry, all heads and layers."""
        return 2 * self.layers * self.heads * (self.cache.k_dim + self.cache.v_dim)


@dataclass(frozen=True, slots=True)
class Parts:
    """Parameters by what formats and steps do with them. head 0: tied. routed: of all experts that a router chooses from."""

    embed: float
    head: float
    linear: float
    norms: float
    routed: float = 0

    @property
    def total(self) -> float:
        return self.embed + self.head + self.linear + self.norms + self.routed


@dataclass(frozen=True)
class ModelFacts:
    """A model as the planner sees it. source: one line, where its numbers come from; counted: "graph", "config" or "cited".

    formula_params: the lecture's 2VD + 3DFL + (2DNH + 2DKH)L, None where it does not apply. stored: bytes as a file holds them; formats:
    encoding of each of its weights, by our names.
    state_elems: recurrent state per sequence; state_unknown: it has one, but the table does not say how large. published: total and active
    parameters as cited, in billions. partial: what of a file was not understood, "" for nothing. expert_layers: those that have experts.
    """

    name: str
    kind: str
    vocab: int
    dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    parts: Parts
    kept: tuple[Kept, ...]
    counted: str
    source: str
    native: str = "bf16"
    formula_params: int | None = None
    experts: int = 0
    top_k: int = 0
    state_elems: int = 0
    max_context: int = 0
    state_unknown: bool = False
    published: tuple[float | None, float | None] = (None, None)
    notes: str = ""
    graph: Graph | None = None
    stored: Parts | None = field(default=None, compare=False)
    formats: Mapping[str, str] = field(default_factory=dict, compare=False)
    partial: str = ""
    expert_layers: int = 0

    @property
    def params(self) -> int:
        return round(self.parts.total)

    @cached_property
    def row_bytes(self) -> float:
        """Bytes of the live buffers of one row of a step in 16 bits. Kept: a search asks for the same model hundreds of times."""
        if self.graph is not None:
            buffers = assign_buffers(self.graph)
            return 2.0 * sum(w for w, late in zip(buffers.widths, buffers.selected, strict=True) if not late)
        return 2.0 * (3 * self.dim + 2 * max(self.ffn, self.heads * self.head_dim))

    @property
    def active_params(self) -> float:
        """Parameters that one token meets: as published where the total is."""
        if self.counted == "cited" and self.published[1]:
            return self.published[1] * 1e9
        return self.parts.total - self.parts.routed * (1 - self.top_k / self.experts if self.experts else 0)

    @property
    def window(self) -> int | None:
        """The widest sliding window, None without one."""
        return max((k.cache.window for k in self.kept if k.cache.window is not None), default=None)

    def kv_bytes_per_token(self, kv: str | KvFormat, *, beyond_windows: bool = False) -> float:
        """Bytes that one more token writes; beyond_windows: by how much a long sequence grows."""
        return sum(k.bytes_per_entry(kv) / k.every for k in self.kept if not (beyond_windows and k.cache.window is not None))

    def state_bytes(self) -> int:
        """Recurrent state of one sequence, kept in float32."""
        return 4 * self.state_elems

    def sequence_bytes(self, tokens: int, kv: str | KvFormat, block: int = 1) -> int:
        """Bytes that a sequence of `tokens` tokens holds, states included, in whole blocks of `block` tokens."""
        total = self.state_bytes()
        for k in self.kept:
            window = k.cache.window
            if window is None or block == 1:
                held = k.entries(-(-tokens // block) * block)
            else:
                first = max(0, tokens - window)  # the last token computed still sees window - 1 before it
                held = (-(-tokens // block) - first // block) * block // k.every if tokens else 0
            total += held * k.bytes_per_entry(kv)
        return total

    def idealized(self) -> ModelFacts:
        """As the lecture counts it: no norms, no biases, where its formula applies."""
        if self.formula_params is None:
            return self
        rest = self.formula_params - self.parts.embed - self.parts.head
        return replace(self, parts=Parts(self.parts.embed, self.parts.head, rest, 0))

    def without_windows(self) -> ModelFacts:
        """The same model in an engine that keeps every token in every layer."""
        kept = tuple(replace(k, cache=replace(k.cache, window=None)) for k in self.kept)
        graph = self.graph
        if graph is not None:
            graph = replace(graph, caches=tuple(replace(c, window=None) if isinstance(c, Paged) else c for c in graph.caches))
        return replace(self, kept=kept, graph=graph)


def from_graph(graph: Graph, kind: str, source: str, *, native: str = "bf16", max_context: int = 0, notes: str = "") -> ModelFacts:
    """Everything counted from the graph that is executed."""
    sizes = {name: (prod(shape), len(shape)) for name, shape in manifest(graph).items()}
    head, embed = sizes.get("head", (0, 2))[0], sizes["embed"][0]
    norms = sum(n for name, (n, dims) in sizes.items() if dims == 1)
    linear = sum(n for n, _ in sizes.values()) - head - embed - norms
    attends = [op for op in graph.ops if isinstance(op, Attend)]
    if not attends:
        raise UserError(f"{graph.name}: a graph without attention cannot be planned", field="model", value=graph.name)
    by_cache = {c.name: c for c in graph.caches if isinstance(c, Paged)}
    vocab, dim = next(shape for name, shape in manifest(graph).items() if name == "embed")
    down = [shape for name, shape in manifest(graph).items() if name.endswith(".down")]
    first, heads = by_cache[attends[0].cache], attends[0].heads
    layers, ffn = len(attends), down[0][1] if down else 0
    formula = (1 if head == 0 else 2) * vocab * dim + sum(3 * dim * shape[1] for shape in down)
    formula += sum(2 * dim * (op.heads + by_cache[op.cache].kv_heads) * by_cache[op.cache].k_dim for op in attends)
    return ModelFacts(
        graph.name, kind, vocab, dim, layers, heads, first.kv_heads, first.k_dim, ffn, Parts(embed, head, linear, norms),
        _grouped((by_cache[op.cache], op.heads) for op in attends), "graph", source, native, formula,
        state_elems=sum(prod(c.shape) for c in graph.caches if isinstance(c, State)), max_context=max_context, notes=notes, graph=graph,
    )  # fmt: skip


def _grouped(caches: Iterable[tuple[Paged, int]]) -> tuple[Kept, ...]:
    counts: dict[tuple[Paged, int], int] = {}
    for cache, heads in caches:
        key = replace(cache, name=""), heads
        counts[key] = counts.get(key, 0) + 1
    return tuple(Kept(cache, layers, heads) for (cache, heads), layers in counts.items())
