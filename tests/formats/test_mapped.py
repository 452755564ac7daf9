"""Mapped files: what a path may be, pages that are dropped, files that change under us (case PF-03), and the real models."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import numpy as np
import pytest
from tests.formats import gguf_writer as w
from tests.formats.gguf_writer import TensorSpec, gguf_bytes, write_gguf
from tests.formats.test_gguf import META, WEIGHTS, read, refused

from ridgeline import encodings as enc
from ridgeline.errors import FileFormatError
from ridgeline.formats.gguf import read_gguf
from ridgeline.formats.gguf_values import Array
from ridgeline.formats.pull import find_cached
from ridgeline.quant.decode import decode, decode_rows

# Files that are no files, and files that change


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    refused(tmp_path / "none.gguf", "No such file")
    refused(tmp_path, "not a regular file")
    os.mkfifo(tmp_path / "pipe.gguf")
    refused(tmp_path / "pipe.gguf", "not a regular file")
    refused(Path("/dev/zero"), "not a regular file")


def test_a_file_system_without_mmap_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """PF-03: the choice is explicit and logged."""
    path = write_gguf(tmp_path / "m.gguf", {**META, "s": ["a"]}, [w.f32_tensor("w", WEIGHTS)])

    def refuse(*_: object, **__: object) -> None:
        raise OSError(19, "No such device")

    monkeypatch.setattr("ridgeline.formats.mapped.mmap.mmap", refuse, raising=True)
    file = read_gguf(path)
    assert "cannot be mapped (No such device)" in caplog.text
    np.testing.assert_array_equal(decode(file.tensors["w"].tensor()), WEIGHTS)
    assert file.metadata["s"] == ["a"]


def test_release_keeps_the_values(tmp_path: Path) -> None:
    file = read(tmp_path, tensors=[w.random_tensor("w", (512, 64), enc.F32)])
    tensor = file.tensors["w"].tensor()
    before = tensor.data.tobytes()
    file.file.release(file.tensors["w"].start, tensor.nbytes)
    assert tensor.data.tobytes() == before


def test_release_drops_resident_pages(tmp_path: Path) -> None:
    rows = 8192
    path = tmp_path / "m.gguf"
    with path.open("wb") as handle:
        handle.write(gguf_bytes(META, [TensorSpec("w", (rows, 1024), enc.F32, b"")]))
        handle.truncate(handle.tell() + rows * 4096)
    file = read_gguf(path)
    tensor = file.tensors["w"]
    assert int(tensor.tensor().data.sum()) == 0
    full = rss_bytes()
    file.file.release(tensor.start, tensor.nbytes)
    assert full - rss_bytes() > rows * 4096 * 3 // 4


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_replacing_by_rename_is_safe_and_truncation_is_noticed(tmp_path: Path) -> None:
    """PF-03."""
    file = read(tmp_path, tensors=[w.f32_tensor("w", WEIGHTS)])
    file.file.check_unchanged()
    other = write_gguf(tmp_path / "other", META, [w.f32_tensor("w", WEIGHTS + 1)])
    other.replace(file.path)
    np.testing.assert_array_equal(decode(file.tensors["w"].tensor()), WEIGHTS)
    with pytest.raises(FileFormatError, match="changed while it was open"):
        file.file.check_unchanged()
    file = read_gguf(file.path)
    os.truncate(file.path, 40)
    with pytest.raises(FileFormatError, match="40 now"):
        file.file.check_unchanged()
    file.path.unlink()
    with pytest.raises(FileFormatError, match="No such file"):
        file.file.check_unchanged()


# Real files


@pytest.mark.real_model
@pytest.mark.parametrize(
    ("name", "architecture", "tensors", "vocab", "token"),
    [("smollm2", "llama", 272, 49_152, (1, "<|im_start|>")), ("gemma3-270m", "gemma3", 236, 262_144, (2, "<bos>"))],
)
def test_real_models(name: str, architecture: str, tensors: int, vocab: int, token: tuple[int, str]) -> None:
    file = read_gguf(real_model(name))
    tokens = file.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, Array)
    assert (file.metadata["general.architecture"], len(file.tensors), len(tokens)) == (architecture, tensors, vocab)
    assert tokens[token[0]] == token[1]
    embedding = file.tensors["token_embd.weight"].tensor()
    assert embedding.rows == vocab
    assert np.isfinite(decode_rows(embedding.data[:64], embedding.encoding)).all()


@pytest.mark.real_model
@pytest.mark.long
@pytest.mark.parametrize("name", ["smollm2", "gemma3-270m"])
def test_real_models_equal_the_gguf_package(name: str) -> None:
    gguf = pytest.importorskip("gguf")
    path = real_model(name)
    ours, theirs = read_gguf(path), gguf.GGUFReader(str(path))
    assert ours.metadata.keys() == {key for key in theirs.fields if not key.startswith("GGUF.")}
    for key, value in ours.metadata.items():
        assert value == theirs.fields[key].contents(), key
    assert [t.name for t in theirs.tensors] == list(ours.tensors)
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name].tensor()
        assert mine.shape == tuple(reversed(tensor.shape.tolist()))
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(mine.rows, mine.columns)
        np.testing.assert_array_equal(decode(mine).view(np.uint32), expected.view(np.uint32))


def real_model(name: str) -> Path:
    path = find_cached(name)
    if path is None:
        pytest.skip(f"{name} is not in the cache: ridgeline pull {name}")
    return path
