"""What a chat template may cost: steps, characters made, time. Knows nothing of Jinja; one `Meter` counts for one rendering."""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ridgeline.errors import TemplateError

_BULKY = (str, bytes)
_LISTS = (list, tuple, set, frozenset)
_MAX_INT_BITS = 4096
_MAX_WIDTH = 1_000_000
_ENDLESS = 1 << 62


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one rendering. Sizes are characters (or items of lists); the input is allowed for on top, `input_factor` times."""

    steps: int = 500_000
    single: int = 1_000_000
    total: int = 8_000_000
    seconds: float = 3.0
    input_factor: int = 64
    source: int = 262_144


def weigh(value: Any, stop: int | None = None) -> int:
    """Characters and items in a value, shared parts counted each time they appear; counting ends past `stop`.

    A class may show what else it holds with a `template_values` method. A number of more than 4096 bits counts as endless.
    """
    count, stack = 0, [value]
    while stack:
        item = stack.pop()
        count += 1
        if isinstance(item, _BULKY):
            count += len(item)
        elif isinstance(item, _LISTS):
            stack.extend(item)
        elif isinstance(item, int):
            count += _ENDLESS if item.bit_length() > _MAX_INT_BITS else 0
        elif isinstance(item, dict):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif (inner := getattr(type(item), "template_values", None)) is not None:
            stack.extend(inner(item))
        if stop is not None and count > stop:
            break
    return count


class Meter:
    """Counts one rendering and stops it with `TemplateError` at a limit."""

    __slots__ = ("_allowed", "_deadline", "_made", "_single", "_steps", "_total", "limits")

    def __init__(self, limits: Limits, input_size: int = 0) -> None:
        self.limits = limits
        self._steps = self._made = 0
        self._allowed = limits.steps + 8 * input_size
        self._single = limits.single + 8 * input_size
        self._total = limits.total + limits.input_factor * input_size
        self._deadline = time.monotonic() + limits.seconds

    def step(self) -> None:
        """One turn of a loop, one call, one operation."""
        self._steps += 1
        if self._steps > self._allowed:
            raise self._over("steps", self._steps, self._allowed)
        if time.monotonic() > self._deadline:
            raise self._over("seconds of rendering", f"more than {self.limits.seconds:g}", self.limits.seconds)

    def plan(self, size: int) -> None:
        """Refuse a result of `size` before it is made."""
        if size > self._single:
            raise self._over("characters in one value", "too many" if size >= _ENDLESS else size, self._single)

    def made(self, value: Any) -> Any:
        """Count a value that was made, and hand it on."""
        size = self.size(value)
        self._made += size
        if self._made > self._total:
            raise self._over("characters in all", self._made, self._total)
        return value

    def size(self, value: Any) -> int:
        """`weigh`, refused past the limit of one value."""
        count = weigh(value, self._single)
        self.plan(count)
        return count

    def width(self, *values: Any) -> None:
        """Refuse a number that would pad a text beyond reason."""
        for value in values:
            if isinstance(value, int | float) and abs(value) > _MAX_WIDTH:
                raise self._over("as a width or count", f"{float(min(abs(value), _ENDLESS)):g}", _MAX_WIDTH)

    def _over(self, what: str, value: object, limit: object) -> TemplateError:
        message = f"chat template goes over its limit: {value} {what}, at most {limit} are allowed"
        return TemplateError(message, field="chat_template", value=value, limit=limit, remedy="use a simpler template")


METER: ContextVar[Meter] = ContextVar("ridgeline_template_meter")
