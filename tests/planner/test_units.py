"""Quantities as people type them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from ridgeline.errors import UserError
from ridgeline.planner import units


@pytest.mark.parametrize("text, value", [("500ms", 0.5), ("0.5s", 0.5), ("30us", 30e-6), ("2 min", 120.0), ("1", 1.0), (".5S", 0.5)])
def test_seconds(text: str, value: float) -> None:
    assert units.seconds(text, "--itl") == pytest.approx(value)


@pytest.mark.parametrize("text, value", [("14.0e9", 14e9), ("14GB", 14e9), ("1GiB", 2**30), ("8 gb", 8e9), ("10", 10), ("1e3kb", 1e6)])
def test_bytes(text: str, value: float) -> None:
    assert units.byte_count(text, "--memory") == value


@pytest.mark.parametrize("text, value", [("3.35TB/s", 3.35e12), ("819GB/s", 819e9), ("2.0e12", 2e12), ("300 gb", 300e9)])
def test_bandwidths(text: str, value: float) -> None:
    assert units.bandwidth(text, "--bandwidth") == pytest.approx(value)


@pytest.mark.parametrize("text, value", [("5/s", 5), ("300/min", 5), ("0.5", 0.5), ("7200/h", 2), ("86400/day", 1)])
def test_rates(text: str, value: float) -> None:
    assert units.per_second(text, "--rate") == pytest.approx(value)


def test_prices_and_shares() -> None:
    assert units.usd_per_hour("2.69/h", "--price") == units.usd_per_hour("$2.69", "--price") == Decimal("2.69")
    assert units.fraction("40%", "--utilization") == units.fraction("0.4", "--utilization") == Decimal("0.4")
    assert units.share_or_bytes("10%", "--overhead-bytes") == (0.0, 0.1)
    assert units.share_or_bytes("8GB", "--overhead-bytes") == (8e9, 0.0)


@pytest.mark.parametrize("parser", [units.seconds, units.byte_count, units.bandwidth, units.per_second, units.usd_per_hour, units.fraction])
@pytest.mark.parametrize("text", ["", "x", "-5", "nan", "inf", "1e999", "5 parsecs", "--"])
def test_what_is_not_a_quantity_names_its_option(parser: object, text: str) -> None:
    with pytest.raises(UserError) as error:
        parser(text, "--some-option")  # type: ignore[operator]
    assert "--some-option" in str(error.value)


@pytest.mark.parametrize("parser, text", [
    (units.seconds, "0ms"), (units.per_second, "0/s"), (units.bandwidth, "3350"), (units.fraction, "0"), (units.fraction, "140%"),
    (units.share_or_bytes, "100%"), (units.per_second, "5/fortnight"), (units.byte_count, "5KI"),
])  # fmt: skip
def test_values_that_cannot_be(parser: object, text: str) -> None:
    with pytest.raises(UserError):
        parser(text, "--x")  # type: ignore[operator]
