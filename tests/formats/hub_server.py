"""A local HTTP server that speaks the part of a model hub's API that `huggingface_hub` uses to list and fetch files.

Repositories are given as name -> {file: bytes}. `cut` closes the connection once, after that many bytes of a file, to test resuming.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REVISION = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What the server has and what it was asked. gated: repositories that answer 403 as a hub does."""

    repos: Mapping[str, Mapping[str, bytes]]
    gated: frozenset[str] = frozenset()
    cut: dict[str, int] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    url: str = ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        self.hub.requests.append((self.command, self.path, self.headers.get("Range")))
        parts = self.path.split("?")[0].strip("/").split("/")
        repo = "/".join(parts[2:4] if parts[:2] == ["api", "models"] else parts[:2])
        files = self.hub.repos.get(repo)
        if repo in self.hub.gated:
            return self._send(403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"}, body)
        if files is None:
            return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)
        if parts[:2] == ["api", "models"]:
            info = {
                "id": repo,
                "modelId": repo,
                "sha": REVISION,
                "siblings": [{"rfilename": name} for name in files],
                "tags": [],
                "private": False,
            }
            return self._send(200, json.dumps(info).encode(), {"Content-Type": "application/json"}, body)
        name = "/".join(parts[4:])
        if name not in files:
            return self._send(404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": REVISION}, body)
        return self._file(name, files[name], body)

    def _file(self, name: str, data: bytes, body: bool) -> None:
        headers = {"X-Repo-Commit": REVISION, "ETag": f'"{hashlib.sha256(data).hexdigest()}"', "Accept-Ranges": "bytes"}
        wanted = self.headers.get("Range")
        start = int(wanted.removeprefix("bytes=").split("-")[0]) if wanted else 0
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self._send(206 if start else 200, data[start:], headers, body, self.hub.cut.pop(name, None) if body else None)

    def _send(self, status: int, data: bytes, headers: Mapping[str, str], body: bool, cut: int | None = None) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(data[:cut])
        if cut is not None:
            self.close_connection = True


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Run the server on a free port of this machine; `hub.url` is its address."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
