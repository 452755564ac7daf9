"""Reads a checkpoint's config key by key, checks each value, and refuses the keys that nobody read. Knows no model."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from ridgeline.errors import FileFormatError, UnsupportedError


class Facts:
    """A view of one config (GGUF metadata of an architecture, or a `config.json` object) that remembers what was read.

    Every getter raises `FileFormatError` for a value of the wrong kind or out of range, naming the key. None counts as absent.
    """

    def __init__(self, values: Mapping[str, Any], origin: str, prefix: str = "") -> None:
        self.values, self.origin, self.prefix = values, origin, prefix
        self._read: set[str] = set()

    def has(self, key: str) -> bool:
        return self.values.get(self.prefix + key) is not None

    def get(self, key: str) -> Any:
        """The raw value, or None when absent."""
        self._read.add(self.prefix + key)
        return self.values.get(self.prefix + key)

    def bad(self, key: str, value: object, limit: str) -> FileFormatError:
        shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
        message = f"{self.origin}: {self.prefix}{key} is {shown}, must be {limit}"
        return FileFormatError(message, field=self.prefix + key, value=value, limit=limit)

    def whole(self, key: str, default: int | None = None, low: int = 1, high: int = 2**31 - 1) -> int:
        value = self.get(key)
        if value is None:
            value = self._default(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.bad(key, value, f"a whole number from {low} to {high}")
        return value

    def real(self, key: str, default: float | None = None, low: float = 0.0) -> float:
        """A finite number above `low`."""
        value = self.get(key)
        if value is None:
            value = self._default(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= low:
            raise self.bad(key, value, f"a number above {low:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.bad(key, value, "true or false")
        return value

    def word(self, key: str, allowed: Collection[str], default: str | None = None) -> str:
        """One of the words that we understand; others are refused as `UnsupportedError`."""
        value = self.get(key)
        if value is None:
            value = self._default(key, default)
        if not isinstance(value, str) or value not in allowed:
            raise UnsupportedError(
                f"{self.origin}: {self.prefix}{key} is {value!r}, supported: {', '.join(sorted(allowed))}",
                field=self.prefix + key, value=value, limit=sorted(allowed),
            )  # fmt: skip
        return value

    def per_layer(self, key: str, layers: int, default: int | None = None) -> tuple[int, ...]:
        """A whole number for all layers, or a list with one for each."""
        value = self.get(key)
        if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__"):
            return (self.whole(key, default),) * layers
        items = list(value)
        if len(items) != layers or any(isinstance(v, bool) or not isinstance(v, int) or not 1 <= v < 2**31 for v in items):
            raise self.bad(key, items, f"a whole number from 1, or {layers} of them")
        return tuple(items)

    def reals(self, key: str, length: int) -> tuple[float, ...]:
        """A list of `length` positive numbers."""
        value = self.get(key)
        items = list(value) if isinstance(value, list | tuple) or hasattr(value, "tolist") else None
        if items is None or len(items) != length or any(not isinstance(v, int | float) or not math.isfinite(v) or v <= 0 for v in items):
            raise self.bad(key, value, f"a list of {length} positive numbers")
        return tuple(float(v) for v in items)

    def must_be(self, key: str, *allowed: object) -> None:
        """Refuse the key unless it is absent or has a value under which it changes nothing."""
        value = self.get(key)
        if value is not None and value not in allowed:
            raise UnsupportedError(
                f"{self.origin}: {self.prefix}{key} is {value!r}, only {' or '.join(map(repr, allowed))} is supported",
                field=self.prefix + key, value=value, limit=allowed,
            )  # fmt: skip

    def section(self, key: str) -> Facts | None:
        """A nested object, or None when absent. Its own `finish` is the caller's."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.bad(key, value, "an object")
        return Facts(value, f"{self.origin}: {key}")

    def ignore(self, keys: Collection[str]) -> None:
        """Keys that change no number of the forward pass."""
        self._read.update(self.prefix + key for key in keys)

    def was_read(self, key: str) -> bool:
        return self.prefix + key in self._read

    def finish(self) -> None:
        """Refuse what nobody read."""
        left = [k for k, v in self.values.items() if k.startswith(self.prefix) and k not in self._read and v is not None]
        if left:
            raise UnsupportedError(
                f"{self.origin}: {', '.join(left[:4])}{' and more' if len(left) > 4 else ''} not understood",
                field=left[0], value=self.values[left[0]],
                remedy="a value that is not understood could change every answer, so the model is refused",
            )  # fmt: skip

    def _default(self, key: str, default: Any) -> Any:
        if default is None:
            raise FileFormatError(f"{self.origin}: {self.prefix}{key} is missing", field=self.prefix + key)
        return default
