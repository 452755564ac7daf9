"""What a legal graph is: one rule per op kind, checked in order. Knows shapes and names only; reads no weights.

`value_widths` is the same walk: the width of every value follows from the ops alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from ridgeline.errors import InternalError
from ridgeline.graph.caches import Paged
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
    inputs,
    results,
)


class GraphError(InternalError):
    """A graph breaks a rule. The message names the graph, the op and the rule."""


@dataclass
class _Walk:
    """What is known after the ops so far: widths of values, which were selected, caches declared and written."""

    graph: Graph
    widths: dict[str, int] = field(default_factory=dict)
    selected: set[str] = field(default_factory=set)
    caches: dict[str, Paged] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    op: Op | None = None
    index: int = -1

    def need(self, holds: bool, rule: str) -> None:
        if not holds:
            where = "" if self.op is None else f" op {self.index} ({type(self.op).__name__} -> {', '.join(results(self.op)) or '-'}):"
            raise GraphError(f"graph {self.graph.name}:{where} {rule}")

    def width(self, value: str, want: int) -> None:
        have = self.widths[value]
        self.need(have == want, f"{value} is {have} wide, {want} needed")

    def positive(self, **facts: float) -> None:
        for name, value in facts.items():
            self.need(math.isfinite(value) and value > 0, f"{name} is {value}, must be positive")


def verify(graph: Graph) -> None:
    """Raise `GraphError` unless: values are assigned once and before use; widths agree; caches exist, fit and are written exactly once,
    before they are read; rows are selected once and selected rows never meet unselected ones; taps and tied weights exist."""
    walk = _walk(graph)
    for tap, value in graph.outputs.items():
        walk.need(value in walk.widths, f"tap {tap} shows {value}, which no op makes")
    weights = set(weight_names(graph.ops))
    for name, target in graph.tied.items():
        walk.need(name in weights, f"tied weight {name} is used by no op")
        walk.need(target in weights and target not in graph.tied, f"{name} is tied to {target}, which is no weight of its own")
    for cache in walk.caches:
        walk.need(cache in walk.written and cache in walk.read, f"cache {cache} is declared but not both written and read")


def value_widths(graph: Graph) -> dict[str, int]:
    """Width of every value (numbers per row). Raises `GraphError` as `verify` does."""
    return _walk(graph).widths


def selected_values(graph: Graph) -> frozenset[str]:
    """Values that have a row per wanted logits row instead of a row per token."""
    return frozenset(_walk(graph).selected)


def weight_names(ops: Iterable[Op]) -> tuple[str, ...]:
    """Weights and biases that the ops name, in order, each once."""
    names: list[str | None] = []
    for op in ops:
        match op:
            case Embed() | RmsNorm() | AddNorm():
                names.append(op.weight)
            case Linear():
                names += [op.weight, op.bias]
            case LinearGroup():
                names += [*op.weights, *op.biases]
            case _:
                pass
    return tuple(dict.fromkeys(n for n in names if n is not None))


def _walk(graph: Graph) -> _Walk:
    walk = _Walk(graph)
    for cache in graph.caches:
        walk.need(cache.name not in walk.caches, f"cache {cache.name} is declared twice")
        if isinstance(cache, Paged):
            walk.positive(kv_heads=cache.kv_heads, k_dim=cache.k_dim, v_dim=cache.v_dim)
            walk.need(cache.window is None or cache.window >= 1, f"cache {cache.name} has window {cache.window}")
            walk.need(not cache.v_aliases_k or cache.v_dim <= cache.k_dim, f"cache {cache.name}: values do not fit in its keys")
            walk.caches[cache.name] = cache
    for index, op in enumerate(graph.ops):
        walk.op, walk.index = op, index
        for value in inputs(op):
            walk.need(value in walk.widths, f"{value} is used before it is made")
        made = _check(walk, op)
        rows = {value in walk.selected for value in inputs(op)}
        walk.need(len(rows) <= 1, "selected rows meet unselected rows")
        for value, width in zip(results(op), made, strict=True):
            walk.need(value not in walk.widths, f"{value} is assigned twice")
            walk.widths[value] = width
            if rows == {True} or isinstance(op, SelectRows):
                walk.selected.add(value)
    walk.op = None
    return walk


def _check(walk: _Walk, op: Op) -> tuple[int, ...]:
    """The legality row of one op; returns the widths of its results."""
    match op:
        case Embed():
            walk.positive(vocab=op.vocab, dim=op.dim)
            walk.need(math.isfinite(op.scale), f"scale is {op.scale}")
            return (op.dim,)
        case RmsNorm():
            walk.positive(dim=op.dim, groups=op.groups, eps=op.eps)
            walk.width(op.x, op.groups * op.dim)
            return (op.groups * op.dim,)
        case Linear():
            walk.positive(in_dim=op.in_dim, out_dim=op.out_dim)
            walk.width(op.x, op.in_dim)
            return (op.out_dim,)
        case LinearGroup():
            walk.need(len(op.outs) == len(op.weights) == len(op.out_dims) == len(op.biases) >= 2, "a group needs two members of each")
            walk.width(op.x, op.in_dim)
            return op.out_dims
        case Rope():
            walk.positive(heads=op.heads, head_dim=op.head_dim, scale=op.scale)
            walk.need(0 < 2 * len(op.inv_freq) <= op.head_dim, f"{len(op.inv_freq)} frequencies for a head of {op.head_dim}")
            walk.need(all(math.isfinite(f) and f >= 0 for f in op.inv_freq), "a frequency is negative or not finite")
            walk.width(op.x, op.heads * op.head_dim)
            return (op.heads * op.head_dim,)
        case CacheWrite() | Attend():
            return _check_cache(walk, op)
        case AddNorm():
            walk.positive(dim=op.dim, eps=op.eps)
            walk.width(op.a, op.dim)
            walk.width(op.b, op.dim)
            return (op.dim, op.dim)
        case Add() | Mul():
            walk.width(op.b, walk.widths[op.a])
            return (walk.widths[op.a],)
        case GatedActivation():
            walk.width(op.up, walk.widths[op.gate])
            return (walk.widths[op.gate],)
        case SelectRows():
            walk.need(op.x not in walk.selected, f"{op.x} was selected already")
            return (walk.widths[op.x],)
        case Softcap():
            walk.positive(cap=op.cap)
            return (walk.widths[op.x],)
        case Activation() | Scale():
            return (walk.widths[op.x],)


def _check_cache(walk: _Walk, op: CacheWrite | Attend) -> tuple[int, ...]:
    walk.need(op.cache in walk.caches, f"there is no paged cache {op.cache}")
    cache = walk.caches[op.cache]
    walk.need(not walk.selected.intersection(inputs(op)), "a cache needs the rows of all tokens")
    if isinstance(op, CacheWrite):
        walk.need(op.cache not in walk.written, f"cache {op.cache} is written twice")
        walk.written.add(op.cache)
        walk.width(op.k, cache.kv_heads * cache.k_dim)
        walk.width(op.v, cache.kv_heads * cache.v_dim)
        return ()
    walk.need(op.cache in walk.written, f"cache {op.cache} is read before this step's keys are written")
    walk.read.add(op.cache)
    walk.positive(heads=op.heads, scale=op.scale, softcap=1.0 if op.softcap is None else op.softcap)
    walk.need(op.heads % cache.kv_heads == 0, f"{op.heads} query heads cannot share {cache.kv_heads} KV heads evenly")
    walk.width(op.q, op.heads * cache.k_dim)
    return (op.heads * cache.v_dim,)
