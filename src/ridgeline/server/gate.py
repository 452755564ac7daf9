"""In front of every route, as plain ASGI: request ids, Host and Origin checks, keys, the closing line of the log. Knows no body.

Order: id, Host, Origin (CORS preflights are answered here and need no key), key. All refusals are error objects.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from ridgeline.server.failure import HttpError, error_body, failure
from ridgeline.server.keys import Keys
from ridgeline.server.logs import request_line
from ridgeline.server.meters import Meters

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger("ridgeline.server")
_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")


@dataclass(frozen=True, slots=True)
class GateRules:
    """hosts: names allowed in the Host header, None for any; origins: web origins that may call, ("*",) for any; keys: who may call, None
    for everybody; record: told of every request that is over, with its status and seconds."""

    hosts: frozenset[str] | None = None
    origins: tuple[str, ...] = ()
    keys: Keys | None = None
    record: Callable[[Scope, int, float], None] | None = None


# What a load balancer, a dashboard and a browser must reach without a key.
_OPEN = frozenset({
    "/", "/page.css", "/page.js", "/plan", "/plan.css", "/plan.js", "/plots.css", "/health", "/ping", "/version", "/metrics",
})  # fmt: skip


class Gate:
    """Wraps the application."""

    def __init__(self, app: App, rules: GateRules, meters: Meters) -> None:
        self._app, self._rules, self._meters = app, rules, meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(reversed(scope["headers"]))  # the first of several wins
        given = headers.get(b"x-request-id", b"")
        request_id = given if _ID.fullmatch(given) else uuid.uuid4().hex.encode()
        scope["request_id"] = request_id.decode()
        origin = headers.get(b"origin")
        extra = [(b"x-request-id", request_id), *self._cors(origin)]

        began = perf_counter()

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                scope["told"] = message["status"]
                message["headers"] = [*message.get("headers", []), *extra]
            elif not message.get("more_body", False):
                scope["whole"] = True
            await send(message)

        try:
            await self._pass(scope, receive, told, headers, origin)
        finally:
            # 499, as nginx has it: the client went away before there was a reply.
            status = scope.get("told", 499)
            self._meters.replies[getattr(scope.get("route"), "path", "other"), status] += 1
            seconds = perf_counter() - began
            request_line(scope, status, seconds)
            if self._rules.record is not None:
                self._rules.record(scope, status, seconds)

    async def _pass(self, scope: Scope, receive: Receive, told: Send, headers: dict[bytes, bytes], origin: bytes | None) -> None:
        try:
            self._check(headers, origin)
            if scope["method"] == "OPTIONS" and origin is not None and b"access-control-request-method" in headers:
                await _preflight(headers, told)
                return
            if self._rules.keys is not None and scope["path"] not in _OPEN:
                scope["key"] = self._rules.keys.find(headers)
        except HttpError as error:
            await _refuse(scope, error, told)
            return
        try:
            await self._app(scope, receive, told)
        except Exception as error:
            if "whole" in scope:
                return  # the reply was the error's own
            if "told" in scope:
                raise  # closes the connection: a broken reply must not look whole
            logger.error("%s %s failed: %s", scope["method"], scope["path"], error, exc_info=error)
            await _refuse(scope, error, told)

    def _check(self, headers: dict[bytes, bytes], origin: bytes | None) -> None:
        host = headers.get(b"host", b"").decode("latin-1")
        if self._rules.hosts is not None and host_name(host) not in self._rules.hosts:
            message = f"the Host header names {host[:100]!r}, which this server is not"
            raise HttpError(403, message, code="host_not_allowed")
        if origin is not None and not self._allowed(origin) and origin.decode("latin-1").partition("://")[2] != host:
            raise HttpError(403, f"the web origin {origin.decode('latin-1')[:100]!r} may not call this server", code="origin_not_allowed")

    def _allowed(self, origin: bytes) -> bool:
        return "*" in self._rules.origins or origin.decode("latin-1") in self._rules.origins

    def _cors(self, origin: bytes | None) -> list[tuple[bytes, bytes]]:
        """Credentials are never allowed: keys travel in headers, cookies mean nothing here."""
        if not self._rules.origins:
            return []
        if "*" in self._rules.origins:
            return [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", b"*")]
        if origin is None or not self._allowed(origin):
            return [(b"vary", b"origin")]
        return [
            (b"access-control-allow-origin", origin), (b"vary", b"origin"),
            (b"access-control-expose-headers", b"x-request-id, x-ridgeline-warning, retry-after"),
        ]  # fmt: skip


async def _preflight(headers: dict[bytes, bytes], send: Send) -> None:
    asked = headers.get(b"access-control-request-headers", b"")
    names = b", ".join(n.strip() for n in asked.split(b",") if _ID.fullmatch(n.strip()))[:2000]
    allowed = [
        (b"access-control-allow-methods", b"GET, POST, OPTIONS"), (b"access-control-allow-headers", names or b"content-type"),
        (b"access-control-max-age", b"600"), (b"content-length", b"0"),
    ]  # fmt: skip
    await send({"type": "http.response.start", "status": 200, "headers": allowed})
    await send({"type": "http.response.body", "body": b""})


async def _refuse(scope: Scope, error: Exception, send: Send) -> None:
    fault = failure(error)
    body = error_body(fault, anthropic=scope["path"].startswith("/v1/messages"), request_id=scope["request_id"])
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    headers += [(k.encode(), v.encode("latin-1", "replace")) for k, v in fault.headers.items()]
    await send({"type": "http.response.start", "status": fault.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def host_name(host: str) -> str:
    """The name in a Host header, without port and brackets, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if host.count(":") == 1 else host.lower()


def loopback_names(host: str) -> frozenset[str] | None:
    """Names that a server bound to `host` answers to: those of this machine for a loopback address, any name otherwise."""
    try:
        local = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        local = host.lower() == "localhost"
    return frozenset({"localhost", "127.0.0.1", "::1", host.strip("[]").lower()}) if local else None
