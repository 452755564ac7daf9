"""safetensors files and folders: one file or shards named by an index, with the JSON files beside them. Runs no code, loads no pickle.

Source: the safetensors format (huggingface/safetensors README): u64 header length, JSON header, data without holes.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ridgeline.encodings import BF16, F16, F32, Encoding
from ridgeline.errors import FileFormatError, UnsupportedError
from ridgeline.formats.mapped import MappedFile, StoredTensor
from ridgeline.formats.paths import inside, shown

log = logging.getLogger(__name__)
MAX_HEADER_BYTES = 100_000_000
MIN_FILE_BYTES = 10
MAX_CONFIG_BYTES = 64_000_000
MAX_DIMS = 8
DTYPES: dict[str, Encoding] = {"F32": F32, "F16": F16, "BF16": BF16}
SINGLE, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_DAMAGED = "the file is cut short or damaged: download it again"


@dataclass(frozen=True, slots=True)
class HfFolder:
    """A checkpoint in Hugging Face form. JSON files that are not there are empty mappings (`config` must be there)."""

    folder: Path
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    tokenizer_config: Mapping[str, Any]
    files: tuple[MappedFile, ...]
    tensors: Mapping[str, StoredTensor]


def read_safetensors(path: Path) -> tuple[MappedFile, dict[str, StoredTensor]]:
    """Parse and check one file. Raises `FileFormatError`, or `UnsupportedError` for a dtype other than F32, F16 and BF16."""
    file = MappedFile(path)
    if file.size < MIN_FILE_BYTES:
        raise _bad(path, "header", f"needs at least {MIN_FILE_BYTES} bytes, the file has {file.size}", file.size, MIN_FILE_BYTES, _DAMAGED)
    length, limit = int.from_bytes(file.raw[:8], "little"), min(file.size - 8, MAX_HEADER_BYTES)
    if length > limit:
        problem = f"is declared {length} bytes long, at most {limit} are possible in this file of {file.size} bytes"
        raise _bad(path, "header", problem, length, limit, _DAMAGED)
    header = _parse_json(file.raw[8 : 8 + length], f"{path}: header")
    data_start = 8 + length
    _check_metadata(path, header.pop("__metadata__", {}))
    tensors = {name: _tensor(file, name, entry, data_start) for name, entry in header.items()}
    end, last = data_start, "the header"
    for tensor in sorted(tensors.values(), key=lambda t: (t.start, t.nbytes)):
        if tensor.start != end:
            problem = "overlaps" if tensor.start < end else "leaves a hole after"
            raise _bad(
                path, f"tensor {shown(tensor.name)}", f"{problem} {last}: starts at byte {tensor.start}, expected {end}", tensor.start, end
            )
        end, last = tensor.start + tensor.nbytes, f"tensor {shown(tensor.name)}"
    if end != file.size:
        raise _bad(path, "data", f"ends at byte {end}, the file has {file.size} bytes", file.size, end, _DAMAGED)
    return file, tensors


def read_folder(folder: Path, only: str | None = None) -> HfFolder:
    """Read a model folder: config, weights (single or sharded), and the JSON files that are there.

    `only` is the weight file that was asked for: a shard stands for its set. Raises `FileFormatError` for a missing config,
    pickle-only weights, an ambiguous folder or shards that do not match the index.
    """
    config = _read_json(folder, CONFIG)
    if config is None:
        raise FileFormatError(
            f"{folder}: has no {CONFIG}", field=str(folder / CONFIG), remedy="put the model's config.json beside its weights"
        )
    if "auto_map" in config:
        log.warning("%s: auto_map names remote code, which is never run", folder / CONFIG)
    single, index = (folder / SINGLE).exists(), (folder / INDEX).exists()
    if only is None and single and index:
        remedy = f"remove one, or give {folder / SINGLE}"
        raise FileFormatError(f"{folder}: holds both {SINGLE} and {INDEX}", field=str(folder), value=2, limit=1, remedy=remedy)
    weight_map = _weight_map(folder) if index and only != SINGLE else {}
    if only is not None and only not in weight_map.values():
        files, tensors = _one_file(folder, only)
    elif weight_map:
        files, tensors = _read_shards(folder, weight_map)
    elif single:
        files, tensors = _one_file(folder, SINGLE)
    else:
        raise _no_weights(folder)
    return HfFolder(
        folder,
        config,
        _read_json(folder, "generation_config.json") or {},
        _read_json(folder, "tokenizer_config.json") or {},
        files,
        tensors,
    )


def _no_weights(folder: Path) -> FileFormatError:
    pickles = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLE_SUFFIXES)
    if pickles:
        return FileFormatError(
            f"{folder}: holds only pickle weights ({pickles[0]}), which can run code and are never loaded",
            field=str(folder), value=pickles[0], limit=SINGLE,
            remedy="convert them to safetensors (transformers: save_pretrained(..., safe_serialization=True))",
        )  # fmt: skip
    return FileFormatError(
        f"{folder}: has no {SINGLE}, no {INDEX} and no .gguf file", field=str(folder), remedy="download the weights into this folder"
    )


def _one_file(folder: Path, name: str) -> tuple[tuple[MappedFile, ...], dict[str, StoredTensor]]:
    file, tensors = read_safetensors(inside(folder, name))
    return (file,), tensors


def _weight_map(folder: Path) -> dict[str, str]:
    """Tensor name -> shard, as the index says; the names are not yet checked."""
    weight_map = (_read_json(folder, INDEX) or {}).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(name, str) for name in weight_map.values()):
        raise _bad(folder / INDEX, "weight_map", "must map tensor names to file names")
    return weight_map


def _read_shards(folder: Path, weight_map: Mapping[str, str]) -> tuple[tuple[MappedFile, ...], dict[str, StoredTensor]]:
    """The shards that the index names. Each must hold exactly the tensors that the index maps to it."""
    path = folder / INDEX
    files: list[MappedFile] = []
    tensors: dict[str, StoredTensor] = {}
    for shard in sorted(set(weight_map.values())):
        if not shard.endswith(".safetensors"):
            raise _bad(
                path,
                "weight_map",
                f"names {shown(shard)}, which is no .safetensors file",
                shard,
                ".safetensors",
                "pickle weights are never loaded",
            )
        file, found = read_safetensors(inside(folder, shard))
        wanted = {name for name, where in weight_map.items() if where == shard}
        odd = sorted(wanted ^ found.keys())
        if odd:
            problem = "is not in" if odd[0] in wanted else "is not mapped by the index to"
            raise _bad(
                path,
                f"tensor {shown(odd[0])}",
                f"{problem} {shard} ({len(odd)} such tensors)",
                len(odd),
                0,
                "index and shards are of different models",
            )
        files.append(file)
        tensors.update(found)
    return tuple(files), tensors


def _tensor(file: MappedFile, name: str, entry: object, data_start: int) -> StoredTensor:
    what = f"tensor {shown(name)}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _bad(file.path, what, "must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise UnsupportedError(
            f"{file.path}: {what} has dtype {shown(dtype)}, which is not supported; supported are {', '.join(DTYPES)}",
            field=what, value=dtype, limit=tuple(DTYPES), remedy="convert the checkpoint to one of these",
        )  # fmt: skip
    if not _are_sizes(shape) or len(shape) > MAX_DIMS or not _are_sizes(offsets) or len(offsets) != 2:
        raise _bad(
            file.path,
            what,
            f"has a bad shape or data_offsets: {shown(shape)}, {shown(offsets)}",
            limit=f"at most {MAX_DIMS} sizes, 2 offsets",
        )
    if 0 in shape:
        raise _bad(file.path, what, f"has no elements: its shape is {shown(shape)}", shape)
    begin, end = offsets
    nbytes, present = prod(shape) * DTYPES[dtype].block_bytes, file.size - data_start
    if end > present or begin > end:
        raise _bad(file.path, what, f"lies at bytes {begin} to {end} of the data, which has {present}", end, present, _DAMAGED)
    if nbytes != end - begin:
        raise _bad(file.path, what, f"takes {end - begin} bytes, {dtype} of shape {shown(shape)} needs {nbytes}", end - begin, nbytes)
    return StoredTensor(name, tuple(shape), DTYPES[dtype], data_start + begin, nbytes, file)


def _are_sizes(values: object) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 1 << 63 for v in values)


def _check_metadata(path: Path, metadata: object) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _bad(path, "__metadata__", "must map strings to strings")


def _read_json(folder: Path, name: str) -> dict[str, Any] | None:
    """A JSON object of the folder, or None when the file is not there."""
    if not (folder / name).is_symlink() and not (folder / name).exists():
        return None
    path = inside(folder, name)
    file = MappedFile(path)
    if file.size > MAX_CONFIG_BYTES:
        raise _bad(path, "file", f"has {file.size} bytes, at most {MAX_CONFIG_BYTES} are read", file.size, MAX_CONFIG_BYTES)
    return _parse_json(file.raw[:], str(path))


def _parse_json(data: bytes, what: str) -> dict[str, Any]:
    """A JSON object. Refuses duplicate keys at any depth, deep nesting and anything that is no object."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise FileFormatError(f"{what}: key {shown(twice)} occurs twice", field=what, value=twice)
        return found

    try:
        found = json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{what}: is not valid JSON ({error})", field=what, remedy=_DAMAGED) from None
    if not isinstance(found, dict):
        raise FileFormatError(f"{what}: must be a JSON object, is a {type(found).__name__}", field=what)
    return found


def _bad(path: Path, what: str, problem: str, value: object = None, limit: object = None, remedy: str | None = None) -> FileFormatError:
    return FileFormatError(f"{path}: {what} {problem}", field=f"{path}: {what}", value=value, limit=limit, remedy=remedy)
