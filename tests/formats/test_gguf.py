"""The GGUF reader: what it gives for good files, and one clear refusal for every kind of bad one (cases LD-01, LD-03, LD-05, LD-06)."""

from __future__ import annotations

import os
import resource
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats import gguf_writer as w
from tests.formats.gguf_writer import Layout, TensorSpec, Typed, gguf_bytes, write_gguf

from ridgeline import encodings as enc
from ridgeline.errors import FileFormatError, UnsupportedError
from ridgeline.formats.gguf import MAX_TENSORS, GgufFile, read_gguf
from ridgeline.formats.gguf_values import MAX_NESTED_ARRAYS, MAX_NESTING, Array
from ridgeline.quant.decode import decode, decode_rows

META = {"general.architecture": "llama"}
PLAIN = Layout()
WEIGHTS = np.arange(6, dtype=np.float32).reshape(2, 3)


def read(
    tmp_path: Path, metadata: dict[str, Any] | None = None, tensors: list[TensorSpec] | None = None, layout: Layout = PLAIN
) -> GgufFile:
    return read_gguf(write_gguf(tmp_path / "m.gguf", META if metadata is None else metadata, tensors or [], layout))


def refused(path: Path, *words: str, error: type[Exception] = FileFormatError) -> str:
    """The message of the refusal; it names the file and holds every word."""
    with pytest.raises(error) as caught:
        read_gguf(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


def refused_file(tmp_path: Path, data: bytes, *words: str, error: type[Exception] = FileFormatError) -> str:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    return refused(path, *words, error=error)


# Good files


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 32, 64, 4096])
def test_reads_tensors(tmp_path: Path, version: int, alignment: int) -> None:
    tensors = [w.f32_tensor("a", WEIGHTS), w.random_tensor("b", (2, 3, 64), enc.Q4_0), w.f32_tensor("v", [1, 2, 3])]
    file = read(tmp_path, tensors=tensors, layout=Layout(version=version, alignment=alignment))
    assert (file.version, list(file.tensors)) == (version, ["a", "b", "v"])
    assert all(t.start % alignment == 0 for t in file.tensors.values())
    a, b, v = (t.tensor() for t in file.tensors.values())
    np.testing.assert_array_equal(decode(a), WEIGHTS)
    assert (a.shape, a.rows, a.columns) == ((2, 3), 2, 3)
    assert (b.shape, b.data.shape, b.data.tobytes()) == ((2, 3, 64), (6, 36), tensors[1].data)
    assert (v.shape, v.data.shape) == ((3,), (1, 12))
    assert "m.gguf" in a.origin and "a" in a.origin
    with pytest.raises(ValueError, match="read-only"):
        a.data[0, 0] = 1


@pytest.mark.parametrize("encoding", enc.ENCODINGS, ids=lambda e: e.name)
def test_reads_every_encoding(tmp_path: Path, encoding: enc.Encoding) -> None:
    spec = w.random_tensor("w", (3, 2 * max(encoding.block_size, 2)), encoding)
    tensor = read(tmp_path, tensors=[spec]).tensors["w"].tensor()
    assert tensor.encoding is encoding
    assert tensor.data.tobytes() == spec.data
    assert decode(tensor).shape == spec.shape


SCALARS = [
    (w.U8, 255), (w.I8, -128), (w.U16, 65535), (w.I16, -32768), (w.U32, 2**32 - 1), (w.I32, -(2**31)), (w.FLOAT32, 0.5), (w.BOOL, True),
    (w.BOOL, False), (w.STRING, "héllo ☃"), (w.STRING, ""), (w.U64, 2**64 - 1), (w.I64, -(2**63)), (w.FLOAT64, 1e300),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), SCALARS)
