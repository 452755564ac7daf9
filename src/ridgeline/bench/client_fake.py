"""A server with no model: it streams made-up tokens at scripted times, or fails as it is told. What the client is checked against.

The script is in the model's name, as `key=value` pairs with commas or semicolons: see `Script`. Knows just enough HTTP.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass, fields
from time import perf_counter
from typing import Any


@dataclass(frozen=True, slots=True)
class Script:
    """Seconds until the role event (below 0: none), the first token, between events; tokens of an event; cached prompt tokens;
    continuous: usage on every event; fault: status, error, break, empty, hang, garbage, json, nousage or reset. `text`: of each token."""

    role: float = -1.0
    ttft: float = 0.0
    gap: float = 0.0
    tokens: int = 1
    cached: int = 0
    fault: str = "none"
    continuous: int = 0
    text: str = " word"

    @classmethod
    def of(cls, name: str) -> Script:
        """Unknown keys are passed over: any model name is a script."""
        plain = cls()
        known: dict[str, Any] = {f.name: getattr(plain, f.name) for f in fields(cls)}
        given: dict[str, Any] = {}
        for pair in name.replace(";", ",").split(","):
            key, _, value = pair.partition("=")
            if key in known:
                given[key] = type(known[key])(value)
        return cls(**given)


async def serve(port: int = 0) -> asyncio.Server:
    """Started on 127.0.0.1; its port is in `sockets`. Each connection carries one request at a time."""
    return await asyncio.start_server(_connection, "127.0.0.1", port)


async def _connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while await _request(reader, writer):
            pass
    except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
        pass
    finally:
        writer.close()


async def _request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Whether another may follow on this connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1")
    arrived = perf_counter()
    length = next((int(line.partition(":")[2]) for line in head.split("\r\n") if line.lower().startswith("content-length:")), 0)
    body = await reader.readexactly(length)
    path = head.split(" ", 2)[1]
    if path.endswith("/models"):
        return await _document(writer, 200, {"object": "list", "data": [{"id": "fake"}]})
    if path == "/health":
        return await _document(writer, 200, {})
    if not path.endswith("/completions"):
        return await _document(writer, 404, {"error": {"message": "no such path"}})
    asked = json.loads(body)
    return await _answer(writer, asked, Script.of(str(asked.get("model", ""))), arrived, chat=path.endswith("/chat/completions"))


async def _answer(writer: asyncio.StreamWriter, asked: dict[str, Any], script: Script, arrived: float, *, chat: bool) -> bool:
    if script.fault == "status":
        return await _document(writer, 429, {"error": {"message": "the queue is full"}})
    if script.fault == "reset":
        writer.transport.abort()
        return False
    if script.fault == "hang":
        await asyncio.sleep(3600)
    usage = {"prompt_tokens": _words(asked), "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": script.cached}}
    if script.fault == "json":
        usage["completion_tokens"] = asked["max_tokens"]
        choice = {"index": 0, "message": {"content": script.text * asked["max_tokens"]}, "finish_reason": "length"}
        return await _document(writer, 200, {"choices": [choice], "usage": usage})
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    await _stream(writer, asked, script, arrived, usage, chat=chat)
    if script.fault == "break":
        writer.transport.abort()
        return False
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


async def _stream(
    writer: asyncio.StreamWriter, asked: dict[str, Any], script: Script, arrived: float, usage: dict[str, Any], *, chat: bool
) -> None:
    if chat and script.role >= 0:
        await _until(arrived + script.role)
        _event(writer, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    made, events = 0, 0
    total = 0 if script.fault == "empty" else int(asked["max_tokens"])
    while made < total:
        await _until(arrived + script.ttft + events * script.gap)
        count = min(script.tokens if events else 1, total - made)
        made, events = made + count, events + 1
        usage["completion_tokens"] = made
        words = script.text * count
        choice: dict[str, Any] = {"index": 0, "delta": {"content": words}} if chat else {"index": 0, "text": words}
        choice["finish_reason"] = "length" if made == total and script.fault == "none" else None
        _event(writer, {"choices": [choice]} | ({"usage": usage} if script.continuous else {}))
        if made * 2 >= total and script.fault in ("break", "error", "garbage"):
            break
    if script.fault == "error":
        _event(writer, {"error": {"message": "out of memory", "code": 500}})
    if script.fault == "garbage":
        _chunk(writer, b"data: {not json\n\n")
    if script.fault in ("none", "nousage", "empty"):
        if script.fault != "nousage":
            _event(writer, {"choices": [], "usage": usage})
        _chunk(writer, b"data: [DONE]\n\n")


async def _until(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment - perf_counter()))


def _event(writer: asyncio.StreamWriter, document: dict[str, Any]) -> None:
    head = {"id": "fake-1", "object": "chat.completion.chunk", "created": 0, "model": "fake"}
    _chunk(writer, b"data: " + json.dumps(head | document).encode() + b"\n\n")


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


async def _document(writer: asyncio.StreamWriter, status: int, document: dict[str, Any]) -> bool:
    body = json.dumps(document).encode()
    writer.write(f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    return True


def _words(asked: dict[str, Any]) -> int:
    texts = [m["content"] for m in asked["messages"]] if "messages" in asked else [str(asked.get("prompt", ""))]
    return sum(len(text.split()) for text in texts)


async def _main(port: int) -> None:
    await (await serve(port)).serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
