"""Metadata values of a GGUF file: a bounds-checked cursor and lazy arrays. Knows the value types, not what any key means.

Source: the GGUF specification (ggml-org/ggml docs/gguf.md), versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from ridgeline.errors import FileFormatError

STRING, ARRAY, BOOL = 8, 9, 7
# Value type -> numpy type of one little-endian item.
ITEM_DTYPES: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"), 1: np.dtype("i1"), 2: np.dtype("<u2"), 3: np.dtype("<i2"), 4: np.dtype("<u4"), 5: np.dtype("<i4"),
    6: np.dtype("<f4"), BOOL: np.dtype("?"), 10: np.dtype("<u8"), 11: np.dtype("<i8"), 12: np.dtype("<f8"),
}  # fmt: skip
_SCALARS = {
    code: struct.Struct("<" + char)
    for code, char in ((0, "B"), (1, "b"), (2, "H"), (3, "h"), (4, "I"), (5, "i"), (6, "f"), (10, "Q"), (11, "q"), (12, "d"))
}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
MAX_NESTING = 4
MAX_NESTED_ARRAYS = 65_536
TRUNCATED = "the file is cut short or damaged: download it again (a file that came in parts must be joined first)"


class Array(Sequence[Any]):
    """A metadata array, decoded when asked for. Items are int, float, bool, str or (nested) Array.

    `numpy()` is a zero-copy view of a number array, `tolist()` decodes everything, `raw` are the encoded bytes (for a fingerprint).
    A string that is not UTF-8 raises `FileFormatError` when decoded.
    """

    __slots__ = ("_buffer", "_cache", "_count", "_end", "_field", "_start", "item_type")

    def __init__(self, buffer: mmap.mmap | bytes, start: int, end: int, item_type: int, count: int, field: str) -> None:
        self._buffer, self._start, self._end = buffer, start, end
        self.item_type, self._count, self._field = item_type, count, field
        self._cache: list[Any] | None = None

    @property
    def raw(self) -> bytes:
        return self._buffer[self._start : self._end]

    def numpy(self) -> npt.NDArray[Any]:
        """[count], read-only, in the file's own type. Raises `FileFormatError` for an array of strings or arrays."""
        if self.item_type not in ITEM_DTYPES:
            raise FileFormatError(f"{self._field}: is not an array of numbers", field=self._field)
        return np.frombuffer(self._buffer, dtype=ITEM_DTYPES[self.item_type], count=self._count, offset=self._start)

    def tolist(self) -> list[Any]:
        """All items as plain Python values, decoded once and kept. Callers must not change the list."""
        if self._cache is None:
            if self.item_type == STRING:
                self._cache = self._strings()
            elif self.item_type == ARRAY:
                cursor = Cursor(self._buffer, self._start, self._end, "")
                self._cache = [cursor.array(self._field, 1) for _ in range(self._count)]
            else:
                self._cache = self.numpy().tolist()
        return self._cache

    def _strings(self) -> list[str]:
        data, position, unpack, strings = self.raw, 0, _U64.unpack_from, list[str]()
        try:
            for _ in range(self._count):
                start = position + 8
                position = start + unpack(data, position)[0]
                strings.append(data[start:position].decode())
        except UnicodeDecodeError as error:
            index = len(strings)
            raise FileFormatError(f"{self._field}[{index}]: is not UTF-8 ({error.reason})", field=f"{self._field}[{index}]") from None
        return strings

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if self.item_type in ITEM_DTYPES:
            return self.numpy()[index].tolist()
        return self.tolist()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Array | list | tuple) and len(other) == self._count and list(other) == self.tolist()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Array({self._field}, {self._count} items)"


Value = int | float | bool | str | Array


