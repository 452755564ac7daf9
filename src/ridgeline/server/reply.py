"""What a model's text means: thoughts, text for the reader, tool calls, in order. One reader per choice; knows no protocol's documents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ridgeline.text.reasoning import ReasoningStream
from ridgeline.text.tools.base import CallDelta, TextDelta, ToolCall, ToolStream
from ridgeline.types import CompletionOutput


@dataclass(frozen=True, slots=True)
class Thinking:
    """A piece of the model's reasoning."""

    text: str


Piece = Thinking | TextDelta | CallDelta


class ReplyReader:
    """Text in, pieces out; joined, the pieces do not depend on how the text was cut.

    calls: tool calls begun; thinking_tokens: how many tokens of the reply were reasoning.
    """

    __slots__ = ("_reasoning", "_tools", "calls", "thinking_tokens")

    def __init__(self, reasoning: ReasoningStream | None = None, tools: ToolStream | None = None) -> None:
        self._reasoning, self._tools = reasoning, tools
        self.calls = self.thinking_tokens = 0

    def read(self, part: CompletionOutput) -> list[Piece]:
        """The pieces of one output of the engine; with its last one also what was held back."""
        pieces = self._push(part.text, len(part.token_ids)) if part.text or self._reasoning is not None else []
        if part.finish_reason is not None:
            pieces += self._finish()
        self.calls += sum(isinstance(p, CallDelta) and p.id is not None for p in pieces)
        return pieces

    def _push(self, text: str, tokens: int) -> list[Piece]:
        if self._reasoning is None:
            return self._answer(text)
        thought = self._reasoning.push(text)
        if thought.reasoning or self._reasoning.inside:
            self.thinking_tokens += tokens
        pieces: list[Piece] = [Thinking(thought.reasoning)] if thought.reasoning else []
        return pieces + self._answer(thought.content)

    def _finish(self) -> list[Piece]:
        pieces: list[Piece] = []
        if self._reasoning is not None:
            thought = self._reasoning.finish()
            pieces = [Thinking(thought.reasoning)] if thought.reasoning else []
            pieces += self._answer(thought.content)
        return pieces if self._tools is None else [*pieces, *self._tools.finish()]

    def _answer(self, text: str) -> list[Piece]:
        if not text:
            return []
        return [TextDelta(text)] if self._tools is None else list(self._tools.push(text))


@dataclass(slots=True)
class Reading:
    """A whole reply: pieces put together."""

    thoughts: str = ""
    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    thinking_tokens: int = 0

    def add(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, Thinking):
                self.thoughts += piece.text
            elif isinstance(piece, TextDelta):
                self.text += piece.text
            elif piece.id is not None:
                self.calls.append(ToolCall(piece.id, piece.name or "", piece.arguments))
            else:
                last = self.calls[piece.index]
                self.calls[piece.index] = ToolCall(last.id, last.name, last.arguments + piece.arguments)


def read_whole(reader: ReplyReader, choice: CompletionOutput) -> Reading:
    """A whole choice by a fresh reader: what streaming it would give."""
    reading = Reading()
    reading.add(reader.read(choice))
    reading.thinking_tokens = reader.thinking_tokens
    return reading
