"""What stands beside every result: the moment, the machine, the command; and files that are written whole or not at all.

What is kept of this host in the cache folder is a convenience: what cannot be read or written is measured again, and says nothing.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ridgeline.formats.progress import cache_dir

SECRET = "--api-key"


def now() -> str:
    """ISO 8601, UTC, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def machine_name() -> str:
    """CPU model and logical CPUs of this host: ceilings kept under another name are another machine's."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text("utf8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{model}, {os.cpu_count()} CPUs, {platform.node()}"


def command_line() -> str:
    """This process as it was typed, for a shell; a key is not told."""
    words = sys.argv[1:]
    told = ("..." if before == SECRET else word.partition("=")[0] + "=..." if word.startswith(f"{SECRET}=") else word
            for before, word in zip(["", *words], words, strict=False))  # fmt: skip
    return shlex.join(["ridgeline", *told])


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


def host_key(threads: int, isa: str) -> str:
    """What measurements of this host are kept under."""
    return f"{machine_name()} / {isa} / {threads} threads"
