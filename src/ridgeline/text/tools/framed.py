"""The stream most dialects share: text, and calls framed by markers (or standing bare at the start). Knows frames, not what is inside.

White space beside calls belongs to nobody and is dropped; anything else that is no call is text and comes out unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ridgeline.text.matcher import begun
from ridgeline.text.tools.base import Delta, StreamOptions, call_id
from ridgeline.text.tools.reading import BLANK, Feeding, Reader, Sink


@dataclass(frozen=True, slots=True)
class Frame:
    """openers begin a call and closers end one; both may be missing. read(sink, opener): makes the reader of what follows the opener.

    bare: characters that begin a call without an opener ("") when they begin the reply; then the tool must be known, or it is text.
    again: characters after a call that begin another one without an opener; between: characters that may stand between the two.
    """

    read: Callable[[Sink, str], Reader[None]]
    openers: Sequence[str] = ()
    closers: Sequence[str] = ()
    bare: str = ""
    again: str = ""
    between: str = ""
    new_id: Callable[[], str] = call_id


class FramedStream:
    """A `ToolStream`. All decisions depend on the text alone, never on how it is cut."""

    def __init__(self, frame: Frame, options: StreamOptions) -> None:
        self._frame = frame
        self._sink = Sink(options, frame.new_id)
        self._buffer = ""
        self._gap = self._behind = ""
        self._gap_beside_call = False
        self._said = False
        self._start = bool(frame.bare) and bool(options.tools)
        self._after = False
        self._feeding: Feeding | None = None
        self._raw = ""
        self._opener = 0
        self._calls_before = 0

    def push(self, text: str) -> list[Delta]:
        self._buffer += text
        while self._buffer and self._advance():
            pass
        return self._sink.take()

    def finish(self) -> list[Delta]:
        if self._feeding is not None:
            # A call that was cut before its name was known is text; one that was begun stays as it is, cut short.
            if self._begun():
                self._gap_beside_call = True
            else:
                self._say(self._raw)
        elif not self._after:  # else it is the beginning of a closer or opener
            self._say(self._buffer)
        self._buffer = ""
        if self._gap and not self._gap_beside_call:
            self._sink.say(self._gap)
        return self._sink.take()

    def _begun(self) -> bool:
        """The call being read has gone out, or is one of those left out."""
        return self._sink.count > self._calls_before or (self._sink.count > 0 and not self._sink.options.parallel)

    def _advance(self) -> bool:
        """Use up some of the buffer; False when more text is needed."""
        if self._feeding is not None:
            return self._read()
        if self._after:
            return self._between()
        if self._start:
            return self._first()
        return self._text()

    def _read(self) -> bool:
        feeding = self._feeding
        assert feeding is not None
        end = feeding.feed(self._buffer, 0)
        self._raw += self._buffer[:end]
        self._buffer = self._buffer[end:]
        if feeding.done:
            self._feeding, self._after, self._gap_beside_call = None, True, True
        elif feeding.bad:
            self._feeding = None
            if self._begun():
                self._after, self._gap_beside_call = True, True
            else:
                # Not a call after all: its opener is text, and what follows is looked at again.
                opener, rest = self._raw[: self._opener], self._raw[self._opener :]
                self._buffer = rest + self._buffer
                self._say(opener)
                if not opener:
                    self._say(self._buffer[:1])
                    self._buffer = self._buffer[1:]
        return True

    def _enter(self, opener: str) -> None:
        self._start = self._after = False
        self._behind = ""
        self._feeding, self._raw, self._opener = Feeding(self._frame.read(self._sink, opener)), opener, len(opener)
        self._calls_before = self._sink.count

    def _first(self) -> bool:
        """The very beginning: white space, then perhaps a bare call."""
        stripped = self._buffer.lstrip(BLANK)
        if not stripped:
            return False
        self._start = False
        if stripped[0] in self._frame.bare:
            self._say(self._buffer[: len(self._buffer) - len(stripped)])
            self._buffer = stripped
            self._enter("")
        return True

    def _text(self) -> bool:
        buffer, openers = self._buffer, self._frame.openers
        found = [(at, -len(o), o) for o in openers if (at := buffer.find(o)) >= 0]
        if found:
            at, _, opener = min(found)
            # A longer opener may still be in the making at the same place.
            if not any(o != opener and o.startswith(buffer[at:]) for o in openers):
                self._say(buffer[:at])
                self._buffer = buffer[at + len(opener) :]
                self._enter(opener)
                return True
            keep = len(buffer) - at
        else:
            keep = max((begun(buffer, opener) for opener in openers), default=0)
        self._say(buffer[: len(buffer) - keep])
        self._buffer = buffer[len(buffer) - keep :]
        return False

    def _between(self) -> bool:
        """After a call: its closer, the separator of the next one, or text again."""
        stripped = self._buffer.lstrip(BLANK)
        self._behind += self._buffer[: len(self._buffer) - len(stripped)]
        self._buffer = stripped
        if not stripped:
            return False
        closer = next((c for c in self._frame.closers if stripped.startswith(c)), None)
        if closer is not None:
            self._buffer, self._behind = stripped[len(closer) :], ""
            return True
        if any(c.startswith(stripped) for c in (*self._frame.closers, *self._frame.openers)):
            return False
        if stripped[0] in self._frame.again:
            self._enter("")
            return True
        if stripped[0] in self._frame.between:
            self._buffer = stripped[1:]
            return True
        self._after = False
        self._gap, self._behind = self._gap + self._behind, ""
        return True

    def _say(self, text: str) -> None:
        """Text, but white space at its end waits: beside a call it is dropped."""
        if not text:
            return
        body = text.rstrip(BLANK)
        if body:
            if self._said or not self._gap_beside_call:
                self._sink.say(self._gap)
            self._sink.say(body)
            self._gap, self._said, self._gap_beside_call = text[len(body) :], True, False
        else:
            self._gap += text
