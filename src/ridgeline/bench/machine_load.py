"""What others took of this machine: CPU time that the hypervisor gave away. Linux only; elsewhere nothing is known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Ticks since the machine started, of all CPUs together."""

    stolen: int
    total: int

    def __sub__(self, before: CpuTime) -> CpuTime:
        return CpuTime(self.stolen - before.stolen, self.total - before.total)

    @property
    def share(self) -> float:
        """Stolen part of the time, 0.0 to 1.0."""
        return self.stolen / self.total if self.total > 0 else 0.0


def cpu_time(path: Path = Path("/proc/stat")) -> CpuTime:
    """Now. Zeros where the file does not exist or says something else (proc(5): user nice system idle iowait irq softirq steal ...)."""
    try:
        words = path.read_text("utf8").partition("\n")[0].split()
        ticks = [int(word) for word in words[1:9]]
    except (OSError, ValueError):
        return CpuTime(0, 0)
    return CpuTime(ticks[7], sum(ticks)) if len(ticks) == 8 else CpuTime(0, 0)
