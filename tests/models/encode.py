"""Makes random matrices in any encoding: round-to-nearest for the plain ones, random codes under sane scales for the rest."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ridgeline.encodings import BF16, BY_NAME, F16, F32, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Encoding
from ridgeline.formats.tensors import Tensor

Array = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

# Where a block keeps its scales, and how large a random code is: (offset of d, offset of dmin or None, d per unit of std, dmin per d)
_SCALED = {
    "Q2_K": (80, 82, 1 / 11, 1.5), "Q3_K": (108, None, 1 / 43, 0.0), "Q4_K": (0, 2, 1 / 190, 7.5), "Q5_K": (0, 2, 1 / 390, 15.5),
    "Q6_K": (208, None, 1 / 1360, 0.0), "IQ4_NL": (0, None, 1 / 70, 0.0), "IQ4_XS": (0, None, 1 / 1290, 0.0),
}  # fmt: skip


def encode(values: Array, encoding: Encoding) -> Bytes:
    """values [rows, columns] -> uint8 [rows, row_bytes], rounded to nearest. Only F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0."""
    rows = len(values)
    if encoding is F32:
        return np.ascontiguousarray(values, dtype="<f4").view(np.uint8).reshape(rows, -1)
    if encoding is F16:
        return values.astype("<f2").view(np.uint8).reshape(rows, -1)
    if encoding is BF16:
        bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
        half = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
        return half.view(np.uint8).reshape(rows, -1)
    blocks = values.reshape(-1, 32)
    if encoding is Q8_0:
        d, codes = _symmetric(blocks, 127)
        return np.hstack([d, codes.astype(np.int8).view(np.uint8)]).reshape(rows, -1)
    bits_per_code = 4 if encoding in (Q4_0, Q4_1) else 5
    if encoding in (Q4_0, Q5_0):
        middle = 1 << (bits_per_code - 1)
        d, signed = _symmetric(blocks, middle - 1)
        head, codes = d, (signed + middle).astype(np.uint8)
    elif encoding in (Q4_1, Q5_1):
        low, high = blocks.min(axis=1, keepdims=True), blocks.max(axis=1, keepdims=True)
        step = ((high - low) / (2**bits_per_code - 1)).astype(np.float16)
        codes = np.clip(np.rint((blocks - low) / np.maximum(step.astype(np.float32), 1e-12)), 0, 2**bits_per_code - 1).astype(np.uint8)
        head = np.hstack([step.view(np.uint8), low.astype(np.float16).view(np.uint8)])
    else:
        raise ValueError(f"no rounding for {encoding.name}")
    nibbles = (codes[:, :16] & 15) | ((codes[:, 16:] & 15) << 4)
    high_bits = np.packbits(codes >> 4, axis=1, bitorder="little") if bits_per_code == 5 else np.empty((len(blocks), 0), np.uint8)
    return np.hstack([head, high_bits, nibbles]).reshape(rows, -1)


def _symmetric(blocks: Array, largest: int) -> tuple[Bytes, Array]:
    d = (np.abs(blocks).max(axis=1, keepdims=True) / largest).astype(np.float16)
    codes = np.clip(np.rint(blocks / np.maximum(d.astype(np.float32), 1e-12)), -largest, largest)
    return d.view(np.uint8), codes.astype(np.float32)


def random_matrix(rng: np.random.Generator, name: str, rows: int, columns: int, encoding: str = "F32", std: float | None = None) -> Tensor:
    """A matrix of standard deviation about `std` (default columns ** -0.5) in `encoding`."""
    kind, std = BY_NAME[encoding], columns**-0.5 if std is None else std
    if encoding in _SCALED or encoding == "MXFP4":
        data = _random_codes(rng, kind, rows, columns, std)
    else:
        data = encode((rng.standard_normal((rows, columns)) * std).astype(np.float32), kind)
    return Tensor(name, (rows, columns), kind, data, name)


def _random_codes(rng: np.random.Generator, kind: Encoding, rows: int, columns: int, std: float) -> Bytes:
    blocks = rng.integers(0, 256, (rows * columns // kind.block_size, kind.block_bytes), dtype=np.uint8)
    if kind.name == "MXFP4":
        # E8M0: the byte is the exponent + 127; codes of this grid have a standard deviation of about 2.9.
        blocks[:, 0] = int(np.rint(np.log2(std / 2.9))) + 127
        return blocks.reshape(rows, -1)
    at, at_min, per_std, min_per_d = _SCALED[kind.name]
    d = (std * per_std * rng.uniform(0.6, 1.4, len(blocks))).astype("<f2")
    blocks[:, at : at + 2] = d[:, None].view(np.uint8)
    if at_min is not None:
        blocks[:, at_min : at_min + 2] = (d * np.float16(min_per_d)).astype("<f2")[:, None].view(np.uint8)
    return blocks.reshape(rows, -1)


def vector(name: str, values: Array) -> Tensor:
    """A float32 vector."""
    data = np.ascontiguousarray(values, dtype="<f4").view(np.uint8).reshape(1, -1)
    return Tensor(name, values.shape, F32, data, name)
