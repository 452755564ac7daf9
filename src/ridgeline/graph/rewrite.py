"""Pure graph -> graph rewrites. `fuse` changes only how many ops make a value; `without` leaves parts of a model out, for a draft of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from ridgeline.graph.graph import Graph
from ridgeline.graph.ops import Add, AddNorm, Attend, CacheWrite, Linear, LinearGroup, Op, RmsNorm, input_fields, inputs, results
from ridgeline.graph.verify import weight_names


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


def residual_sums(graph: Graph) -> tuple[str, ...]:
    """The sums of the residual stream, first to last: each adds half a layer (attention, or the rest) to what came before it."""
    made = {op.out: op for op in graph.ops if isinstance(op, Add)}
    sums, value = list[str](), graph.outputs["hidden"]
    while value in made:
        sums.append(value)
        value = made[value].a
    return tuple(reversed(sums))


def without(graph: Graph, sums: Collection[str]) -> Graph:
    """An unfused graph with these residual sums left out: each is what it would have added to, and what only its other part needed goes
    too, caches among it. Drafts of Draft & Verify (2309.08168) are made so. Of the taps "hidden" and "logits" remain."""
    renamed = dict[str, str]()
    kept = list[Op]()
    for op in graph.ops:
        reads: dict[str, Any] = {field: renamed.get(getattr(op, field), getattr(op, field)) for field in input_fields(op)}
        op = replace(op, **reads)
        if isinstance(op, Add) and op.out in sums:
            renamed[op.out] = op.a
        else:
            kept.append(op)
    outputs = {tap: renamed.get(graph.outputs[tap], graph.outputs[tap]) for tap in ("hidden", "logits")}
    ops = _needed(kept, set(outputs.values()))
    weights, caches = set(weight_names(ops)), {op.cache for op in ops if isinstance(op, Attend)}
    tied = {name: stored for name, stored in graph.tied.items() if name in weights}
    return Graph(graph.name, ops, tuple(c for c in graph.caches if c.name in caches), outputs, tied)


def _needed(ops: list[Op], values: set[str]) -> tuple[Op, ...]:
    """The ops that `values` are made of. A cache is written for those who attend to it."""
    needed, caches = list[Op](), set[str]()
    for op in reversed(ops):
        if values.intersection(results(op)) or (isinstance(op, CacheWrite) and op.cache in caches):
            needed.append(op)
            values.update(inputs(op))
            if isinstance(op, Attend):
                caches.add(op.cache)
    return tuple(reversed(needed))
