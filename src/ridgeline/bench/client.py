"""An HTTP client for benchmarks: many streams on one event loop, each read stamped with its time, nothing parsed before a reply ends.

Knows HTTP/1.1 and nothing of what is asked; `client_read` understands the replies. A connection carries one request at a time and is kept.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import httptools

from ridgeline.bench.client_read import Reading, read_document, read_stream, refusal
from ridgeline.errors import UserError

MAX_REPLY = 64 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """Where a server is: `base` is the path before the API's `prefix`, /v1 unless the URL ends with another version."""

    scheme: str
    host: str
    port: int
    base: str
    key: str | None = field(default=None, repr=False)
    prefix: str = "/v1"

    @classmethod
    def of(cls, url: str, key: str | None = None) -> Target:
        """Raises `UserError` for what is no http(s) URL."""
        text = url if "://" in url else f"http://{url}"
        remedy = "like http://127.0.0.1:8000"
        try:
            found = urlsplit(text)
            host, port = found.hostname, found.port
        except ValueError as error:
            raise UserError(f"--url {url}: {error}", field="--url", value=url, remedy=remedy) from None
        if found.scheme not in ("http", "https") or not host or found.query or any(c.isspace() for c in text):
            raise UserError(f"--url {url}: not an address of a server", field="--url", value=url, remedy=remedy)
        if key is not None and not (key.isascii() and key.isprintable()):
            raise UserError("--api-key holds characters that cannot be sent", field="--api-key", remedy="printable ASCII only")
        path = found.path.rstrip("/")
        ending = re.search(r"/v[0-9]+$", path)
        prefix = ending[0] if ending else "/v1"
        return cls(found.scheme, host, port or (443 if found.scheme == "https" else 80), path.removesuffix(prefix), key, prefix)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.base}"


@dataclass(slots=True)
class Reply:
    """What came over the wire: status, content type, (time, bytes) pairs, and why it ended early."""

    sent_s: float = 0.0
    status: int = 0
    kind: str = ""
    pairs: list[tuple[float, bytes]] = field(default_factory=list)
    fault: str | None = None

    @property
    def body(self) -> bytes:
        return b"".join(data for _, data in self.pairs)


class _Wire(asyncio.Protocol):
    """One connection. Callbacks come from `httptools` in the read that it is fed."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.open = False
        self._reply: Reply | None = None
        self._done: asyncio.Future[None] | None = None
        self._now = 0.0
        self._size = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.open = transport, True

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        framed = self._reply is not None and self._reply.status and not self._delimited
        self._end(None if framed else f"connection closed{f': {exc}' if exc else ''}")

    def data_received(self, data: bytes) -> None:
        self._now = perf_counter()
        if self._reply is None:  # bytes that nobody asked for
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._end(f"not HTTP: {error}")
            self.close()

    def send(self, request: bytes) -> tuple[Reply, asyncio.Future[None]]:
        """Starts one request; the future is done when its reply is whole or broken."""
        assert self.transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._delimited, self._size = False, 0
        reply, self._done = Reply(), asyncio.get_running_loop().create_future()
        self._reply = reply
        reply.sent_s = perf_counter()
        self.transport.write(request)
        return reply, self._done

    def close(self) -> None:
        self.open = False
        if self.transport is not None:
            self.transport.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-type" and self._reply is not None:
            self._reply.kind = value.decode("latin1").partition(";")[0].strip().lower()
        elif name in (b"content-length", b"transfer-encoding"):
            self._delimited = True

    def on_headers_complete(self) -> None:
        if self._reply is not None:
            self._reply.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._reply is None:
            return
        self._reply.pairs.append((self._now, body))
        self._size += len(body)
        if self._size > MAX_REPLY:
            self._end(f"reply over {MAX_REPLY} bytes")
            self.close()

    def on_message_complete(self) -> None:
        if self._reply is not None and 100 <= self._reply.status < 200:
            return
        if not self._parser.should_keep_alive():
            self.open = False
        self._end(None)

    def _end(self, fault: str | None) -> None:
        if self._reply is not None and self._reply.fault is None:
            self._reply.fault = fault
        if self._done is not None and not self._done.done():
            self._done.set_result(None)
        self._reply = None


class Client:
    """Mutable: idle connections. To be closed."""

    def __init__(self, target: Target, timeout_s: float = 600.0) -> None:
        self.target, self.timeout_s = target, timeout_s
        self._idle: list[_Wire] = []
        self._tls = ssl.create_default_context() if target.scheme == "https" else None

    async def ask(self, path: str, body: Mapping[str, Any]) -> tuple[float, Reading]:
        """(moment it was sent, the reading) of one generation. Never raises for what a server does: a fault is a reading with `error`."""
        reply = await self.fetch("POST", path, json.dumps(body, ensure_ascii=False).encode("utf8", "replace"))
        return reply.sent_s, understand(reply)

    async def fetch(self, method: str, path: str, body: bytes = b"", timeout_s: float | None = None) -> Reply:
        """One request, with a new connection where a kept one turns out to be dead."""
        request = self._request(method, path, body)
        begun = perf_counter()
        limit = self.timeout_s if timeout_s is None else timeout_s
        wire: _Wire | None = None
        reply, whole = Reply(begun), False
        try:
            async with asyncio.timeout(limit):
                while True:
                    wire = self._kept()
                    kept = wire is not None
                    wire = wire or await self._connect()
                    reply, done = wire.send(request)
                    await done
                    if not (kept and reply.fault and not reply.status):
                        whole = reply.fault is None
                        break
        except TimeoutError:
            reply.fault = f"no end within {limit:g} s"
        except OSError as error:
            reply.fault = f"cannot connect to {self.target.host}:{self.target.port}: {error.strerror or error}"
        finally:
            if wire is not None:
                self._keep(wire, whole)
        return reply

    def _kept(self) -> _Wire | None:
        """An idle connection that the server has not closed meanwhile."""
        while self._idle:
            wire = self._idle.pop()
            if wire.open:
                return wire
        return None

    async def _connect(self) -> _Wire:
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(_Wire, self.target.host, self.target.port, ssl=self._tls)
        return wire

    def _keep(self, wire: _Wire, whole: bool) -> None:
        if wire.open and whole:
            self._idle.append(wire)
        else:
            wire.close()

    def _request(self, method: str, path: str, body: bytes) -> bytes:
        t = self.target
        host = f"[{t.host}]" if ":" in t.host else t.host
        lines = [
            f"{method} {t.base}{path} HTTP/1.1", f"Host: {host}:{t.port}", "Accept: */*", "User-Agent: ridgeline-bench",
            f"Content-Length: {len(body)}", "Content-Type: application/json",
        ]  # fmt: skip
        if t.key is not None:
            lines.append(f"Authorization: Bearer {t.key}")
        return "\r\n".join([*lines, "", ""]).encode("latin1", "replace") + body

    def close(self) -> None:
        for wire in self._idle:
            wire.close()
        self._idle.clear()


def understand(reply: Reply) -> Reading:
    """The reading of a reply, with the fault of the connection where there was one."""
    if not reply.status:
        return Reading(error=reply.fault or "no reply")
    if reply.status != 200:
        return refusal(reply.status, reply.pairs)
    reading = read_document(reply.pairs) if reply.kind == "application/json" else read_stream(reply.pairs)
    if reply.fault is None:
        return reading
    return replace(reading, error=reply.fault)
