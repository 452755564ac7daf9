"""One GGUF file (version 2 or 3, little-endian): its metadata and where its tensors lie. Knows neither split sets nor architectures.

Nothing in the file is believed: lengths, counts, offsets and types are checked against the bytes that are there before they are used.
Source: the GGUF specification (ggml-org/ggml docs/gguf.md); type numbers as in ggml.h, retired ones included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from ridgeline.encodings import BY_GGML_ID, ENCODINGS, Encoding
from ridgeline.errors import FileFormatError, UnsupportedError
from ridgeline.formats.gguf_values import TRUNCATED, Array, Cursor, Value
from ridgeline.formats.mapped import MappedFile, StoredTensor
from ridgeline.formats.paths import MAX_SHOWN, shown

HEADER_BYTES = 24
DEFAULT_ALIGNMENT, MAX_ALIGNMENT = 32, 1 << 30
MAX_KEY_BYTES, MAX_NAME_BYTES, MAX_DIMS = 65_535, 256, 4
MAX_KEYS, MAX_TENSORS = 65_536, 262_144
# The least bytes one entry can take: key length, type, value; name length, dims, one dim, type, offset.
MIN_KEY_BYTES, MIN_TENSOR_BYTES = 13, 32
_UNREAD_TYPES = {
    4: "Q4_2, retired", 5: "Q4_3, retired", 9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S",
    22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 31: "Q4_0_4_4, retired", 32: "Q4_0_4_8, retired",
    33: "Q4_0_8_8, retired", 34: "TQ1_0", 35: "TQ2_0", 36: "IQ4_NL_4_4, retired; also I2_S of BitNet forks", 37: "IQ4_NL_4_8, retired",
    38: "IQ4_NL_8_8, retired", 40: "NVFP4", 41: "Q1_0", 42: "Q2_0",
}  # fmt: skip
# What people hand over by mistake, by its first bytes.
_OTHER_FILES = (
    (b"lmgg", "a GGML file from before GGUF"), (b"fmgg", "a GGML file from before GGUF"), (b"tjgg", "a GGML file from before GGUF"),
    (b"ggml", "a GGML file from before GGUF"), (b"FUGG", "a GGUF file with reversed magic"),
    (b"PK\x03\x04", "a zip archive: a PyTorch checkpoint or a wheel?"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself"), (b"<", "a web page or XML"), (b"\x1f\x8b", "gzip data"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A parsed file. `metadata` keeps the file's keys; arrays are lazy. `tensors` are checked, by name, in file order."""

    file: MappedFile
    version: int
    metadata: Mapping[str, Value]
    tensors: Mapping[str, StoredTensor]

    @property
    def path(self) -> Path:
        return self.file.path


