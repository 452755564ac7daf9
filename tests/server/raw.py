"""HTTP by hand, for what no client library would send."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit


def connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    assert parts.hostname is not None
    return socket.create_connection((parts.hostname, parts.port or 80), timeout=20)


def request(path: str, body: Any, *, method: str = "POST", headers: str = "") -> bytes:
    """A whole request; `body` is JSON or bytes, `headers` are lines that end with CRLF."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n{headers}\r\n"
    return head.encode() + raw


def until_closed(sock: socket.socket) -> bytes:
    data = b""
    while True:
        try:
            more = sock.recv(65536)
        except ConnectionError:
            return data
        if not more:
            return data
        data += more


def status(reply: bytes) -> int:
    return int(reply.split(b" ", 2)[1])
