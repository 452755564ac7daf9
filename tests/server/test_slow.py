"""Readers that take nothing, requests that take long to read, and more connections than a default file limit allows (case SE-04)."""

from __future__ import annotations

import resource
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.cli.tiny_gguf import tiny_gguf
from tests.server.fake_engine import FakeEngine, served
from tests.server.http_server import running
from tests.server.process import serving
from tests.server.raw import connect, request

from ridgeline.server.app import ROUTES
from ridgeline.server.bounds import Bounds
from ridgeline.server.run import raise_file_limit

HELLO = [{"role": "user", "content": "hi"}]


def test_a_reader_that_takes_nothing_is_cut_off() -> None:
    engine = FakeEngine(says=lambda *_: "word " * 12_000, length=100_000)
    with running(engine, served=served(length=100_000), bounds=Bounds(write_s=0.3)) as server:
        sock = connect(server.url)
        sock.setsockopt(1, 8, 4096)  # SO_RCVBUF: a small window fills soon
        sock.sendall(request("/v1/completions", {"prompt": "x", "max_tokens": 90_000, "stream": True, "return_token_ids": True}))
        for _ in range(100):
            if engine.seen:
                break
            time.sleep(0.02)
        assert server.settled()
        assert server.state.meters.gone == 1 and engine.aborted
        assert server.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 3})[0] == 200
        sock.close()


POSTS: dict[str, Any] = {
    "/v1/chat/completions": {"messages": HELLO}, "/v1/completions": {"prompt": "hi"}, "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 5}, "/v1/messages/count_tokens": {"messages": HELLO},
    "/tokenize": {"prompt": "hi"}, "/detokenize": {"tokens": [65]},
}  # fmt: skip


def test_health_answers_while_requests_are_made_ready() -> None:
    """SE-04: templates, tokenizing and grammars run beside the event loop, so that one that takes long holds nobody else up."""
    assert {path for method, path, _, body in ROUTES if method == "POST" and body is not None} == set(POSTS)
    with running() as server:
        workers, go = server.state.workers, threading.Event()
        busy = [workers.submit(go.wait, 20) for _ in range(2)]  # every worker has something that takes long
        with ThreadPoolExecutor(len(POSTS)) as clients:
            asked = [clients.submit(server.post, path, body) for path, body in POSTS.items()]
            time.sleep(0.2)
            assert not any(reply.done() for reply in asked)
            for path in ("/health", "/metrics", "/v1/models", "/version"):
                assert server.get(path)[0] == 200
            assert not any(reply.done() for reply in asked)
            go.set()
            assert [reply.result()[0] for reply in asked] == [200] * len(POSTS)
        assert all(b.result() for b in busy)


@pytest.mark.long
def test_two_thousand_idle_connections() -> None:
    raise_file_limit()
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 4200:
        pytest.skip("the hard file limit of this machine is below 4200")
    with running() as server:
        idle = [connect(server.url) for _ in range(2000)]
        for sock in idle[::2]:
            sock.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n")
        assert server.post("/v1/chat/completions", {"messages": HELLO})[0] == 200
        assert server.get("/health")[0] == 200
        for sock in idle:
            sock.close()
        assert server.settled()


@pytest.mark.long
def test_ten_thousand_idle_connections(tmp_path: Path) -> None:
    """SE-04 to the letter, on a process of its own: a machine's file limit counts either side by itself."""
    raise_file_limit()
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 10_200:
        pytest.skip("the hard file limit of this machine is below 10200")
    ask = {"prompt": "x", "max_tokens": 3}
    with serving(str(tiny_gguf(tmp_path / "tiny.gguf"))) as server:
        server.post("/v1/completions", ask)
        files = Path(f"/proc/{server.process.pid}/fd")
        before = len(list(files.iterdir()))
        idle = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(10_000)]
        for sock in idle[::2]:
            sock.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n")
        assert b"choices" in server.post("/v1/completions", ask)
        assert len(list(files.iterdir())) >= before + 9_000  # some may have been closed by their time limit
        for sock in idle:
            sock.close()
        for _ in range(500):
            if len(list(files.iterdir())) <= before + 1:
                break
            time.sleep(0.02)
        assert len(list(files.iterdir())) <= before + 1
        assert b"choices" in server.post("/v1/completions", ask)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0 and "Traceback" not in server.said
