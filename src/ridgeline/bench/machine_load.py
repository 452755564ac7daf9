"""What others took of this machine while something was measured: the hypervisor (steal) and other processes. Linux only, else zeros."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


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
