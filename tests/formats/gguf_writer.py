"""A small GGUF writer for tests: any metadata type, any tensor type from raw bytes, split sets, both byte orders, and files that lie.

    write_gguf(path, {"general.architecture": "llama"}, [f32_tensor("w", array), TensorSpec("q", (2, 64), Q4_0, raw_bytes)])

Plain Python values get a type by inference (bool, u32/i64/u64, f32, string, arrays of these); `Typed(type, value)` says it outright.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline.encodings import F32, Encoding

U8, I8, U16, I16, U32, I32, FLOAT32, BOOL, STRING, ARRAY, U64, I64, FLOAT64 = range(13)
_CHARS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", FLOAT32: "f", BOOL: "?", U64: "Q", I64: "q", FLOAT64: "d"}


@dataclass(frozen=True)
class Typed:
    """A value with an explicit GGUF value type. For ARRAY, `item` is the type of its items (which may be `Typed` arrays themselves)."""

    type: int
    value: Any
    item: int = U32


@dataclass(frozen=True)
class TensorSpec:
    """shape: outermost first, numpy order. encoding: an `Encoding` or any type number. offset overrides the computed one."""

    name: str
    shape: tuple[int, ...]
    encoding: Encoding | int
    data: bytes
    offset: int | None = None

    @property
    def type_number(self) -> int:
        return self.encoding.ggml_id if isinstance(self.encoding, Encoding) else self.encoding


@dataclass(frozen=True)
class Layout:
    """How the file is written. The counts override what the header declares."""

    version: int = 3
    alignment: int = 32
    big_endian: bool = False
    magic: bytes = b"GGUF"
    n_tensors: int | None = None
    n_keys: int | None = None
    extra_keys: bytes = field(default=b"", repr=False)


def f32_tensor(name: str, values: npt.ArrayLike) -> TensorSpec:
    array = np.ascontiguousarray(values, dtype="<f4")
    return TensorSpec(name, array.shape, F32, array.tobytes())


def random_tensor(name: str, shape: tuple[int, ...], encoding: Encoding, seed: int = 0) -> TensorSpec:
    """Random bytes of the right size; scales are whatever the bytes say."""
    nbytes = int(np.prod(shape[:-1], dtype=np.int64)) * encoding.row_bytes(shape[-1])
    return TensorSpec(name, shape, encoding, np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8).tobytes())


def infer(value: Any) -> Typed:
    """The GGUF type that llama.cpp's converter would choose for a plain Python value."""
    if isinstance(value, Typed):
        return value
    if isinstance(value, bool):
        return Typed(BOOL, value)
    if isinstance(value, int):
        return Typed(U32 if 0 <= value < 1 << 32 else I64 if value < 1 << 63 else U64, value)
    if isinstance(value, float):
        return Typed(FLOAT32, value)
    if isinstance(value, str | bytes):
        return Typed(STRING, value)
    first = value[0] if len(value) else 0
    item = infer(first).type
    if item == U32:
        item = I32 if all(-(1 << 31) <= v < 1 << 31 for v in value) else I64
    return Typed(ARRAY, list(value), item)


def encode_string(text: str | bytes, order: str = "<") -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack(order + "Q", len(data)) + data


def encode_payload(typed: Typed, order: str = "<") -> bytes:
    """The value without its type number."""
    if typed.type == STRING:
        return encode_string(typed.value, order)
    if typed.type != ARRAY:
        return struct.pack(order + _CHARS[typed.type], typed.value)
    head = struct.pack(order + "IQ", typed.item, len(typed.value))
    if typed.item in _CHARS:
        return head + struct.pack(f"{order}{len(typed.value)}{_CHARS[typed.item]}", *typed.value)
    items = (v if isinstance(v, Typed) else Typed(typed.item, v) for v in typed.value)
    return head + b"".join(encode_payload(item, order) for item in items)


def encode_key(key: str | bytes, value: Any, order: str = "<") -> bytes:
    typed = infer(value)
    return encode_string(key, order) + struct.pack(order + "I", typed.type) + encode_payload(typed, order)


def encode_tensor_header(tensor: TensorSpec, offset: int, order: str = "<") -> bytes:
    dims = tuple(reversed(tensor.shape))
    head = encode_string(tensor.name, order) + struct.pack(order + "I", len(dims)) + struct.pack(f"{order}{len(dims)}Q", *dims)
    return head + struct.pack(order + "IQ", tensor.type_number, offset if tensor.offset is None else tensor.offset)


def gguf_bytes(metadata: Mapping[str, Any], tensors: Sequence[TensorSpec] = (), layout: Layout = Layout()) -> bytes:
    """The whole file. `general.alignment` is written when it is not 32 and the metadata does not already say it."""
    order = ">" if layout.big_endian else "<"
    keys = dict(metadata)
    if layout.alignment != 32:
        keys.setdefault("general.alignment", layout.alignment)
    n_keys = len(keys) if layout.n_keys is None else layout.n_keys
    n_tensors = len(tensors) if layout.n_tensors is None else layout.n_tensors
    head = layout.magic + struct.pack(order + "IQQ", layout.version, n_tensors, n_keys)
    head += b"".join(encode_key(key, value, order) for key, value in keys.items()) + layout.extra_keys
    infos, body = b"", b""
    for tensor in tensors:
        infos += encode_tensor_header(tensor, len(body), order)
        body += _padded(tensor.data, layout.alignment)
    return (_padded(head + infos, layout.alignment) if tensors else head + infos) + body


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Sequence[TensorSpec] = (), layout: Layout = Layout()) -> Path:
    path.write_bytes(gguf_bytes(metadata, tensors, layout))
    return path


def write_split(folder: Path, prefix: str, metadata: Mapping[str, Any], shards: Sequence[Sequence[TensorSpec]]) -> list[Path]:
    """One file per group of tensors, named and marked as llama.cpp's splitter does; the metadata goes into the first."""
    total, count = sum(len(shard) for shard in shards), len(shards)
    paths = []
    for number, tensors in enumerate(shards):
        marks = {"split.no": Typed(U16, number), "split.count": Typed(U16, count), "split.tensors.count": Typed(I32, total)}
        keys = {**(metadata if number == 0 else {}), **marks}
        paths.append(write_gguf(folder / f"{prefix}-{number + 1:05d}-of-{count:05d}.gguf", keys, tensors))
    return paths


def _padded(data: bytes, alignment: int) -> bytes:
    return data + b"\0" * (-len(data) % alignment)
