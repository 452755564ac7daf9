"""Measurements in turns, each beside the cores' speed, until enough of each figure count; then their medians. Knows no workload."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from statistics import median

from ridgeline.bench.core_speed import CoreSpeed, Taken, counted, enough
from ridgeline.bench.probe import machine
from ridgeline.engine.loader import LoadedModel, isa_of


class Turns:
    """Mutable: all that was taken so far, by name. repeat: how many of a figure are to count."""

    def __init__(self, model: LoadedModel, repeat: int) -> None:
        self._model, self._repeat = model, repeat
        self.taken: dict[str, list[Taken[float]]] = {}

    @cached_property
    def _speed(self) -> CoreSpeed:
        """Made where something is timed: it may have to probe the machine first."""
        return CoreSpeed(machine(self._model.plan.threads, isa_of(self._model.program, self._model.plan)))

    def note(self, measure: Callable[[], Mapping[str, float]]) -> None:
        """Runs it beside the cores' speed and keeps what it gave."""
        taken = self._speed.beside(measure)
        for name, value in taken.value.items():
            self.taken.setdefault(name, []).append(Taken(value, taken.speed))

    def wanted(self, *names: str) -> Iterator[int]:
        """Numbers of the turns until enough of each count."""
        turn = 0
        while not all(enough(self.taken.get(name, ()), self._repeat) for name in names):
            yield turn
            turn += 1

    def median(self, name: str) -> float:
        """Of those that count."""
        return median(counted(self.taken[name]))

    def values(self) -> dict[str, list[float]]:
        """Every measurement, whether it counts or not."""
        return {name: [t.value for t in taken] for name, taken in self.taken.items()}

    def speeds(self) -> dict[str, list[float]]:
        """Of the cores beside each."""
        return {name: [t.speed for t in taken] for name, taken in self.taken.items()}
