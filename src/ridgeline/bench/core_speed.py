"""How fast this machine's cores are at the moment, as a share of their best: a neighbour on the same physical core leaves no other trace.

A virtual CPU is often one of two threads of a core. Arithmetic was seen to take 1.6 times as long for moments, where neither steal nor
/proc/stat showed anything. So a measurement is put between two short probes, and taken again where they were slow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ridgeline.backends.cpu import _native
from ridgeline.backends.cpu.program import ISAS
from ridgeline.planner.hardware import Machine

T = TypeVar("T")
SLOW = 0.9  # of the best: a measurement beside a slower probe does not count while there are others
TRIES = 2  # times as many measurements as are asked for, at most
_SECONDS, _BYTES = 0.005, 1 << 20  # of a probe: some 20 ms in all, within the cores' own caches
_PROBES = 3  # the best of so many: threads that were just woken may share a CPU for a moment


@dataclass(frozen=True, slots=True)
class Taken(Generic[T]):
    """A measurement and the slower of the probes before and after it, as a share of the best."""

    value: T
    speed: float

    @property
    def counts(self) -> bool:
        return self.speed >= SLOW


class CoreSpeed:
    """Mutable: the best seen so far; it begins with the int8 ceiling of `machine`, which may have been measured at a bad moment."""

    def __init__(self, machine: Machine) -> None:
        self._threads, self._isa, self._best = machine.threads, ISAS.index(machine.isa), machine.int8_gops

    def now(self) -> float:
        """Share of the best that all threads together reach now, above 0.0 and at most 1.0."""
        rate = max(_native.probe(self._isa, self._threads, _SECONDS, _BYTES)[2] for _ in range(_PROBES))
        self._best = max(self._best, rate)
        return rate / self._best

    def beside(self, measure: Callable[[], T]) -> Taken[T]:
        """One measurement between two probes."""
        before = self.now()
        value = measure()
        return Taken(value, min(before, self.now()))


def counted(taken: Sequence[Taken[T]]) -> list[T]:
    """What counts: measurements at full speed; all of them where there are none."""
    return [t.value for t in taken if t.counts] or [t.value for t in taken]


def enough(taken: Sequence[Taken[Any]], wanted: int) -> bool:
    """Whether to stop: as many count as are wanted, or it was tried often enough."""
    return sum(t.counts for t in taken) >= wanted or len(taken) >= TRIES * wanted