def test_scalar_values(tmp_path: Path, kind: int, value: object) -> None:
    found = read(tmp_path, {"k": Typed(kind, value)}).metadata["k"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(("kind", "value"), SCALARS)
def test_array_values(tmp_path: Path, kind: int, value: object) -> None:
    array = read(tmp_path, {"k": Typed(w.ARRAY, [value, value], kind), "after": 7}).metadata["k"]
    assert isinstance(array, Array)
    assert array == [value, value]
    assert array != [value]
    assert (len(array), array[0], array[-1], array[:1]) == (2, value, value, [value])
    assert list(array) == array.tolist() == [value, value]
    assert type(array[0]) is type(value)


def test_array_views(tmp_path: Path) -> None:
    nested = Typed(w.ARRAY, [Typed(w.ARRAY, [1, 2], w.U8), Typed(w.ARRAY, ["x"], w.STRING)], w.ARRAY)
    metadata = read(tmp_path, {"n": [1, -2, 3], "s": ["ab", ""], "nested": nested, "empty": Typed(w.ARRAY, [], w.STRING)}).metadata
    numbers, strings = metadata["n"], metadata["s"]
    assert isinstance(numbers, Array) and isinstance(strings, Array)
    assert numbers.numpy().dtype == np.int32
    assert not numbers.numpy().flags.writeable
    assert strings.raw == w.encode_string("ab") + w.encode_string("")
    assert [item.tolist() for item in metadata["nested"]] == [[1, 2], ["x"]]  # type: ignore[union-attr]
    assert metadata["empty"] == []
    assert "3 items" in repr(numbers)
    with pytest.raises(FileFormatError, match="not an array of numbers"):
        strings.numpy()


def test_strings_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    array = read(tmp_path, {"tokens": Typed(w.ARRAY, [b"ok", b"\xff\xfe"], w.STRING)}).metadata["tokens"]
    with pytest.raises(FileFormatError, match=r"tokens\[1\]: is not UTF-8"):
        array[0]  # type: ignore[index]
    refused_file(tmp_path, gguf_bytes({"k": Typed(w.STRING, b"\xff")}), "k is not UTF-8")
    refused_file(tmp_path, gguf_bytes({b"\xff": 1}), "metadata key 0 is not UTF-8")  # type: ignore[dict-item]


def test_a_file_without_tensors(tmp_path: Path) -> None:
    assert read(tmp_path).tensors == {}


def test_rows_beyond_two_to_the_31_elements(tmp_path: Path) -> None:
    """QN-04: a sparse file whose last row lies past 2**31 elements and past 2**30 bytes."""
    rows, columns = (1 << 31) // 4096 + 1, 4096
    path = tmp_path / "large.gguf"
    head = gguf_bytes(META, [TensorSpec("w", (rows, columns), enc.Q4_0, b"")])
    block = np.float16(1).tobytes() + bytes([0x19] * 16)
    try:
        with path.open("wb") as handle:
            handle.write(head)
            handle.truncate(len(head) + rows * enc.Q4_0.row_bytes(columns))
            handle.seek(-len(block), os.SEEK_END)
            handle.write(block)
    except OSError as error:
        pytest.skip(f"no sparse files here: {error}")
    tensor = read_gguf(path).tensors["w"].tensor()
    assert rows * columns > 1 << 31
    last = decode_rows(tensor.data[-1:], tensor.encoding)
    np.testing.assert_array_equal(last[0, -32:], [1.0] * 16 + [-7.0] * 16)
    np.testing.assert_array_equal(last[0, :-32], 0)


def test_tokens_of_a_large_vocabulary_are_not_decoded_at_open(tmp_path: Path) -> None:
    tokens = [f"token{i}" for i in range(20_000)]
    array = read(tmp_path, {"tokens": tokens, "after": 1}).metadata["tokens"]
    assert isinstance(array, Array)
    assert array._cache is None
    assert array[19_999] == "token19999"


# LD-01: truncation


def two_tensors() -> bytes:
    return gguf_bytes({**META, "list": ["a", "b"], "n": [1, 2, 3]}, [w.f32_tensor("first", WEIGHTS), w.f32_tensor("second", np.ones(8))])


def test_truncated_by_one_byte_names_tensor_and_sizes(tmp_path: Path) -> None:
    data = two_tensors()
    message = refused_file(tmp_path, data[:-1], "'second'", "needs 32 bytes", "31", "download it again")
    assert "Traceback" not in message


@pytest.mark.parametrize(("length", "word"), [(0, "empty (0 bytes)"), (3, "has 3 bytes, a GGUF header needs 24"), (23, "has 23 bytes")])
def test_truncated_before_the_header(tmp_path: Path, length: int, word: str) -> None:
    refused_file(tmp_path, two_tensors()[:length], word)


def test_truncated_anywhere(tmp_path: Path) -> None:
    """Every shorter length of a good file is refused; only zero padding behind the last tensor may go."""
    data = two_tensors()
    for length in range(len(data)):
        refused_file(tmp_path, data[:length])


# LD-03: sizes that lie


def key_head(key: str, kind: int) -> bytes:
    return w.encode_string(key) + struct.pack("<I", kind)


HUGE = {
    "key length": struct.pack("<Q", 1 << 40),
    "string length": key_head("k", w.STRING) + struct.pack("<Q", 1 << 40),
    "string length over 2**63": key_head("k", w.STRING) + struct.pack("<Q", (1 << 64) - 1),
    "array count": key_head("k", w.ARRAY) + struct.pack("<IQ", w.U8, 1 << 62),
    "array count of u64": key_head("k", w.ARRAY) + struct.pack("<IQ", w.U64, (1 << 64) - 1),
    "array count of strings": key_head("k", w.ARRAY) + struct.pack("<IQ", w.STRING, 1 << 40),
    "array count of bools": key_head("k", w.ARRAY) + struct.pack("<IQ", w.BOOL, 1 << 40),
    "array count of arrays": key_head("k", w.ARRAY) + struct.pack("<IQ", w.ARRAY, 1 << 40),
    "string in an array": key_head("k", w.ARRAY) + struct.pack("<IQQ", w.STRING, 2, (1 << 64) - 9) + bytes(64),
    "second string in an array": key_head("k", w.ARRAY) + struct.pack("<IQQ", w.STRING, 2, 3) + b"abc" + struct.pack("<Q", 1 << 50),
    "nested 10,000 deep": key_head("k", w.ARRAY) + struct.pack("<IQ", w.ARRAY, 1) * 10_000,
}


@pytest.mark.parametrize("name", HUGE)
def test_declared_sizes_are_checked_before_allocating(tmp_path: Path, name: str) -> None:
    path = tmp_path / "huge.gguf"
    path.write_bytes(gguf_bytes({}, layout=Layout(n_keys=1, extra_keys=HUGE[name])))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024


def test_the_string_that_leads_out_is_named(tmp_path: Path) -> None:
    head = key_head("k", w.ARRAY) + struct.pack("<IQ", w.STRING, 3) + w.encode_string("ok") + struct.pack("<Q", 1 << 50) + bytes(40)
    refused_file(tmp_path, gguf_bytes({}, layout=Layout(n_keys=1, extra_keys=head)), "k[1]", "past the end")


@pytest.mark.parametrize("layout", [Layout(n_keys=1 << 63), Layout(n_tensors=1 << 63), Layout(n_keys=70_000)])
def test_counts_over_what_the_file_can_hold(tmp_path: Path, layout: Layout) -> None:
    refused_file(tmp_path, gguf_bytes(META, layout=layout), "count", "this file can hold at most")


def test_too_many_tensors(tmp_path: Path) -> None:
    data = gguf_bytes({}, layout=Layout(n_tensors=MAX_TENSORS + 1)) + bytes(40 * (MAX_TENSORS + 1))
    refused_file(tmp_path, data, f"at most {MAX_TENSORS}")


def test_nesting_is_capped(tmp_path: Path) -> None:
    def nest(depth: int) -> Typed:
        return Typed(w.ARRAY, [1], w.U8) if depth == 1 else Typed(w.ARRAY, [nest(depth - 1)], w.ARRAY)

    assert read(tmp_path, {"k": nest(MAX_NESTING)}).metadata["k"][0][0][0] == [1]  # type: ignore[index]
    refused_file(tmp_path, gguf_bytes({"k": nest(MAX_NESTING + 1)}), f"nests arrays more than {MAX_NESTING} deep")
    many = struct.pack("<IQ", w.ARRAY, MAX_NESTED_ARRAYS + 1) + struct.pack("<IQ", w.U8, 0) * (MAX_NESTED_ARRAYS + 1)
    refused_file(tmp_path, gguf_bytes({}, layout=Layout(n_keys=1, extra_keys=key_head("k", w.ARRAY) + many)), "arrays in arrays")


# LD-05: tensor types


@pytest.mark.parametrize(
    ("number", "name"),
    [(4, "Q4_2, retired"), (5, "Q4_3, retired"), (9, "Q8_1"), (16, "IQ2_XXS"), (24, "I8"), (28, "F64"), (31, "Q4_0_4_4, retired"),
     (34, "TQ1_0"), (36, "retired"), (40, "NVFP4"), (250, "unknown"), (2**32 - 1, "unknown")],
)  # fmt: skip
def test_other_tensor_types_are_refused_by_number_and_name(tmp_path: Path, number: int, name: str) -> None:
    data = gguf_bytes(META, [w.f32_tensor("fine", WEIGHTS), TensorSpec("odd.weight", (2, 256), number, bytes(512))])
    refused_file(tmp_path, data, "'odd.weight'", f"type {number} (", name, "Q4_K", "MXFP4", error=UnsupportedError)


@pytest.mark.parametrize("encoding", [enc.IQ4_NL, enc.MXFP4])
def test_newer_types_load(tmp_path: Path, encoding: enc.Encoding) -> None:
    assert read(tmp_path, tensors=[w.random_tensor("w", (2, 64), encoding)]).tensors["w"].encoding is encoding


def test_rows_must_be_whole_blocks(tmp_path: Path) -> None:
    data = gguf_bytes(META, [TensorSpec("w", (2, 100), enc.Q4_K, bytes(288))])
    refused_file(tmp_path, data, "'w'", "rows of 100 values", "multiples of 256")


# LD-06: byte order, versions, other files


@pytest.mark.parametrize("version", [2, 3])
def test_big_endian_is_refused_by_name(tmp_path: Path, version: int) -> None:
    data = gguf_bytes(META, [w.f32_tensor("w", WEIGHTS)], Layout(version=version, big_endian=True))
    assert data[:8] == b"GGUF" + bytes([0, 0, 0, version])
    message = refused_file(tmp_path, data, "big-endian", f"version {version}")
    assert str(version << 24) not in message


@pytest.mark.parametrize("version", [0, 1, 4, 99])
def test_other_versions_are_refused(tmp_path: Path, version: int) -> None:
    refused_file(tmp_path, gguf_bytes(META, layout=Layout(version=version)), f"version {version}", "2 and 3")


@pytest.mark.parametrize(
    ("data", "word"),
    [(b"PK\x03\x04" + bytes(40), "zip"), (b"tjgg" + bytes(40), "before GGUF"), (b"<!DOCTYPE html>" + bytes(40), "web page"),
     (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"), (b"hello", "begins with b'hell'"), (b"XY", "begins with b'XY'")],
)  # fmt: skip
def test_other_files_are_told_apart(tmp_path: Path, data: bytes, word: str) -> None:
    refused_file(tmp_path, data, "not a GGUF file", word)


# Inconsistent headers


def test_duplicates_are_refused(tmp_path: Path) -> None:
    twice = w.encode_key("a", 1) * 2
    refused_file(tmp_path, gguf_bytes({}, layout=Layout(n_keys=2, extra_keys=twice)), "'a'", "occurs twice")
    refused_file(tmp_path, gguf_bytes(META, [w.f32_tensor("w", WEIGHTS)] * 2), "tensor 'w'", "occurs twice")


@pytest.mark.parametrize("value", [0, 1, 4, 33, 48, 1 << 31, -8, 32.0, "32", True])
def test_bad_alignment(tmp_path: Path, value: object) -> None:
    refused_file(tmp_path, gguf_bytes({"general.alignment": value}), "general.alignment", "power of two")


@pytest.mark.parametrize(
    ("offset", "words"),
    [(16, ("not a multiple of the alignment 32",)), (0, ("overlaps tensor 'a'",)), (1 << 40, ("the file has 0 there",)),
     ((1 << 64) - 32, ("the file has 0 there",)), (64, ("needs 24 bytes",))],
)  # fmt: skip
def test_bad_offsets(tmp_path: Path, offset: int, words: tuple[str, ...]) -> None:
    tensors = [w.f32_tensor("a", WEIGHTS), TensorSpec("b", (2, 3), enc.F32, bytes(24), offset=offset)]
    refused_file(tmp_path, gguf_bytes(META, tensors), "tensor 'b'", *words)


@pytest.mark.parametrize(
    ("shape", "word"),
    [((), "0 dimensions"), ((1, 1, 1, 1, 1), "5 dimensions"), ((0, 3), "no elements"), ((2, 0), "no elements"),
     ((1 << 62, 1 << 62), "needs"), ((1 << 63, 2), "needs")],
)  # fmt: skip
def test_bad_shapes(tmp_path: Path, shape: tuple[int, ...], word: str) -> None:
    refused_file(tmp_path, gguf_bytes(META, [TensorSpec("w", shape, enc.F32, bytes(64))]), "tensor 'w'", word)


def test_long_names_and_unknown_value_types(tmp_path: Path) -> None:
    refused_file(tmp_path, gguf_bytes(META, [w.f32_tensor("n" * 257, WEIGHTS)]), "name of tensor 0", "257 bytes long, at most 256")
    refused_file(tmp_path, gguf_bytes({"k" * 65_536: 1}), "metadata key 0", "at most 65535")
    refused_file(tmp_path, gguf_bytes({}, layout=Layout(n_keys=1, extra_keys=key_head("k", 13) + bytes(8))), "k has value type 13")
    array = key_head("k", w.ARRAY) + struct.pack("<IQ", 99, 1) + bytes(8)
    refused_file(tmp_path, gguf_bytes({}, layout=Layout(n_keys=1, extra_keys=array)), "k is an array of value type 99")


def test_bools_are_zero_or_one(tmp_path: Path) -> None:
    refused_file(
        tmp_path, gguf_bytes({}, layout=Layout(n_keys=1, extra_keys=key_head("k", w.BOOL) + b"\x02" + bytes(8))), "bool of value 2"
    )
    array = key_head("k", w.ARRAY) + struct.pack("<IQ", w.BOOL, 2) + b"\x01\xff"
    refused_file(tmp_path, gguf_bytes({}, layout=Layout(n_keys=1, extra_keys=array)), "bool of value 255")


@pytest.mark.parametrize("key", ["\x1b[31mred\n", "x" * 60_000])
def test_texts_from_the_file_are_shown_on_one_line_and_cut(tmp_path: Path, key: str) -> None:
    for bad in (w.encode_key(key, 1) * 2, key_head(key, 77) * 2):
        message = refused_file(tmp_path, gguf_bytes({}, layout=Layout(n_keys=2, extra_keys=bad)))
        assert len(message) < 500 and message.isprintable()
