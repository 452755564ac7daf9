"""Two minutes of mixed load on SmolLM2 behind HTTP: no request without its end, memory flat within 2%. An hour: `tests/server/soak.py`."""

from __future__ import annotations

import os

import pytest
from tests.server.soak import gauge, soak

from ridgeline.formats.pull import find_cached

MODEL = find_cached("smollm2")
pytestmark = [pytest.mark.long, pytest.mark.real_model]


@pytest.mark.skipif(MODEL is None, reason="smollm2 is not in the cache: ridgeline pull smollm2")
def test_mixed_load() -> None:
    seconds = float(os.environ.get("SOAK_SECONDS", "120"))
    found, text, code = soak(str(MODEL), seconds, workers=12, rate=0.0)
    assert found.faults == [] and code == 0
    assert len(found.done) >= 15 and sum(found.done.values()) > seconds  # all kinds of requests, more than one a second
    assert gauge(text, "ridgeline:kv_evictions_total") > 0 and gauge(text, "ridgeline:clients_gone_total") > 0
    assert gauge(text, "vllm:corrupted_requests_total") == gauge(text, "ridgeline:backend_faults_total") == 0
    assert abs(found.growth(warm=seconds / 3)) < 0.02, found.rss[:: max(1, len(found.rss) // 20)]
