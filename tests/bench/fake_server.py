"""The fake server of `bench/client_fake` on a thread of its own, for tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ridgeline.bench.client_fake import serve


@contextmanager
def fake_server() -> Iterator[str]:
    """Its URL, while the block runs."""
    loop, ready = asyncio.new_event_loop(), threading.Event()
    found: list[int] = []

    async def main() -> None:
        server = await serve()
        found.append(server.sockets[0].getsockname()[1])
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            server.close()

    def run() -> None:
        asyncio.set_event_loop(loop)
        task = loop.create_task(main())
        loop.call_soon(lambda: None)
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            pending = asyncio.all_tasks(loop)
            for one in pending:
                one.cancel()
            loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        finally:
            loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield f"http://127.0.0.1:{found[0]}"
    finally:
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
        thread.join(10)
