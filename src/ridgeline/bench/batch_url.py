"""Calls to an OpenAI-compatible server, one connection per thread, kept alive. Knows HTTP; knows nothing of batches."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from ridgeline.bench.batch import Reply, Unreachable
from ridgeline.bench.batch_lines import Call
from ridgeline.bench.client import Target


class UrlAnswerer:
    """A server at `url`, with its version (/v1, /v3) at the end or without. timeout_s: silence after which a call counts as lost.

    Raises `UserError` for what is no http(s) URL."""

    def __init__(self, url: str, *, connections: int = 64, api_key: str | None = None, timeout_s: float = 600.0) -> None:
        self._target, self._timeout_s = Target.of(url, api_key), timeout_s
        self._headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {api_key}"} if api_key else {})
        self._pool = ThreadPoolExecutor(connections, "batch")
        self._local = threading.local()
        self._all: list[http.client.HTTPConnection] = []

    async def ask(self, call: Call) -> Reply:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._ask, call)

    def fault(self) -> str | None:
        return None

    def close(self) -> None:
        """Calls in flight end now: their threads would keep the process alive until the server has answered."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for connection in self._all:
            if connection.sock is not None:
                with suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)

    def _connection(self) -> http.client.HTTPConnection:
        found: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if found is None:
            t = self._target
            if t.scheme == "https":
                found = http.client.HTTPSConnection(t.host, t.port, timeout=self._timeout_s, context=ssl.create_default_context())
            else:
                found = http.client.HTTPConnection(t.host, t.port, timeout=self._timeout_s)
            self._local.connection = found
            self._all.append(found)
        return found

    def _ask(self, call: Call) -> Reply:
        connection, t = self._connection(), self._target
        try:
            connection.request("POST", t.base + t.prefix + call.url.removeprefix("/v1"), call.body, self._headers)
            response = connection.getresponse()
            raw, headers = response.read(), response.headers
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Unreachable(f"{t.host}:{t.port} {type(error).__name__}: {error}") from None
        return Reply(response.status, _body(raw, response.status), headers.get("x-request-id"), _wait(headers.get("retry-after")))


def _body(raw: bytes, status: int) -> Any:
    """Raises `Unreachable` for a success that is not JSON; an error page is told as it is."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        text = raw[:500].decode("utf8", "replace")
        if status < 400:
            raise Unreachable(f"status {status} without JSON: {text[:100]!r}") from None
        return {"error": {"message": text, "type": "not_json", "param": None, "code": None}}


def _wait(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
