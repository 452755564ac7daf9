"""A model file in memory: mapped read-only, its size, and views of the tensors stored in it. Knows no file format.

Replacing a mapped file by rename is safe. Truncating it in place is not (the kernel then raises SIGBUS): `MappedFile.check_unchanged`
compares size and modification time, so that a loader can refuse a file that changed under it.
"""

from __future__ import annotations

import logging
import mmap
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ridgeline.encodings import Encoding
from ridgeline.errors import FileFormatError
from ridgeline.formats.tensors import Tensor

log = logging.getLogger(__name__)
PAGE_BYTES = mmap.PAGESIZE


class MappedFile:
    """The bytes of one regular file. `raw` is the buffer, `bytes_` a uint8 view of it; both live as long as this object.

    Raises `FileFormatError` when the path is missing, unreadable, empty or no regular file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Opening a pipe would block for ever, so the kind is asked first.
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise FileFormatError(f"{path}: is not a regular file", field=str(path), remedy="give a model file on a disk")
            with path.open("rb") as handle:
                status = os.fstat(handle.fileno())
                self.size = status.st_size
                self._identity = (status.st_size, status.st_mtime_ns)
                if self.size == 0:
                    raise FileFormatError(f"{path}: is empty (0 bytes)", field=str(path), value=0, remedy="download the file again")
                self.raw = _map(handle.fileno(), self.size, path)
        except OSError as error:
            raise FileFormatError(
                f"{path}: {error.strerror or error}", field=str(path), remedy="check the path and its permissions"
            ) from None
        self.bytes_: npt.NDArray[np.uint8] = np.frombuffer(self.raw, dtype=np.uint8)

    def release(self, start: int, nbytes: int) -> None:
        """Drop the resident pages of a byte range. They are read from the file again if touched."""
        if isinstance(self.raw, mmap.mmap) and nbytes > 0:
            first = start - start % PAGE_BYTES
            self.raw.madvise(mmap.MADV_DONTNEED, first, min(start + nbytes, self.size) - first)

    def check_unchanged(self) -> None:
        """Raises `FileFormatError` when the file at this path was truncated, rewritten or replaced since it was opened."""
        try:
            status = self.path.stat()
            now = (status.st_size, status.st_mtime_ns)
        except OSError as error:
            raise FileFormatError(
                f"{self.path}: {error.strerror or error} (it was open)", field=str(self.path), remedy="load the model again"
            ) from None
        if now != self._identity:
            was = self._identity[0]
            raise FileFormatError(
                f"{self.path}: changed while it was open ({was} bytes then, {now[0]} now)", field=str(self.path), value=now[0], limit=was,
                remedy="load the model again, and replace model files by rename",
            )  # fmt: skip


def _map(descriptor: int, size: int, path: Path) -> mmap.mmap | bytes:
    """Map the file, or read it whole where the file system cannot map."""
    try:
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
    except OSError as error:
        log.warning("%s: cannot be mapped (%s), reading all %d bytes into memory", path, error.strerror, size)
        with os.fdopen(os.dup(descriptor), "rb") as handle:
            data = handle.read(size)
        if len(data) != size:
            raise FileFormatError(f"{path}: gave {len(data)} of {size} bytes", field=str(path), value=len(data), limit=size) from None
        return data


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where one tensor lies in a file: `nbytes` from byte `start`, already checked against the file's size.

    shape is outermost first; an empty shape (a scalar) is read as one row of one value.
    """

    name: str
    shape: tuple[int, ...]
    encoding: Encoding
    start: int
    nbytes: int
    file: MappedFile

    def tensor(self) -> Tensor:
        """A zero-copy, read-only view."""
        shape = self.shape or (1,)
        data = self.file.bytes_[self.start : self.start + self.nbytes].reshape(prod(shape[:-1]), -1)
        return Tensor(self.name, shape, self.encoding, data, f"{self.file.path}: {self.name}")


class StoredTensors(Mapping[str, Tensor]):
    """Tensors by the checkpoint's own names; a view is made when it is asked for."""

    def __init__(self, stored: Mapping[str, StoredTensor]) -> None:
        self.stored = stored

    def __getitem__(self, name: str) -> Tensor:
        return self.stored[name].tensor()

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)

    def __contains__(self, name: object) -> bool:
        return name in self.stored
