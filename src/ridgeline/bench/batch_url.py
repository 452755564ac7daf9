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
from urllib.parse import urlsplit

from ridgeline.bench.batch import Reply, Unreachable
from ridgeline.bench.batch_lines import Call
from ridgeline.errors import UserError


class UrlAnswerer:
    """A server at `url` (with or without /v1 at its end). timeout_s: silence after which a call counts as lost.

    Raises `UserError` for what is no http(s) URL."""

    def __init__(self, url: str, *, connections: int = 64, api_key: str | None = None, timeout_s: float = 600.0) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            remedy = "give one such as http://localhost:8000"
            raise UserError(f"--url {url!r} is no http or https address", field="--url", value=url, remedy=remedy)
        self._host, self._port, self._tls, self._timeout_s = parts.hostname, port, parts.scheme == "https", timeout_s
        self._path = parts.path.rstrip("/").removesuffix("/v1")
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
            if self._tls:
                found = http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=ssl.create_default_context())
            else:
                found = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
            self._local.connection = found
            self._all.append(found)
        return found

    def _ask(self, call: Call) -> Reply:
        connection = self._connection()
        try:
            connection.request("POST", self._path + call.url, call.body, self._headers)
            response = connection.getresponse()
            raw, headers = response.read(), response.headers
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Unreachable(f"{self._host}:{self._port or ''} {type(error).__name__}: {error}".strip()) from None
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
