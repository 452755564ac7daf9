"""Decoders of the encodings with 256 values per block. Each takes uint8 [n, block_bytes] and gives float32 [n, 256].

Source: the block structs of ggml (ggml-common.h). A block is cut into groups of 16 or 32 values with a scale (and minimum) each.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ridgeline.quant.decode_blocks32 import IQ4_VALUES, Bytes, Floats, half

_PAIRS = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
_BITS = np.arange(8, dtype=np.uint8)[:, None]
_HALVES = np.array([[0], [4]], dtype=np.uint8)


def _fields(packed: Bytes, width: int, shifts: Bytes, mask: int) -> Bytes:
    """Bit fields of bytes: in every run of `width` bytes, field s of all its bytes comes before field s + 1. [n, 256]."""
    runs = packed.reshape(len(packed), -1, 1, width)
    return ((runs >> shifts) & np.uint8(mask)).reshape(len(packed), -1)


def _grouped(scale: Floats, codes: npt.NDArray[np.generic]) -> Floats:
    """scale [n, groups] times codes [n, 256] as float32, [n, groups, values]."""
    scaled: Floats = scale[:, :, None] * codes.astype(np.float32).reshape(len(codes), scale.shape[1], -1)
    return scaled


def _scales_and_mins(packed: Bytes) -> tuple[Floats, Floats]:
    """12 bytes -> eight 6-bit scales and eight 6-bit minima, [n, 8] each.

    Bytes 0-3 and 4-7 hold the first four of each in their low 6 bits; the nibbles of bytes 8-11 are the low bits of the other
    four, whose high 2 bits are the top bits of bytes 0-7.
    """
    first, second, mixed = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate((first & 63, (mixed & 15) | ((first >> 6) << 4)), axis=1)
    mins = np.concatenate((second & 63, (mixed >> 4) | ((second >> 6) << 4)), axis=1)
    return scales.astype(np.float32), mins.astype(np.float32)


def q2_k(blocks: Bytes) -> Floats:
    """16 bytes of 4-bit scale and minimum, 64 bytes of 2-bit codes, f16 d, f16 dmin: (d * s) * q - dmin * m, groups of 16."""
    scales, codes = blocks[:, :16], _fields(blocks[:, 16:80], 32, _PAIRS, 3)
    scale = half(blocks, 80) * (scales & 15).astype(np.float32)
    minimum = half(blocks, 82) * (scales >> 4).astype(np.float32)
    return (_grouped(scale, codes) - minimum[:, :, None]).reshape(len(blocks), 256)


def q3_k(blocks: Bytes) -> Floats:
    """32 bytes of third bits, 64 bytes of 2-bit codes, 12 bytes of signed 6-bit scales, f16 d: (d * s) * q, groups of 16.

    A third bit that is clear takes 4 from the code.
    """
    third, low, packed = _fields(blocks[:, :32], 32, _BITS, 1), _fields(blocks[:, 32:96], 32, _PAIRS, 3), blocks[:, 96:108]
    codes = (low | (third << 2)).astype(np.int8) - np.int8(4)
    high = (packed[:, None, 8:] >> _PAIRS).reshape(len(blocks), 16) & 3
    low_scale = np.concatenate((packed[:, :8] & 15, packed[:, :8] >> 4), axis=1)
    scales = (low_scale | (high << 4)).astype(np.int8) - np.int8(32)
    return _grouped(half(blocks, 108) * scales.astype(np.float32), codes).reshape(len(blocks), 256)


def q4_k(blocks: Bytes) -> Floats:
    """f16 d, f16 dmin, 12 bytes of 6-bit scales and minima, 128 bytes of nibbles: (d * s) * q - dmin * m, groups of 32."""
    scales, mins = _scales_and_mins(blocks[:, 4:16])
    codes = _fields(blocks[:, 16:], 32, _HALVES, 15)
    return (_grouped(half(blocks, 0) * scales, codes) - (half(blocks, 2) * mins)[:, :, None]).reshape(len(blocks), 256)


def q5_k(blocks: Bytes) -> Floats:
    """As Q4_K, with 32 bytes of fifth bits before the nibbles."""
    scales, mins = _scales_and_mins(blocks[:, 4:16])
    codes = _fields(blocks[:, 48:], 32, _HALVES, 15) | (_fields(blocks[:, 16:48], 32, _BITS, 1) << 4)
    return (_grouped(half(blocks, 0) * scales, codes) - (half(blocks, 2) * mins)[:, :, None]).reshape(len(blocks), 256)


def q6_k(blocks: Bytes) -> Floats:
    """128 bytes of nibbles, 64 bytes of 2-bit high parts, 16 signed byte scales, f16 d: (d * s) * (q - 32), groups of 16."""
    codes = _fields(blocks[:, :128], 64, _HALVES, 15) | (_fields(blocks[:, 128:192], 32, _PAIRS, 3) << 4)
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    return _grouped(half(blocks, 208) * scales, codes.astype(np.int8) - np.int8(32)).reshape(len(blocks), 256)


def iq4_xs(blocks: Bytes) -> Floats:
    """f16 d, u16 of 2-bit scale tops, 4 bytes of scale nibbles, 128 bytes of nibbles: (d * (s - 32)) * table[q], groups of 32."""
    tops = np.ascontiguousarray(blocks[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16)
    low = np.stack((blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4), axis=2).reshape(len(blocks), 8)
    scales = (low | ((tops & 3).astype(np.uint8) << 4)).astype(np.int8) - np.int8(32)
    values = IQ4_VALUES[_fields(blocks[:, 8:], 16, _HALVES, 15)]
    return _grouped(half(blocks, 0) * scales.astype(np.float32), values).reshape(len(blocks), 256)
