"""Every decoder against the public `gguf` package, bit for bit, and against values worked out by hand."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from ridgeline import encodings as enc
from ridgeline.encodings import ENCODINGS, Encoding
from ridgeline.formats.tensors import Tensor
from ridgeline.quant import decode as decode_module
from ridgeline.quant.decode import decode, decode_rows, decode_tensor

# Byte offsets of the f16 fields of each block; random bytes alone would make most of them NaN-free but huge.
HALVES: dict[str, tuple[int, ...]] = {
    "F16": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip
F16_CASES = {"zero": 0x0000, "minus zero": 0x8000, "smallest subnormal": 0x0001, "negative": 0xB800, "inf": 0x7C00, "minus inf": 0xFC00,
             "nan": 0x7E00, "largest": 0x7BFF}  # fmt: skip
CODE_FILLS = (0x00, 0xFF, 0x0F, 0xF0, 0xC0, 0x3F, 0x80, 0x55, 0xAA)


def expected(blocks: npt.NDArray[np.uint8], encoding: Encoding) -> npt.NDArray[np.float32]:
    gguf = pytest.importorskip("gguf")
    with np.errstate(all="ignore"):
        result: npt.NDArray[np.float32] = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(encoding.ggml_id))
    return result


def assert_same_bits(ours: npt.NDArray[np.float32], theirs: npt.NDArray[np.float32]) -> None:
    assert ours.dtype == np.float32
    assert ours.shape == theirs.shape
    np.testing.assert_array_equal(ours.view(np.uint32), np.ascontiguousarray(theirs).view(np.uint32))


@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda e: e.name)
@pytest.mark.parametrize("columns_in_blocks", [1, 4])
def test_random_blocks_equal_gguf(encoding: Encoding, columns_in_blocks: int) -> None:
    """QN-04: 1,000 random blocks, in rows of one block and of four."""
    rng = np.random.default_rng(encoding.ggml_id)
    rows = rng.integers(0, 256, (1000 // columns_in_blocks, columns_in_blocks * encoding.block_bytes), dtype=np.uint8)
    assert_same_bits(decode_rows(rows, encoding), expected(rows, encoding))


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("case", F16_CASES)
def test_hand_made_blocks_equal_gguf(name: str, case: str) -> None:
    """QN-04: every special scale with all-equal codes and scale bytes, so that high bits, sign bits and zero nibbles all occur."""
    encoding = enc.BY_NAME[name]
    blocks = np.repeat(np.array(CODE_FILLS, dtype=np.uint8)[:, None], encoding.block_bytes, axis=1)
    for at in HALVES[name]:
        blocks[:, at : at + 2] = np.array([F16_CASES[case]], dtype="<u2").view(np.uint8)
    assert_same_bits(decode_rows(blocks, encoding), expected(blocks, encoding))


def test_mxfp4_covers_every_scale_and_code() -> None:
    codes = np.arange(256, dtype=np.uint8).reshape(16, 16)
    blocks = np.concatenate([np.concatenate((np.full((16, 1), e, dtype=np.uint8), codes), axis=1) for e in range(256)])
    assert_same_bits(decode_rows(blocks, enc.MXFP4), expected(blocks, enc.MXFP4))


def half_bytes(value: float) -> bytes:
    return np.float16(value).tobytes()


def test_values_by_hand() -> None:
    """Independent of any other package: one block of each simple layout with a few values worked out on paper."""
    q4_0 = decode(half_bytes(0.5) + bytes([0xF0] + [0x88] * 15), enc.Q4_0)[0]
    assert (q4_0[0], q4_0[16], q4_0[1], q4_0[17]) == (-4.0, 3.5, 0.0, 0.0)
    q4_1 = decode(half_bytes(2) + half_bytes(-1) + bytes([0x31] + [0] * 15), enc.Q4_1)[0]
    assert (q4_1[0], q4_1[16], q4_1[31]) == (1.0, 5.0, -1.0)
    q5_0 = decode(half_bytes(1) + (1 << 16 | 1).to_bytes(4, "little") + bytes([0x20] + [0] * 15), enc.Q5_0)[0]
    assert (q5_0[0], q5_0[16], q5_0[1]) == (0.0, 2.0, -16.0)
    q5_1 = decode(half_bytes(1) + half_bytes(10) + (1 << 31).to_bytes(4, "little") + bytes(15) + bytes([0xF1]), enc.Q5_1)[0]
    assert (q5_1[15], q5_1[31], q5_1[0]) == (11.0, 41.0, 10.0)
    q8_0 = decode(half_bytes(0.25) + bytes([0x80, 0x7F] + [0] * 30), enc.Q8_0)[0]
    assert (q8_0[0], q8_0[1], q8_0[2]) == (-32.0, 31.75, 0.0)
    mxfp4 = decode(bytes([128, 0x9F] + [0] * 15), enc.MXFP4)[0]
    assert (mxfp4[0], mxfp4[16]) == (-12.0, -1.0)
    q6_k = decode(bytes([0x0F] + [0] * 127 + [3] + [0] * 63 + [0xFF] + [2] * 15) + half_bytes(1), enc.Q6_K)[0]
    assert (q6_k[0], q6_k[1], q6_k[16]) == (-31.0, 32.0, -64.0)
    q4_k = decode(
        half_bytes(1) + half_bytes(1) + bytes([0x43, 0, 0, 0, 0x82, 0, 0, 0, 0xA5, 0, 0, 0]) + bytes([0x21]) + bytes(127), enc.Q4_K
    )[0]
    assert (q4_k[0], q4_k[1], q4_k[128], q4_k[32]) == (1.0, -2.0, -42.0, 0.0)


def test_bf16_and_floats() -> None:
    values = np.array([1.0, -2.5, 3.0e38, 1.0e-40], dtype=np.float32)
    np.testing.assert_array_equal(decode(values.tobytes(), enc.F32)[0], values)
    np.testing.assert_array_equal(
        decode((values.view(np.uint32) >> 16).astype("<u2").tobytes(), enc.BF16)[0].view(np.uint32), values.view(np.uint32) & 0xFFFF0000
    )


def test_chunks_do_not_change_results(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).integers(0, 100, (37, 3 * enc.Q4_K.block_bytes), dtype=np.uint8)
    whole = decode_rows(rows, enc.Q4_K)
    monkeypatch.setattr(decode_module, "CHUNK_VALUES", 512)
    assert_same_bits(decode_rows(rows, enc.Q4_K), whole)


def test_strided_rows_and_shapes() -> None:
    rows = np.random.default_rng(0).integers(0, 100, (6, 2 * 34), dtype=np.uint8)
    assert_same_bits(decode_rows(rows[::2], enc.Q8_0), decode_rows(rows, enc.Q8_0)[::2])
    tensor = Tensor("t", (2, 3, 64), enc.Q8_0, rows)
    assert decode(tensor).shape == (6, 64)
    assert decode_tensor(tensor).shape == (2, 3, 64)
    assert decode(rows.tobytes(), enc.Q8_0, 64).shape == (6, 64)


def test_refuses_partial_blocks() -> None:
    with pytest.raises(ValueError, match="whole number of Q8_0 blocks"):
        decode_rows(np.zeros((1, 33), dtype=np.uint8), enc.Q8_0)
    with pytest.raises(ValueError, match="multiples of 32"):
        decode(bytes(34), enc.Q8_0, 33)
    with pytest.raises(ValueError, match="whole number of Q8_0 rows"):
        decode(bytes(35), enc.Q8_0, 32)
    with pytest.raises(ValueError, match="need an encoding"):
        decode(bytes(34))
