"""Decode any tensor encoding to float32: the definition that every kernel is tested against. Knows no file format and no kernel.

The results equal the public `gguf` package's `quants.dequantize` bit for bit: the same float32 products in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import numpy as np
import numpy.typing as npt

from ridgeline import encodings as enc
from ridgeline.encodings import Encoding
from ridgeline.formats.tensors import Tensor
from ridgeline.quant import decode_blocks32 as b32
from ridgeline.quant import decode_blocks256 as b256

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
# Values decoded at a time, so that the temporaries of a large tensor stay small.
CHUNK_VALUES = 1 << 17


def _f32(blocks: Bytes) -> Floats:
    return blocks.view("<f4").astype(np.float32, copy=False)


def _f16(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    return (blocks.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


# uint8 [blocks, block_bytes] -> float32 [blocks, block_size]
DECODERS: Mapping[Encoding, Callable[[Bytes], Floats]] = {
    enc.F32: _f32, enc.F16: _f16, enc.BF16: _bf16, enc.Q4_0: b32.q4_0, enc.Q4_1: b32.q4_1, enc.Q5_0: b32.q5_0, enc.Q5_1: b32.q5_1,
    enc.Q8_0: b32.q8_0, enc.IQ4_NL: b32.iq4_nl, enc.MXFP4: b32.mxfp4, enc.Q2_K: b256.q2_k, enc.Q3_K: b256.q3_k, enc.Q4_K: b256.q4_k,
    enc.Q5_K: b256.q5_k, enc.Q6_K: b256.q6_k, enc.IQ4_XS: b256.iq4_xs,
}  # fmt: skip


def decode(source: Tensor | Bytes | bytes, encoding: Encoding | None = None, columns: int | None = None) -> Floats:
    """float32 [rows, columns] of a tensor, or of raw bytes in `encoding` cut into rows of `columns` values (one row when not given).

    Raises ValueError when bytes come without an encoding, or do not make whole rows of whole blocks.
    """
    if isinstance(source, Tensor):
        return decode_rows(source.data, source.encoding)
    if encoding is None:
        raise ValueError("raw bytes need an encoding")
    data = np.frombuffer(source, dtype=np.uint8) if isinstance(source, bytes) else source.view(np.uint8)
    row_bytes = data.size if columns is None else encoding.row_bytes(columns)
    if row_bytes == 0 or data.size % row_bytes:
        raise ValueError(f"{data.size} bytes are no whole number of {encoding.name} rows of {columns} values")
    return decode_rows(data.reshape(-1, row_bytes), encoding)


def decode_tensor(tensor: Tensor) -> Floats:
    """float32 in the tensor's own shape."""
    return decode_rows(tensor.data, tensor.encoding).reshape(tensor.shape)


def decode_rows(rows: Bytes, encoding: Encoding) -> Floats:
    """uint8 [..., row_bytes] -> float32 [..., columns]. Raises ValueError when a row is no whole number of blocks."""
    per_row, rest = divmod(rows.shape[-1], encoding.block_bytes)
    if rest:
        raise ValueError(f"rows of {rows.shape[-1]} bytes are no whole number of {encoding.name} blocks of {encoding.block_bytes} bytes")
    shape = (*rows.shape[:-1], per_row * encoding.block_size)
    blocks = np.ascontiguousarray(rows).reshape(-1, encoding.block_bytes)
    out = np.empty((prod(shape) // encoding.block_size, encoding.block_size), dtype=np.float32)
    step = max(1, CHUNK_VALUES // encoding.block_size)
    decoder = DECODERS[encoding]
    # A scale may be inf or NaN in the file: it is passed on as it is, here and in the kernels.
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(blocks), step):
            out[start : start + step] = decoder(blocks[start : start + step])
    return out.reshape(shape)
