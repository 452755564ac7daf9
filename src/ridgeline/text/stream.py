"""Text while it is generated: ids to deltas without broken characters, and stop strings. Knows one sequence, not requests or protocols."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from ridgeline.text.matcher import begun
from ridgeline.text.tokenizer import Tokenizer


class Detokenizer:
    """Ids in, text out as soon as its characters are whole. The joined deltas equal `Tokenizer.decode` of all ids.

    `strip_first_space` drops the space a SentencePiece text begins with; leave it off where the ids continue a prompt's own text.
    """

    __slots__ = ("_decoder", "_skip", "_strip", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True, strip_first_space: bool = True) -> None:
        self._tokenizer, self._skip = tokenizer, skip_special
        self._strip = strip_first_space and tokenizer.strips_first_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        """The text that `id` completes; "" while a character is still missing bytes."""
        if self._skip and self._tokenizer.is_special(id):
            return ""
        raw = self._tokenizer.token_bytes(id)
        if self._strip and raw:
            raw, self._strip = raw.removeprefix(b" "), False
        return self._decoder.decode(raw)

    def finish(self) -> str:
        """What is left at the end: U+FFFD for a character that never got its last bytes, else ""."""
        return self._decoder.decode(b"", True)


class StopMatcher:
    """Cuts a text at the stop string that is complete first, reading character by character; of two that end together the longer wins.

    Text is held back only while it could still become a stop string. The result does not depend on how the text is cut into chunks.
    """

    __slots__ = ("_held", "_include", "_stops", "matched")

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._include = include_stop
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str, *, may_stop: bool = True) -> str:
        """The text that may be sent now; "" for ever after a match. `may_stop=False` lets it pass unchecked (min_tokens)."""
        if self.matched is not None:
            return ""
        text = self._held + text
        if not self._stops or not may_stop:
            self._held = ""
            return text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            end, start, self.matched = min(found)
            self._held = ""
            return text[: end if self._include else start]
        keep = max(begun(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """The held-back text, when no stop string came of it."""
        held, self._held = self._held, ""
        return held


class TextStream:
    """A sequence's visible text: detokenizer and stop strings in one. Streamed and whole replies both come from here, so they are equal."""

    __slots__ = ("_detokenizer", "_parts", "_stops")

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        *,
        include_stop: bool = False,
        skip_special: bool = True,
        strip_first_space: bool = False,
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_special=skip_special, strip_first_space=strip_first_space)
        self._stops = StopMatcher(stops, include_stop=include_stop)
        self._parts: list[str] = []

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, or None."""
        return self._stops.matched

    @property
    def text(self) -> str:
        """All text given out so far."""
        return "".join(self._parts)

    def push(self, id: int, *, may_stop: bool = True) -> str:
        """The delta to send after `id`."""
        return self._out(self._stops.push(self._detokenizer.push(id), may_stop=may_stop))

    def finish(self) -> str:
        """The last delta, when generation has ended. A stop string can still complete here."""
        delta = self._stops.push(self._detokenizer.finish())
        return self._out(delta + self._stops.finish())

    def _out(self, delta: str) -> str:
        if delta:
            self._parts.append(delta)
        return delta
