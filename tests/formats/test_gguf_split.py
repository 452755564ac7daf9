"""Split GGUF sets (case LD-04): any shard or the folder leads to the set; everything that does not add up is refused by name."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.formats import gguf_writer as w
from tests.formats.gguf_writer import Typed, write_gguf, write_split

from ridgeline.errors import FileFormatError
from ridgeline.formats.checkpoint import open_checkpoint
from ridgeline.formats.gguf_split import MAX_SHARDS
from ridgeline.quant.decode import decode

META = {"general.architecture": "llama", "general.name": "tiny"}
SHARDS = [[w.f32_tensor("a", np.full((2, 2), 1))], [w.f32_tensor("b", np.full((2, 2), 2))], [w.f32_tensor("c", np.full((2, 2), 3))]]


def refused(path: Path, *words: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        open_checkpoint(path)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("given", [0, 1, 2])
def test_any_shard_gives_the_set(tmp_path: Path, given: int) -> None:
    paths = write_split(tmp_path, "m", META, SHARDS)
    checkpoint = open_checkpoint(paths[given])
    assert {name: float(decode(t)[0, 0]) for name, t in checkpoint.tensors.items()} == {"a": 1, "b": 2, "c": 3}
    assert checkpoint.metadata["general.name"] == "tiny"
    assert checkpoint.file_bytes == sum(p.stat().st_size for p in paths)
    assert [f.path.name for f in checkpoint.files] == [p.name for p in paths]


def test_the_folder_gives_the_set(tmp_path: Path) -> None:
    write_split(tmp_path, "m", META, SHARDS)
    write_gguf(tmp_path / "mmproj-vision.gguf", {"general.architecture": "clip"})
    assert list(open_checkpoint(tmp_path).tensors) == ["a", "b", "c"]


def test_a_first_shard_without_tensors(tmp_path: Path) -> None:
    paths = write_split(tmp_path, "m", META, [[], *SHARDS])
    assert list(open_checkpoint(paths[2]).tensors) == ["a", "b", "c"]


@pytest.mark.parametrize("marks", [0, 1])
def test_a_merged_file_may_keep_its_split_keys(tmp_path: Path, marks: int) -> None:
    path = write_gguf(tmp_path / "m.gguf", {**META, "split.count": Typed(w.U16, marks)}, SHARDS[0])
    assert list(open_checkpoint(path).tensors) == ["a"]


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_missing_shard_is_named(tmp_path: Path, gone: int) -> None:
    paths = write_split(tmp_path, "m", META, SHARDS)
    paths[gone].unlink()
    left = next(p for p in paths if p.exists())
    refused(left, f"m-{gone + 1:05d}-of-00003.gguf is missing", "download")
    refused(tmp_path, f"m-{gone + 1:05d}-of-00003.gguf is missing")


def test_a_shard_without_the_pattern_in_its_name(tmp_path: Path) -> None:
    paths = write_split(tmp_path, "m", META, SHARDS)
    renamed = paths[0].rename(tmp_path / "model.gguf")
    refused(renamed, "one shard of 3", "00001-of-00003.gguf")
    refused(paths[1], "m-00001-of-00003.gguf is missing")


def test_joined_with_cat(tmp_path: Path) -> None:
    paths = write_split(tmp_path, "m", META, SHARDS)
    for order in ((0, 1, 2), (1, 0, 2)):
        joined = tmp_path / "joined.gguf"
        joined.write_bytes(b"".join(paths[i].read_bytes() for i in order))
        refused(joined, "joined with cat", "llama-gguf-split --merge")


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    paths = write_split(tmp_path, "m", META, [*SHARDS[:2], SHARDS[0]])
    refused(paths[0], "tensor 'a' is also in m-00001-of-00003.gguf")


def test_the_tensor_count_is_checked(tmp_path: Path) -> None:
    paths = write_split(tmp_path, "m", META, SHARDS)
    extra = {"split.no": Typed(w.U16, 1), "split.count": Typed(w.U16, 3), "split.tensors.count": Typed(w.I32, 3)}
    write_gguf(paths[1], extra, [*SHARDS[1], w.f32_tensor("d", [[1.0]])])
    refused(paths[0], "split.tensors.count is 3, the 3 shards hold 4")


def test_shards_of_different_sets(tmp_path: Path) -> None:
    paths = write_split(tmp_path, "m", META, SHARDS)
    shutil.copy(paths[2], paths[1])
    refused(paths[0], "split.no is 2, its name says 1")
    (tmp_path / "other").mkdir()
    other = write_split(tmp_path / "other", "m", META, SHARDS[:2])
    shutil.copy(other[1], paths[1])
    refused(paths[0], "split.count is 2, its name says 3")
    write_gguf(paths[1], {}, SHARDS[1])
    refused(paths[0], "split.no is None, its name says 1")


@pytest.mark.parametrize(("key", "value"), [("split.count", "three"), ("split.count", -3), ("split.count", 3.5), ("split.no", True)])
def test_split_values_must_be_numbers(tmp_path: Path, key: str, value: object) -> None:
    keys = {**META, "split.no": 0, "split.count": 3, key: value}
    refused(write_gguf(tmp_path / "m.gguf", keys, SHARDS[0]), f"{key} is")


def test_too_many_shards(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {**META, "split.count": MAX_SHARDS + 1}, SHARDS[0])
    refused(path, f"at most {MAX_SHARDS} shards")


def test_a_folder_with_two_models(tmp_path: Path) -> None:
    write_split(tmp_path, "m", META, SHARDS)
    write_gguf(tmp_path / "n.gguf", META, SHARDS[0])
    refused(tmp_path, "holds 2 GGUF models", "n.gguf", "m-00001-of-00003.gguf")


def test_a_shard_that_links_out_of_the_folder(tmp_path: Path) -> None:
    paths = write_split(tmp_path, "m", META, SHARDS)
    outside = tmp_path.parent / "outside.gguf"
    paths[1].rename(outside)
    paths[1].symlink_to(outside)
    refused(paths[0], "leads out of the model folder")
