"""How many threads to run: from the affinity mask, the cgroup CPU quota along the whole path, and the physical cores. Linux files only.

Knows no pool. Sources: kernel documentation, admin-guide/cgroup-v2 (cpu.max) and cgroup-v1 (cpu.cfs_quota_us, cpu.cfs_period_us).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path


def default_threads(
    workers: int = 1, root: Path = Path("/"), affinity: Iterable[int] | None = None, environment: Mapping[str, str] | None = None
) -> int:
    """Threads for each of `workers` processes that share the machine: at least 1, never more than the CPUs this process may use.

    Two hardware threads of one core count once. OMP_NUM_THREADS lowers the number, never raises it. `root`, `affinity` and
    `environment` are given by tests only.
    """
    cpus = sorted(_affinity() if affinity is None else affinity)
    budget = min([float(_cores(root, cpus)), *_quotas(root)])
    asked = (os.environ if environment is None else environment).get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if asked.isdigit() and int(asked) > 0:
        budget = min(budget, int(asked))
    return max(1, int(budget) // max(1, workers))


def _affinity() -> Iterable[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def _cores(root: Path, cpus: list[int]) -> int:
    """Physical cores behind the CPUs of the mask; a CPU whose siblings are unknown is a core of its own."""
    cores = {_text(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").strip() or f"cpu{cpu}" for cpu in cpus}
    return max(1, len(cores))


def _quotas(root: Path) -> Iterator[float]:
    """CPUs that each group on the path from ours to the root may use, where there is a limit."""
    for folder in _folders(root):
        fields = _text(folder / "cpu.max").split()
        if len(fields) == 2 and fields[0].isdigit() and fields[1].isdigit() and int(fields[1]) > 0:
            yield int(fields[0]) / int(fields[1])
        quota, period = _text(folder / "cpu.cfs_quota_us").strip(), _text(folder / "cpu.cfs_period_us").strip()
        if quota.isdigit() and int(quota) > 0 and period.isdigit() and int(period) > 0:
            yield int(quota) / int(period)


def _folders(root: Path) -> Iterator[Path]:
    """This process's groups, version 2 and version 1, each with its ancestors."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            top = root / "sys/fs/cgroup"
        elif "cpu" in controllers.split(","):
            names = (controllers, "cpu")
            top = next((t for n in names if (t := root / "sys/fs/cgroup" / n).is_dir()), root / "sys/fs/cgroup/cpu")
        else:
            continue
        # In a container the path may be the host's: the folder is then missing, and the mounted root is our own group.
        folder = top / path.strip("/")
        yield folder
        while folder != top and top in folder.parents:
            folder = folder.parent
            yield folder


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
