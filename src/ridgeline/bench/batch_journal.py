"""The output of a batch: every reply is appended to `OUT.part` the moment it is there; at the end `OUT` is written in the input's order.

A kill at any moment leaves whole lines (and at most one torn one, which is dropped): the next run goes on from them.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ridgeline.errors import UserError

_HEADER = "ridgeline_batch"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a reply lies in the part file; good: it is an answer and no error."""

    offset: int
    size: int
    good: bool


def part_of(out: Path) -> Path:
    return out.with_name(out.name + ".part")


class Journal:
    """The one writer of a batch's output. done: number of the input line -> its reply. ids: of every input line, by id.

    asked: what the replies depend on beside the input (model, url). Raises `UserError` when another process writes the same output, or
    what is there answers another input or was asked otherwise, and for a folder that cannot be written.
    """

    def __init__(
        self, out: Path, ids: Mapping[str, int], asked: Mapping[str, Any], *, overwrite: bool = False, retry: bool = False
    ) -> None:
        self.out, self._ids, self._retry = out, ids, retry
        self.done: dict[int, Place] = {}
        path = part_of(out)
        if out.is_dir():
            raise UserError(f"-o {out} is a folder", field="-o", value=str(out), remedy="name a file")
        try:
            self._file: BinaryIO = path.open("a+b")
        except OSError as error:
            raise UserError(f"{path}: {error.strerror or error}", field="-o", value=str(out), remedy="choose another -o") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise UserError(f"another process is writing {out}", field="-o", value=str(out), remedy="wait for it, or end it") from None
        try:
            self._begin(asked, overwrite)
        except BaseException:
            empty = self._file.seek(0, os.SEEK_END) == 0
            self._file.close()
            if empty:
                path.unlink(missing_ok=True)
            raise

    def _begin(self, asked: Mapping[str, Any], overwrite: bool) -> None:
        if overwrite:
            self._file.truncate(0)
        self._cut_torn()
        if self._file.seek(0, os.SEEK_END):
            self._read_part(asked)
            return
        kept = [] if overwrite or not self.out.exists() else self._finished_lines()
        self._file.write(json.dumps({_HEADER: 1, **asked}, ensure_ascii=False).encode() + b"\n")
        for line in kept:
            self._append(line)
        self.flush()

    def _cut_torn(self) -> None:
        """Drop what follows the last newline: a write that a kill cut in two."""
        end = self._file.seek(0, os.SEEK_END)
        at = end
        while at:
            begin = max(0, at - (1 << 16))
            self._file.seek(begin)
            found = self._file.read(at - begin).rfind(b"\n")
            if found >= 0:
                end = begin + found + 1
                break
            at, end = begin, begin
        self._file.truncate(end)

    def _read_part(self, asked: Mapping[str, Any]) -> None:
        self._file.seek(0)
        head = _parsed(self._file.readline())
        if head.pop(_HEADER, None) != 1:
            raise _foreign(part_of(self.out), "is not the journal of a batch")
        for name, value in asked.items():
            if head.get(name) != value:
                raise _foreign(part_of(self.out), f"was begun with {name} {head.get(name)!r}, now it is {value!r}")
        offset = self._file.tell()
        for line in self._file:
            self._note(line, offset, part_of(self.out))
            offset += len(line)
        self._file.seek(0, os.SEEK_END)

    def _finished_lines(self) -> list[bytes]:
        """The lines of an output that is whole already: the same input, or one that has grown since."""
        lines = [line for line in self.out.read_bytes().splitlines(keepends=True) if line.strip()]
        for line in lines:
            self._number(_parsed(line), self.out)
        return [line if line.endswith(b"\n") else line + b"\n" for line in lines]

    def _number(self, document: Mapping[str, Any], path: Path) -> int:
        id = document.get("id")
        number = self._ids.get(id) if isinstance(id, str) else None
        if number is None:
            raise _foreign(path, f"holds a line that answers no line of this input (id {str(id)[:60]!r})")
        return number

    def _note(self, line: bytes, offset: int, path: Path) -> None:
        document = _parsed(line)
        number, good = self._number(document, path), is_good(document)
        if self._retry and not good:
            self.done.pop(number, None)
        else:
            self.done[number] = Place(offset, len(line), good)

    def _append(self, line: bytes) -> None:
        offset = self._file.seek(0, os.SEEK_END)
        self._file.write(line)
        self._note(line, offset, part_of(self.out))

    def add(self, document: Mapping[str, Any]) -> None:
        """One reply; it survives the process from here on."""
        offset = self._file.seek(0, os.SEEK_END)
        line = json.dumps(document, ensure_ascii=False).encode("utf8", "replace") + b"\n"
        self._file.write(line)
        self._file.flush()
        self.done[self._number(document, self.out)] = Place(offset, len(line), is_good(document))

    def flush(self) -> None:
        """It survives the machine, too."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def finish(self) -> None:
        """Write the output in the order of the input, whole or not at all, and drop the journal."""
        draft = self.out.with_name(self.out.name + ".new")
        self._file.flush()
        with draft.open("wb") as file:
            for number in sorted(self.done):
                place = self.done[number]
                self._file.seek(place.offset)
                file.write(self._file.read(place.size))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.out)
        part_of(self.out).unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        self._file.close()


def is_good(document: Mapping[str, Any]) -> bool:
    """Whether a reply is an answer."""
    response = document.get("response")
    return document.get("error") is None and isinstance(response, dict) and response.get("status_code") == 200


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _foreign(path: Path, why: str) -> UserError:
    return UserError(f"{path} {why}", field="-o", value=str(path), remedy="choose another -o, or --overwrite it")
