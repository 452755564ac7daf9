"""Typed errors. A user error carries what was given, the limit it broke and the remedy; it knows nothing of exit codes or HTTP."""

from __future__ import annotations

import math
from collections.abc import Collection


class RidgelineError(Exception):
    """Base of every error that we raise on purpose. `str(error)` is one plain line that can be shown as it is."""


class UserError(RidgelineError):
    """Something the user gave cannot be used: a file, an option, a prompt. The command line exits with 2, the server answers 400.

    `field` names what was wrong (a file, a tensor, an option), `value` what was given, `limit` what is allowed, `remedy` what to do.
    """

    def __init__(
        self, message: str, *, field: str | None = None, value: object = None, limit: object = None, remedy: str | None = None
    ) -> None:
        self.message, self.field, self.value, self.limit, self.remedy = message, field, value, limit, remedy
        super().__init__(message if remedy is None else f"{message}; {remedy}")


class FileFormatError(UserError):
    """A model file is truncated, hostile, or of a kind we do not read. `field` is the path, or path and tensor."""


class UnsupportedError(UserError):
    """A known thing that we do not implement: an architecture, a tensor type, a config value."""


class ContextLengthError(UserError):
    """Prompt (or prompt plus requested output) does not fit the model length. `value` is the token count, `limit` the length."""


class TemplateError(UserError):
    """A chat template is missing, refused by the sandbox, over its limits, or raised on purpose (`raise_exception`)."""


class InternalError(RidgelineError):
    """We broke something: NaN logits, a violated invariant. The command line exits with 1."""


class OverloadedError(RidgelineError):
    """The engine holds as many requests as it may, or is shutting down: the same request may succeed later. The server answers 503."""


def within(field: str, value: float, low: float, high: float = math.inf) -> None:
    """Raises `UserError` for a number outside low .. high."""
    if low <= value <= high:
        return
    limits = f"at least {_number(low)}" if high == math.inf else f"from {_number(low)} to {_number(high)}"
    limit = low if high == math.inf else (low, high)
    raise UserError(f"{field} is {_number(value)}, must be {limits}", field=field, value=value, limit=limit)


def one_of(field: str, value: object, allowed: Collection[str]) -> None:
    """Raises `UserError` for what is none of the allowed words."""
    words = tuple(allowed)
    if value not in words:
        raise UserError(f"{field} is {value!r}, must be one of {', '.join(words)}", field=field, value=value, limit=words)


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
