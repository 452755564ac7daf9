"""How much memory this process may still use: what is available, and what each cgroup limit on its path leaves. Linux files only.

Knows no model. Sources: kernel documentation, admin-guide/cgroup-v2 (memory.max, memory.stat) and cgroup-v1/memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_NO_LIMIT_BYTES = 1 << 60  # cgroup v1 says "unlimited" with a number near 2^63


def memory_budget(root: Path = Path("/")) -> int:
    """Bytes that can still be allocated: the smaller of MemAvailable and what each cgroup limit leaves."""
    budgets = [_available(root)]
    for folder in _cgroup_folders(root):
        for limit_name, used_name in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            limit, used = _number(folder / limit_name), _number(folder / used_name)
            if limit is not None and limit < _NO_LIMIT_BYTES:
                # Page cache is counted as used but is given back under pressure.
                budgets.append(max(0, limit - (used or 0) + _page_cache(folder)))
    return min(budgets)


def _cgroup_folders(root: Path) -> Iterator[Path]:
    """Folders that hold this process's memory limits, from its own group up to the root, version 2 and version 1."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        # Inside a container the path may be the host's: the folder is then missing and the mounted top is the group itself.
        folder = top / path.strip("/")
        yield folder
        while folder != top and top in folder.parents:
            folder = folder.parent
            yield folder


def _available(root: Path) -> int:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 8 << 30


def _page_cache(folder: Path) -> int:
    for line in _text(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == "inactive_file":
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text("utf8", "replace")
    except OSError:
        return ""
