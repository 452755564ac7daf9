"""Money: case PL-04 and rows 2-4, 6, 13, 139, 140 of the acceptance table."""

from __future__ import annotations

from decimal import Decimal

import pytest

from ridgeline.errors import UserError
from ridgeline.planner.price import Share, TokenPrices, bill, break_even_days, per_million, query_price, rounded, split_by_device_time


def test_cached_tokens_are_charged_once() -> None:
    prices = TokenPrices(Decimal("2.50"), Decimal("1.25"), Decimal("10.00"))
    assert bill(prices, prompt=2006, cached=1920, completion=300) == Decimal("0.005615")
    assert bill(prices, 0, 0, 0) == 0
    for prompt, cached, completion in ((10, 11, 0), (-1, 0, 0), (1, -1, 0), (1, 0, -1)):
        with pytest.raises(UserError):
            bill(prices, prompt, cached, completion)


def test_a_machine_of_ones_own() -> None:
    """2 USD an hour, 1,000 tok/s, 40% of the time: 1.389 USD a million output tokens."""
    found = per_million("2.00", 1000, "0.4")
    assert found is not None and rounded(found, 3) == 1.389
    assert per_million("2.00", 1000) == pytest.approx(Decimal("0.5556"), abs=Decimal("0.0001"))


@pytest.mark.parametrize("rate, used", [(0, 1), (1000, 0)])
def test_nothing_made_has_no_price(rate: int, used: int) -> None:
    """Undefined, not infinite and not zero."""
    assert per_million(2, rate, used) is None


@pytest.mark.parametrize("hourly, rate, used", [(-1, 10, 1), (1, -10, 1), (1, 10, "1.1"), (1, 10, "-0.1")])
def test_amounts_that_cannot_be(hourly: int, rate: int, used: object) -> None:
    with pytest.raises(UserError):
        per_million(hourly, rate, used)  # type: ignore[arg-type]


def test_the_shortcut_of_the_slides() -> None:
    """277.8 x $/h / (tok/s)."""
    found = per_million("8.10", 1321)
    assert found is not None and float(found) == pytest.approx(277.78 * 8.10 / 1321, rel=1e-4)


def test_money_is_decimal() -> None:
    assert per_million("0.1", "0.3") == Decimal("0.1") / (Decimal("0.3") * 3600) * 1_000_000
    assert rounded(Decimal("0.1234565"), 6) == 0.123456 and rounded(None) is None


def test_device_time_divides_the_hour() -> None:
    """What requests pay together is the hour, whatever the split; idle time is in it."""
    fresh, cached, output = Share(900, 0.09), Share(100, 0.001), Share(200, 0.4)
    prices = split_by_device_time("3.60", 2, fresh, cached, output)
    assert prices is not None
    paid = bill(prices, prompt=1000, cached=100, completion=200) * 2 * 3600
    assert float(paid) == pytest.approx(3.60)
    assert prices.output / prices.input == pytest.approx(Decimal(0.4 / 200 / (0.09 / 900)), rel=Decimal("1e-9"))
    assert prices.cached < prices.input
    assert split_by_device_time(1, 0, fresh, cached, output) is None
    nothing = Share(0, 0.0)
    assert split_by_device_time(1, 1, nothing, nothing, nothing) is None


def test_training_against_serving() -> None:
    """Row 2: 32T training tokens at 8.6T a day."""
    found = break_even_days("32e12", "8.6e12")
    assert found is not None and rounded(found, 2) == 3.72
    assert break_even_days(1, 0) is None


def test_price_of_a_query() -> None:
    """Row 4."""
    found = query_price("2.00", 1000, 1_000_000, "0.005")
    assert (found.usd_per_query, found.usd_per_year, found.within) == (Decimal("0.002"), Decimal(730_000), True)
    assert query_price(10, 1000, 1, "0.005").within is False
    assert query_price(10, 1000, 1).within is None
