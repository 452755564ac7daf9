"""Readers that take nothing, and more connections than a default file limit allows."""

from __future__ import annotations

import resource
import time

import pytest
from tests.server.fake_engine import FakeEngine, served
from tests.server.http_server import running
from tests.server.raw import connect, request

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
