"""What was measured of a host, and step times fitted from it: seconds per weight by format and rows, per key, per value, per op, per step.

Pure data and arithmetic: `bench/calibrate` measures. Nothing here was measured on the model it is used for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log, prod

from ridgeline.errors import UserError
from ridgeline.graph.caches import Paged
from ridgeline.graph.graph import Graph
from ridgeline.graph.manifest import manifest
from ridgeline.graph.ops import Attend, CacheWrite, Embed, Linear, LinearGroup, SelectRows, inputs, results
from ridgeline.graph.rewrite import fuse
from ridgeline.graph.step import SharedWalk, Span
from ridgeline.graph.verify import selected_values, value_widths
from ridgeline.kv.layout import first_needed
from ridgeline.planner.cost import pairs


@dataclass(frozen=True, slots=True)
class Calibration:
    """Of one host, instruction set and thread count; all in seconds.

    linear_s[format]: per weight at each of `rows` tokens a step. key_kv_s, key_head_s: decode attention, per key and number of a KV head,
    and of a query head. pair_s: attention of chunks, per multiply-add. value_s: other ops, per value; op_s: any op, whatever its size.
    sample_row_s, sample_value_s: a draw, and per id of the vocabulary. step_s, sequence_s: the engine around a step.
    read_gb_s: working set in MB -> 1e9 bytes/s, by number of threads, for people.
    """

    host: str
    isa: str
    threads: int
    date: str
    rows: tuple[int, ...]
    linear_s: Mapping[str, tuple[float, ...]]
    op_s: float
    value_s: float
    key_kv_s: float
    key_head_s: float
    pair_s: float
    sample_row_s: float
    sample_value_s: float
    step_s: float
    sequence_s: float
    seconds: float = 0.0
    read_gb_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def weight_seconds(self, form: str, rows: int) -> float:
        """Seconds per weight of a format with `rows` tokens, on straight lines between the measured points of a log-log plot.

        Raises `UserError` for a format that was not calibrated.
        """
        at = self.linear_s.get(form)
        if at is None:
            known = ", ".join(self.linear_s)
            raise UserError(
                f"format {form} is not calibrated on this host (calibrated: {known})", field="weight_dtype", value=form,
                limit=tuple(self.linear_s), remedy="run `ridgeline calibrate MODEL` with a model of that format",
            )  # fmt: skip
        if rows <= self.rows[0]:
            return at[0]
        if rows >= self.rows[-1]:
            return at[-1] * rows / self.rows[-1]
        i = next(i for i, r in enumerate(self.rows) if r > rows)
        low, high = self.rows[i - 1], self.rows[i]
        share = log(rows / low) / log(high / low)
        return exp(log(at[i - 1]) * (1 - share) + log(at[i]) * share)


@dataclass(frozen=True, slots=True)
class _Attention:
    """Equal attentions of a graph: their number, shape and window."""

    layers: int
    heads: int
    kv_heads: int
    width: int  # of key and value together
    window: int | None


class CalibratedSeconds:
    """Callable: seconds of a step of `graph` on the calibrated host. formats: encoding name of each weight matrix, by our weight names."""

    def __init__(self, graph: Graph, formats: Mapping[str, str], calibration: Calibration) -> None:
        self.calibration = calibration
        fused = fuse(graph)
        sizes = {name: prod(shape) for name, shape in manifest(fused).items()}
        late = selected_values(fused)
        self._weights: dict[tuple[str, bool], int] = {}
        self._ops, self._values, self._late_values = len(fused.ops), 0, 0
        attends: dict[_Attention, int] = {}
        caches = {c.name: c for c in fused.caches if isinstance(c, Paged)}
        widths = value_widths(fused)
        self._vocab = next((op.vocab for op in fused.ops if isinstance(op, Embed)), 0)
        for op in fused.ops:
            is_late = isinstance(op, SelectRows) or any(v in late for v in inputs(op))
            match op:
                case Linear() | LinearGroup():
                    for name in (op.weight,) if isinstance(op, Linear) else op.weights:
                        stored = fused.tied.get(name, name)
                        key = formats[stored], is_late
                        self._weights[key] = self._weights.get(key, 0) + sizes[stored]
                case Attend():
                    c = caches[op.cache]
                    shape = _Attention(1, op.heads, c.kv_heads, c.k_dim + c.v_dim, c.window)
                    attends[shape] = attends.get(shape, 0) + 1
                case CacheWrite():
                    self._values += sum(widths[v] for v in inputs(op))
                case _:
                    made = sum(widths[v] for v in results(op))
                    self._values += 0 if is_late else made
                    self._late_values += made if is_late else 0
        self._attends = tuple(_Attention(n, s.heads, s.kv_heads, s.width, s.window) for s, n in attends.items())
        for form, _ in self._weights:
            calibration.weight_seconds(form, 1)  # an uncalibrated format is refused now, not in the middle

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
        total = c.step_s + sequences * c.sequence_s + self._ops * c.op_s
        for (form, late), weights in self._weights.items():
            count = wanted if late else rows
            total += weights * c.weight_seconds(form, count) if count else 0.0
        total += (rows * self._values + wanted * self._late_values) * c.value_s
        return total + wanted * (c.sample_row_s + self._vocab * c.sample_value_s) + attention_s

    def _attention(self, a: _Attention, live: Sequence[Span], shared: Sequence[SharedWalk]) -> float:
        c = self.calibration
        keys = sum(s.past + 1 - first_needed(a.window, s.past) for s in live if s.new == 1)
        multiplied = sum(pairs(s, a.window) for s in live if s.new > 1)
        saved = sum((len(w.spans) - 1) * w.tokens for w in shared) if a.window is None else 0
        per_key = a.width * (a.kv_heads * c.key_kv_s * max(0.0, 1 - saved / max(1, keys)) + a.heads * c.key_head_s)
        return a.layers * (keys * per_key + multiplied * a.heads * a.width * c.pair_s)
