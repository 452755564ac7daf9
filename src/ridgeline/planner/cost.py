"""FLOPs and bytes of every op for a step, from the graph alone: the only home of cost rules. Knows no device and no time.

A multiply and an add count one FLOP each; so do exp, tanh and a square root. Softmax inside attention is left out, as the
literature does (scaling-book, FlashAttention): 4 FLOPs per visible (query, key) pair and head dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import prod

from ridgeline.graph.caches import Paged
from ridgeline.graph.graph import Graph
from ridgeline.graph.manifest import manifest
from ridgeline.graph.ops import (
    Activation,
    Add,
    AddNorm,
    Attend,
    CacheWrite,
    Embed,
    GatedActivation,
    Linear,
    LinearGroup,
    Mul,
    Op,
    RmsNorm,
    Rope,
    Scale,
    SelectRows,
    Softcap,
    inputs,
    results,
)  # fmt: skip
from ridgeline.graph.step import SharedWalk, Span
from ridgeline.graph.verify import selected_values, value_widths
from ridgeline.kv.layout import bf16_pairs, first_needed, token_bytes


@dataclass(frozen=True, slots=True)
class Cost:
    """int8_flops: linear layers with weights under 2 bytes a value (integer dot products); bf16_flops: attention over a bfloat16 or int8
    cache, as far as a CPU may multiply it in pairs; f32_flops: all other arithmetic.
    Bytes count every tensor once per op: activations are read and written by each op, though a cache may keep them."""

    int8_flops: int = 0
    f32_flops: int = 0
    bf16_flops: int = 0
    linear_flops: int = 0  # the part of all that linear layers do
    weight_bytes: int = 0
    kv_read_bytes: int = 0
    kv_write_bytes: int = 0
    activation_bytes: int = 0

    @property
    def flops(self) -> int:
        return self.int8_flops + self.f32_flops + self.bf16_flops

    @property
    def memory_bytes(self) -> int:
        """What must come from memory whatever the caches: weights and KV."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes

    @property
    def bytes(self) -> int:
        return self.memory_bytes + self.activation_bytes

    @property
    def intensity(self) -> float:
        """FLOP per byte, activations included; 0 for an op that moves nothing."""
        return self.flops / self.bytes if self.bytes else 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Cost)))


@dataclass(frozen=True, slots=True)
class Work:
    """The numbers of a step that costs are linear in. pairs/keys: per window (None: full attention), summed over spans."""

    rows: int
    wanted: int
    pairs: Mapping[int | None, int]  # visible (query, key) pairs
    keys: Mapping[int | None, int]  # keys that must be read, once per span (shared walks once per group)


def pairs(span: Span, window: int | None = None, *, causal: bool = True) -> int:
    """(query, key) pairs that attention multiplies: min(position + 1, window) keys per query.

    causal=False is the lecture's count without causal saving: every query meets all past + new keys.
    """
    if not causal:
        return span.new * (span.past + span.new)

    def below(n: int) -> int:
        """Sum of min(p + 1, window) over positions p < n."""
        full = n if window is None else min(n, window)
        return full * (full + 1) // 2 + (n - full) * (window or 0)

    return below(span.past + span.new) - below(span.past)


def work(spans: Sequence[Span], windows: Iterable[int | None], shared: Sequence[SharedWalk] = (), *, causal: bool = True) -> Work:
    """What `spans` ask of caches with these windows. Shared walks save reads in full layers only."""
    # Most spans are single tokens, whose pairs are their keys: this is asked several times a step.
    lengths = [s.past + 1 for s in spans if s.new == 1] if causal else []
    others = [s for s in spans if s.new > 1 or (s.new and not causal)]
    keys, pair_counts = dict[int | None, int](), dict[int | None, int]()
    for w in dict.fromkeys(windows):
        single = sum(lengths) if w is None else sum([min(n, w) for n in lengths])
        keys[w] = single + sum(s.past + s.new - first_needed(w, s.past) for s in others)
        pair_counts[w] = single + sum(pairs(s, w, causal=causal) for s in others)
    if None in keys:
        keys[None] -= sum((len(walk.spans) - 1) * walk.tokens for walk in shared)
    return Work(sum([s.new for s in spans]), sum([s.want for s in spans]), pair_counts, keys)


