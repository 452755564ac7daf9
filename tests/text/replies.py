"""A whole prompt's text, and a whole reply put together from its deltas, as tests compare them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ridgeline.text.chat import encode_chat
from ridgeline.text.tools.base import Delta, TextDelta, ToolCall, ToolStream


def render_chat(*given: Any, **more: Any) -> str:
    """The text of `encode_chat`."""
    return encode_chat(*given, **more).text


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply: its text (None where there is none beside calls) and its calls."""

    content: str | None
    calls: tuple[ToolCall, ...]


def gather(deltas: Iterable[Delta]) -> Reply:
    """The reply that these deltas, in order, make up."""
    texts: list[str] = []
    calls: list[list[str]] = []
    for delta in deltas:
        if isinstance(delta, TextDelta):
            texts.append(delta.text)
        elif delta.id is not None:
            calls.append([delta.id, delta.name or "", delta.arguments])
        else:
            calls[delta.index][2] += delta.arguments
    content = "".join(texts)
    return Reply(content if content or not calls else None, tuple(ToolCall(*call) for call in calls))


def parse_reply(stream: ToolStream, text: str) -> Reply:
    """The reply in a whole text, by a fresh stream: what streaming it would give."""
    return gather([*stream.push(text), *stream.finish()])
