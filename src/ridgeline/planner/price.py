"""Money: dollars per million tokens, per query and per year, in decimal arithmetic. Knows rates and prices; knows no model and no device.

Every rule that divides a machine's hour among kinds of tokens is named here, because each gives other prices for the same machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal

from ridgeline.errors import UserError

MILLION = Decimal(1_000_000)
SECONDS_PER_HOUR = Decimal(3600)
Amount = Decimal | int | float | str


def decimal(value: Amount) -> Decimal:
    """Exact for strings and integers; a float by its shortest spelling."""
    return value if isinstance(value, Decimal) else Decimal(str(value))


def per_million(usd_per_hour: Amount, tok_s: Amount, utilization: Amount = 1) -> Decimal | None:
    """$/M = $/h / (tok/s x 3600 x utilization) x 1e6; None (undefined) when no token is made. `tok_s`: at full load, all devices paid for.

    Utilization is the share of the hour that carries that load, above 0 and at most 1.
    """
    price, rate, used = decimal(usd_per_hour), decimal(tok_s), decimal(utilization)
    if price < 0 or rate < 0:
        raise UserError("prices and rates cannot be negative", field="price", value=str(min(price, rate)), limit=0)
    if not 0 <= used <= 1:
        raise UserError(f"utilization is {used}, must be from 0 to 1", field="--utilization", value=str(used), limit=(0, 1))
    made = rate * SECONDS_PER_HOUR * used
    return price / made * MILLION if made else None


@dataclass(frozen=True, slots=True)
class TokenPrices:
    """USD per million tokens: prompt tokens computed, prompt tokens found in the cache, generated tokens (hidden ones included)."""

    input: Decimal
    cached: Decimal
    output: Decimal


def bill(prices: TokenPrices, prompt: int, cached: int, completion: int) -> Decimal:
    """USD of one request. Cached tokens are part of the prompt and charged once; reasoning tokens are part of the completion."""
    if min(prompt, cached, completion) < 0 or cached > prompt:
        raise UserError(f"{cached} cached tokens of a prompt of {prompt}", field="cached_tokens", value=cached, limit=prompt)
    fresh = prompt - cached
    return (fresh * prices.input + cached * prices.cached + completion * prices.output) / MILLION


@dataclass(frozen=True, slots=True)
class Share:
    """What one request takes of one kind of token: how many, and for how many device seconds."""

    tokens: int
    seconds: float


def split_by_device_time(usd_per_hour: Amount, requests_per_s: Amount, fresh: Share, cached: Share, output: Share) -> TokenPrices | None:
    """Prices at an arrival rate: the whole hour, idle time included, divided by the device seconds that each kind of token takes.

    fresh: prompt tokens that are computed; cached: those whose keys are only read; output: with its share of every step.
    None when nothing arrives or nothing is computed.
    """
    rate = decimal(requests_per_s)
    busy = sum((decimal(s.seconds) for s in (fresh, cached, output)), Decimal(0))
    if rate <= 0 or busy <= 0:
        return None
    per_request = decimal(usd_per_hour) / SECONDS_PER_HOUR / rate

    def share(part: Share) -> Decimal:
        return per_request * decimal(part.seconds) / busy / part.tokens * MILLION if part.tokens else Decimal(0)

    return TokenPrices(share(fresh), share(cached), share(output))


@dataclass(frozen=True, slots=True)
class Query:
    """A query's price and a year's, and whether it stays under the ceiling (None: no ceiling given)."""

    usd_per_query: Decimal
    usd_per_year: Decimal
    within: bool | None


def query_price(usd_per_mtok: Amount, tokens_per_query: int, queries_per_day: int, ceiling_usd: Amount | None = None) -> Query:
    """0.5 cent a query, and what that is in a year. Raises `UserError` for counts below 0."""
    for name, count in (("--tokens-per-query", tokens_per_query), ("--queries-per-day", queries_per_day)):
        if count < 0:
            raise UserError(f"{name} is {count}, must be 0 or more", field=name, value=count, limit=0)
    each = decimal(usd_per_mtok) * tokens_per_query / MILLION
    return Query(each, each * queries_per_day * 365, None if ceiling_usd is None else each <= decimal(ceiling_usd))


def break_even_days(training: Amount, served_per_day: Amount) -> Decimal | None:
    """Days after which serving has used as much as training, in tokens or in dollars; None when nothing is served. Neither below 0."""
    per_day = decimal(served_per_day)
    if min(per_day, decimal(training)) < 0:
        raise UserError(f"training {training} and serving {per_day} a day cannot be negative", field="cost", value=str(per_day), limit=0)
    return decimal(training) / per_day if per_day > 0 else None


def rounded(value: Decimal | None, places: int = 6) -> float | None:
    """For people and JSON."""
    return None if value is None else float(value.quantize(Decimal(1).scaleb(-places), ROUND_HALF_EVEN))
