"""HTTP/1.1 on one connection: uvicorn's httptools protocol with limits on size and time. Knows no route.

A connection that is slow to send its head or body, or takes nothing of a reply, is closed; what is too large is answered and then drained
for a moment, so that the answer is not lost to a reset.
"""

from __future__ import annotations

import asyncio
import re
import time
from email.utils import formatdate
from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from ridgeline.server.bounds import Bounds
from ridgeline.server.failure import Failure, error_body

# Java's client offers HTTP/2 with every request; the parser would then not read the body. Same length, so that sizes stay true.
_UPGRADE = re.compile(rb"(\r\n)upgrade(?=:)", re.IGNORECASE)
_LINGER_S = 2.0
_LINGER_BYTES = 64 << 20


class Connections(ServerState):
    """All connections of a server. The date is made when a reply needs it: an idle server has no clock to wind."""

    def __init__(self) -> None:
        self._date = (0, b"")
        super().__init__()

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        now = int(time.time())
        if now != self._date[0]:
            self._date = now, formatdate(now, usegmt=True).encode()
        return [(b"date", self._date[1])]

    @default_headers.setter
    def default_headers(self, value: list[tuple[bytes, bytes]]) -> None:
        """uvicorn's own ticking sets these; ours are made on demand."""


class Lingering:
    """A transport whose `close` first reads on for a moment when the client is still sending."""

    def __init__(self, inner: asyncio.Transport, owner: Guarded) -> None:
        self._inner, self._owner = inner, owner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def close(self) -> None:
        if self._owner.receiving and not self._inner.is_closing() and self._inner.can_write_eof():
            self._owner.linger()
        else:
            self._inner.close()


class Guarded(HttpToolsProtocol):
    """One connection. `receiving`: a request has begun and its last byte has not come."""

    def __init__(self, config: Config, connections: Connections, bounds: Bounds) -> None:
        super().__init__(config=config, server_state=connections, app_state={})
        self.bounds = bounds
        self.receiving = self.in_head = self.refused = False
        self._size = self._drained = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(Lingering(transport, self))  # type: ignore[arg-type]
        self._wait(self.bounds.idle_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait(None)
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.refused:
            self._drained += len(data)
            if self._drained > _LINGER_BYTES:
                self.transport.abort()
            return
        if not self.receiving:
            self.receiving = self.in_head = True
            self._size = 0
            self._wait(self.bounds.head_s)
        elif not self.in_head:
            self._wait(self.bounds.body_s)
        if self.in_head:
            self._size += len(data)
            data = _without_upgrade(data)
        super().data_received(data)
        if self.in_head and not self.refused and self._size > self.bounds.header:
            self._too_large()

    def on_headers_complete(self) -> None:
        self.in_head = False
        self._wait(self.bounds.body_s)
        if len(self.url) + sum(len(n) + len(v) + 4 for n, v in self.headers) > self.bounds.header:
            self._too_large()
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self.refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self.receiving = False
        self._wait(None)
        if not self.refused:
            super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall is None:
            self._stall = self.loop.call_later(self.bounds.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def send_400_response(self, msg: str) -> None:
        self._refuse(b"400 Bad Request", Failure(400, "this is not an HTTP/1.1 request"))

    def _too_large(self) -> None:
        text = f"the request line and headers are over {self.bounds.header} bytes"
        self._refuse(b"431 Request Header Fields Too Large", Failure(431, text, code="header_too_large"))

    def _refuse(self, status: bytes, fault: Failure) -> None:
        """Answer without the application, then close."""
        self.refused = True
        body = error_body(fault, anthropic=False)
        head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (status, len(body))
        if not self.transport.is_closing():
            self.transport.write(head + body)
            self.transport.close()

    def linger(self) -> None:
        """The reply is written; give the client a moment to read it before the rest of its request is thrown back at it."""
        self.refused = True
        self._wait(_LINGER_S)
        self.flow.resume_reading()
        self.transport.write_eof()

    def _wait(self, seconds: float | None) -> None:
        """Close the connection unless something happens within `seconds`; None stops the clock."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)


def _without_upgrade(data: bytes) -> bytes:
    """The bytes of a head with offers of another protocol made meaningless: there is none here. Only the head is changed."""
    end = data.find(b"\r\n\r\n")
    head, rest = (data, b"") if end < 0 else (data[:end], data[end:])
    return _UPGRADE.sub(rb"\1x-grade", head) + rest if _UPGRADE.search(head) else data
