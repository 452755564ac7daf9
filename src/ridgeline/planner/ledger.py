"""Sums that people do on a napkin: training against serving, a query against a ceiling, our own price beside those of providers.

Decimal dollars; provider prices are the user's own, none is built in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal, InvalidOperation

from ridgeline.errors import UserError
from ridgeline.planner.price import MILLION, Amount, TokenPrices, bill, break_even_days, decimal

MOST_DAYS = 365 * 200
MONTH = Decimal(730) / 24  # days


@dataclass(frozen=True, slots=True)
class Crossover:
    """When what was served costs as much as training did; day None: not within 200 years, or never. months: (month, USD served so far)."""

    days: Decimal | None
    day: date | None
    months: tuple[tuple[int, Decimal], ...]


def crossover(training_usd: Amount, usd_per_day: Amount, start: date) -> Crossover:
    """One cost against a growing one."""
    days = break_even_days(training_usd, usd_per_day)
    late = days is None or days > MOST_DAYS
    day = None if days is None or late else start + timedelta(days=int(days.to_integral_value()))
    months = tuple((m, decimal(usd_per_day) * MONTH * m) for m in (1, 3, 6, 12, 24, 36))
    return Crossover(days, day, months)


@dataclass(frozen=True, slots=True)
class Offer:
    """A provider's prices, as the user gave them."""

    name: str
    prices: TokenPrices


def offer(text: str, option: str = "--provider") -> Offer:
    """NAME=IN/CACHED/OUT in USD per million tokens; CACHED may be left out and is then IN. Raises `UserError`."""
    found = re.fullmatch(r"([^=]{1,60})=([0-9.]{1,20})(?:/([0-9.]{1,20}))?/([0-9.]{1,20})", text.strip())
    try:
        if found is None:
            raise InvalidOperation
        first, last = Decimal(found[2]), Decimal(found[4])
        return Offer(found[1].strip(), TokenPrices(first, Decimal(found[3]) if found[3] else first, last))
    except InvalidOperation:
        example = "name=2.50/1.25/10 (USD per million input, cached and output tokens)"
        raise UserError(f"{option} is {text!r}, must be like {example}", field=option, value=text, limit=example) from None


@dataclass(frozen=True, slots=True)
class Compared:
    """One request at one price list; ratio: to the first of the list, None when that costs nothing."""

    name: str
    prices: TokenPrices
    usd_per_request: Decimal
    usd_per_month: Decimal
    ratio: Decimal | None


def compare(offers: list[Offer], prompt: int, cached: int, output: int, requests_per_day: int) -> list[Compared]:
    """In the given order. Cached tokens are part of the prompt and charged once. Raises `UserError` for counts that cannot be."""
    if requests_per_day < 0:
        raise UserError(
            f"--requests-per-day is {requests_per_day}, must be 0 or more", field="--requests-per-day", value=requests_per_day, limit=0
        )
    bills = [bill(o.prices, prompt, cached, output) for o in offers]
    return [
        Compared(o.name, o.prices, each, each * requests_per_day * MONTH, each / bills[0] if bills[0] else None)
        for o, each in zip(offers, bills, strict=True)
    ]


def per_day(tokens_per_day: int, usd_per_mtok: Amount) -> Decimal:
    """USD of a day's tokens. Raises `UserError` for a negative number of them."""
    if tokens_per_day < 0:
        raise UserError(f"--tokens-per-day is {tokens_per_day}, must be 0 or more", field="--tokens-per-day", value=tokens_per_day, limit=0)
    return decimal(usd_per_mtok) * tokens_per_day / MILLION
