"""The tensors of a checkpoint while a model is read: what was taken, in which row order, and what is left over.

Rows are moved whole and never requantized. Knows the name tables' `Source`; knows no model.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ridgeline.encodings import F32
from ridgeline.errors import FileFormatError
from ridgeline.formats.names import NameTable, Source
from ridgeline.formats.tensors import Tensor, Tensors
from ridgeline.graph.graph import Graph
from ridgeline.graph.manifest import Shape, check_tensors, manifest
from ridgeline.quant.decode import decode_tensor


class Store:
    """A checkpoint's tensors by their own names, and the names used so far."""

    def __init__(self, tensors: Tensors, origin: str) -> None:
        self.tensors, self.origin = tensors, origin
        self.used: set[str] = set()

    def has(self, name: str) -> bool:
        return name in self.tensors

    def shape(self, name: str, dims: int) -> Shape:
        """Shape of a tensor that must exist with `dims` dimensions."""
        if name not in self.tensors:
            raise FileFormatError(f"{self.origin}: tensor {name} is missing", field=name)
        shape = self.tensors[name].shape
        if len(shape) != dims:
            raise FileFormatError(f"{self.origin}: tensor {name} has shape {list(shape)}, needs {dims} dimensions", field=name, value=shape)
        return shape

    def vector(self, name: str, length: int) -> npt.NDArray[np.float64]:
        """A small tensor of `length` positive numbers, decoded and marked as used."""
        self.used.add(name)
        have = self.shape(name, 1)[0]
        if have != length:
            message = f"{self.origin}: tensor {name} has {have} numbers, must have {length}"
            raise FileFormatError(message, field=name, value=have, limit=length)
        values = decode_tensor(self.tensors[name]).astype(np.float64)
        if not np.all(np.isfinite(values) & (values > 0)):
            raise FileFormatError(f"{self.origin}: tensor {name} holds a number that is not positive", field=name)
        return values

    def ignore(self, names: Collection[str]) -> None:
        self.used.update(n for n in names if n in self.tensors)


def collect(graph: Graph, table: NameTable, store: Store, head_dim: int) -> dict[str, Tensor]:
    """Our weight name -> tensor, in the row order the graph means, for exactly the graph's manifest.

    Raises `FileFormatError` naming tensors that are missing, left over, or of another shape. `head_dim` is that of queries and keys.
    """
    wanted = manifest(graph)
    places = {ours: _place(ours, table, store) for ours in wanted}
    stored_shapes = {source.name: _stored_shape(source, ours, wanted) for ours, source in places.items()}
    have = {n: t.shape for n, t in store.tensors.items() if n in stored_shapes or n not in store.used}
    check_tensors(stored_shapes, have, store.origin)
    tensors = {ours: _take(store.tensors[source.name], source, ours, wanted, head_dim) for ours, source in places.items()}
    check_tensors(wanted, {ours: t.shape for ours, t in tensors.items()}, store.origin)
    return tensors


def _place(ours: str, table: NameTable, store: Store) -> Source:
    """The first place of the table that the checkpoint has, else the first of all (which is then reported missing)."""
    layer = re.search(r"\.(\d+)\.", ours)
    number = layer.group(1) if layer else ""
    key = ours.replace(f".{number}.", ".{i}.") if layer else ours
    places = [replace(s, name=s.name.replace("{i}", number)) for s in table.get(key, ())]
    if not places:
        raise FileFormatError(f"{store.origin}: this kind of file has no name for weight {ours}", field=ours)
    return next((s for s in places if store.has(s.name)), places[0])


_PARTS = {
    "q_of_qkv": (("q", "k", "v"), 0), "k_of_qkv": (("q", "k", "v"), 1), "v_of_qkv": (("q", "k", "v"), 2),
    "gate_of_pair": (("gate", "up"), 0), "up_of_pair": (("gate", "up"), 1),
}  # fmt: skip


def _rows_of(source: Source, ours: str, wanted: dict[str, Shape]) -> list[int]:
    """Row counts of the weights that share the tensor, in their order."""
    members, _ = _PARTS[source.part]
    return [wanted[ours.rpartition(".")[0] + "." + m][0] for m in members]


def _stored_shape(source: Source, ours: str, wanted: dict[str, Shape]) -> Shape:
    return wanted[ours] if source.part == "whole" else (sum(_rows_of(source, ours, wanted)), *wanted[ours][1:])


def _take(tensor: Tensor, source: Source, ours: str, wanted: dict[str, Shape], head_dim: int) -> Tensor:
    if source.part != "whole":
        counts, member = _rows_of(source, ours, wanted), _PARTS[source.part][1]
        start = sum(counts[:member])
        tensor = tensor.take_rows(slice(start, start + counts[member]))
    if source.interleaved_heads:
        tensor = tensor.take_rows(half_split_order(wanted[ours][0], head_dim))
    if source.add_one:
        values = decode_tensor(tensor) + np.float32(1)
        tensor = replace(tensor, encoding=F32, stored=values.reshape(1, -1).view(np.uint8))
    return replace(tensor, name=ours)


def half_split_order(rows: int, head_dim: int) -> npt.NDArray[np.int64]:
    """Row order that turns heads stored as (0, d/2, 1, d/2 + 1, ...) into (0, 1, ..., d - 1)."""
    order = np.arange(rows, dtype=np.int64).reshape(-1, head_dim // 2, 2)
    return order.transpose(0, 2, 1).reshape(-1)
