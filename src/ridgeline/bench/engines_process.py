"""One engine as a process of ours: started, waited for, and ended by its own id. What it says goes into a log whose path is told."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shlex
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter, sleep

from ridgeline.bench.client import Client, Target
from ridgeline.errors import UserError

_GRACE_S = 8.0


def free_port() -> int:
    """A TCP port of the loopback interface that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Process:
    """A running engine. `ready_s`: seconds from its start until it served. To be ended."""

    def __init__(self, line: Sequence[str], log: Path | None = None) -> None:
        self.line, self.ready_s = list(line), 0.0
        if log is None:
            handle, name = tempfile.mkstemp(prefix="ridgeline-bench-", suffix=".log")
            os.close(handle)
            log = Path(name)
        self.log = log
        self._begun = perf_counter()
        with log.open("ab") as out:
            try:
                self._child = subprocess.Popen(
                    self.line, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_parent
                )
            except OSError as error:
                log.unlink(missing_ok=True)
                raise UserError(f"cannot start {shlex.join(self.line)}: {error}", field="--engine", value=self.line[0]) from None

    @property
    def pid(self) -> int:
        return self._child.pid

    def wait(self, target: Target, path: str, timeout_s: float) -> None:
        """Until `path` answers 200. Raises `UserError` with its last words when it ended, or when the time is up."""
        while True:
            if self._child.poll() is not None:
                raise UserError(
                    f"the engine ended with {self._child.returncode} before it served: {self.last_words()}", field="--engine",
                    value=shlex.join(self.line), remedy=f"its log is {self.log}",
                )  # fmt: skip
            if asyncio.run(_answers(target, path)):
                self.ready_s = perf_counter() - self._begun
                return
            if perf_counter() - self._begun > timeout_s:
                raise UserError(
                    f"the engine did not serve within {timeout_s:g} s: {self.last_words()}", field="--engine", value=shlex.join(self.line),
                    remedy=f"its log is {self.log}",
                )  # fmt: skip
            sleep(0.1)

    def last_words(self) -> str:
        return last_line(self.log)

    def end(self) -> None:
        """Asks it to end, then makes it; its children, which are of its own session, go with it, also those that outlive it."""
        for how, patience in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, 5.0)):
            if self._gone():
                break
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, how)
            until = perf_counter() + patience
            while not self._gone() and perf_counter() < until:
                sleep(0.02)

    def _gone(self) -> bool:
        """Whether nobody of its group is left."""
        if self._child.poll() is None:
            return False
        try:
            os.killpg(self._child.pid, 0)
        except (ProcessLookupError, PermissionError):
            return True
        return False


def die_with_parent() -> None:
    """In the child, on Linux: a kill that ends us ends it too (prctl PR_SET_PDEATHSIG); it has nothing to save."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def last_line(log: Path) -> str:
    """What a process said last."""
    try:
        lines = [line.strip() for line in log.read_text("utf8", "replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    return lines[-1][:300] if lines else "it said nothing"


@contextmanager
def until_told_to_end() -> Iterator[None]:
    """SIGTERM leaves the block like an exception, so that what it started is ended in order. In the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def ended(process: Process) -> Iterator[Process]:
    """The process, ended when the block is left."""
    try:
        yield process
    finally:
        process.end()


async def _answers(target: Target, path: str) -> bool:
    client = Client(target)
    try:
        return (await client.fetch("GET", path, timeout_s=5.0)).status == 200
    finally:
        client.close()
