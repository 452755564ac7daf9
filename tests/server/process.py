"""`ridgeline serve` as a process of its own, for tests of its life and of its load."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

RIDGELINE = [sys.executable, "-X", "faulthandler", "-c", "import sys; from ridgeline.cli import main; sys.exit(main())"]



class Process:
    """A running server and what it has said on stderr so far."""

    def __init__(self, *arguments: str) -> None:
        self.port = 0
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        command = [*RIDGELINE, "serve", "--port", "0", "--threads", "1", "--kv-cache-memory-bytes", "8MiB", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
        self.said = ""
        self.ready = threading.Event()
        listener = threading.Thread(target=self._listen, daemon=True)
        listener.start()
        if not self.ready.wait(100):  # where every thread stands, for whoever reads the failure
            self.process.send_signal(signal.SIGABRT)
            listener.join(10)
        assert self.port, self.said

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line
            if line.startswith("ready"):
                self.port = int(line.split("http://")[1].split()[0].rpartition(":")[2])
                self.ready.set()
        self.ready.set()  # it ended, perhaps before it was ready

    def post(self, path: str, body: Any, timeout: float = 30) -> bytes:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            data: bytes = reply.read()
            return data

    def ask(self, body: Any) -> socket.socket:
        """A completion that was asked for."""
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        raw = json.dumps(body).encode()
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(raw) + raw)
        return sock

    def stream(self) -> socket.socket:
        """A long answer under way: its first bytes have come."""
        sock = self.ask({"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True})
        assert sock.recv(100)
        return sock

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(60)


@contextmanager
def serving(*arguments: str) -> Iterator[Process]:
    process = Process(*arguments)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.wait()


def everything(sock: socket.socket) -> bytes:
    data = b""
    while more := sock.recv(1 << 16):
        data += more
    return data
