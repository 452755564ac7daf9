"""Decoders of the encodings with 32 values per block. Each takes uint8 [n, block_bytes] and gives float32 [n, 32].

Source: the block structs of ggml (ggml-common.h) and, for MXFP4, the OCP Microscaling Formats specification 1.0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
# The 16 values of the non-linear 4-bit formats.
IQ4_VALUES: Floats = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)
# E2M1 values, doubled to be whole numbers; the scale table is halved in turn.
FP4_VALUES: Floats = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.float32)
E8M0_HALF: Floats = np.ldexp(1.0, np.arange(256) - 128).astype(np.float32)


def half(blocks: Bytes, at: int) -> Floats:
    """The f16 at byte `at` of each block, [n, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def nibbles(codes: Bytes) -> Bytes:
    """[n, 16] -> [n, 32]: the low nibbles are the first half, the high nibbles the second."""
    return np.concatenate((codes & 15, codes >> 4), axis=1)


def _five_bits(low: Bytes, high: Bytes) -> Bytes:
    """[n, 16] nibbles and [n, 4] bytes of fifth bits -> codes 0 to 31, [n, 32]."""
    return nibbles(low) | (np.unpackbits(high, axis=1, bitorder="little") << np.uint8(4))


def q4_0(blocks: Bytes) -> Floats:
    """f16 d, 16 bytes of nibbles: d * (q - 8)."""
    return half(blocks, 0) * (nibbles(blocks[:, 2:]).astype(np.float32) - np.float32(8))


def q4_1(blocks: Bytes) -> Floats:
    """f16 d, f16 m, 16 bytes of nibbles: d * q + m."""
    return half(blocks, 0) * nibbles(blocks[:, 4:]).astype(np.float32) + half(blocks, 2)


def q5_0(blocks: Bytes) -> Floats:
    """f16 d, 4 bytes of fifth bits, 16 bytes of nibbles: d * (q - 16)."""
    return half(blocks, 0) * (_five_bits(blocks[:, 6:], blocks[:, 2:6]).astype(np.float32) - np.float32(16))


def q5_1(blocks: Bytes) -> Floats:
    """f16 d, f16 m, 4 bytes of fifth bits, 16 bytes of nibbles: d * q + m."""
    return half(blocks, 0) * _five_bits(blocks[:, 8:], blocks[:, 4:8]).astype(np.float32) + half(blocks, 2)


def q8_0(blocks: Bytes) -> Floats:
    """f16 d, 32 signed bytes: d * q."""
    return blocks[:, 2:].view(np.int8).astype(np.float32) * half(blocks, 0)


def iq4_nl(blocks: Bytes) -> Floats:
    """f16 d, 16 bytes of nibbles that index a table: d * table[q]."""
    return half(blocks, 0) * IQ4_VALUES[nibbles(blocks[:, 2:])]


def mxfp4(blocks: Bytes) -> Floats:
    """E8M0 scale (a power of two), 16 bytes of E2M1 nibbles. A scale of 255 (NaN in the specification) is 2**128, as ggml reads it."""
    return E8M0_HALF[blocks[:, :1]] * FP4_VALUES[nibbles(blocks[:, 1:])]
