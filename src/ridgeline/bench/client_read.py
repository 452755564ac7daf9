"""What a streamed reply says, from its recorded (time, bytes) pairs alone: when each piece came, how many tokens, cached tokens, faults.

Pure and exact: nothing here waits, opens or measures. Understands OpenAI's chat and completions, as events or as one document.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Pairs = Sequence[tuple[float, bytes]]
Basis = Literal["usage", "tokens", "events"]
MAX_TEXT = 300


@dataclass(frozen=True, slots=True)
class Piece:
    """One event with text of one choice. tokens: by the deltas of continuous usage, None where the server sends none."""

    at_s: float
    choice: int
    text: str
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """One reply. first_event_s: first event of any kind, a role without text included; end_s: the last byte.

    Counts are the server's own usage, None where it gives none. prefill_s: how long the server says it computed the prompt.
    error: why it failed, None when it ended well.
    """

    pieces: tuple[Piece, ...] = ()
    first_event_s: float | None = None
    end_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    prefill_s: float | None = None
    finish: str | None = None
    error: str | None = None

    @property
    def text(self) -> str:
        """Of the first choice: what the next turn of a conversation echoes."""
        return "".join(p.text for p in self.pieces if p.choice == 0)

    @property
    def tokens(self) -> int:
        """By usage; the number of pieces where the server gives no usage."""
        return len(self.pieces) if self.output_tokens is None else self.output_tokens

    @property
    def basis(self) -> Basis:
        """What gaps stand for: tokens by usage deltas, one token an event, or events that may hold several tokens.

        A token that ends the answer has no text, so one event less than tokens is one token an event still.
        """
        if self.pieces and all(p.tokens is not None for p in self.pieces):
            return "usage"
        choices = len({p.choice for p in self.pieces})
        return "tokens" if self.output_tokens is not None and len(self.pieces) >= self.output_tokens - choices else "events"

    def gaps(self) -> Iterator[float]:
        """Seconds between tokens, the first of each choice not counted: a gap whose event brings k tokens counts as k gaps of a k-th.

        Where the server does not say how many tokens an event holds, the gap of the stream.
        """
        last: dict[int, float] = {}
        for piece in self.pieces:
            before = last.get(piece.choice)
            last[piece.choice] = piece.at_s
            if before is None:
                continue
            count = piece.tokens if piece.tokens is not None else 1
            for _ in range(count):
                yield (piece.at_s - before) / count


def read_events(pairs: Pairs) -> Iterator[tuple[float, str]]:
    """(time, data) of each server-sent event, at the time of the bytes that completed it. Comments and other fields are left out."""
    begun, held = list[bytes](), list[bytes]()
    for at, data in pairs:
        if b"\n" not in data:  # a line of many reads is joined once
            begun.append(data)
            continue
        *lines, rest = b"".join([*begun, data]).split(b"\n")
        begun = [rest] if rest else []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                held.append(line[5:].removeprefix(b" "))
            elif not line and held:
                yield at, b"\n".join(held).decode("utf8", "replace")
                held.clear()
    if held and not begun:
        yield pairs[-1][0], b"\n".join(held).decode("utf8", "replace")


def read_stream(pairs: Pairs) -> Reading:
    """A reply in events. It ended well when `[DONE]` or a finish reason came, no error did, and there was text."""
    reader = _Reader()
    for at, data in read_events(pairs):
        reader.take(at, data)
    return reader.reading(pairs[-1][0] if pairs else None)


def read_document(pairs: Pairs) -> Reading:
    """A reply as one JSON document: its first token is known only with its last byte."""
    if not pairs:
        return Reading(error="empty reply")
    reader, end = _Reader(), pairs[-1][0]
    reader.take(end, b"".join(data for _, data in pairs).decode("utf8", "replace"))
    return reader.reading(end)


def refusal(status: int, pairs: Pairs) -> Reading:
    """A reply with an error status: its message, or the beginning of its body."""
    body = b"".join(data for _, data in pairs).decode("utf8", "replace")
    try:
        message = _message(json.loads(body)) or body
    except (ValueError, RecursionError):
        message = body
    return Reading(error=f"HTTP {status}: {' '.join(message.split())[:MAX_TEXT]}", end_s=pairs[-1][0] if pairs else None)


class _Reader:
    """Adds one event after the other."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._first: float | None = None
        self._usage: Mapping[str, Any] = {}
        self._timings: Mapping[str, Any] = {}
        self._finish: str | None = None
        self._error: str | None = None
        self._done = False
        self._counted = 0

    def take(self, at: float, data: str) -> None:
        if data.strip() == "[DONE]":
            self._done = True
            return
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            self._error = f"not JSON: {data[:MAX_TEXT]}"
            return
        if not isinstance(found, dict):
            self._error = f"not an object: {data[:MAX_TEXT]}"
            return
        self._first = at if self._first is None else self._first
        message = _message(found)
        if message:
            self._error = f"in the stream: {' '.join(message.split())[:MAX_TEXT]}"
        tokens = self._count(found)
        for choice in _list(found.get("choices")):
            text = _text(choice)
            if text:
                self._pieces.append(Piece(at, _whole(choice.get("index")) or 0, text, tokens))
                tokens = 0 if tokens is not None else None
            self._finish = choice.get("finish_reason") or self._finish
        if isinstance(found.get("timings"), dict):
            self._timings = found["timings"]

    def _count(self, found: Mapping[str, Any]) -> int | None:
        """Tokens that this event added, by continuous usage."""
        usage = found.get("usage")
        if not isinstance(usage, dict):
            return None
        self._usage = usage
        total = _whole(usage.get("completion_tokens"))
        if total is None:
            return None
        added, self._counted = total - self._counted, total
        return max(0, added)

    def reading(self, end: float | None) -> Reading:
        error = self._error
        if error is None and not (self._done or self._finish):
            error = "the stream broke off: no finish reason and no [DONE]"
        if error is None and not self._pieces:
            error = "no text came"
        details = self._usage.get("prompt_tokens_details")
        cached = _whole(details.get("cached_tokens")) if isinstance(details, dict) else None
        read = _seconds(self._timings.get("prompt_ms"), 1e3)  # llama.cpp's name; ours and Groq's stands in the usage
        read = read if read is not None else _seconds(self._usage.get("prompt_time"))
        return Reading(
            tuple(self._pieces), self._first, end, _whole(self._usage.get("prompt_tokens")), _whole(self._usage.get("completion_tokens")),
            cached if cached is not None else _whole(self._timings.get("cache_n")),
            read, self._finish, error,
        )  # fmt: skip


def _text(choice: Mapping[str, Any]) -> str:
    """Everything a choice adds that was generated: answer, reasoning, refusal, tool calls. A role alone is nothing."""
    if isinstance(choice.get("text"), str):
        return str(choice["text"])
    delta = choice.get("delta") or choice.get("message")
    if not isinstance(delta, dict):
        return ""
    found = [delta.get(key) for key in ("reasoning_content", "reasoning", "content", "refusal")]
    for call in _list(delta.get("tool_calls")):
        function = call.get("function")
        found += [function.get("name"), function.get("arguments")] if isinstance(function, dict) else []
    return "".join(part for part in found if isinstance(part, str))


def _message(found: Any) -> str | None:
    """The text of an error object, whoever's dialect it is."""
    error = found.get("error") if isinstance(found, dict) else None
    if error is None and isinstance(found, dict):
        error = found.get("detail") or (found.get("message") if found.get("object") == "error" else None)
    if isinstance(error, dict):
        return str(error.get("message") or error)
    return None if error is None else str(error)


def _list(value: Any) -> list[dict[str, Any]]:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _seconds(value: Any, parts: float = 1.0) -> float | None:
    return value / parts if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9 else None
