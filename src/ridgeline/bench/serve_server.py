"""The server under test: one that runs at a URL, or an engine that is started for the run and ended after it. Says what exactly it is."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ridgeline.bench.client import Client, Target, understand
from ridgeline.bench.engines import Wish, command, engine, program, version
from ridgeline.bench.engines_process import Process, ended, free_port, until_told_to_end
from ridgeline.bench.machine_load import listener
from ridgeline.bench.serve_options import Source
from ridgeline.errors import UnsupportedError, UserError
from ridgeline.formats.checkpoint import open_checkpoint
from ridgeline.formats.pull import resolve
from ridgeline.models.registry import load_spec

Say = Callable[[str], None]
READY_S = 600.0  # until an engine that was started must serve
_LOCAL = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Server:
    """name: the engine's, or "server" at a URL; model: what requests call it; pid: root of its processes where they can be seen;
    limit: tokens that a sequence may have, where it says so; file: what it was given to read, where we started it."""

    name: str
    target: Target
    model: str
    pid: int | None = None
    command: str | None = None
    version: str | None = None
    ready_s: float | None = None
    log: str | None = None
    limit: int | None = None
    file: str | None = None

    @property
    def versions(self) -> dict[str, str]:
        """By program, without its name."""
        return {self.name: self.version.removeprefix(f"{self.name} ")} if self.version else {}


@contextmanager
def serving(source: Source, seqs: int, context: int, say: Say) -> Iterator[Server]:
    """A server that answers. Raises `UserError` when none does or the engine is not installed. seqs, context: what the load will need."""
    if source.url is not None:
        yield _running(source)
        return
    wanted = engine(source.engine)
    begin = program(wanted, source.engine_path)
    assert source.model is not None
    file = str(resolve(source.model))
    wish = Wish(
        source.model, file, free_port(), source.context or context, seqs,
        source.threads or len(os.sched_getaffinity(0)), source.engine_args,
    )  # fmt: skip
    line = command(wanted, begin, wish)
    say(f"starting {wanted.name}: {shlex.join(line)}")
    with until_told_to_end(), ended(Process(line)) as process:
        target = replace(Target.of(f"http://127.0.0.1:{wish.port}", source.api_key), prefix=wanted.prefix)
        process.wait(target, wanted.ready, READY_S)
        say(f"{wanted.name} serves after {process.ready_s:.1f} s")
        listed = asyncio.run(_listed(target))
        name = source.served_model or listed.name or wanted.model_name(wish)
        yield Server(
            wanted.name, target, name, process.pid, shlex.join(line), version(wanted, begin), process.ready_s, str(process.log),
            listed.limit or wish.context, file,
        )  # fmt: skip


def _running(source: Source) -> Server:
    assert source.url is not None
    target = Target.of(source.url, source.api_key)
    listed = asyncio.run(_listed(target))
    found = source.served_model or listed.name
    if found is None:
        text = f"--url {source.url}: GET {target.prefix}/models: {listed.fault}, so nothing was measured"
        raise UserError(text, field="--url", value=source.url, remedy=listed.remedy)
    pid = listener(target.port) if target.host in _LOCAL else None
    return Server("server", target, found, pid, limit=source.context or listed.limit)


@dataclass(frozen=True, slots=True)
class _Listed:
    """The first model of a server's list, or why there is none."""

    name: str | None = None
    limit: int | None = None
    fault: str = ""
    remedy: str = "start the server, or name the model with --served-model-name"


async def _listed(target: Target) -> _Listed:
    client = Client(target)
    try:
        reply = await client.fetch("GET", f"{target.prefix}/models", timeout_s=10.0)
    finally:
        client.close()
    if reply.status in (401, 403):
        return _Listed(fault=str(understand(reply).error), remedy="give the server's key with --api-key")
    if reply.status != 200:
        return _Listed(fault=reply.fault or f"HTTP {reply.status}")
    try:
        first = json.loads(reply.body)["data"][0]
        name, limit = first["id"], first.get("max_model_len")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return _Listed(fault="no list of models")
    return _Listed(name if isinstance(name, str) else None, limit if isinstance(limit, int) and limit > 0 else None, "no name in the list")


def model_limit(model: str) -> int | None:
    """Tokens that a model file can hold; None where we cannot read it and the engine must know."""
    try:
        return load_spec(open_checkpoint(resolve(model)), None).max_model_len
    except UnsupportedError:
        return None
