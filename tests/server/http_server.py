"""The application on a real socket, in a thread, for tests that use real clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from tests.server.fake_engine import FakeEngine, served

from ridgeline.server.app import build
from ridgeline.server.run import bind, serve_forever
from ridgeline.server.state import State


class Running:
    """A server that runs: `url`, its `engine` and `state`."""

    def __init__(self, state: State, url: str, loop: asyncio.AbstractEventLoop) -> None:
        self.state, self.url, self.loop = state, url, loop
        self.engine: Any = state.engine

    def settled(self) -> bool:
        """Waits until nothing is left of any request; False when something is after 6 seconds."""
        for _ in range(300):
            if self.state.pending == 0 and not self.engine.alive:
                return True
            time.sleep(0.02)
        return False

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], Any]:
        """(status, headers, document or event list) of a POST; `body` is JSON or raw bytes."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.send("POST", path, raw, headers)

    def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], Any]:
        return self.send("GET", path, None, headers)

    def send(self, method: str, path: str, raw: bytes | None, headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], Any]:
        request = urllib.request.Request(self.url + path, raw, {"content-type": "application/json", **(headers or {})}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                status, got, data = reply.status, dict(reply.headers), reply.read()
        except urllib.error.HTTPError as error:
            status, got, data = error.code, dict(error.headers), error.read()
        kind = got.get("content-type", "")
        if kind.startswith("text/event-stream"):
            return status, got, data
        return status, got, json.loads(data) if data and kind.startswith("application/json") else data


def events(data: bytes) -> list[Any]:
    """The documents of an event stream; checks the framing. "[DONE]" stays a string."""
    assert data.endswith(b"\n\n"), data[-40:]
    found = []
    for block in data[:-2].split(b"\n\n"):
        lines = block.decode().split("\n")
        payload = lines[-1].removeprefix("data: ")
        assert lines[-1].startswith("data: ") and all(line.startswith("event: ") for line in lines[:-1]) and len(lines) <= 2, block
        found.append(payload if payload == "[DONE]" else json.loads(payload))
    return found


@contextlib.contextmanager
def running(engine: Any = None, **options: Any) -> Iterator[Running]:
    """A server on a free port with `engine`, or with what it makes when called. `options` go to `State`; `rules` to the gate."""
    rules = options.pop("rules", None)
    started = threading.Event()
    box: dict[str, Any] = {}

    def run() -> None:
        async def main() -> None:
            made = engine() if callable(engine) else engine or FakeEngine()
            state = State(options.pop("served", None) or served(), made, **options)
            socket = bind("127.0.0.1", 0)
            stop = asyncio.Event()
            box.update(state=state, loop=asyncio.get_running_loop(), stop=stop, port=socket.getsockname()[1])
            await serve_forever(build(state, rules), [socket], state, stop=stop, ready=lambda: started.set())

        try:
            asyncio.run(main())
        except BaseException as error:
            box["error"] = error
            started.set()
            raise

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(30)
    if "error" in box:
        raise box["error"]
    try:
        yield Running(box["state"], f"http://127.0.0.1:{box['port']}", box["loop"])
    finally:
        box["loop"].call_soon_threadsafe(box["stop"].set)
        thread.join(30)
        assert not thread.is_alive()
