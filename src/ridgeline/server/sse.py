"""Server-sent events: exact framing, and an ASGI response that writes them as they come. Knows no protocol's documents.

Source: HTML standard, section 9.2 (an event is `data: ...` and an empty line).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Protocol

from starlette.responses import Response

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]

DONE = b"data: [DONE]\n\n"
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
# Some clients cut lines at these as well, as str.splitlines does; JSON may spell them as escapes.
_LINE_ENDS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029", "\x7f": "\\u007f"})


def dumps(value: Any) -> str:
    """Compact JSON on one line, for every reader's idea of a line."""
    text = _encode(value)
    return text if text.isascii() else text.translate(_LINE_ENDS)


def event(document: Any) -> bytes:
    return f"data: {dumps(document)}\n\n".encode("utf-8", "replace")


def named_event(name: str, document: Any) -> bytes:
    """An event with a type, as the Anthropic and Responses protocols have them."""
    return f"event: {name}\ndata: {dumps(document)}\n\n".encode("utf-8", "replace")


class Work(Protocol):
    """What a reply is waiting for."""

    def gone(self) -> None:
        """The client went away."""

    def close(self) -> None:
        """The reply is over, one way or the other."""


class EventStream(Response):
    """Writes the chunks of `source` as they come. When the client goes away `work.gone` is called once, and the source is left to end.

    The source must handle its own errors: once headers are out there is no other way to tell the client.
    """

    def __init__(self, source: AsyncGenerator[bytes], work: Work, headers: Mapping[str, str] | None = None) -> None:
        self.source, self.work = source, work
        self.status_code, self.background = 200, None
        # X-Accel-Buffering: nginx would otherwise hold events back.
        given = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
            **(headers or {}),
        }
        self.raw_headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in given.items()]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        async with watching(receive, self.work), aclosing(self.source) as source:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for chunk in source:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


@asynccontextmanager
async def watching(receive: Receive, work: Work) -> AsyncGenerator[None]:
    """Tells `work` if the client goes away inside, and closes it at the end."""
    task = asyncio.ensure_future(_wait(receive, work))
    try:
        yield
    finally:
        task.cancel()
        work.close()


async def _wait(receive: Receive, work: Work) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    work.gone()
