"""How fast this machine's cores are at the moment, as a share of their best: a neighbour on the same physical core leaves no other trace.

A virtual CPU is often one of two threads of a core. While the other one works for somebody else, arithmetic here takes up to 1.6 times as
long, and neither steal nor /proc/stat shows it. So a measurement is put between two short probes, and taken again where they were slow.
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
_SECONDS, _BYTES = 0.005, 1 << 20  # of a probe: some 10 ms in all, within the cores' own caches
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
    """`machine`: whose int8 ceiling is the best that its threads have done."""

    def __init__(self, machine: Machine) -> None:
        self._machine, self._isa = machine, ISAS.index(machine.isa)

    def now(self) -> float:
        """Share of the ceiling that all threads together reach now, above 0.0; a little over 1.0 where the ceiling was not the best."""
        best = max(_native.probe(self._isa, self._machine.threads, _SECONDS, _BYTES)[2] for _ in range(_PROBES))
        return best / self._machine.int8_gops

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
