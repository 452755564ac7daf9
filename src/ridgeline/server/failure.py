"""Errors as HTTP: status, headers and the error objects that OpenAI and Anthropic clients read. Knows no endpoint."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ridgeline.errors import ContextLengthError, OverloadedError, RidgelineError, UserError

logger = logging.getLogger("ridgeline.server")


class HttpError(RidgelineError):
    """A refusal with a status. `code` is OpenAI's error code, `param` the field at fault, `headers` go with the reply."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers: dict[str, str] = dict(headers or {})
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Failure:
    """What is told about an error, in no protocol's words yet."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


# OpenAI's error types; clients choose their exception by the status.
_OPENAI_TYPES = {
    400: "invalid_request_error", 401: "invalid_request_error", 403: "permission_error", 404: "invalid_request_error",
    405: "invalid_request_error", 408: "invalid_request_error", 413: "invalid_request_error", 429: "rate_limit_error",
    431: "invalid_request_error", 503: "service_unavailable_error",
}  # fmt: skip
_ANTHROPIC_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    405: "invalid_request_error", 408: "invalid_request_error", 413: "request_too_large", 429: "rate_limit_error",
    431: "request_too_large", 503: "overloaded_error",
}  # fmt: skip


def failure(error: BaseException) -> Failure:
    """What the client is told. Our own faults say no more than their kind; the log has the rest."""
    if isinstance(error, HttpError):
        return Failure(error.status, str(error), error.param, error.code, error.headers)
    if isinstance(error, ContextLengthError):
        return Failure(400, str(error), error.field, "context_length_exceeded")
    if isinstance(error, OverloadedError):
        return Failure(503, str(error), None, "overloaded", {"retry-after": "1"})
    if isinstance(error, UserError):
        return Failure(400, str(error), error.field, None)
    if isinstance(error, RidgelineError):
        return Failure(500, str(error), None, "internal_error")
    return Failure(500, f"internal error ({type(error).__name__})", None, "internal_error")


def stream_fault(error: BaseException) -> Failure:
    """What is told of an error that ended a stream. It is logged here, since no handler sees it; our own faults with their place."""
    logger.error("stream failed: %s", error, exc_info=None if isinstance(error, RidgelineError) else error)
    return failure(error)


def openai_error(fault: Failure) -> dict[str, Any]:
    kind = _OPENAI_TYPES.get(fault.status, "server_error" if fault.status >= 500 else "invalid_request_error")
    return {"error": {"message": _plain(fault.message), "type": kind, "param": fault.param, "code": fault.code}}


def anthropic_error(fault: Failure, request_id: str | None = None) -> dict[str, Any]:
    kind = _ANTHROPIC_TYPES.get(fault.status, "api_error" if fault.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": _plain(fault.message)}, "request_id": request_id}


def error_body(fault: Failure, *, anthropic: bool, request_id: str | None = None) -> bytes:
    document = anthropic_error(fault, request_id) if anthropic else openai_error(fault)
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")


def _plain(text: str) -> str:
    """One line of reasonable length: an error may quote what the client sent."""
    text = " ".join(text.split())
    return text if len(text) <= 1000 else text[:1000] + "..."
