"""Which buffer each value lives in, so that a step needs a few buffers instead of one per value. Knows widths, not bytes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ridgeline.graph.graph import Graph
from ridgeline.graph.ops import inputs, results
from ridgeline.graph.verify import selected_values, value_widths


@dataclass(frozen=True, slots=True)
class Buffers:
    """`index[value]` is a buffer; `widths[b]` the numbers per row it needs; `selected[b]` whether its rows are the wanted logits rows.

    Values whose lives overlap never share a buffer, and an op's results never share one with its inputs.
    """

    index: Mapping[str, int]
    widths: tuple[int, ...]
    selected: tuple[bool, ...]


def assign_buffers(graph: Graph, keep: Collection[str] = ()) -> Buffers:
    """Walk the ops once; a value frees its buffer after its last reader. Values in `keep` (taps asked for) are never freed.

    A value nobody reads is freed at once. Raises `GraphError` for an illegal graph, KeyError for an unknown name in `keep`.
    """
    widths, selected = value_widths(graph), selected_values(graph)
    kept = {name for name in keep if widths[name] > 0}
    last = {value: i for i, op in enumerate(graph.ops) for value in (*results(op), *inputs(op))}
    index: dict[str, int] = {}
    sizes: list[int] = []
    pools: list[bool] = []
    free: list[int] = []
    for i, op in enumerate(graph.ops):
        for value in results(op):
            buffer = _pick(free, sizes, pools, widths[value], value in selected)
            if buffer is None:
                sizes.append(0)
                pools.append(value in selected)
                buffer = len(sizes) - 1
            else:
                free.remove(buffer)
            index[value] = buffer
            sizes[buffer] = max(sizes[buffer], widths[value])
        ended = dict.fromkeys(v for v in (*inputs(op), *results(op)) if last[v] == i and v not in kept)
        free += [index[value] for value in ended]
    return Buffers(index, tuple(sizes), tuple(pools))


def _pick(free: list[int], sizes: list[int], pools: list[bool], width: int, selected: bool) -> int | None:
    """The narrowest free buffer of the pool that fits, else the widest (it grows)."""
    mine = [b for b in free if pools[b] == selected]
    fits = [b for b in mine if sizes[b] >= width]
    if fits:
        return min(fits, key=lambda b: sizes[b])
    return max(mine, key=lambda b: sizes[b], default=None)
