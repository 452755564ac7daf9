"""Who used the CPUs while a cell ran: ourselves, the server, others, and what the hypervisor took. From /proc; elsewhere it says nothing.

A cell in which others and steal together took more than `LIMIT` of the machine is not to be relied on, and is run again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

LIMIT = 0.05
_USER, _NICE, _SYSTEM, _IDLE, _IOWAIT, _IRQ, _SOFTIRQ, _STEAL = range(8)


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
    def disturbed(self) -> bool:
        return self.steal + (self.others or 0.0) > LIMIT


@dataclass(frozen=True, slots=True)
class _Moment:
    at_s: float
    total: int
    busy: int
    steal: int
    server: float | None
    client: float


class Watch:
    """Begins when made. server: the root of the server's processes, None when it is not known."""

    def __init__(self, server: int | None = None, proc: Path = Path("/proc")) -> None:
        self._server, self._proc = server, proc
        self._begun = self._now()

    def end(self) -> Noise | None:
        """None where /proc/stat cannot be read."""
        a, b = self._begun, self._now()
        if a is None or b is None or b.total <= a.total:
            return None
        tick = os.sysconf("SC_CLK_TCK")
        total = b.total - a.total
        client = b.client - a.client
        server = None if a.server is None or b.server is None else max(0.0, b.server - a.server)
        known = None if server is None else (client + server) * tick
        others = None if known is None else max(0.0, b.busy - a.busy - known) / total
        return Noise(
            (b.steal - a.steal) / total, others, None if server is None else server * tick / total,
            client / max(1e-9, b.at_s - a.at_s), None if self._server is None else tree_rss(self._server, self._proc),
        )  # fmt: skip

    def _now(self) -> _Moment | None:
        try:
            first = (self._proc / "stat").read_text("ascii").splitlines()[0].split()
            times = [int(v) for v in first[1:9]]
        except (OSError, ValueError, IndexError):
            return None
        times += [0] * (8 - len(times))
        idle = times[_IDLE] + times[_IOWAIT]
        own = os.times()
        server = None if self._server is None else tree_seconds(self._server, self._proc)
        return _Moment(perf_counter(), sum(times), sum(times) - idle - times[_STEAL], times[_STEAL], server, own.user + own.system)


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
