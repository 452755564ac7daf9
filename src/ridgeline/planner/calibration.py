"""What was measured of a host, and step times fitted from it: seconds per weight by format and rows, per key, per value, per op, per step.

Pure data and arithmetic: `bench/calibrate` measures. Nothing here was measured on the model it is used for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log, prod

from ridgeline.encodings import BY_NAME
from ridgeline.errors import UserError
from ridgeline.graph.caches import Paged
from ridgeline.graph.graph import Graph
from ridgeline.graph.manifest import manifest
from ridgeline.graph.ops import Attend, CacheWrite, Embed, Linear, LinearGroup, SelectRows, inputs, results
from ridgeline.graph.rewrite import fuse
from ridgeline.graph.step import SharedWalk, Span
from ridgeline.graph.verify import selected_values, value_widths
from ridgeline.kv.layout import KvFormat, bf16_pairs, first_needed
from ridgeline.planner.cost import pairs


@dataclass(frozen=True, slots=True)
class DecodeAttention:
    """Seconds of one new token's attention in one layer. key_*: per key and number of its key and value, of each KV head and of each query
    head; kv_s, head_s: per KV head and per query head, whatever the context."""

    key_kv_s: float
    key_head_s: float
    kv_s: float
    head_s: float

    def seconds(self, heads: int, kv_heads: int, width: int, sequences: int, keys: float, saved: float = 0.0) -> float:
        """`sequences` new tokens that read `keys` keys in all, of which shared walks save `saved` from being read again."""
        per_key = kv_heads * self.key_kv_s * max(0.0, keys - saved) + heads * self.key_head_s * keys
        return width * per_key + sequences * (kv_heads * self.kv_s + heads * self.head_s)


@dataclass(frozen=True, slots=True)
class ChunkAttention:
    """Seconds of a chunk's attention in one layer, per number of key and value: of each query head and pair, of each query head and row
    (what is multiplied beyond the visible pairs), of each KV head and key (making keys and values ready)."""

    pair_s: float
    row_s: float
    key_s: float

    def seconds(self, heads: int, kv_heads: int, width: int, pairs: float, rows: int, keys: float) -> float:
        return width * (heads * (pairs * self.pair_s + rows * self.row_s) + kv_heads * keys * self.key_s)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Of one host, instruction set and thread count; all in seconds, at each of `rows` tokens a step where it is a tuple.

    linear_s[format]: products, per weight; linear_op_s[format]: per product, beside its weights; measured with linear_bytes of weights,
    of which the caches kept kept_bytes from one step to the next.
    value_s: ops beside products and attention, per value; op_s: any of them, whatever its size. sample_row_s, sample_value_s: a draw, and
    per id of the vocabulary. step_s, sequence_s: the engine around a step. read_gb_s: by threads, working set in MB -> 1e9 bytes/s.
    decode, chunk: over a bfloat16 cache (int8 counts as one); float_*: over one that is multiplied as float32, where the CPU multiplies
    bfloat16 in pairs.
    """

    host: str
    isa: str
    threads: int
    date: str
    rows: tuple[int, ...]
    linear_s: Mapping[str, tuple[float, ...]]
    linear_op_s: Mapping[str, tuple[float, ...]]
    linear_bytes: int
    kept_bytes: float
    op_s: float
    value_s: tuple[float, ...]
    decode: DecodeAttention
    chunk: ChunkAttention
    sample_row_s: float
    sample_value_s: float
    step_s: float
    sequence_s: float
    seconds: float = 0.0
    read_gb_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    float_decode: DecodeAttention | None = None
    float_chunk: ChunkAttention | None = None

    def attention(self, in_pairs: float) -> tuple[tuple[float, DecodeAttention, ChunkAttention], ...]:
        """Costs and their weights for a cache of which a share of the products comes in pairs of bfloat16."""
        if self.float_decode is None or self.float_chunk is None:
            return ((1.0, self.decode, self.chunk),)
        both = ((in_pairs, self.decode, self.chunk), (1.0 - in_pairs, self.float_decode, self.float_chunk))
        return tuple(part for part in both if part[0])

    def check(self, form: str) -> None:
        """Raises `UserError` for a format that was not calibrated."""
        if form not in self.linear_s:
            known = ", ".join(self.linear_s)
            raise UserError(
                f"format {form} is not calibrated on this host (calibrated: {known})", field="weight_dtype", value=form,
                limit=tuple(self.linear_s), remedy="run `ridgeline calibrate MODEL` with a model of that format",
            )  # fmt: skip

    def weight_seconds(self, form: str, rows: int) -> float:
        """Seconds per weight of a calibrated format."""
        return self.between(self.linear_s[form], rows)

    def product_seconds(self, form: str, rows: int) -> float:
        """Seconds of a product of a calibrated format, beside its weights."""
        return self.between(self.linear_op_s[form], rows)

    def value_seconds(self, rows: int) -> float:
        """Seconds per value of the other ops; beyond the measured rows it stays what it was."""
        return self.between(self.value_s, min(rows, self.rows[-1]))

    def between(self, at: tuple[float, ...], rows: int) -> float:
        """On straight lines between the measured points of a log-log plot; beyond the last point in proportion to the rows."""
        if rows <= self.rows[0]:
            return at[0]
        if rows >= self.rows[-1]:
            return at[-1] * rows / self.rows[-1]
        i = next(i for i, r in enumerate(self.rows) if r > rows)
        low, high = self.rows[i - 1], self.rows[i]
        share = log(rows / low) / log(high / low)
        if min(at[i - 1], at[i]) <= 0:
            return at[i - 1] * (1 - share) + at[i] * share
        return exp(log(at[i - 1]) * (1 - share) + log(at[i]) * share)


