"""Pure graph -> graph rewrites. A rewrite never changes a value's meaning, only how many ops make it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ridgeline.graph.graph import Graph
from ridgeline.graph.ops import Add, AddNorm, Linear, LinearGroup, Op, RmsNorm


def fuse(graph: Graph) -> Graph:
    """Linears that follow one another and read one value become a `LinearGroup`; an Add and the norm of its sum become an `AddNorm`."""
    return replace(graph, ops=_add_norms(_linear_groups(graph.ops)))


def _linear_groups(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Later readers of x move up to the first one: x is ready there, and nobody reads their results before."""
    readers: dict[str, list[Linear]] = {}
    for op in ops:
        if isinstance(op, Linear):
            readers.setdefault(op.x, []).append(op)
    fused: list[Op] = []
    for op in ops:
        if not isinstance(op, Linear) or len(readers[op.x]) == 1:
            fused.append(op)
        elif op is readers[op.x][0]:
            fused.append(_group(readers[op.x]))
    return tuple(fused)


def _group(members: list[Linear]) -> LinearGroup:
    return LinearGroup(
        outs=tuple(m.out for m in members),
        x=members[0].x,
        weights=tuple(m.weight for m in members),
        in_dim=members[0].in_dim,
        out_dims=tuple(m.out_dim for m in members),
        biases=tuple(m.bias for m in members),
    )


def _add_norms(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """The norm moves up to the Add. A sum normed twice stays as it is: which norm would join is not obvious."""
    norms = Counter(op.x for op in ops if isinstance(op, RmsNorm) and op.groups == 1)
    norm_of = {op.x: op for op in ops if isinstance(op, RmsNorm) and op.groups == 1 and norms[op.x] == 1}
    joined = {op.out for op in ops if isinstance(op, Add) and op.out in norm_of}
    fused: list[Op] = []
    for op in ops:
        if isinstance(op, Add) and op.out in joined:
            norm = norm_of[op.out]
            fused.append(AddNorm(op.out, norm.out, op.a, op.b, norm.weight, norm.dim, norm.eps))
        elif not (isinstance(op, RmsNorm) and op.groups == 1 and op.x in joined):
            fused.append(op)
    return tuple(fused)
