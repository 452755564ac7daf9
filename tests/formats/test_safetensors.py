"""safetensors and Hugging Face folders: what is read, and what an untrusted file or folder may not do (case SE-05)."""

from __future__ import annotations

import json
import logging
import pickle
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ridgeline.encodings import BF16, F16, F32
from ridgeline.errors import FileFormatError, UnsupportedError, UserError
from ridgeline.formats.checkpoint import open_checkpoint
from ridgeline.formats.safetensors import MAX_CONFIG_BYTES, read_safetensors
from ridgeline.quant.decode import decode

CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


def file_bytes(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensors_bytes(tensors: Mapping[str, npt.NDArray[Any]]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, array in tensors.items():
        header[name] = {
            "dtype": {"f4": "F32", "f2": "F16"}[array.dtype.str[1:]],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + array.nbytes],
        }
        data += array.tobytes()
    return file_bytes(header, data)


def model_folder(folder: Path, tensors: Mapping[str, npt.NDArray[Any]] | None = None, **config: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    (folder / "model.safetensors").write_bytes(tensors_bytes(tensors or {"w": VALUES}))
    return folder


def sharded_folder(folder: Path, weight_map: Mapping[str, object] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for number, name in enumerate(("a", "b"), 1):
        (folder / f"model-{number:05d}-of-00002.safetensors").write_bytes(tensors_bytes({name: VALUES * number}))
    index = {"weight_map": weight_map or {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def refused(path: Path, *words: str, error: type[UserError] = FileFormatError) -> None:
    with pytest.raises(error) as caught:
        open_checkpoint(path)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def refused_bytes(tmp_path: Path, data: bytes, *words: str, error: type[UserError] = FileFormatError) -> None:
    model_folder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(data)
    refused(tmp_path, str(tmp_path / "model.safetensors"), *words, error=error)


# Good files


def test_reads_a_folder_and_each_of_its_files(tmp_path: Path) -> None:
    model_folder(tmp_path, {"w": VALUES, "h": VALUES.astype(np.float16), "scalar": np.float32(3).reshape(())})
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 2}')
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": true}')
    for path in (tmp_path, tmp_path / "config.json", tmp_path / "model.safetensors"):
        checkpoint = open_checkpoint(path)
        assert (checkpoint.kind, checkpoint.architecture, checkpoint.folder) == ("hf", "llama", tmp_path)
        assert checkpoint.metadata["config"] == CONFIG
        assert checkpoint.metadata["generation_config"] == {"eos_token_id": 2}
        assert checkpoint.metadata["tokenizer_config"] == {"add_bos_token": True}
        np.testing.assert_array_equal(decode(checkpoint.tensors["w"]), VALUES)
        np.testing.assert_array_equal(decode(checkpoint.tensors["h"]), VALUES)
        assert (checkpoint.tensors["h"].encoding, checkpoint.tensors["scalar"].shape) == (F16, (1,))
        assert checkpoint.file_bytes == (tmp_path / "model.safetensors").stat().st_size


def test_reads_bf16_and_orders_that_differ_from_the_header(tmp_path: Path) -> None:
    header = {
        "z": {"dtype": "BF16", "shape": [1, 2], "data_offsets": [8, 12]},
        "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    }
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_bytes(json.dumps(header).encode() + b"   ", struct.pack("<ffHH", 1, 2, 0x3F80, 0xC000)))
    _, tensors = read_safetensors(path)
    assert [t.encoding for t in tensors.values()] == [BF16, F32]
    np.testing.assert_array_equal(decode(tensors["z"].tensor()), [[1, -2]])


def test_reads_shards_from_folder_index_and_shard(tmp_path: Path) -> None:
    sharded_folder(tmp_path)
    for name in ("", "model.safetensors.index.json", "config.json", "model-00002-of-00002.safetensors"):
        checkpoint = open_checkpoint(tmp_path / name)
        assert {n: float(decode(t)[0, 1]) for n, t in checkpoint.tensors.items()} == {"a": 1, "b": 2}
        assert len(checkpoint.files) == 2


def test_a_file_that_is_no_shard_is_read_alone(tmp_path: Path) -> None:
    sharded_folder(tmp_path)
    (tmp_path / "other.safetensors").write_bytes(tensors_bytes({"c": VALUES}))
    assert list(open_checkpoint(tmp_path / "other.safetensors").tensors) == ["c"]


def test_missing_optional_files_are_empty(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(model_folder(tmp_path))
    assert checkpoint.metadata["generation_config"] == checkpoint.metadata["tokenizer_config"] == {}


def test_release(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(model_folder(tmp_path, {"w": np.ones((512, 64), dtype=np.float32)}))
    tensor = checkpoint.tensors["w"]
    checkpoint.release_all()
    checkpoint.check_unchanged()
    np.testing.assert_array_equal(decode(tensor), 1)


def test_the_mapping_of_tensors(tmp_path: Path) -> None:
    tensors = open_checkpoint(model_folder(tmp_path)).tensors
    assert "w" in tensors and "v" not in tensors and 3 not in tensors
    assert (len(tensors), list(tensors), tensors.get("v")) == (1, ["w"], None)
    with pytest.raises(KeyError):
        tensors["v"]


# Headers that lie

ENTRY = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


@pytest.mark.parametrize("length", [1 << 63, (1 << 64) - 1, 100_000_001, 3])
def test_header_length(tmp_path: Path, length: int) -> None:
    refused_bytes(tmp_path, file_bytes(b"{}", length=length), "header", f"{length} bytes long, at most 2")


@pytest.mark.parametrize("data", [b"abc", bytes(8), bytes(9), bytes(10)])
def test_short_files(tmp_path: Path, data: bytes) -> None:
    refused_bytes(tmp_path, data, "header")


def test_empty_file(tmp_path: Path) -> None:
    refused_bytes(tmp_path, b"", "empty (0 bytes)")


def test_truncated_anywhere(tmp_path: Path) -> None:
    model_folder(tmp_path)
    data = (tmp_path / "model.safetensors").read_bytes()
    for length in range(len(data)):
        (tmp_path / "model.safetensors").write_bytes(data[:length])
        refused(tmp_path, "model.safetensors")


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        ({**ENTRY, "data_offsets": [0, 20]}, "takes 20 bytes, F32 of shape [2, 3] needs 24"),
        ({**ENTRY, "data_offsets": [0, 48]}, "which has 24"),
        ({**ENTRY, "data_offsets": [24, 0]}, "lies at bytes 24 to 0"),
        ({**ENTRY, "data_offsets": [-24, 0]}, "bad shape or data_offsets"),
        ({**ENTRY, "data_offsets": [0]}, "bad shape or data_offsets"),
        ({**ENTRY, "data_offsets": [0, 24.0]}, "bad shape or data_offsets"),
        ({**ENTRY, "data_offsets": "0,24"}, "bad shape or data_offsets"),
        ({**ENTRY, "data_offsets": [0, 1 << 64]}, "bad shape or data_offsets"),
        ({**ENTRY, "shape": [2, True]}, "bad shape or data_offsets"),
        ({**ENTRY, "shape": [-2, -3]}, "bad shape or data_offsets"),
        ({**ENTRY, "shape": 6}, "bad shape or data_offsets"),
        ({**ENTRY, "shape": [1] * 9}, "bad shape or data_offsets"),
        ({**ENTRY, "shape": [1 << 62, 1 << 62]}, "needs"),
        ({**ENTRY, "shape": [0, 3], "data_offsets": [0, 0]}, "no elements"),
        ({"dtype": "F32", "shape": [2, 3]}, "exactly dtype, shape and data_offsets"),
        ({**ENTRY, "more": 1}, "exactly dtype, shape and data_offsets"),
        (7, "exactly dtype, shape and data_offsets"),
    ],
)
def test_bad_entries(tmp_path: Path, entry: object, word: str) -> None:
    refused_bytes(tmp_path, file_bytes({"w": entry}, bytes(24)), "tensor 'w'", word)


@pytest.mark.parametrize("dtype", ["F64", "I8", "U8", "I64", "BOOL", "F8_E4M3", "F4", "f32", None, 3])
def test_other_dtypes_are_refused_by_name(tmp_path: Path, dtype: object) -> None:
    refused_bytes(
        tmp_path, file_bytes({"w": {**ENTRY, "dtype": dtype}}, bytes(24)), "'w'", repr(dtype), "F32, F16, BF16", error=UnsupportedError
    )


def test_overlap_hole_and_trailing_bytes(tmp_path: Path) -> None:
    second = {**ENTRY, "data_offsets": [12, 36]}
    refused_bytes(tmp_path, file_bytes({"a": ENTRY, "b": second}, bytes(36)), "tensor 'b'", "overlaps tensor 'a'")
    second = {**ENTRY, "data_offsets": [28, 52]}
    refused_bytes(tmp_path, file_bytes({"a": ENTRY, "b": second}, bytes(52)), "tensor 'b'", "leaves a hole after tensor 'a'")
    refused_bytes(tmp_path, file_bytes({"a": {**ENTRY, "data_offsets": [4, 28]}}, bytes(28)), "leaves a hole after the header")
    refused_bytes(tmp_path, file_bytes({"a": ENTRY}, bytes(25)), "data ends at byte")


@pytest.mark.parametrize(
    ("header", "word"),
    [
        (b'{"w": 1, "w": 2}', "'w' occurs twice"),
        (b'{"w": {"dtype": "F32", "dtype": "F16"}}', "'dtype' occurs twice"),
        (b"[]", "must be a JSON object, is a list"),
        (b"{ ", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b'{"a":' * 100_000, "not valid JSON"),
        (b'{"w": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"__metadata__": {"a": 1}}', "__metadata__"),
        (b'{"__metadata__": []}', "__metadata__"),
    ],
)
def test_bad_json(tmp_path: Path, header: bytes, word: str) -> None:
    refused_bytes(tmp_path, file_bytes(header), word)


def test_texts_from_the_file_are_shown_on_one_line_and_cut(tmp_path: Path) -> None:
    name = "\x1b[31mred\n" + "x" * 10_000
    model_folder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(file_bytes({name: 7}))
    with pytest.raises(FileFormatError) as caught:
        open_checkpoint(tmp_path)
    assert len(str(caught.value)) < 500 and str(caught.value).isprintable()


# Folders that lie


@pytest.mark.parametrize(
    "target",
    ["../../etc/passwd", "../x.safetensors", "/etc/passwd", "/tmp/x.safetensors", "..\\x.safetensors", "C:\\x.safetensors",
     "a/../../x.safetensors", "", "x\0.safetensors", "pytorch_model.bin", 7],
)  # fmt: skip
def test_index_paths_stay_inside(tmp_path: Path, target: object) -> None:
    (tmp_path / "x.safetensors").write_bytes(tensors_bytes({"a": VALUES}))
    folder = sharded_folder(tmp_path / "model", {"a": target, "b": "model-00002-of-00002.safetensors"})
    refused(folder)


def test_links_stay_inside(tmp_path: Path) -> None:
    folder = sharded_folder(tmp_path / "model")
    shard = folder / "model-00001-of-00002.safetensors"
    outside = shard.rename(tmp_path / "outside.safetensors")
    shard.symlink_to(outside)
    refused(folder, "model-00001-of-00002.safetensors", "is a link that leads out")
    shard.unlink()
    refused(folder, "model-00001-of-00002.safetensors: is missing")
    shard.symlink_to(shard)
    refused(folder, "model-00001-of-00002.safetensors: is missing")
    shard.unlink()
    (folder / "kept.safetensors").write_bytes(outside.read_bytes())
    shard.symlink_to("kept.safetensors")
    assert set(open_checkpoint(folder).tensors) == {"a", "b"}


def test_a_linked_config_is_refused(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    (folder / "config.json").rename(tmp_path / "config.json")
    (folder / "config.json").symlink_to(tmp_path / "config.json")
    refused(folder, "config.json", "leads out")


def test_links_of_the_hugging_face_cache_are_followed(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "repo/snapshots/rev", tmp_path / "repo/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    model_folder(snapshot)
    for number, path in enumerate(sorted(snapshot.iterdir())):
        path.rename(blobs / str(number))
        path.symlink_to(Path("../../blobs") / str(number))
    assert list(open_checkpoint(snapshot).tensors) == ["w"]


def test_index_and_shards_must_agree(tmp_path: Path) -> None:
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    refused(sharded_folder(tmp_path, {"a": first, "b": first}), "'b'", f"is not in {first}")
    refused(sharded_folder(tmp_path, {"a": first, "c": second}), f"'b' is not mapped by the index to {second}")
    refused(sharded_folder(tmp_path, {"a": first, "b": "none.safetensors"}), "none.safetensors: is missing")
    for weight_map in ([], {}, None, "x"):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        refused(tmp_path, "weight_map must map")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "x", "a": "y"}}')
    refused(tmp_path, "'a' occurs twice")


def test_pickle_is_never_loaded(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "exploded",))

    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    refused(tmp_path, "pytorch_model.bin", "never loaded", "safetensors")
    refused(tmp_path / "pytorch_model.bin", "pickle", "never loaded")
    model_folder(tmp_path)
    assert list(open_checkpoint(tmp_path).tensors) == ["w"]
    assert not (tmp_path / "exploded").exists()


def test_remote_code_is_not_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model_folder(tmp_path, auto_map={"AutoModelForCausalLM": "evil.Model"})
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with caplog.at_level(logging.WARNING):
        assert open_checkpoint(tmp_path).architecture == "llama"
    assert "remote code, which is never run" in caplog.text
    assert not (tmp_path / "ran").exists()


def test_incomplete_and_ambiguous_folders(tmp_path: Path) -> None:
    refused(tmp_path, "has no config.json")
    (tmp_path / "config.json").write_text("{}")
    refused(tmp_path, "no model.safetensors")
    model_folder(tmp_path, model_type=None)
    refused(tmp_path, "model_type is None")
    sharded_folder(tmp_path)
    refused(tmp_path, "holds both model.safetensors and model.safetensors.index.json")
    assert list(open_checkpoint(tmp_path / "model.safetensors").tensors) == ["w"]
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    refused(tmp_path, "a GGUF model (m.gguf) and a safetensors model")
    (tmp_path / "config.json").write_text("[]")
    refused(tmp_path / "model.safetensors", "config.json: must be a JSON object")


def test_a_config_beyond_the_limit(tmp_path: Path) -> None:
    model_folder(tmp_path)
    with (tmp_path / "config.json").open("r+b") as handle:
        handle.truncate(MAX_CONFIG_BYTES + 1)
    refused(tmp_path, "config.json: file has", str(MAX_CONFIG_BYTES))


@pytest.mark.parametrize("name", ["none.bin", "none.safetensors", "none.gguf", "none", "config.json", "n" * 5000])
def test_missing_paths(tmp_path: Path, name: str) -> None:
    refused(tmp_path / name, "no such file or folder")
