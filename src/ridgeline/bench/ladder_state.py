"""What a ladder has done so far, on disk: one JSON file, replaced whole after every cell, and the raw results and logs beside it.

Knows names of cells and their files. A run that was killed at any moment goes on from here.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from ridgeline.errors import UserError
from ridgeline.formats.kept import write_json

VERSION = 1


class LadderState:
    """The folder of one ladder. asked: what was asked; a folder that holds another ladder is refused, unless `overwrite`.

    document: {"asked", "cells": {key: {"seconds", "wall_s", "at"} or {"failed": why}}, "predictions": {rung: ...}, "quality": {rung: ...}}.
    Raises `UserError` when the folder cannot be used, or another process climbs the same ladder.
    """

    def __init__(self, folder: Path, asked: Mapping[str, Any], *, overwrite: bool = False) -> None:
        self.folder, self._file = folder, folder / "state.json"
        self._lock = self._hold()
        self.document: dict[str, Any] = {"version": VERSION, "asked": dict(asked), "cells": {}, "predictions": {}, "quality": {}}
        found = None if overwrite else self._read()
        if found is not None:
            if found.get("version") != VERSION or found.get("asked") != json.loads(json.dumps(dict(asked))):
                changed = sorted(k for k in {*asked, *found.get("asked", {})} if found.get("asked", {}).get(k) != _plain(asked.get(k)))
                text = f"{folder} holds another ladder (other: {', '.join(changed) or 'version'})"
                raise UserError(text, field="--dir", value=str(folder), remedy="name another --dir, or --overwrite it")
            self.document = found
        self.resumed = len(self.cells)
        self.save()

    def _hold(self) -> TextIO:
        try:
            for part in (self.folder, self.folder / "raw", self.folder / "logs"):
                part.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / "lock").open("w")
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"another process climbs the ladder in {self.folder}"
            raise UserError(text, field="--dir", value=str(self.folder), remedy="wait for it, or name another --dir") from None
        except OSError as error:
            raise UserError(f"{self.folder}: {error.strerror or error}", field="--dir", value=str(self.folder)) from None
        return lock

    def _read(self) -> dict[str, Any] | None:
        try:
            found = json.loads(self._file.read_text("utf8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UserError(f"{self._file}: {error}", field="--dir", value=str(self.folder), remedy="name another --dir") from None
        return found if isinstance(found, dict) else {}

    @property
    def cells(self) -> dict[str, Any]:
        found: dict[str, Any] = self.document["cells"]
        return found

    def raw(self, cell: str) -> Path:
        return self.folder / "raw" / f"{cell}.json"

    def log(self, cell: str) -> Path:
        return self.folder / "logs" / f"{cell}.log"

    def result(self, cell: str) -> dict[str, Any] | None:
        """A cell's raw result; None when it has not run, failed, or its file is gone."""
        if "seconds" not in self.cells.get(cell, {}):
            return None
        try:
            found: dict[str, Any] = json.loads(self.raw(cell).read_text("utf8"))
        except (OSError, ValueError):
            return None
        return found

    def save(self) -> None:
        write_json(self._file, self.document)

    def close(self) -> None:
        self._lock.close()


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))
