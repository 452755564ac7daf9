"""The server's life: a listening socket, connections until told to stop, draining, the end. Knows no endpoint.

Written on uvicorn's protocol and not on its `Server`, which wakes ten times a second; an idle server here sleeps.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any

from uvicorn import Config

from ridgeline.errors import UserError
from ridgeline.server.protocol import Connections, Guarded
from ridgeline.server.state import State

logger = logging.getLogger("ridgeline.server")
BACKLOG = 2048
_LAST_WORDS_S = 2.0


def bind(host: str, port: int) -> socket.socket:
    """A bound socket on which nobody listens yet. Raises `UserError` for a port that is taken or an address that is not ours."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(family, kind, proto)
    except (OSError, UnicodeError) as error:
        raise UserError(f"--host {host}: {error}", field="--host", value=host) from None
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
    except (OSError, OverflowError) as error:
        sock.close()
        raise _cannot_bind(host, port, error) from None
    sock.setblocking(False)
    return sock


def _cannot_bind(host: str, port: int, error: Exception) -> UserError:
    number = getattr(error, "errno", None)
    if number == errno.EADDRINUSE:
        return UserError(f"port {port} on {host} is taken by another program", field="--port", value=port, remedy="choose another --port")
    if number == errno.EACCES:
        return UserError(f"port {port} needs privileges", field="--port", value=port, remedy="use one of 1024 or above")
    return UserError(f"cannot listen on {host} port {port}: {error}", field="--host", value=host)


async def serve_forever(
    app: Any,
    sockets: Sequence[socket.socket],
    state: State,
    *,
    stop: asyncio.Event,
    ready: Callable[[], None],
    force: asyncio.Event | None = None,
) -> bool:
    """Serve until `stop`, then drain: no new connections, running requests end, at most `drain_s`. `force` cuts the draining short.

    Returns whether every request had its end. The engine is closed in any case.
    """
    config = Config(
        app, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False, date_header=False, proxy_headers=False,
        timeout_keep_alive=round(state.bounds.idle_s),
    )  # fmt: skip
    config.load()
    connections = Connections()
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(lambda: Guarded(config, connections, state.bounds), sock=s, backlog=BACKLOG) for s in sockets]
    ready()
    try:
        await stop.wait()
        state.draining = True
        for server in servers:
            server.close()
        return await _drain(connections, state, force or asyncio.Event())
    finally:
        await state.engine.close()
        state.workers.shutdown(wait=False, cancel_futures=True)
        for connection in list(connections.connections):
            connection.transport.abort()


async def _drain(connections: Connections, state: State, force: asyncio.Event) -> bool:
    """Idle connections are closed, the others when their reply is whole. What is left at the end is told that it was cut short."""
    for connection in list(connections.connections):
        connection.shutdown()
    running = _running(connections)
    if running:
        logger.info("draining: %d requests are running, at most %g s", len(running), state.bounds.drain_s)
        forced = asyncio.ensure_future(force.wait())
        ended = asyncio.ensure_future(asyncio.wait(running))
        await asyncio.wait({forced, ended}, timeout=state.bounds.drain_s, return_when=asyncio.FIRST_COMPLETED)
        forced.cancel()
        ended.cancel()
    left = _running(connections)
    await state.engine.close()
    if left:
        logger.warning("%d requests are cut short", len(left))
        await asyncio.wait(left, timeout=_LAST_WORDS_S)
    return not left


def _running(connections: Connections) -> list[asyncio.Task[None]]:
    return [task for task in connections.tasks if not task.done()]


def raise_file_limit() -> None:
    """As many connections as the system lets us have: the usual soft limit of 1024 files is below what one busy client opens."""
    try:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ImportError, ValueError, OSError) as error:
        logger.debug("the file limit stays as it is: %s", error)
