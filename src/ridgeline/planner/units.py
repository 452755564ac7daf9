"""Quantities as people type them, durations, sizes, bandwidths, rates, prices, and as documents hold them. Each parser names the option in
its error."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from ridgeline.errors import UserError

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_BYTES = {
    "": 1.0, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40,
}  # fmt: skip
_PER = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0, "day": 86400.0}
_NUMBER = r"([0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]{1,2})?|\.[0-9]+)"
_MOST = 1e30


def milliseconds(seconds: float | None) -> float | None:
    """None stays unknown."""
    return None if seconds is None else seconds * 1e3


def plain_number(value: float) -> float | int:
    """A number without a fraction as an integer."""
    return int(value) if value == int(value) else value


def _split(text: str, units: str, option: str, example: str) -> tuple[float, str]:
    found = re.fullmatch(_NUMBER + r"\s*(" + units + r")", text.strip().casefold())
    if found is None or not float(found[1]) <= _MOST:
        raise UserError(f"{option} is {text!r}, must be like {example}", field=option, value=text, limit=example)
    return float(found[1]), found[2]


def seconds(text: str, option: str) -> float:
    """500ms, 0.5s, 30us, 2min; a bare number is seconds. Above 0."""
    value, unit = _split(text, "us|ms|s|min|h|", option, "500ms or 0.5s")
    if value == 0:
        raise UserError(f"{option} is {text!r}, must be above 0", field=option, value=text, limit=0)
    return value * _SECONDS[unit or "s"]


def byte_count(text: str, option: str) -> float:
    """14.0e9, 14GB, 13.5GiB; a bare number is bytes."""
    value, unit = _split(text, "[kmgt]?i?b|", option, "14.0e9, 14GB or 13.5GiB")
    if unit not in _BYTES:
        raise UserError(f"{option} is {text!r}, must be like 14.0e9, 14GB or 13.5GiB", field=option, value=text)
    return value * _BYTES[unit]


def share_or_bytes(text: str, option: str) -> tuple[float, float]:
    """(bytes, share): 8GB or 10%."""
    if text.strip().endswith("%"):
        value, _ = _split(text.strip()[:-1], "", option, "8GB or 10%")
        if value >= 100:
            raise UserError(f"{option} is {text!r}, must be below 100%", field=option, value=text, limit="100%")
        return 0.0, value / 100
    return byte_count(text, option), 0.0


def bandwidth(text: str, option: str) -> float:
    """3.35TB/s, 819GB/s, 2.0e12; a bare number is bytes/s."""
    value = byte_count(re.sub(r"/s(ec)?$", "", text.strip(), flags=re.IGNORECASE), option)
    if value < 1e6:
        raise UserError(
            f"{option} is {text!r}, that is {value:g} bytes/s", field=option, value=text, remedy="give a unit: 3350GB/s or 3.35e12"
        )
    return value


def per_second(text: str, option: str) -> float:
    """5/s, 300/min, 0.5; a bare number is per second. Above 0."""
    number, _, unit = text.partition("/")
    value, _ = _split(number, "", option, "5/s or 300/min")
    per = _PER.get(unit.strip().casefold() or "s")
    if per is None or value == 0:
        raise UserError(f"{option} is {text!r}, must be like 5/s or 300/min and above 0", field=option, value=text)
    return value / per


def usd_per_hour(text: str, option: str) -> Decimal:
    """2.69/h or 2.69, USD; 0 or more."""
    try:
        value = Decimal(re.sub(r"/h(our)?$", "", text.strip().lstrip("$"), flags=re.IGNORECASE))
    except InvalidOperation:
        value = Decimal("nan")
    if not value.is_finite() or not 0 <= value <= Decimal("1e9"):
        raise UserError(f"{option} is {text!r}, must be USD per device and hour, like 2.69/h", field=option, value=text, limit=0)
    return value


def usd(text: str, option: str) -> Decimal:
    """4.6M, 0.005, $700k; 0 or more."""
    found = re.fullmatch(r"\$?([0-9]{1,18}(?:\.[0-9]{0,12})?|\.[0-9]{1,12})\s*([kmb]?)", text.strip().casefold())
    if found is None:
        raise UserError(f"{option} is {text!r}, must be USD, like 4.6M or 0.005", field=option, value=text, limit=0)
    return Decimal(found[1]) * {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}[found[2]]


def fraction(text: str, option: str) -> Decimal:
    """40% or 0.4, above 0 and at most 1."""
    stripped = text.strip()
    try:
        value = Decimal(stripped.rstrip("%")) / (100 if stripped.endswith("%") else 1)
    except InvalidOperation:
        value = Decimal("nan")
    if not value.is_finite() or not 0 < value <= 1:
        raise UserError(f"{option} is {text!r}, must be above 0 and at most 1 (or 100%)", field=option, value=text, limit=1)
    return value
