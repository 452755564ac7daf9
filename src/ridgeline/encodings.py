"""Tensor encodings: block size, bytes per block and GGML number of every format we read. Knows no decoder: those are in `quant/decode`.

Source of numbers and sizes: the GGUF specification (ggml-org/ggml docs/gguf.md) and the public `gguf` package's constants.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a row of values is stored: blocks of `block_size` values, each `block_bytes` long, along the contiguous dimension."""

    name: str
    ggml_id: int
    block_size: int
    block_bytes: int

    @property
    def bits_per_value(self) -> float:
        return 8 * self.block_bytes / self.block_size

    @property
    def is_float(self) -> bool:
        return self.block_size == 1

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of `columns` values. Raises ValueError unless `columns` is a multiple of the block size."""
        blocks, rest = divmod(columns, self.block_size)
        if rest:
            raise ValueError(f"{self.name} needs rows in multiples of {self.block_size} values, got {columns}")
        return blocks * self.block_bytes


F32 = Encoding("F32", 0, 1, 4)
F16 = Encoding("F16", 1, 1, 2)
BF16 = Encoding("BF16", 30, 1, 2)
Q4_0 = Encoding("Q4_0", 2, 32, 18)
Q4_1 = Encoding("Q4_1", 3, 32, 20)
Q5_0 = Encoding("Q5_0", 6, 32, 22)
Q5_1 = Encoding("Q5_1", 7, 32, 24)
Q8_0 = Encoding("Q8_0", 8, 32, 34)
Q2_K = Encoding("Q2_K", 10, 256, 84)
Q3_K = Encoding("Q3_K", 11, 256, 110)
Q4_K = Encoding("Q4_K", 12, 256, 144)
Q5_K = Encoding("Q5_K", 13, 256, 176)
Q6_K = Encoding("Q6_K", 14, 256, 210)
IQ4_NL = Encoding("IQ4_NL", 20, 32, 18)
IQ4_XS = Encoding("IQ4_XS", 23, 256, 136)
MXFP4 = Encoding("MXFP4", 39, 32, 17)

ENCODINGS: tuple[Encoding, ...] = (
    F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4,
)  # fmt: skip
BY_GGML_ID = {e.ggml_id: e for e in ENCODINGS}
BY_NAME = {e.name: e for e in ENCODINGS}
