"""One line per request, as text or JSON, on stderr. Knows what a line says; prompts are in it only where the operator asked for them."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

access = logging.getLogger("ridgeline.access")
# Asked every few seconds by machines; worth a line only when they fail.
_QUIET = frozenset({"/health", "/ping", "/metrics", "/version", "/page.css", "/page.js"})


def request_line(scope: Mapping[str, Any], status: int, seconds: float) -> None:
    """The closing line of a request. `scope["summary"]` holds what a generation had to say about itself."""
    level = logging.DEBUG if status < 400 and scope["path"] in _QUIET else logging.INFO
    if not access.isEnabledFor(level):
        return
    client = scope.get("client")
    key = scope.get("key")
    record: dict[str, Any] = {
        "method": scope["method"], "path": scope["path"][:200], "status": status, "seconds": round(seconds, 4),
        "request_id": scope.get("request_id"), "client": client[0] if client else None,
    }  # fmt: skip
    if key is not None:
        record["key"] = key.name
    access.log(level, "request", extra={"record": record | scope.get("summary", {})})


class _Json(logging.Formatter):
    """One object per line."""

    def format(self, record: logging.LogRecord) -> str:
        document = {"time": _time(record), "level": record.levelname.lower(), "message": record.getMessage()}
        document |= getattr(record, "record", {})
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return json.dumps(document, ensure_ascii=False, default=str)


class _Text(logging.Formatter):
    """time level message key=value ..."""

    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, Any] | None = getattr(record, "record", None)
        if found is None:
            text = record.getMessage()
        else:
            rest = " ".join(f"{k}={_shown(v)}" for k, v in found.items() if k not in ("method", "path", "status") and v is not None)
            text = f"{found['method']} {found['path']} {found['status']} {rest}"
        line = f"{_time(record)} {record.levelname.lower()} {text}"
        return line + "\n" + self.formatException(record.exc_info) if record.exc_info else line


def _time(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    text = str(value)
    return json.dumps(text) if not text.isprintable() or " " in text else text


def start_logging(form: str, *, quiet: bool = False) -> None:
    """Send the server's logs to stderr as "text" or "json"; `quiet` leaves out the line per request."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    for name in ("ridgeline", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
    logging.getLogger("ridgeline").setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    access.setLevel(logging.WARNING if quiet else logging.INFO)
