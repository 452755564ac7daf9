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
    data: uint8 [rows, row_bytes], where rows is the product of shape[:-1].
    origin: file and tensor name, for error messages.
    """

    name: str
    shape: tuple[int, ...]
    encoding: Encoding
    data: npt.NDArray[np.uint8]
    origin: str = ""

    @property
    def rows(self) -> int:
        return int(self.data.shape[0])

    @property
    def columns(self) -> int:
        return self.shape[-1]

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)

    def check(self) -> None:
        """Raises `FileFormatError` for rows that are no whole blocks of the encoding, or bytes that are not those of the shape."""
        where, encoding, have = f"{self.origin or self.name}: ", self.encoding, self.data
        if self.columns % encoding.block_size:
            text = f"has rows of {self.columns} values, {encoding.name} needs multiples of {encoding.block_size}"
            limit, remedy = encoding.block_size, "quantize the model again"
            raise FileFormatError(where + text, field=self.name, value=self.columns, limit=limit, remedy=remedy)
        want = (prod(self.shape[:-1]), encoding.row_bytes(self.columns))
        if have.dtype != np.uint8 or have.shape != want:
            text = f"has {have.dtype} data of {list(have.shape)}, its shape {list(self.shape)} in {encoding.name} is uint8 {list(want)}"
            raise FileFormatError(where + text, field=self.name, value=have.shape, limit=want)

    def take_rows(self, index: slice | npt.NDArray[np.int64]) -> Tensor:
        """The same bytes for a range (a view) or an order (a copy) along the first dimension; nothing is decoded or requantized.

        What is taken of [n, a, b] are whole [a, b] parts, a * rows of bytes each."""
        if len(self.shape) == 1:
            data = self._elements()[index].reshape(1, -1)
            return replace(self, data=data, shape=(data.shape[1] // self.encoding.block_bytes,))
        parts = self.data.reshape(self.shape[0], -1, self.data.shape[1])[index]
        return replace(self, data=parts.reshape(-1, self.data.shape[1]), shape=(len(parts), *self.shape[1:]))

    def _elements(self) -> npt.NDArray[np.uint8]:
        """A float vector as uint8 [elements, bytes per element]."""
        if not self.encoding.is_float:
            raise ValueError(f"{self.origin or self.name}: elements of a {self.encoding.name} vector cannot be reordered")
        return self.data.reshape(-1, self.encoding.block_bytes)


Tensors = Mapping[str, Tensor]