MOST_KEPT = 0.7  # assumed, of a model that fits the caches almost whole: the rest of a step takes room in them too


def kept_bytes(small_bytes: float, small_s: float, large_bytes: float, large_s: float) -> float:
    """What caches keep of weights that are read step after step, from the seconds of a byte with fewer and with more of them.

    A step reads all but the kept ones: s = (1 - kept / bytes) x a constant. At most half of the fewer; 0 where that explains nothing."""
    if min(small_s, large_s) <= 0 or small_s >= large_s:
        return 0.0
    ratio = small_s / large_s
    return min(0.5 * small_bytes, (1 - ratio) / (1 / small_bytes - ratio / large_bytes))


@dataclass(frozen=True, slots=True)
class _Attention:
    """Equal attentions of a graph: their number, shape and window."""

    layers: int
    heads: int
    kv_heads: int
    width: int  # of key and value together
    window: int | None
    in_pairs: float  # share of the width that a CPU may multiply in pairs of bfloat16


class CalibratedSeconds:
    """Callable: seconds of a step of `graph` on the calibrated host. formats: encoding name of each weight matrix, by our weight names.
    kv: dtype of the cache."""

    def __init__(self, graph: Graph, formats: Mapping[str, str], calibration: Calibration, kv: str | KvFormat = "bf16") -> None:
        self.calibration = calibration
        fused = fuse(graph)
        sizes = {name: prod(shape) for name, shape in manifest(fused).items()}
        late = selected_values(fused)
        self._weights: dict[tuple[str, bool], int] = {}
        self._products: dict[tuple[str, bool], int] = {}
        self._ops, self._values, self._late_values = sum(not isinstance(op, Linear | LinearGroup | Attend) for op in fused.ops), 0, 0
        attends: dict[_Attention, int] = {}
        caches = {c.name: c for c in fused.caches if isinstance(c, Paged)}
        widths = value_widths(fused)
        self._vocab = next((op.vocab for op in fused.ops if isinstance(op, Embed)), 0)
        for op in fused.ops:
            is_late = isinstance(op, SelectRows) or any(v in late for v in inputs(op))
            match op:
                case Linear() | LinearGroup():
                    names = (op.weight,) if isinstance(op, Linear) else op.weights
                    for name in names:
                        stored = fused.tied.get(name, name)
                        key = formats[stored], is_late
                        self._weights[key] = self._weights.get(key, 0) + sizes[stored]
                    first = formats[fused.tied.get(names[0], names[0])], is_late
                    self._products[first] = self._products.get(first, 0) + 1
                case Attend():
                    c = caches[op.cache]
                    dims = c.k_dim, c.v_dim
                    in_pairs = sum(n for n, paired in zip(dims, bf16_pairs(c, kv), strict=True) if paired) / sum(dims)
                    shape = _Attention(1, op.heads, c.kv_heads, sum(dims), c.window, in_pairs)
                    attends[shape] = attends.get(shape, 0) + 1
                case CacheWrite():
                    self._values += sum(widths[v] for v in inputs(op))
                case _:
                    made = sum(widths[v] for v in results(op))
                    self._values += 0 if is_late else made
                    self._late_values += made if is_late else 0
        self._attends = tuple(replace(shape, layers=n) for shape, n in attends.items())
        for form, _ in self._weights:
            calibration.check(form)  # now, not in the middle
        self._bytes = {key: n * BY_NAME[key[0]].bits_per_value / 8 for key, n in self._weights.items()}

    def __call__(self, spans: Sequence[Span], shared: Sequence[SharedWalk] = ()) -> float:
        live = [s for s in spans if s.new]
        rows, wanted = sum(s.new for s in live), sum(s.want for s in live)
        return self._step(len(live), rows, wanted, sum(self._attention(a, live, shared) for a in self._attends))

    def decode(self, batch: int, context: int) -> float:
        """One token for each of `batch` sequences that then hold `context` tokens."""
        one = [Span(0, max(0, context - 1), 1, 1)]
        return self._step(batch, batch, batch, batch * sum(self._attention(a, one, ()) for a in self._attends))

    def _step(self, sequences: int, rows: int, wanted: int, attention_s: float) -> float:
        c = self.calibration
        if rows == 0:
            return c.step_s
        total = c.step_s + sequences * c.sequence_s + self._ops * c.op_s + self._linear(rows, wanted)
        total += (rows * self._values + wanted * self._late_values) * c.value_seconds(rows)
        return total + wanted * (c.sample_row_s + self._vocab * c.sample_value_s) + attention_s

    def _linear(self, rows: int, wanted: int) -> float:
        """All products. What the caches keep from step to step is a smaller part of more weights than of those that were measured; it
        counts as far as reading is what takes the time."""
        c, total = self.calibration, 0.0
        counts = {key: wanted if key[1] else rows for key in self._weights}
        whole = sum(self._bytes[key] for key, count in counts.items() if count)
        read_then = 1.0 - c.kept_bytes / c.linear_bytes
        read_now = 1.0 - min(c.kept_bytes, MOST_KEPT * whole) / whole if whole else 1.0
        for key, count in counts.items():
            if count == 0:
                continue
            alone, each = c.weight_seconds(key[0], 1), c.weight_seconds(key[0], count)
            bound = min(1.0, max(0.0, 2 * alone / each - 1))
            total += self._weights[key] * (each + bound * alone * (read_now / read_then - 1))
            total += self._products.get(key, 0) * c.product_seconds(key[0], count)
        return total

    def _attention(self, a: _Attention, live: Sequence[Span], shared: Sequence[SharedWalk]) -> float:
        decodes, chunks = [s for s in live if s.new == 1], [s for s in live if s.new > 1]
        keys, saved, total = 0, 0, 0.0
        if decodes:
            keys = sum(s.past + 1 - first_needed(a.window, s.past) for s in decodes)
            saved = sum((len(w.spans) - 1) * w.tokens for w in shared) if a.window is None else 0
        for share, decode, chunk in self.calibration.attention(a.in_pairs):
            if decodes:
                total += share * decode.seconds(a.heads, a.kv_heads, a.width, len(decodes), keys, saved)
            for s in chunks:
                read = s.past + s.new - first_needed(a.window, s.past)
                total += share * chunk.seconds(a.heads, a.kv_heads, a.width, pairs(s, a.window), s.new, read)
        return a.layers * total


def linear_formats(graph: Graph, formats: Mapping[str, str]) -> tuple[str, ...]:
    """Encodings of the matrices that products read, each once, in order of their ops."""
    linear = [op for op in fuse(graph).ops if isinstance(op, Linear | LinearGroup)]
    names = [name for op in linear for name in ((op.weight,) if isinstance(op, Linear) else op.weights)]
    return tuple(dict.fromkeys(formats[graph.tied.get(name, name)] for name in names))
