"""JSON files that are written whole or not at all, and what is kept in the cache folder beside the models.

What is kept is a convenience: what cannot be read or written is found again, and says nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ridgeline.formats.progress import cache_dir


def write_json(path: Path, document: Mapping[str, Any], indent: int | None = 1) -> None:
    """A kill at any moment leaves the old file or the new one. Raises `OSError`."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(document, indent=indent, allow_nan=False), "utf8")
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        raise


def read_kept(name: str) -> dict[str, Any]:
    """What is kept in the cache folder under a file's name; empty where there is nothing to read."""
    try:
        found = json.loads((cache_dir() / name).read_text("utf8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def keep(name: str, key: str, value: Any) -> None:
    """Add to what is kept under a file's name, where that can be done."""
    with suppress(OSError):
        cache_dir().mkdir(parents=True, exist_ok=True)
        write_json(cache_dir() / name, read_kept(name) | {key: value})
