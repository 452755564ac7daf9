"""The events of a streamed response: items opened, filled and closed in order. Knows the protocol's events, not its requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ridgeline.server.failure import stream_fault
from ridgeline.server.openai.common import new_id
from ridgeline.server.reply import Piece, ReplyReader, Thinking
from ridgeline.server.sse import named_event
from ridgeline.text.tools.base import TextDelta
from ridgeline.types import CompletionOutput


class ResponseWriter:
    """Numbers the events, and keeps the items that are whole (`items`) and the one that is open."""

    def __init__(self, reader: ReplyReader) -> None:
        self.reader = reader
        self.items: list[dict[str, Any]] = []
        self._number = 0
        self._open: dict[str, Any] | None = None
        self._text = ""
        self._logprobs: list[Any] = []

    def event(self, kind: str, rest: dict[str, Any]) -> bytes:
        document = {"type": kind, "sequence_number": self._number, **rest}
        self._number += 1
        return named_event(kind, document)

    def piece(self, piece: Piece, logprobs: list[Any]) -> Iterator[bytes]:
        if isinstance(piece, TextDelta):
            yield from self._begin("message")
            self._text += piece.text
            self._logprobs += logprobs
            yield self._at("response.output_text.delta", {"content_index": 0, "delta": piece.text, "logprobs": logprobs})
        elif isinstance(piece, Thinking):
            yield from self._begin("reasoning")
            self._text += piece.text
            yield self._at("response.reasoning_text.delta", {"content_index": 0, "delta": piece.text})
        else:
            if piece.id is not None:
                yield from self.close("completed")
                yield from self._begin("function_call", {"call_id": piece.id, "name": piece.name, "arguments": ""})
            if piece.arguments:
                self._text += piece.arguments
                yield self._at("response.function_call_arguments.delta", {"delta": piece.arguments})

    def _at(self, kind: str, rest: dict[str, Any]) -> bytes:
        """An event about the open item."""
        item = self._open or {}
        return self.event(kind, {"item_id": item.get("id"), "output_index": len(self.items), **rest})

    def _begin(self, kind: str, rest: dict[str, Any] | None = None) -> Iterator[bytes]:
        if self._open is not None and self._open["type"] == kind and kind != "function_call":
            return
        yield from self.close("completed")
        prefix = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_"}[kind]
        self._open = {"type": kind, "id": new_id(prefix), "status": "in_progress", **(rest or {})}
        if kind == "message":
            self._open |= {"role": "assistant", "content": []}
        elif kind == "reasoning":
            self._open |= {"summary": [], "content": []}
        yield self.event("response.output_item.added", {"output_index": len(self.items), "item": dict(self._open)})
        if kind == "message":
            yield self._at("response.content_part.added", {"content_index": 0, "part": self._part("output_text")})

    def _part(self, kind: str) -> dict[str, Any]:
        if kind == "output_text":
            return {"type": kind, "text": self._text, "annotations": [], "logprobs": self._logprobs}
        return {"type": kind, "text": self._text}

    def close(self, status: str) -> Iterator[bytes]:
        """End the open item, if there is one."""
        item = self._open
        if item is None:
            return
        if item["type"] == "message":
            yield self._at("response.output_text.done", {"content_index": 0, "text": self._text, "logprobs": self._logprobs})
            yield self._at("response.content_part.done", {"content_index": 0, "part": self._part("output_text")})
            item["content"] = [self._part("output_text")]
        elif item["type"] == "reasoning":
            yield self._at("response.reasoning_text.done", {"content_index": 0, "text": self._text})
            item["content"] = [self._part("reasoning_text")]
        else:
            yield self._at("response.function_call_arguments.done", {"name": item["name"], "arguments": self._text})
            item["arguments"] = self._text
        item["status"] = status
        yield self.event("response.output_item.done", {"output_index": len(self.items), "item": item})
        self.items.append(item)
        self._open, self._text, self._logprobs = None, "", []

    def empty(self) -> Iterator[bytes]:
        """A reply without any piece is a message without text."""
        if not self.items and self._open is None:
            yield from self._begin("message")


def item_events(writer: ResponseWriter, part: CompletionOutput, logprobs: list[Any]) -> Iterator[bytes]:
    """The events of one output of the engine; its log-probabilities go with its first piece of text."""
    for piece in writer.reader.read(part):
        mine, logprobs = (logprobs, []) if isinstance(piece, TextDelta) else ([], logprobs)
        yield from writer.piece(piece, mine)
    if part.finish_reason is not None:
        yield from writer.empty()
        yield from writer.close("incomplete" if part.finish_reason == "length" else "completed")


def failed(writer: ResponseWriter, document: dict[str, Any], error: BaseException) -> bytes:
    """The last event of a response that a fault of ours ended."""
    document["error"] = {"code": "server_error", "message": stream_fault(error).message}
    return writer.event("response.failed", {"response": document})
