"""Which measurements count when a neighbour slows the cores."""

from __future__ import annotations

import pytest

from ridgeline.backends.cpu.program import choose_isa
from ridgeline.bench import core_speed
from ridgeline.bench.core_speed import SLOW, TRIES, CoreSpeed, Taken, counted, enough
from ridgeline.planner.hardware import Machine


def test_slow_measurements_do_not_count_while_there_are_others() -> None:
    taken = [Taken(1.0, 1.0), Taken(9.0, SLOW - 0.01), Taken(2.0, SLOW)]
    assert counted(taken) == [1.0, 2.0]
    assert counted(taken[1:2]) == [9.0]


def test_it_goes_on_until_enough_count_but_not_for_ever() -> None:
    free, slow = Taken(1.0, 1.0), Taken(1.0, 0.5)
    assert enough([free, free], 2) and not enough([free, slow], 2)
    assert not enough([slow] * (2 * TRIES - 1), 2) and enough([slow] * (2 * TRIES), 2)


def test_the_slower_of_both_probes_stands_beside_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter([50.0, 100.0, 40.0, 60.0, 60.0, 30.0, 50.0, 50.0, 50.0, 100.0, 50.0, 100.0])  # three tries each time, the best counts
    monkeypatch.setattr(core_speed._native, "probe", lambda isa, threads, seconds, most: (0.0, 0.0, next(rates), 0.0, 0.0))
    speed = CoreSpeed(Machine("test", 10.0, 100.0, 50.0, 1, "portable", "measured", "2026-01-01"))
    assert [speed.beside(lambda: 3.0), speed.beside(lambda: 4.0)] == [Taken(3.0, 0.6), Taken(4.0, 0.5)]


def test_a_probe_is_short_and_tells_a_rate() -> None:
    isa = choose_isa(None)
    assert CoreSpeed(Machine("test", 10.0, 1.0, 50.0, 1, isa, "measured", "2026-01-01")).now() > 0
