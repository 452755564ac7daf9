"""Open any checkpoint we read, GGUF or Hugging Face, behind one type. Knows no architecture: names and values stay the file's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ridgeline.errors import FileFormatError
from ridgeline.formats.gguf_split import find_gguf, read_gguf_model
from ridgeline.formats.mapped import MappedFile, StoredTensors
from ridgeline.formats.paths import shown
from ridgeline.formats.safetensors import CONFIG, INDEX, PICKLE_SUFFIXES, SINGLE, read_folder


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model's metadata and tensors, mapped from disk.

    path: what was opened (a file, or a folder for "hf"); folder: where its files lie.
    architecture: GGUF `general.architecture`, or `model_type` of config.json.
    metadata: GGUF keys and values (arrays are lazy `gguf_values.Array`); for "hf" the parsed "config", "generation_config" and
    "tokenizer_config" (the last two empty when the file is not there).
    tensors: by the checkpoint's own names; `tensors[name]` is a zero-copy view made on demand. file_bytes: of all weight files.
    """

    path: Path
    kind: Literal["gguf", "hf"]
    architecture: str
    metadata: Mapping[str, Any]
    tensors: StoredTensors
    files: tuple[MappedFile, ...]

    @property
    def folder(self) -> Path:
        return self.files[0].path.parent

    @property
    def file_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def release_all(self) -> None:
        """Drop the resident pages of all weight files. Views stay valid and read from disk again."""
        for file in self.files:
            file.release(0, file.size)

    def check_unchanged(self) -> None:
        """Raises `FileFormatError` when a weight file changed on disk since it was opened; call it after packing."""
        for file in self.files:
            file.check_unchanged()


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a .gguf file (any shard of a set), a .safetensors file with its config beside it, or a folder holding one model.

    Raises `FileFormatError` or `UnsupportedError`, naming file, field, value, limit and remedy.
    """
    if os.path.isdir(path):
        return _open_folder(path)
    if not os.path.exists(path):
        raise FileFormatError(f"{path}: no such file or folder", field=str(path), value=str(path), remedy="check the path")
    if path.name in (CONFIG, INDEX):
        return _open_hf(path.parent, None)
    if path.suffix == ".safetensors":
        return _open_hf(path.parent, path.name)
    if path.suffix in PICKLE_SUFFIXES:
        raise FileFormatError(
            f"{path}: pickle weights can run code and are never loaded", field=str(path), value=path.suffix, limit=".gguf, .safetensors",
            remedy="convert the model to safetensors or GGUF",
        )  # fmt: skip
    return _open_gguf(path)


def _open_folder(folder: Path) -> Checkpoint:
    gguf = find_gguf(folder)
    has_hf = (folder / SINGLE).exists() or (folder / INDEX).exists()
    if gguf is not None and has_hf:
        raise FileFormatError(
            f"{folder}: holds a GGUF model ({gguf.name}) and a safetensors model",
            field=str(folder),
            value=2,
            limit=1,
            remedy="give the path of one of them",
        )
    return _open_gguf(gguf) if gguf is not None else _open_hf(folder, None)


def _open_gguf(path: Path) -> Checkpoint:
    model = read_gguf_model(path)
    architecture = model.metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise FileFormatError(
            f"{path}: general.architecture is {shown(architecture)}, must name the architecture",
            field="general.architecture", value=architecture, remedy="convert the model again",
        )  # fmt: skip
    return Checkpoint(path, "gguf", architecture, model.metadata, StoredTensors(model.tensors), tuple(f.file for f in model.files))


def _open_hf(folder: Path, only: str | None) -> Checkpoint:
    hf = read_folder(folder, only)
    architecture = hf.config.get("model_type")
    if not isinstance(architecture, str) or not architecture:
        raise FileFormatError(
            f"{folder / CONFIG}: model_type is {shown(architecture)}, must name the architecture", field="model_type", value=architecture,
            remedy="use the config.json that belongs to the weights",
        )  # fmt: skip
    metadata = {"config": hf.config, "generation_config": hf.generation_config, "tokenizer_config": hf.tokenizer_config}
    return Checkpoint(folder, "hf", architecture, metadata, StoredTensors(hf.tensors), hf.files)
