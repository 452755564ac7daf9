"""Tracks which characters of a rendered chat came from a user. Knows strings, token texts and a render function; nothing of ids or Jinja.

How: the few user characters that could take part in a control token are swapped, one for one, for private-use characters before rendering.
Lengths, white space and all other text stay as they were, so the template does the same, and swapping back must give the plain rendering.
If the template does notice (it compares or splits at such text), fewer characters are swapped; in the last resort the text of the marked
rendering is used, which is always safe and differs from the plain one only in what the template made of that control text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.errors import UserError
from ridgeline.text.matcher import TokenMatcher

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython", "environment", "model"})
# Keys that templates look up. Any other key is a user's word, like a parameter name.
_KEYS = frozenset(
    {
        "role", "content", "name", "type", "text", "function", "arguments", "parameters", "properties", "required", "description",
        "tool_calls", "tool_call_id", "id", "title", "enum", "items", "thinking", "reasoning_content", "reasoning", "return", "default",
        "index", "strict",
    }
)  # fmt: skip
# Quotes and backslashes change their form in JSON; swapping them would change lengths.
_KEPT = frozenset('"\\')
_PRIVATE_CODES = (*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE))
_PRIVATE = re.compile("[\ue000-\uf8ff\U000f0000-\U000ffffd]")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered chat and the offsets of its characters that a user wrote and that could have been read as part of a control token."""

    text: str
    tainted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Level:
    """How much is marked: tokens the template writes as plain added tokens too, and texts of letters only that lie inside a token."""

    structural: bool
    inner_words: bool


_LEVELS = (_Level(True, True), _Level(True, False), _Level(False, False))


class Danger:
    """Token texts that user strings must not form: `control` anywhere, `structural` (added tokens of the template) in other turns than the
    assistant's."""

    def __init__(self, control: TokenMatcher, structural: Mapping[str, int]) -> None:
        self._narrow = _Tokens(control)
        self._wide = _Tokens(TokenMatcher({**control.ids, **structural})) if structural else self._narrow

    def spans(self, text: str, structural: bool, inner_words: bool) -> list[tuple[int, int]]:
        return (self._wide if structural else self._narrow).spans(text, inner_words)


class _Tokens:
    def __init__(self, matcher: TokenMatcher) -> None:
        self._matcher = matcher
        texts = list(matcher.ids)
        self._joined = "\x00" + "\x00".join(texts) + "\x00"
        self._first, self._last = {text[0] for text in texts}, {text[-1] for text in texts}
        self._longest = max(map(len, texts), default=0)

    def spans(self, text: str, inner_words: bool) -> list[tuple[int, int]]:
        """Where `text` holds a token, ends with the beginning of one, begins with the end of one, or lies inside one."""
        found = [(match.start, match.end) for match in self._matcher.find(text)]
        length = len(text)
        for size in range(1, min(self._longest, length + 1)):
            if text[-size] in self._first and "\x00" + text[-size:] in self._joined:
                found.append((length - size, length))
            if text[size - 1] in self._last and text[:size] + "\x00" in self._joined:
                found.append((0, size))
        if 0 < length < self._longest and (inner_words or not text.isalnum()) and "\x00" not in text and text in self._joined:
            found.append((0, length))
        return found


def render_marked(render: Callable[[dict[str, Any]], str], trusted: Mapping[str, Any], given: dict[str, Any], danger: Danger) -> Rendered:
    """Render with `trusted` and `given` variables; `given` (messages, tools, ...) holds what users wrote.

    A plain rendering is all it takes unless some user text could form a token; else up to three marked renderings follow.
    """
    plain = render({**trusted, **given})
    seen = "".join([plain, *_strings(given)])
    marked = Rendered(plain)
    for level in _LEVELS:
        marker = _Marker(danger, level, seen)
        swapped = marker.variables(given)
        if not marker.used:
            return Rendered(plain)
        marked = marker.restore(render({**trusted, **swapped}))
        if marked.text == plain:
            return marked
    return marked


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


class _Marker:
    """Swaps dangerous characters of one set of variables and swaps them back in the rendered text."""

    def __init__(self, danger: Danger, level: _Level, seen: str) -> None:
        self._danger, self._level = danger, level
        taken = set(_PRIVATE.findall(seen))
        self._free = (chr(code) for code in _PRIVATE_CODES if chr(code) not in taken and f"\\u{code:04x}" not in seen)
        self.used: dict[str, str] = {}

    def variables(self, given: dict[str, Any]) -> dict[str, Any]:
        return {name: self._messages(value) if name == "messages" else self._walk(value, True) for name, value in given.items()}

    def _messages(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        marked = []
        for message in messages:
            role = message["role"]
            fresh = self._walk(message, role != "assistant")
            marked.append({**fresh, "role": role if role in ROLES else fresh["role"]})
        return marked

    def _walk(self, value: Any, structural: bool) -> Any:
        if isinstance(value, str):
            return self._mark(value, structural)
        if isinstance(value, dict):
            return {
                key if key in _KEYS or not isinstance(key, str) else self._mark(key, structural): self._walk(item, structural)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self._walk(item, structural) for item in value]
        return value

    def _mark(self, text: str, structural: bool) -> str:
        spans = self._danger.spans(text, structural and self._level.structural, self._level.inner_words)
        if not spans:
            return text
        chars = list(text)
        for start, end in spans:
            places = [at for at in range(start, end) if not text[at].isspace() and text[at] not in _KEPT]
            # Letters change with upper() and the like; marks and brackets, which nearly every token has, do not.
            for at in [at for at in places if not text[at].isalnum()] or places:
                chars[at] = self._swap(text[at])
        return "".join(chars)

    def _swap(self, char: str) -> str:
        if char not in self.used:
            mark = next(self._free, None)
            if mark is None:
                raise UserError("messages use every private-use character there is", field="messages", remedy="leave some of them out")
            self.used[char] = mark
        return self.used[char]

    def restore(self, text: str) -> Rendered:
        """The text with its characters swapped back, also where the template wrote them as JSON escapes."""
        back = {mark: char for char, mark in self.used.items()}
        escaped = {f"\\u{ord(mark):04x}": char for mark, char in back.items()}
        pattern = re.compile("|".join(map(re.escape, [*back, *escaped])))
        pieces: list[str] = []
        tainted: list[int] = []
        offset = position = 0
        for hit in pattern.finditer(text):
            pieces.append(text[position : hit.start()])
            offset += hit.start() - position
            tainted.append(offset)
            char = back.get(hit[0]) or escaped[hit[0]]
            pieces.append(char)
            offset += 1
            position = hit.end()
        return Rendered("".join(pieces) + text[position:], tuple(tainted))