class GraphCost:
    """Costs of one graph whose weights take `weight_bytes[name]` bytes (stored names; absent: 4 bytes a value).

    kv_dtype: a format of `kv.layout`. value_bytes: bytes of one activation value (4 on the CPU, 2 in the lecture's tables).
    """

    def __init__(
        self, graph: Graph, weight_bytes: Mapping[str, int] | None = None, kv_dtype: str = "bf16", *, value_bytes: int = 4
    ) -> None:
        self.graph, self.kv_dtype, self.value_bytes = graph, kv_dtype, value_bytes
        self._sizes = {name: prod(shape) for name, shape in manifest(graph).items()}
        self._weight_bytes = {name: 4 * size for name, size in self._sizes.items()} | dict(weight_bytes or {})
        self._widths, self._selected = value_widths(graph), selected_values(graph)
        self._caches = {c.name: c for c in graph.caches if isinstance(c, Paged)}
        self.windows = tuple(dict.fromkeys(c.window for c in self._caches.values()))

    def work(self, spans: Sequence[Span], shared: Sequence[SharedWalk] = (), *, causal: bool = True) -> Work:
        return work(spans, self.windows, shared, causal=causal)

    def ops(self, step: Work) -> tuple[tuple[Op, Cost], ...]:
        return tuple((op, self.op(op, step)) for op in self.graph.ops)

    def total(self, step: Work) -> Cost:
        return sum((self.op(op, step) for op in self.graph.ops), Cost())

    def rows(self, op: Op, step: Work) -> int:
        """Rows that the op computes: those of all tokens, or only the wanted ones behind `SelectRows`."""
        late = isinstance(op, SelectRows) or any(v in self._selected for v in inputs(op))
        return step.wanted if late else step.rows

    def op(self, op: Op, step: Work) -> Cost:
        rows = self.rows(op, step)
        if rows == 0:
            return Cost()
        match op:
            case Linear():
                return self._linear(op.weight, op.bias, op.in_dim, op.out_dim, rows) + self._moved(rows, op.in_dim + op.out_dim)
            case LinearGroup():
                parts = (self._linear(w, b, op.in_dim, n, rows) for w, b, n in zip(op.weights, op.biases, op.out_dims, strict=True))
                return sum(parts, self._moved(rows, op.in_dim + sum(op.out_dims)))
            case Attend():
                return self._attend(op, step) + self._moved(rows, self._width(op))
            case CacheWrite():
                written = rows * token_bytes(self._caches[op.cache], self.kv_dtype)
                return Cost(kv_write_bytes=written, activation_bytes=rows * self.value_bytes * self._width(op))
            case Embed():
                looked_up = rows * self._stored(op.weight) // op.vocab
                return Cost(f32_flops=rows * op.dim * (op.scale != 1.0), weight_bytes=looked_up) + self._moved(rows, op.dim)
            case RmsNorm() | AddNorm():
                return Cost(weight_bytes=self._stored(op.weight)) + self._elementwise(op, rows)
            case _:
                return self._elementwise(op, rows)

    def _stored(self, weight: str) -> int:
        return self._weight_bytes[self.graph.tied.get(weight, weight)]

    def _moved(self, rows: int, width: int) -> Cost:
        return Cost(activation_bytes=rows * width * self.value_bytes)

    def _width(self, op: Op) -> int:
        return sum(self._widths[v] for v in (*inputs(op), *results(op)))

    def _linear(self, weight: str, bias: str | None, in_dim: int, out_dim: int, rows: int) -> Cost:
        stored = self._stored(weight)
        flops = 2 * rows * in_dim * out_dim
        integer = stored < 2 * in_dim * out_dim
        extra = 0 if bias is None else rows * out_dim
        return Cost(
            int8_flops=flops if integer else 0, f32_flops=extra + (0 if integer else flops), linear_flops=flops,
            weight_bytes=stored + (0 if bias is None else self._stored(bias)),
        )  # fmt: skip

    def _attend(self, op: Attend, step: Work) -> Cost:
        cache = self._caches[op.cache]
        each = 2 * op.heads * step.pairs[cache.window]
        parts = zip((cache.k_dim, cache.v_dim), bf16_pairs(cache, self.kv_dtype), strict=True)
        paired = each * sum(dim for dim, in_pairs in parts if in_pairs)
        return Cost(
            f32_flops=each * (cache.k_dim + cache.v_dim) - paired, bf16_flops=paired,
            kv_read_bytes=step.keys[cache.window] * token_bytes(cache, self.kv_dtype),
        )  # fmt: skip

    def _elementwise(self, op: Op, rows: int) -> Cost:
        made = sum(self._widths[v] for v in results(op))
        return Cost(f32_flops=int(rows * made * _FLOPS_PER_VALUE[type(op)]), activation_bytes=rows * self._width(op) * self.value_bytes)


# Per value of the result. RmsNorm: square, add, scale, weight. AddNorm makes two values for its five. Rope: two products, a sum.
_FLOPS_PER_VALUE: Mapping[type, float] = {
    RmsNorm: 4, AddNorm: 2.5, Rope: 3, Add: 1, Mul: 1, Scale: 1, Activation: 4, GatedActivation: 5, SelectRows: 0, Softcap: 3,
}  # fmt: skip


def op_cost(op: Op, graph: Graph, spans: Sequence[Span], weight_bytes: Mapping[str, int], kv_dtype: str) -> Cost:
    """Cost of one op of `graph` in a step of `spans`. For many ops keep a `GraphCost`."""
    book = GraphCost(graph, weight_bytes, kv_dtype)
    return book.op(op, book.work(spans))


def parameters(graph: Graph) -> int:
    """Parameters that a checkpoint of this graph holds; tied weights count once."""
    return sum(prod(shape) for shape in manifest(graph).values())
