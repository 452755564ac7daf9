"""What this process may use of the machine: CPUs (affinity and cgroup quota, along the whole path) and memory. Linux files only.

Knows no model. Sources: kernel documentation, admin-guide/cgroup-v2 (cpu.max, memory.max) and cgroup-v1 (cpu.cfs_quota_us).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_NO_LIMIT_BYTES = 1 << 60  # cgroup v1 says "unlimited" with a number near 2^63


def cpu_budget(root: Path = Path("/"), affinity: int | None = None) -> int:
    """Threads to use: max(1, floor(min(affinity, quota))). `root` and `affinity` are given by tests only."""
    if affinity is None:
        affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [q for folder in _cgroup_folders(root, "cpu") if (q := _quota(folder)) is not None]
    return max(1, int(min([float(affinity), *quotas])))


def memory_budget(root: Path = Path("/")) -> int:
    """Bytes that can still be allocated: the smaller of MemAvailable and what each cgroup limit leaves."""
    budgets = [_available(root)]
    for folder in _cgroup_folders(root, "memory"):
        for limit_name, used_name in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            limit, used = _number(folder / limit_name), _number(folder / used_name)
            if limit is not None and limit < _NO_LIMIT_BYTES:
                # Page cache is counted as used but is given back under pressure.
                budgets.append(max(0, limit - (used or 0) + _page_cache(folder)))
    return min(budgets)


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process, from its own group up to the root of the hierarchy, version 2 and version 1."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            top = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            joint = root / "sys/fs/cgroup" / controllers  # "cpu,cpuacct" is one folder on most systems
            top = joint if joint.is_dir() else root / "sys/fs/cgroup" / controller
        else:
            continue
        folder = top / path.strip("/")
        # Inside a container the path may be the host's: what is mounted is then the group itself.
        while True:
            yield folder
            if folder == top or top not in folder.parents:
                break
            folder = folder.parent


def _quota(folder: Path) -> float | None:
    """CPUs that the group may use, or None without a limit."""
    fields = _text(folder / "cpu.max").split()
    if len(fields) == 2 and fields[0].isdigit() and int(fields[1]) > 0:
        return int(fields[0]) / int(fields[1])
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota is not None and period and quota > 0 else None


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
