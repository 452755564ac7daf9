"""Readers of calls, one character at a time: generators that are sent characters and end at the last one of what they read.

They know JSON's shape, not its rules: brackets and strings are followed, nothing is parsed twice, and what a model writes as arguments goes
on unchanged. `Malformed` says that this is no call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import TypeVar

from ridgeline.text.matcher import begun
from ridgeline.text.tools.base import CallDelta, Delta, StreamOptions, TextDelta

T = TypeVar("T")
Reader = Generator[None, str, T]
BLANK = " \t\r\n"
_MAX_KEY = 512
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.")
_CONTAINER = frozenset(_PLAIN | set('{}[]:,"' + BLANK))
_ARGUMENTS = ("arguments", "parameters", "args")
_CALL_KEYS = frozenset({"name", "function", "type", "id", *_ARGUMENTS})


class Malformed(Exception):
    """What was read is no call."""


class Sink:
    """Where readers put what they find: deltas in order. Calls past the first vanish unless `parallel`."""

    def __init__(self, options: StreamOptions, new_id: Callable[[], str]) -> None:
        self.options, self._new_id = options, new_id
        self._deltas: list[Delta] = []
        self._pieces: list[str] = []
        self._current = -1
        self.count = 0

    def say(self, text: str) -> None:
        """Text for the reader."""
        if text:
            self._flush()
            self._deltas.append(TextDelta(text))

    def begin(self, name: str, id: str | None = None) -> int:
        """A new call; its index, or -1 when it is left out."""
        self._flush()
        if self.count and not self.options.parallel:
            return -1
        index, self.count = self.count, self.count + 1
        self._deltas.append(CallDelta(index, "", id or self._new_id(), name))
        return index

    def argue(self, index: int, piece: str) -> None:
        """More of the arguments of call `index`."""
        if index >= 0 and piece:
            self._current = index
            self._pieces.append(piece)

    def take(self) -> list[Delta]:
        """The deltas since the last time."""
        self._flush()
        deltas, self._deltas = self._deltas, []
        return deltas

    def _flush(self) -> None:
        if self._pieces:
            self._deltas.append(CallDelta(self._current, "".join(self._pieces)))
            self._pieces = []


class Call:
    """One call while it is read. Arguments that come before the name wait for it.

    known: the name must be one of the tools' and the keys those of a call, else it is `Malformed` (where no marker says that this is one).
    """

    def __init__(self, sink: Sink, *, known: bool = False) -> None:
        self._sink, self.known = sink, known
        self._index: int | None = None
        self._held: list[str] = []
        self.argued = False

    @property
    def begun(self) -> bool:
        return self._index is not None

    def name(self, name: str, id: str | None = None) -> None:
        if self._index is not None:
            return
        if not name or (self.known and name not in self._sink.options.names):
            raise Malformed
        self._index = self._sink.begin(name, id)
        self._sink.argue(self._index, "".join(self._held))
        self._held = []

    def argue(self, piece: str) -> None:
        if self._index is None:
            self._held.append(piece)
        else:
            self._sink.argue(self._index, piece)

    def end(self) -> None:
        """Its last character was read. A call without arguments has `{}`."""
        if self._index is None:
            raise Malformed
        if not self.argued:
            self._sink.argue(self._index, "{}")


def blank() -> Reader[str]:
    """Skip white space; the first other character."""
    char = yield
    while char in BLANK:
        char = yield
    return char


def string() -> Reader[str]:
    """After its opening quote: a short JSON string, decoded."""
    raw: list[str] = []
    while True:
        char = yield
        if char == '"':
            break
        raw.append(char)
        if char == "\\":
            raw.append((yield))
        if len(raw) > _MAX_KEY:
            raise Malformed
    try:
        return str(json.loads(f'"{"".join(raw)}"', strict=False))
    except ValueError:
        raise Malformed from None


def exactly(word: str) -> Reader[None]:
    """These characters."""
    for expected in word:
        if (yield) != expected:
            raise Malformed


def short(ends: str, first: str = "") -> Reader[tuple[str, str]]:
    """(text up to one of the characters `ends`, that character); for names, which are short."""
    raw = [first] if first else []
    while True:
        char = yield
        if char in ends:
            return "".join(raw).strip(), char
        raw.append(char)
        if len(raw) > _MAX_KEY:
            raise Malformed


def until(end: str, out: Callable[[str], None]) -> Reader[None]:
    """Everything up to `end`, to `out`; what may be the beginning of `end` is held back."""
    held = ""
    while True:
        held += yield
        if held.endswith(end):
            out(held[: -len(end)])
            return
        keep = begun(held, end)
        out(held[: len(held) - keep])
        held = held[len(held) - keep :]


def value(first: str, out: Callable[[str], None]) -> Reader[str | None]:
    """A JSON value that begins with `first`, to `out` as it is; the character after it where that had to be read, else None.

    Line ends and other control characters inside strings are escaped, which is the only thing they can mean.
    """
    if first == '"':
        yield from _string_value(out)
        return None
    if first in "{[":
        yield from _container(first, out)
        return None
    if first not in _PLAIN:
        raise Malformed
    char = first
    while char in _PLAIN:
        out(char)
        char = yield
    return char


def _container(first: str, out: Callable[[str], None]) -> Reader[None]:
    out(first)
    depth = 1
    while depth:
        char = yield
        if char == '"':
            yield from _string_value(out)
            continue
        if char not in _CONTAINER:
            raise Malformed
        out(char)
        if char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1


def _string_value(out: Callable[[str], None]) -> Reader[None]:
    out('"')
    char = yield
    while char != '"':
        out(char if char >= " " else json.dumps(char)[1:-1])
        if char == "\\":
            out((yield))
        char = yield
    out('"')


def _unquoted(out: Callable[[str], None]) -> Reader[None]:
    """Arguments that were written as a JSON string: what it says. An escape goes on when it is whole."""
    high = ""
    char = yield
    while char != '"':
        piece = char
        if char == "\\":
            piece += yield
            if piece == "\\u":
                for _ in range(4):
                    piece += yield
            try:
                json.loads(f'"{high}{piece}"')
            except ValueError:
                raise Malformed from None
        if piece[:4].lower() in ("\\ud8", "\\ud9", "\\uda", "\\udb") and not high:
            high = piece
        else:
            out(json.loads(f'"{high}{piece}"', strict=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
            high = ""
        char = yield
    if high:
        out("\ufffd")


def call_object(call: Call, *, outermost: bool = True) -> Reader[None]:
    """After its `{`: an object with a name and arguments, in any order, perhaps inside a `function` member."""
    char = yield from blank()
    while char != "}":
        if char != '"':
            raise Malformed
        key = yield from string()
        if call.known and key not in _CALL_KEYS:
            raise Malformed
        if (yield from blank()) != ":":
            raise Malformed
        after = yield from _member(call, key, (yield from blank()), outermost)
        char = (yield from blank()) if after is None or after in BLANK else after
        if char == ",":
            char = yield from blank()
        elif char != "}":
            raise Malformed
    if outermost:
        call.end()


def _member(call: Call, key: str, first: str, outermost: bool) -> Reader[str | None]:
    if key in ("name", "function") and first == '"':
        call.name((yield from string()))
        return None
    if key == "function" and first == "{" and outermost:
        yield from call_object(call, outermost=False)
        return None
    if key in _ARGUMENTS and not call.argued:
        return (yield from arguments(call, first))
    return (yield from value(first, lambda _: None))


def arguments(call: Call, first: str) -> Reader[str | None]:
    """The value of a call's arguments. A string is taken for JSON text, `null` for none."""
    if first == '"':
        call.argued = True
        yield from _unquoted(call.argue)
        return None
    if first in "{[":
        call.argued = True
        return (yield from value(first, call.argue))
    word: list[str] = []
    after = yield from value(first, word.append)
    if "".join(word) != "null":
        call.argued = True
        call.argue("".join(word))
    return after


def call_values(sink: Sink, first: str, *, known: bool = False) -> Reader[None]:
    """One call object, or a list of them."""
    if first == "{":
        yield from call_object(Call(sink, known=known))
        return
    if first != "[":
        raise Malformed
    char = yield from blank()
    while char != "]":
        if char != "{":
            raise Malformed
        yield from call_object(Call(sink, known=known))
        char = yield from blank()
        if char == ",":
            char = yield from blank()
        elif char != "]":
            raise Malformed


class Feeding:
    """Sends a text to a reader, piece by piece."""

    def __init__(self, reader: Reader[None]) -> None:
        self._reader = reader
        self.done = self.bad = False
        try:
            next(reader)
        except StopIteration:
            self.done = True

    def feed(self, text: str, start: int) -> int:
        """Send characters from `start` on until the reader ends; the index after the last one it took.

        Afterwards `done` is set when it ended well. The character that showed it to be `bad` is not taken.
        """
        send = self._reader.send
        characters: Iterator[str] = islice(text, start, None)
        at = start
        try:
            for char in characters:
                at += 1
                send(char)
        except StopIteration:
            self.done = True
        except Malformed:
            self.bad = True
            at -= 1
        return at
