"""The reference program: walks the graph op by op and keeps every value. It defines what a step means; it is not meant to be fast."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import ridgeline.backends.reference.ops as f
from ridgeline.backends.base import LoadPlan
from ridgeline.backends.reference.pool import KvPool
from ridgeline.errors import InternalError
from ridgeline.formats.tensors import Tensor, Tensors
from ridgeline.graph.caches import Paged, cache_groups
from ridgeline.graph.graph import Graph
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
)
from ridgeline.graph.step import Span, Step
from ridgeline.graph.verify import verify
from ridgeline.quant.decode import decode_tensor
from ridgeline.sampling.plan import Sampled, SamplePlan
from ridgeline.sampling.transforms import sample_rows

Array = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


class ReferenceProgram:
    """A loaded model in numpy (`backends.base.Program`). Weights are decoded at first use and kept as float32."""

    def __init__(self, graph: Graph, tensors: Tensors, plan: LoadPlan, shared: ReferenceProgram | None = None) -> None:
        verify(graph)
        unknown = [tap for tap in plan.taps if tap not in graph.outputs]
        if unknown:
            raise InternalError(f"graph {graph.name} has no tap {unknown[0]}; it has {', '.join(graph.outputs)}")
        self.graph, self.plan = graph, plan
        self._tensors = tensors
        self._weights: dict[Tensor, Array] = {} if shared is None else shared._weights  # by tensor: programs may differ in a norm
        groups = cache_groups(graph.caches)
        if len(plan.blocks) != len(groups):
            raise InternalError(f"plan gives blocks for {len(plan.blocks)} cache groups, the graph has {len(groups)}")
        self._group = {c.name: g for g, group in enumerate(groups) for c in group.members}
        self._caches = {c.name: c for group in groups for c in group.members}
        self._pools = {name: self._pool(cache) for name, cache in self._caches.items()}
        self._values: dict[str, Array] = {}

    def _pool(self, cache: Paged) -> KvPool:
        return KvPool(cache, self.plan.blocks[self._group[cache.name]], self.plan.block_size, self.plan.kv_dtype)

    def weight(self, name: str) -> Array:
        """The decoded weight, float32, in the tensor's shape. A tied name gives the tensor it shares."""
        tensor = self._tensors[self.graph.tied.get(name, name)]
        if tensor not in self._weights:
            self._weights[tensor] = decode_tensor(tensor)
        return self._weights[tensor]

    def forward(self, step: Step) -> None:
        """Run the step. Every value of it stays readable (`value`) until the next one."""
        for copy in step.copies:
            for name, pool in self._pools.items():
                if self._group[name] == copy.group:
                    pool.copy_block(copy.src, copy.dst)
        self._values = {}
        for op in self.graph.ops:
            self._run(op, step)

    def value(self, name: str) -> Array:
        """Any value of the last forward, by its name in the graph."""
        return self._values[name]

    def logits(self) -> Array:
        return self._values[self.graph.outputs["logits"]]

    def tap(self, name: str) -> Array:
        if name not in self.plan.taps:
            raise InternalError(f"tap {name} was not asked for at load")
        return self._values[self.graph.outputs[name]]

    def sample(self, plan: SamplePlan) -> Sampled:
        return sample_rows(self.logits(), plan)

    def _run(self, op: Op, step: Step) -> None:
        values = self._values
        match op:
            case CacheWrite():
                self._write(op, step)
            case AddNorm():
                values[op.total] = values[op.a] + values[op.b]
                values[op.out] = f.rms_norm(values[op.total], self.weight(op.weight), op.eps)
            case LinearGroup():
                for out, weight, bias in zip(op.outs, op.weights, op.biases, strict=True):
                    values[out] = f.linear(values[op.x], self.weight(weight), None if bias is None else self.weight(bias))
            case _:
                values[op.out] = self._value(op, step)

    def _value(
        self,
        op: Embed | RmsNorm | Linear | Rope | Attend | Add | Activation | GatedActivation | Mul | Scale | SelectRows | Softcap,
        step: Step,
    ) -> Array:
        values = self._values
        match op:
            case Embed():
                return f.embed(step.tokens, self.weight(op.weight), op.scale)
            case RmsNorm():
                return f.rms_norm(values[op.x], self.weight(op.weight), op.eps, op.groups)
            case Linear():
                return f.linear(values[op.x], self.weight(op.weight), None if op.bias is None else self.weight(op.bias))
            case Rope():
                return f.rope(values[op.x], _positions(step), op.heads, op.inv_freq, op.scale)
            case Attend():
                return self._attend(op, step)
            case Add():
                return values[op.a] + values[op.b]
            case Activation():
                return f.activation(values[op.x], op.kind)
            case GatedActivation():
                return f.activation(values[op.gate], op.kind) * values[op.up]
            case Mul():
                return values[op.a] * values[op.b]
            case Scale():
                return values[op.x] * np.float32(op.factor)
            case SelectRows():
                return f.select_rows(values[op.x], [(s.new, s.want) for s in step.spans])
            case Softcap():
                return f.softcap(values[op.x], op.cap)

    def _write(self, op: CacheWrite, step: Step) -> None:
        k, v, row = self._values[op.k], self._values[op.v], 0
        for i, span in enumerate(step.spans):
            table = step.tables[self._group[op.cache]][i]
            rows = slice(row, row + span.new)
            self._pools[op.cache].write(table, np.arange(span.past, span.past + span.new), k[rows], v[rows])
            row += span.new

    def _attend(self, op: Attend, step: Step) -> Array:
        q, outs, row = self._values[op.q], [], 0
        for i, span in enumerate(step.spans):
            table = step.tables[self._group[op.cache]][i]
            outs.append(self._attend_span(op, span, table, q[row : row + span.new]))
            row += span.new
        return np.concatenate(outs)

    def _attend_span(self, op: Attend, span: Span, table: npt.NDArray[np.int32], q: Array) -> Array:
        """Only the keys that some query of the span may see are read: from the first one's window to the last one's own position."""
        cache = self._caches[op.cache]
        queries = np.arange(span.past, span.past + span.new)
        first = 0 if cache.window is None else max(0, span.past - cache.window + 1)
        positions = np.arange(first, span.past + span.new)
        visible = positions[None, :] <= queries[:, None]
        if cache.window is not None:
            visible &= positions[None, :] > queries[:, None] - cache.window
        keys, values = self._pools[op.cache].read(table, positions)
        per_head = q.reshape(len(q), op.heads, cache.k_dim)
        shared = op.heads // cache.kv_heads
        outs = [
            f.attend(per_head[:, h], keys[:, h // shared], values[:, h // shared], visible, op.scale, op.softcap) for h in range(op.heads)
        ]
        return np.concatenate(outs, axis=1)


def _positions(step: Step) -> Ints:
    """The position of every row of the step, int64 [T]."""
    return np.concatenate([np.arange(s.past, s.past + s.new, dtype=np.int64) for s in step.spans])


def load(graph: Graph, tensors: Tensors, plan: LoadPlan, shared: ReferenceProgram | None = None) -> ReferenceProgram:
    """Tensors are decoded lazily, so a missing one is a KeyError at its first use: `graph.manifest.check_tensors` is the check that belongs
    before. shared: another program of the same tensors, whose decoded ones are used and added to. Raises `GraphError` for an illegal
    graph."""
    return ReferenceProgram(graph, tensors, plan, shared)