def read_gguf(path: Path) -> GgufFile:
    """Parse and check the header of one GGUF file.

    Raises `FileFormatError` (truncated, hostile, big-endian, inconsistent) or `UnsupportedError` (a tensor type that is not read).
    """
    file = MappedFile(path)
    version = _version(file)
    cursor = Cursor(file.raw, 8, file.size, str(path))
    n_tensors, n_keys = cursor.u64("tensor count"), cursor.u64("metadata count")
    for what, count, least, limit in (
        ("metadata count", n_keys, MIN_KEY_BYTES, MAX_KEYS),
        ("tensor count", n_tensors, MIN_TENSOR_BYTES, MAX_TENSORS),
    ):
        most = min(limit, (file.size - HEADER_BYTES) // least)
        if count > most:
            raise cursor.fail(what, f"is {count}, this file can hold at most {most}", count, most, TRUNCATED)
    metadata: dict[str, Value] = {}
    for index in range(n_keys):
        key = cursor.string(f"metadata key {index}", MAX_KEY_BYTES)
        if key in metadata:
            raise cursor.fail(f"metadata key {shown(key)}", "occurs twice", key)
        metadata[key] = cursor.value(key if key.isprintable() and len(key) <= MAX_SHOWN else shown(key))
    alignment = _alignment(cursor, metadata)
    headers = [_tensor_header(cursor, index) for index in range(n_tensors)]
    tensors = _place(cursor, file, headers, alignment)
    _refuse_joined(file, max((t.start + t.nbytes for t in tensors.values()), default=cursor.position))
    return GgufFile(file, version, metadata, tensors)


def _version(file: MappedFile) -> int:
    """The version, after the magic. Also tells what a file that is no GGUF may be."""
    path, head = str(file.path), file.raw[:32]
    if head[:4] != b"GGUF"[: len(head)]:
        kind = next((text for magic, text in _OTHER_FILES if head.startswith(magic)), f"it begins with {head[:4]!r}")
        raise FileFormatError(
            f"{path}: is not a GGUF file ({kind})",
            field=path,
            value=head[:4],
            limit=b"GGUF",
            remedy="give a .gguf file or a folder with safetensors",
        )
    if file.size < HEADER_BYTES:
        raise FileFormatError(
            f"{path}: has {file.size} bytes, a GGUF header needs {HEADER_BYTES}",
            field=path,
            value=file.size,
            limit=HEADER_BYTES,
            remedy=TRUNCATED,
        )
    version = int.from_bytes(head[4:8], "little")
    if version & 0xFFFF == 0 and version:
        swapped = int.from_bytes(head[4:8], "big")
        raise FileFormatError(
            f"{path}: is a big-endian GGUF file (version {swapped}), not supported", field=path, value="big-endian", limit="little-endian",
            remedy="convert it on a little-endian machine, or with gguf_convert_endian.py",
        )  # fmt: skip
    if version not in (2, 3):
        raise FileFormatError(
            f"{path}: is GGUF version {version}, versions 2 and 3 are read",
            field=path,
            value=version,
            limit=(2, 3),
            remedy="convert the model again with a current converter",
        )
    return version


def _alignment(cursor: Cursor, metadata: Mapping[str, Value]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if isinstance(value, bool) or not isinstance(value, int) or not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
        raise cursor.fail("general.alignment", f"is {shown(value)}, must be a power of two from 8 to {MAX_ALIGNMENT}", value, MAX_ALIGNMENT)
    return value


@dataclass(frozen=True, slots=True)
class _Header:
    name: str
    shape: tuple[int, ...]
    encoding: Encoding
    offset: int
    nbytes: int


def _tensor_header(cursor: Cursor, index: int) -> _Header:
    name = cursor.string(f"name of tensor {index}", MAX_NAME_BYTES)
    what = f"tensor {shown(name)}"
    n_dims = cursor.u32(what)
    if not 1 <= n_dims <= MAX_DIMS:
        raise cursor.fail(what, f"has {n_dims} dimensions, 1 to {MAX_DIMS} are allowed", n_dims, MAX_DIMS)
    dims = [cursor.u64(what) for _ in range(n_dims)]
    if 0 in dims:
        raise cursor.fail(what, f"has no elements: its dimensions are {dims}", dims)
    encoding = _encoding(cursor, what, cursor.u32(what))
    if dims[0] % encoding.block_size:
        raise cursor.fail(
            what,
            f"has rows of {dims[0]} values, {encoding.name} needs multiples of {encoding.block_size}",
            dims[0],
            encoding.block_size,
            "quantize the model again",
        )
    return _Header(name, tuple(reversed(dims)), encoding, cursor.u64(what), prod(dims[1:]) * encoding.row_bytes(dims[0]))


def _encoding(cursor: Cursor, what: str, number: int) -> Encoding:
    encoding = BY_GGML_ID.get(number)
    if encoding is None:
        name = _UNREAD_TYPES.get(number, "unknown")
        supported = ", ".join(e.name for e in ENCODINGS)
        raise UnsupportedError(
            f"{cursor.file}: {what} has type {number} ({name}), which is not supported; supported are {supported}",
            field=f"{cursor.file}: {what}", value=number, limit=supported, remedy="use a file quantized to one of these",
        )  # fmt: skip
    return encoding


def _place(cursor: Cursor, file: MappedFile, headers: list[_Header], alignment: int) -> dict[str, StoredTensor]:
    """Absolute places of the tensors, after checking alignment, file size and overlap."""
    data_start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, StoredTensor] = {}
    for header in headers:
        what = f"tensor {shown(header.name)}"
        if header.name in tensors:
            raise cursor.fail(what, "occurs twice", header.name)
        if header.offset % alignment:
            raise cursor.fail(
                what, f"starts at offset {header.offset}, not a multiple of the alignment {alignment}", header.offset, alignment
            )
        start, present = data_start + header.offset, max(0, file.size - data_start - header.offset)
        if header.nbytes > present:
            raise cursor.fail(
                what, f"needs {header.nbytes} bytes at offset {start}, the file has {present} there", header.nbytes, present, TRUNCATED
            )
        tensors[header.name] = StoredTensor(header.name, header.shape, header.encoding, start, header.nbytes, file)
    end, last = 0, ""
    for tensor in sorted(tensors.values(), key=lambda t: t.start):
        if tensor.start < end:
            raise cursor.fail(
                f"tensor {shown(tensor.name)}",
                f"overlaps tensor {shown(last)}: starts at byte {tensor.start}, before its end at {end}",
                tensor.start,
                end,
            )
        end, last = tensor.start + tensor.nbytes, tensor.name
    return tensors


def _refuse_joined(file: MappedFile, end: int) -> None:
    """Refuse a second GGUF header behind the last tensor: shards joined with `cat` would load as the first one only."""
    tail = file.raw[end : end + (1 << 20)]
    at = next((at for at in (tail.find(b"GGUF" + v + b"\0\0\0") for v in (b"\2", b"\3")) if at >= 0), -1)
    if at >= 0:
        raise FileFormatError(
            f"{file.path}: a second GGUF file begins at byte {end + at}: several files were joined with cat", field=str(file.path),
            value=end + at, remedy="keep the shards apart and give the first, or merge them with llama-gguf-split --merge",
        )  # fmt: skip


__all__ = ["Array", "GgufFile", "Value", "read_gguf"]
