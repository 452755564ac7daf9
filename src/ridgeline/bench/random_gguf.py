"""Model files of a real shape with random weights, to measure speed without a download: `python -m ridgeline.bench.random_gguf`.

Llama graphs in GGUF v3 with a SentencePiece vocabulary of byte pieces and made-up words, so that other engines load them too. The
answers mean nothing. Weights have a spread of 1/sqrt(in_dim), norms are near 1: activations stay finite.
"""

from __future__ import annotations

import argparse
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from ridgeline.encodings import BF16, F16, F32, IQ4_NL, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, Encoding

U8 = npt.NDArray[np.uint8]
_ALIGN = 32
_CHUNK_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama. `tied`: the head is the embedding."""

    vocab: int
    dim: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    tied: bool

    @property
    def kv_dim(self) -> int:
        return self.dim // self.heads * self.kv_heads


SHAPES = {
    "tiny": Shape(512, 256, 512, 2, 4, 2, True),
    "135m": Shape(49152, 576, 1536, 30, 9, 3, True),
    "1b": Shape(49152, 2048, 8192, 16, 32, 8, True),
    "7b": Shape(32000, 4096, 14336, 32, 32, 8, False),
}
# Where a block keeps its f16 scales, and how far its values spread when those are 1 and all other bits random.
_SCALES: dict[str, tuple[tuple[int, ...], float]] = {
    "Q4_0": ((0,), 4.6), "Q4_1": ((0, 2), 4.6), "Q5_0": ((0,), 9.2), "Q5_1": ((0, 2), 9.2), "Q8_0": ((0,), 74.0), "IQ4_NL": ((0,), 70.0),
    "Q4_K": ((0, 2), 262.0), "Q5_K": ((0, 2), 524.0), "Q6_K": ((208,), 340.0),
}  # fmt: skip
# The minimum that centres an asymmetric block, in units of its scale.
_MINIMUM = {"Q4_1": -7.5, "Q5_1": -15.5, "Q4_K": 7.5, "Q5_K": 15.5}
MIXES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16", "F32", "Q4_K_M")
_BY_NAME = {e.name: e for e in (F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, Q4_K, Q5_K, Q6_K)}
_FILE_TYPE = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q4_K_M": 15, "Q6_K": 18, "IQ4_NL": 25, "BF16": 32}


def write_random(path: Path, shape: Shape, mix: str, seed: int = 0) -> int:
    """Write the file and return its bytes. mix: one encoding, or Q4_K_M; low-bit ones keep embedding and head in Q6_K, as files do."""
    rng = np.random.default_rng(seed)
    tensors = list(_tensors(shape, mix))
    with path.open("wb") as file:
        file.write(_header(shape, mix, tensors))
        for _, (rows, columns), encoding in tensors:
            _pad(file)
            _write_tensor(file, rng, rows, columns, encoding)
        _pad(file)
        return file.tell()


def _tensors(shape: Shape, mix: str) -> Iterator[tuple[str, tuple[int, int], Encoding]]:
    """(name, [rows, columns], encoding); a vector has one row."""
    s = shape
    low = mix not in ("F32", "F16", "BF16", "Q8_0")
    base = _BY_NAME["Q4_K" if mix == "Q4_K_M" else mix]
    table = Q6_K if low else base
    yield "token_embd.weight", (s.vocab, s.dim), table
    if not s.tied:
        yield "output.weight", (s.vocab, s.dim), table
    yield "output_norm.weight", (1, s.dim), F32
    for i in range(s.layers):
        # Q4_K_M gives half of the layers, at both ends and every third between, more bits for values and down.
        eighth = s.layers // 8
        rich = Q6_K if mix == "Q4_K_M" and (i < eighth or i >= 7 * s.layers // 8 or (i - eighth) % 3 == 2) else base
        p = f"blk.{i}."
        yield p + "attn_norm.weight", (1, s.dim), F32
        yield p + "ffn_norm.weight", (1, s.dim), F32
        yield p + "attn_q.weight", (s.dim, s.dim), base
        yield p + "attn_k.weight", (s.kv_dim, s.dim), base
        yield p + "attn_v.weight", (s.kv_dim, s.dim), rich
        yield p + "attn_output.weight", (s.dim, s.dim), base
        yield p + "ffn_gate.weight", (s.ffn, s.dim), base
        yield p + "ffn_up.weight", (s.ffn, s.dim), base
        yield p + "ffn_down.weight", (s.dim, s.ffn), rich


def _write_tensor(file: BinaryIO, rng: np.random.Generator, rows: int, columns: int, encoding: Encoding) -> None:
    if rows == 1:
        file.write((1 + 0.05 * rng.standard_normal(columns)).astype("<f4").tobytes())
        return
    per_row = encoding.row_bytes(columns)
    step = max(1, _CHUNK_BYTES // per_row)
    for first in range(0, rows, step):
        file.write(random_rows(rng, min(step, rows - first), columns, encoding).tobytes())


def random_rows(rng: np.random.Generator, rows: int, columns: int, encoding: Encoding) -> U8:
    """Bytes of rows of valid blocks."""
    spread = columns**-0.5
    if encoding.is_float:
        values = rng.standard_normal(rows * columns, np.float32) * np.float32(spread)
        if encoding is BF16:
            return (values.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
        return values.astype("<f2" if encoding is F16 else "<f4").view(np.uint8)
    count = rows * columns // encoding.block_size
    blocks = rng.integers(0, 1 << 64, -(-count * encoding.block_bytes // 8), np.uint64).view(np.uint8)[: count * encoding.block_bytes]
    blocks = blocks.reshape(count, encoding.block_bytes)
    offsets, unit = _SCALES[encoding.name]
    scale = (spread / unit * rng.uniform(0.7, 1.3, count)).astype(np.float32)
    if encoding is Q6_K:
        blocks[:, 192:208] &= 0x1F  # sixteen signed scales: small ones, so that the f16 above them is not a denormal
    for offset, factor in zip(offsets, (1.0, _MINIMUM.get(encoding.name, 0.0)), strict=False):
        blocks[:, offset : offset + 2] = (scale * np.float32(factor)).astype("<f2").view(np.uint8).reshape(count, 2)
    return blocks


def _header(shape: Shape, mix: str, tensors: list[tuple[str, tuple[int, int], Encoding]]) -> bytes:
    keys = list(_metadata(shape, mix))
    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)))
    for key in keys:
        out += key
    offset = 0
    for name, (rows, columns), encoding in tensors:
        dims = (columns,) if rows == 1 else (columns, rows)
        out += _text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, encoding.ggml_id, offset)
        offset += -(-rows * encoding.row_bytes(columns) // _ALIGN) * _ALIGN
    return bytes(out)


def _metadata(shape: Shape, mix: str) -> Iterator[bytes]:
    s = shape
    yield _string("general.architecture", "llama")
    yield _string("general.name", f"random {mix}")
    yield _u32("general.file_type", _FILE_TYPE.get(mix, 0))
    yield _u32("general.alignment", _ALIGN)
    for key, value in (
        ("block_count", s.layers), ("context_length", 8192), ("embedding_length", s.dim), ("feed_forward_length", s.ffn),
        ("attention.head_count", s.heads), ("attention.head_count_kv", s.kv_heads), ("rope.dimension_count", s.dim // s.heads),
        ("vocab_size", s.vocab),
    ):  # fmt: skip
        yield _u32(f"llama.{key}", value)
    yield _f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    yield _f32("llama.rope.freq_base", 10000.0)
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    pieces += [f"\u2581w{i}" for i in range(s.vocab - len(pieces))]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (s.vocab - 259)]  # unknown, control, byte, normal
    yield _string("tokenizer.ggml.model", "llama")
    yield _array("tokenizer.ggml.tokens", 8, len(pieces), b"".join(_text(p) for p in pieces))
    yield _array("tokenizer.ggml.scores", 6, len(pieces), -np.arange(len(pieces), dtype="<f4"))
    yield _array("tokenizer.ggml.token_type", 5, len(kinds), np.array(kinds, "<i4"))
    yield _u32("tokenizer.ggml.unknown_token_id", 0)
    yield _u32("tokenizer.ggml.bos_token_id", 1)
    yield _u32("tokenizer.ggml.eos_token_id", 2)


def _text(text: str) -> bytes:
    data = text.encode("utf8")
    return struct.pack("<Q", len(data)) + data


def _string(key: str, value: str) -> bytes:
    return _text(key) + struct.pack("<I", 8) + _text(value)


def _u32(key: str, value: int) -> bytes:
    return _text(key) + struct.pack("<II", 4, value)


def _f32(key: str, value: float) -> bytes:
    return _text(key) + struct.pack("<If", 6, value)


def _array(key: str, kind: int, count: int, items: bytes | npt.NDArray[np.generic]) -> bytes:
    data = items if isinstance(items, bytes) else items.tobytes()
    return _text(key) + struct.pack("<IIQ", 9, kind, count) + data


def _pad(file: BinaryIO) -> None:
    file.write(bytes(-file.tell() % _ALIGN))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ridgeline.bench.random_gguf", description="Write a model file with random weights.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="1b")
    parser.add_argument("--encoding", choices=MIXES, default="Q4_0")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    size = write_random(asked.out, SHAPES[asked.shape], asked.encoding, asked.seed)
    sys.stdout.write(f"{asked.out}: {size / 1e6:.0f} MB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