class Cursor:
    """Reads forward through a buffer and never past its end. Every declared length is checked before anything is allocated."""

    __slots__ = ("buffer", "end", "file", "nested", "position")

    def __init__(self, buffer: mmap.mmap | bytes, position: int, end: int, file: str) -> None:
        self.buffer, self.position, self.end, self.file, self.nested = buffer, position, end, file, 0

    def fail(self, what: str, problem: str, value: object = None, limit: object = None, remedy: str | None = None) -> FileFormatError:
        where = f"{self.file}: {what}" if self.file else what
        return FileFormatError(f"{where} {problem}", field=where, value=value, limit=limit, remedy=remedy)

    def take(self, nbytes: int, what: str) -> int:
        """Step over `nbytes` and return where they start."""
        start = self.position
        if nbytes > self.end - start:
            left = self.end - start
            raise self.fail(what, f"needs {nbytes} bytes at offset {start}, the file has {left} left", nbytes, left, TRUNCATED)
        self.position = start + nbytes
        return start

    def u32(self, what: str) -> int:
        start = self.take(4, what)
        return int(_U32.unpack_from(self.buffer, start)[0])

    def u64(self, what: str) -> int:
        start = self.take(8, what)
        return int(_U64.unpack_from(self.buffer, start)[0])

    def string(self, what: str, limit: int | None = None) -> str:
        """A string of at most `limit` bytes. Raises `FileFormatError` when it is longer, cut short or not UTF-8."""
        length = self.u64(what)
        if limit is not None and length > limit:
            raise self.fail(what, f"is {length} bytes long, at most {limit} are allowed", length, limit, TRUNCATED)
        start = self.take(length, what)
        try:
            return self.buffer[start : start + length].decode()
        except UnicodeDecodeError as error:
            raise self.fail(what, f"is not UTF-8 ({error.reason})") from None

    def value(self, what: str) -> Value:
        """A metadata value with its type number before it."""
        kind = self.u32(what)
        if kind == STRING:
            return self.string(what)
        if kind == ARRAY:
            return self.array(what, 1)
        if kind == BOOL:
            return self._bools(what, 1) == b"\x01"
        if kind not in _SCALARS:
            raise self.fail(what, f"has value type {kind}, known are 0 to 12", kind, 12, "the file is damaged or from a newer converter")
        scalar = _SCALARS[kind]
        number: int | float = scalar.unpack_from(self.buffer, self.take(scalar.size, what))[0]
        return number

    def array(self, what: str, depth: int) -> Array:
        """The array at the position: its item type, its count, then the items, which are checked but not decoded."""
        if depth > MAX_NESTING:
            raise self.fail(what, f"nests arrays more than {MAX_NESTING} deep", depth, MAX_NESTING)
        kind, count = self.u32(what), self.u64(what)
        start = self.position
        if kind == STRING:
            self._skip_strings(count, what)
        elif kind == ARRAY:
            self.nested += count
            if self.nested > MAX_NESTED_ARRAYS:
                raise self.fail(
                    what, f"holds {self.nested} arrays in arrays, at most {MAX_NESTED_ARRAYS} are read", self.nested, MAX_NESTED_ARRAYS
                )
            for _ in range(count):
                self.array(what, depth + 1)
        elif kind == BOOL:
            self._bools(what, count)
        elif kind in ITEM_DTYPES:
            self.take(count * ITEM_DTYPES[kind].itemsize, what)
        else:
            raise self.fail(
                what, f"is an array of value type {kind}, known are 0 to 12", kind, 12, "the file is damaged or from a newer converter"
            )
        return Array(self.buffer, start, self.position, kind, count, f"{self.file}: {what}" if self.file else what)

    def _bools(self, what: str, count: int) -> bytes:
        start = self.take(count, what)
        data = self.buffer[start : start + count]
        wrong = data.translate(None, b"\x00\x01")
        if wrong:
            raise self.fail(what, f"holds a bool of value {wrong[0]}, only 0 and 1 are allowed", wrong[0], 1)
        return data

    def _skip_strings(self, count: int, what: str) -> None:
        """Walk `count` strings. 262,144 tokens pass here at every start, so the loop is bare and one check follows it."""
        position, buffer, unpack = self.position, self.buffer, _U64.unpack_from
        if count * 8 > self.end - position:
            raise self.fail(
                what, f"declares {count} strings, the file has {self.end - position} bytes left", count, self.end - position, TRUNCATED
            )
        done = 0
        try:
            for done in range(1, count + 1):  # noqa: B007
                position += unpack(buffer, position)[0] + 8
        except (struct.error, OverflowError):
            # The string before this one already led past the end.
            done -= 1
            position = self.end + 1
        if position > self.end:
            raise self.fail(f"{what}[{done - 1}]", "ends past the end of the file", done - 1, count, TRUNCATED)
        self.position = position
