"""The server under test: one that runs at a URL, or an engine that is started for the run and ended after it. Says what exactly it is."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ridgeline.bench.client import Client, Target
from ridgeline.bench.engines import Wish, command, engine, program, shown, version
from ridgeline.bench.engines_process import Process, free_port
from ridgeline.bench.load_noise import listener
from ridgeline.bench.serve_options import Source
from ridgeline.errors import UserError
from ridgeline.formats.pull import resolve

Say = Callable[[str], None]
_LOCAL = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Server:
    """name: the engine's, or "server" at a URL; model: what requests call it; pid: root of its processes where they can be seen."""

    name: str
    target: Target
    model: str
    prefix: str = "/v1"
    pid: int | None = None
    command: str | None = None
    version: str | None = None
    ready_s: float | None = None
    log: str | None = None


@contextmanager
def serving(source: Source, seqs: int, context: int, say: Say) -> Iterator[Server]:
    """A server that answers. Raises `UserError` when none does or the engine is not installed. seqs, context: what the load will need."""
    if source.url is not None:
        yield _running(source)
        return
    wanted = engine(source.engine)
    begin = program(wanted, source.engine_path)
    assert source.model is not None
    wish = Wish(
        source.model, str(resolve(source.model)), free_port(), source.context or context, seqs,
        source.threads or len(os.sched_getaffinity(0)), source.engine_args,
    )  # fmt: skip
    line = command(wanted, begin, wish)
    say(f"starting {wanted.name}: {shown(line)}")
    process = Process(line)
    try:
        target = Target.of(f"http://127.0.0.1:{wish.port}", source.api_key)
        process.wait(target, wanted.ready, source.ready_timeout_s)
        say(f"{wanted.name} serves after {process.ready_s:.1f} s")
        name = source.served_model or asyncio.run(_model_name(target, wanted.prefix)) or wanted.model_name(wish)
        yield Server(
            wanted.name, target, name, wanted.prefix, process.pid, shown(line), version(wanted, begin), process.ready_s, str(process.log)
        )
    finally:
        process.end()


def _running(source: Source) -> Server:
    assert source.url is not None
    target = Target.of(source.url, source.api_key)
    found = source.served_model or asyncio.run(_model_name(target, target.prefix))
    if found is None:
        text = f"--url {source.url}: nothing answers GET {target.prefix}/models there, so nothing was measured"
        remedy = "start the server, or name the model with --served-model-name"
        raise UserError(text, field="--url", value=source.url, remedy=remedy)
    pid = listener(target.port) if target.host in _LOCAL else None
    return Server("server", target, found, target.prefix, pid)


async def _model_name(target: Target, prefix: str) -> str | None:
    """The first model that it lists."""
    client = Client(target)
    try:
        reply = await client.fetch("GET", f"{prefix}/models", timeout_s=10.0)
        name = json.loads(reply.body)["data"][0]["id"]
        return name if reply.status == 200 and isinstance(name, str) else None
    except (ValueError, KeyError, IndexError, TypeError):
        return None
    finally:
        client.close()
