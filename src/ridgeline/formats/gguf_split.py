"""Which GGUF files make up a model: one file, or a set of shards. Any shard, or the folder of the set, leads to the set.

Shards are named `<prefix>-00001-of-00003.gguf` and carry `split.no` (from 0), `split.count` and `split.tensors.count`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import FileFormatError
from ridgeline.formats.gguf import GgufFile, read_gguf
from ridgeline.formats.gguf_values import Value
from ridgeline.formats.mapped import StoredTensor
from ridgeline.formats.paths import inside, shown

_SHARD = re.compile(r"(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
MAX_SHARDS = 4096
# Companions that are no language model of their own.
_COMPANION_PREFIX = "mmproj"


@dataclass(frozen=True, slots=True)
class GgufModel:
    """The files of one model, first shard first; metadata of the first, tensors of all."""

    files: tuple[GgufFile, ...]
    metadata: Mapping[str, Value]
    tensors: Mapping[str, StoredTensor]


def read_gguf_model(path: Path) -> GgufModel:
    """Read a GGUF file, or the whole set when `path` is one of its shards. Raises `FileFormatError` naming what is missing or wrong."""
    given = read_gguf(path)
    count = _split_number(given, "split.count", 0)
    match = _SHARD.fullmatch(path.name)
    if count <= 1:
        return GgufModel((given,), given.metadata, given.tensors)
    if count > MAX_SHARDS:
        raise FileFormatError(
            f"{path}: split.count is {count}, at most {MAX_SHARDS} shards are read", field="split.count", value=count, limit=MAX_SHARDS
        )
    if match is None or int(match["count"]) != count:
        wanted = f"<name>-{_split_number(given, 'split.no', 0) + 1:05d}-of-{count:05d}.gguf"
        raise FileFormatError(
            f"{path}: is one shard of {count}, but its name does not say so", field=str(path), value=path.name, limit=wanted,
            remedy=f"rename it back to {wanted}, beside its other shards",
        )  # fmt: skip
    names = [f"{match['prefix']}-{number:05d}-of-{count:05d}{path.suffix}" for number in range(1, count + 1)]
    missing = [name for name in names if not (path.parent / name).exists()]
    if missing:
        raise FileFormatError(
            f"{path}: shard {missing[0]} is missing ({len(missing)} of {count} shards)",
            field=str(path.parent / missing[0]), value=len(missing), limit=0, remedy="download the missing shards into the same folder",
        )  # fmt: skip
    files = [given if name == path.name else read_gguf(inside(path.parent, name)) for name in names]
    return GgufModel(tuple(files), files[0].metadata, _merge(files, count))


def find_gguf(folder: Path) -> Path | None:
    """The one GGUF model of a folder (its first shard), or None. Raises `FileFormatError` when there are several models."""
    models: dict[str, Path] = {}
    for path in sorted(folder.glob("*.[gG][gG][uU][fF]")):
        match = _SHARD.fullmatch(path.name)
        if not path.name.lower().startswith(_COMPANION_PREFIX):
            models.setdefault(f"{match['prefix']}-of-{match['count']}" if match else path.name, path)
    if len(models) > 1:
        names = ", ".join(path.name for path in list(models.values())[:5])
        raise FileFormatError(
            f"{folder}: holds {len(models)} GGUF models ({names})",
            field=str(folder),
            value=len(models),
            limit=1,
            remedy="give the path of one of them",
        )
    return next(iter(models.values()), None)


def _split_number(file: GgufFile, key: str, default: int) -> int:
    value = file.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise FileFormatError(f"{file.path}: {key} is {shown(value)}, must be a whole number from 0", field=key, value=value, limit=0)
    return value


def _merge(files: list[GgufFile], count: int) -> dict[str, StoredTensor]:
    """All tensors of the set, after checking that each shard is the one its name says and that none is short or double."""
    tensors: dict[str, StoredTensor] = {}
    for number, file in enumerate(files):
        for key, want in (("split.no", number), ("split.count", count)):
            value = _split_number(file, key, 0) if key in file.metadata else None
            if value != want:
                raise FileFormatError(
                    f"{file.path}: {key} is {value}, its name says {want}",
                    field=key,
                    value=value,
                    limit=want,
                    remedy="shards of different sets are mixed",
                )
        for name, tensor in file.tensors.items():
            if name in tensors:
                raise FileFormatError(
                    f"{file.path}: tensor {shown(name)} is also in {tensors[name].file.path.name}",
                    field=name,
                    value=name,
                    remedy="split the model again",
                )
            tensors[name] = tensor
    declared = _split_number(files[0], "split.tensors.count", len(tensors))
    if declared != len(tensors):
        raise FileFormatError(
            f"{files[0].path}: split.tensors.count is {declared}, the {count} shards hold {len(tensors)}", field="split.tensors.count",
            value=len(tensors), limit=declared, remedy="a shard is damaged or from another set: download them again",
        )  # fmt: skip
    return tensors
