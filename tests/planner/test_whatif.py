"""Row 15: two ways to cut cost, fewer tokens or faster serving, on one axis."""

from __future__ import annotations

from decimal import Decimal

import pytest

from ridgeline.planner.catalog import find_model
from ridgeline.planner.formats import WEIGHT_FORMATS, kv_format_named
from ridgeline.planner.hardware import devices, find_device
from ridgeline.planner.load import Traffic
from ridgeline.planner.parallel import Layout
from ridgeline.planner.setup import Setup
from ridgeline.planner.whatif import what_if


def setup(model: str) -> Setup:
    return Setup(find_model(model), find_device("H100 SXM", devices()), WEIGHT_FORMATS["bf16"], kv_format_named("bf16"), Layout())


def test_each_change_alone() -> None:
    found = {w.change.split(" (")[0]: w for w in what_if(setup("Llama-3.1-8B"), Traffic(5.0, 2048, 256), Decimal("2.40"))}
    assert found["as it is"].saved == 0 and found["as it is"].usd_per_mtok is not None
    for change in (
        "prompts a quarter shorter",
        "half of every prompt cached",
        "answers a quarter shorter",
        "fp8 weights",
        "int4 weights",
        "fp8 KV cache",
    ):
        assert 0 < found[change].saved < 1, change
        assert found[change].device_s < found["as it is"].device_s
    before = found["as it is"]
    assert before.usd_per_mtok is not None
    assert float(before.usd_per_mtok) * 256 / 1e6 / (2.40 / 3600) == pytest.approx(before.device_s)


def test_nothing_that_is_already_so_is_offered() -> None:
    small = setup("Llama-3.1-8B").change(form=WEIGHT_FORMATS["int4"], kv=kv_format_named("fp8"))
    changes = [w.change for w in what_if(small, Traffic(5.0, 2048, 256, 1500), None)]
    assert not any("weights" in c or "KV" in c or "cached" in c for c in changes)


def test_what_does_not_fit_has_no_what_if() -> None:
    assert what_if(setup("Llama-3.1-405B"), Traffic(1.0, 100, 10), None) == []
