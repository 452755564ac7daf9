"""How large a regular expression is when its counted repetitions are written out. Knows the shape of patterns, matches nothing."""

from __future__ import annotations

import re

from ridgeline.errors import UserError

MAX_REGEX_SIZE = 2_000_000
_COUNT = re.compile(r"\{\s*(\d+)?\s*(?:,\s*(\d*)\s*)?\}")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|\[[^\]]*\]|[^\]\\])*\]", re.DOTALL)
_CAP = 10**12


def check_regex(pattern: str, field: str) -> None:
    """Raises `UserError` for a pattern that would take seconds and hundreds of megabytes."""
    size = regex_size(pattern)
    if size > MAX_REGEX_SIZE:
        shown = pattern if len(pattern) <= 40 else pattern[:40] + "..."
        text = (
            f"the regular expression {shown!r} has {size} parts when its repetitions are written out, at most {MAX_REGEX_SIZE} are allowed"
        )
        raise UserError(text, field=field, value=size, limit=MAX_REGEX_SIZE, remedy="repeat less")


def regex_size(pattern: str) -> int:
    """Characters and classes after `x{n}` is written out n times; capped at 10^12. Open-ended counts count their lower bound."""
    totals, lasts = [0], [0]
    at, length = 0, len(pattern)
    while at < length:
        char = pattern[at]
        if char == "{" and (count := _COUNT.match(pattern, at)) is not None:
            times = max(1, *(int(number[:12]) for number in count.groups(default="") if number), 1)
            totals[-1] = min(_CAP, totals[-1] + lasts[-1] * (times - 1))
            lasts[-1] = min(_CAP, lasts[-1] * times)
            at = count.end()
            continue
        size = 1
        if char == "(":
            totals.append(0)
            lasts.append(0)
            at += 1
            continue
        if char == ")" and len(totals) > 1:
            size = totals.pop()
            lasts.pop()
        elif char == "\\":
            at += 1
        elif char == "[" and (found := _CLASS.match(pattern, at)) is not None:
            at = found.end() - 1
        elif char in "*+?":
            size = 0
        if size:
            totals[-1] = min(_CAP, totals[-1] + size)
            lasts[-1] = size
        at += 1
    return totals[0] + sum(totals[1:])
