"""Who used the CPUs while something was measured: ourselves, a server, others, and what the hypervisor took. Reads Linux's /proc.

A cell in which others and steal together took more than `LIMIT` of the machine is not to be relied on, and is run again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

LIMIT = 0.05


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Seconds of all CPUs together since the machine started: all time, time stolen, time that was worked; and worked by this process."""

    total: float
    stolen: float
    worked: float
    own: float

    def __sub__(self, before: CpuTime) -> CpuTime:
        return CpuTime(self.total - before.total, self.stolen - before.stolen, self.worked - before.worked, self.own - before.own)

    @property
    def steal(self) -> float:
        """Share of the CPUs' time that the hypervisor gave to other machines, 0.0 to 1.0."""
        return self.stolen / self.total if self.total > 0 else 0.0

    @property
    def others(self) -> float:
        """Share that other processes worked, 0.0 to 1.0; known to some hundredths of a second."""
        return min(1.0, max(0.0, self.worked - self.own) / self.total) if self.total > 0 else 0.0


def cpu_time(path: Path = Path("/proc/stat")) -> CpuTime:
    """Now. Zeros where the file does not exist or says something else (proc(5): user nice system idle iowait irq softirq steal ...)."""
    mine = os.times()
    try:
        words = path.read_text("utf8").partition("\n")[0].split()
        user, nice, system, idle, wait, irq, soft, stolen = (int(word) / os.sysconf("SC_CLK_TCK") for word in words[1:9])
    except (OSError, ValueError):
        return CpuTime(0.0, 0.0, 0.0, 0.0)
    worked = user + nice + system + irq + soft
    return CpuTime(worked + idle + wait + stolen, stolen, worked, mine.user + mine.system)


@dataclass(frozen=True, slots=True)
class Noise:
    """Shares of all CPUs' time, 0.0 to 1.0. client: this process, as a share of ONE core. others: busy time that was neither ours nor
    the server's, None where the server's processes are not known. server: None likewise; rss_bytes: its memory at the end."""

    steal: float
    others: float | None
    server: float | None
    client: float
    rss_bytes: int | None = None

    @property
    def taken(self) -> float:
        """What others and the hypervisor had, as far as it is known."""
        return self.steal + (self.others or 0.0)

    @property
    def disturbed(self) -> bool:
        return self.taken > LIMIT


class Watch:
    """Begins when made. server: the root of the server's processes, None when it is not known."""

    def __init__(self, server: int | None = None, proc: Path = Path("/proc")) -> None:
        self._server, self._proc = server, proc
        self._begun = self._now()

    def end(self) -> Noise | None:
        """None where /proc/stat cannot be read."""
        (begun_s, before, served), (now_s, after, serving) = self._begun, self._now()
        cpus = after - before
        if cpus.total <= 0:
            return None
        server = None if served is None or serving is None else max(0.0, serving - served)
        others = None if server is None else replace(cpus, own=cpus.own + server).others
        return Noise(
            cpus.steal, others, None if server is None else server / cpus.total, cpus.own / max(1e-9, now_s - begun_s),
            None if self._server is None else tree_rss(self._server, self._proc),
        )  # fmt: skip

    def _now(self) -> tuple[float, CpuTime, float | None]:
        """The moment, all CPUs' seconds, and the server's."""
        server = None if self._server is None else tree_seconds(self._server, self._proc)
        return perf_counter(), cpu_time(self._proc / "stat"), server


def tree(root: int, proc: Path = Path("/proc")) -> list[int]:
    """`root` and all its descendants."""
    parents: dict[int, list[int]] = {}
    for entry in proc.iterdir():
        if entry.name.isdigit():
            fields = _stat(entry)
            if fields is not None:
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, open_ = [], [root]
    while open_:
        pid = open_.pop()
        found.append(pid)
        open_ += parents.get(pid, [])
    return found


def tree_seconds(root: int, proc: Path = Path("/proc")) -> float | None:
    """CPU seconds of a process and its descendants, None when it is gone."""
    if not (proc / str(root)).exists():
        return None
    fields = (_stat(proc / str(pid)) for pid in tree(root, proc))
    # utime, stime, cutime, cstime: fields 14 to 17, behind the name
    return sum(sum(int(v) for v in f[11:15]) for f in fields if f is not None) / os.sysconf("SC_CLK_TCK")


def tree_rss(root: int, proc: Path = Path("/proc")) -> int | None:
    """Resident bytes of a process and its descendants."""
    pages = [int(f[21]) for f in (_stat(proc / str(pid)) for pid in tree(root, proc)) if f is not None]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE") if pages else None


def own_rss(proc: Path = Path("/proc")) -> int:
    """Resident bytes of this process, 0 where the system does not say."""
    fields = _stat(proc / "self")
    return 0 if fields is None else int(fields[21]) * os.sysconf("SC_PAGE_SIZE")


def forget_peak(proc: Path = Path("/proc")) -> bool:
    """Let `own_peak` begin anew (proc(5): clear_refs). False where the system does not."""
    try:
        (proc / "self" / "clear_refs").write_text("5", "ascii")
    except OSError:
        return False
    return True


def own_peak(proc: Path = Path("/proc")) -> int:
    """The most bytes of this process that were resident since it began or `forget_peak`; 0 where the system does not say."""
    try:
        lines = (proc / "self" / "status").read_text("latin1").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)


def _stat(folder: Path) -> list[str] | None:
    """Fields of /proc/PID/stat behind the name: state, parent, ..."""
    try:
        return (folder / "stat").read_text("latin1").rpartition(")")[2].split()
    except OSError:
        return None


def listener(port: int, proc: Path = Path("/proc")) -> int | None:
    """The process that listens on a TCP port of this machine, None when it cannot be seen. Of several the oldest, their parent."""
    inodes = set(_inodes(port, proc))
    if not inodes:
        return None
    found = []
    for entry in proc.iterdir():
        if entry.name.isdigit() and any(link in inodes for link in _links(entry / "fd")):
            found.append(int(entry.name))
    return min(found, default=None)


def _inodes(port: int, proc: Path) -> Iterable[str]:
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (proc / "net" / name).read_text("ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    yield f"socket:[{fields[9]}]"


def _links(folder: Path) -> Iterable[str]:
    with suppress(OSError):
        for entry in os.scandir(folder):
            with suppress(OSError):
                yield os.readlink(entry.path)


def crowd(load: float) -> float:
    """Of the CPUs, what others had before anything began: runnable tasks of the last minute over CPUs where that is over a half, else 0."""
    share = load / (os.cpu_count() or 1)
    return min(1.0, share) if share > 0.5 else 0.0


def busy_warning(load: float) -> str | None:
    """What stands before and beside the figures of a run that began with such a load; None where the CPUs were free."""
    if not crowd(load):
        return None
    return f"warning: the machine was busy (load {load:.1f} on {os.cpu_count()} CPUs): figures and ratios are not to be relied on"
