"""A tensor of a checkpoint: a name, a shape, an encoding and the raw bytes of its rows. Knows no decoder and no file format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import numpy.typing as npt

from ridgeline.encodings import Encoding
from ridgeline.errors import FileFormatError


@dataclass(frozen=True, eq=False)
class Tensor:
    """Raw rows of one tensor, usually a read-only view into a memory-mapped file.

    shape: outermost first, numpy order; the last dimension is the contiguous one (a Linear's in_dim). A vector has one row.
    stored: uint8 [rows, row_bytes], where rows is the product of shape[:-1].
    origin: file and tensor name, for error messages.
    order: places in `stored` of the rows that are meant, in their order; None for all as they lie.
    """

    name: str
    shape: tuple[int, ...]
    encoding: Encoding
    stored: npt.NDArray[np.uint8]
    origin: str = ""
    order: npt.NDArray[np.int64] | None = None

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """uint8 [rows, row_bytes], as meant: a view of what is stored, or a fresh copy where rows change places."""
        return self.bytes_of(0, self.rows)

    def bytes_of(self, first: int, last: int) -> npt.NDArray[np.uint8]:
        """As `data`, of the rows [first, last) only."""
        return self.stored[first:last] if self.order is None else self.stored[self.order[first:last]]

    @property
    def rows(self) -> int:
        return int(self.stored.shape[0]) if self.order is None else len(self.order)

    @property
    def columns(self) -> int:
        return self.shape[-1]

    @property
    def nbytes(self) -> int:
        return self.rows * int(self.stored[:1].nbytes)

    def check(self) -> None:
        """Raises `FileFormatError` for rows that are no whole blocks of the encoding, or bytes that are not those of the shape."""
        where, encoding, have = f"{self.origin or self.name}: ", self.encoding, self.stored
        if self.columns % encoding.block_size:
            text = f"has rows of {self.columns} values, {encoding.name} needs multiples of {encoding.block_size}"
            limit, remedy = encoding.block_size, "quantize the model again"
            raise FileFormatError(where + text, field=self.name, value=self.columns, limit=limit, remedy=remedy)
        want = (prod(self.shape[:-1]), encoding.row_bytes(self.columns))
        shape = (self.rows, *have.shape[1:])
        if have.dtype != np.uint8 or shape != want:
            text = f"has {have.dtype} data of {list(shape)}, its shape {list(self.shape)} in {encoding.name} is uint8 {list(want)}"
            raise FileFormatError(where + text, field=self.name, value=shape, limit=want)

    def take_rows(self, index: slice | npt.NDArray[np.int64]) -> Tensor:
        """The same bytes for a range or an order along the first dimension; nothing is decoded or requantized, and no matrix is copied.

        What is taken of [n, a, b] are whole [a, b] parts, a * rows of bytes each."""
        if len(self.shape) == 1:
            stored = self._elements()[index].reshape(1, -1)
            return replace(self, stored=stored, shape=(stored.shape[1] // self.encoding.block_bytes,))
        each = prod(self.shape[1:-1])
        if isinstance(index, slice) and self.order is None:
            part = self.stored.reshape(self.shape[0], each, -1)[index]
            return replace(self, stored=part.reshape(-1, self.stored.shape[1]), shape=(len(part), *self.shape[1:]))
        places = np.arange(self.rows) if self.order is None else self.order
        taken = places.reshape(self.shape[0], each)[index]
        return replace(self, order=taken.reshape(-1), shape=(len(taken), *self.shape[1:]))

    def _elements(self) -> npt.NDArray[np.uint8]:
        """A float vector as uint8 [elements, bytes per element]."""
        if not self.encoding.is_float:
            raise ValueError(f"{self.origin or self.name}: elements of a {self.encoding.name} vector cannot be reordered")
        return self.stored.reshape(-1, self.encoding.block_bytes)


Tensors = Mapping[str, Tensor]
