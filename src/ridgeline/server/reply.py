"""What a model's text means: thoughts, text for the reader, tool calls, in order. One reader per choice; knows no protocol's documents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ridgeline.text.tools.base import CallDelta, TextDelta, ToolCall, ToolStream
from ridgeline.types import FinishReason


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of the model's reasoning."""

    text: str


Piece = Thought | TextDelta | CallDelta


class ReplyReader:
    """Text in, pieces out; joined, the pieces do not depend on how the text was cut. `called`: a tool call has begun."""

    __slots__ = ("_tools", "called")

    def __init__(self, tools: ToolStream | None = None) -> None:
        self._tools = tools
        self.called = False

    def push(self, text: str) -> list[Piece]:
        if not text:
            return []
        if self._tools is None:
            return [TextDelta(text)]
        return self._seen(self._tools.push(text))

    def finish(self) -> list[Piece]:
        """What was held back."""
        return [] if self._tools is None else self._seen(self._tools.finish())

    def _seen(self, deltas: Iterable[TextDelta | CallDelta]) -> list[Piece]:
        pieces: list[Piece] = list(deltas)
        self.called = self.called or any(isinstance(p, CallDelta) for p in pieces)
        return pieces


@dataclass(slots=True)
class Reading:
    """A whole reply: pieces put together."""

    thoughts: str = ""
    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)

    def add(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, Thought):
                self.thoughts += piece.text
            elif isinstance(piece, TextDelta):
                self.text += piece.text
            elif piece.id is not None:
                self.calls.append(ToolCall(piece.id, piece.name or "", piece.arguments))
            else:
                last = self.calls[piece.index]
                self.calls[piece.index] = ToolCall(last.id, last.name, last.arguments + piece.arguments)


def read_whole(reader: ReplyReader, text: str) -> Reading:
    reading = Reading()
    reading.add([*reader.push(text), *reader.finish()])
    return reading


def openai_finish(reason: FinishReason | None, *, called: bool, named: bool) -> str | None:
    """OpenAI's finish_reason: "tool_calls" for a whole reply with a call, except where the client named the tool itself."""
    if reason == "stop" and called and not named:
        return "tool_calls"
    return reason
