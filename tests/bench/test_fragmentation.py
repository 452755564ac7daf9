"""Row 101: internal and external waste of KV memory, by hand and on a run."""

from __future__ import annotations

import pytest
from tests.bench.test_simulate import fleet

from ridgeline.bench.fragmentation import Held, contiguous, held, paged
from ridgeline.bench.simulate import simulate
from ridgeline.bench.workloads import Lengths, poisson


def test_internal_by_hand() -> None:
    """10 tokens for a second, then 11, in blocks of 16: 5.5 of 16 unused."""
    one = [Held(0.0, 10, (1.0, 2.0))]
    assert paged(one).internal == pytest.approx(5.5 / 16)
    assert contiguous(one, 100, 32).internal == pytest.approx(21.5 / 32)
    assert contiguous(one, 100).internal == pytest.approx(1.5 / 12)
    assert paged(one).external is None


def test_external_by_hand() -> None:
    """Regions of 40, 20, 40 fill 100; the two outer ones go; 60 are free but no 45 in one piece."""
    requests = [Held(0.0, 39, (5.0,)), Held(0.1, 19, (20.0,)), Held(0.2, 39, (5.0,)), Held(6.0, 44, (7.0,))]
    assert contiguous(requests, 100).external == 0.25
    assert contiguous(requests, 105).external == 0.0
    assert contiguous([], 10).external == 0.0


def test_paging_wastes_less_than_a_block_each() -> None:
    run = simulate(fleet(), poisson(80, 20.0, Lengths(100, 60, 0.8)))
    kept = held(run.lives)
    assert paged(kept).internal < 0.1 < contiguous(kept, 32000, 256).internal
    assert paged(kept, 1).internal == pytest.approx(0, abs=1e-12)
