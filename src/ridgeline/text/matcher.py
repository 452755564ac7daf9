"""Finds added tokens in text, leftmost and longest first, and words that its end begins. Knows strings and ids, not what they mean."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_WINDOW = 1 << 16  # characters searched at a stretch: the interpreter's lock is held until a search ends


@dataclass(frozen=True, slots=True)
class Match:
    """A token found at text[start:end]. The span includes white space that the token swallows (lstrip, rstrip)."""

    start: int
    end: int
    id: int


def begun(text: str, word: str) -> int:
    """Length of the longest end of `text` with which `word` begins, shorter than `word`: what may still become it."""
    tail = text[-(len(word) - 1) :] if len(word) > 1 else ""
    start = tail.find(word[0])
    while start >= 0:
        if word.startswith(tail[start:]):
            return len(tail) - start
        start = tail.find(word[0], start + 1)
    return 0


class TokenMatcher:
    """Scans text for a set of token strings. Immutable after construction, so that threads may share it.

    `lstrip` and `rstrip` are the ids that swallow white space before or after them, as the Hugging Face flags of these names say.
    """

    __slots__ = ("_by_prefix", "_ids", "_lstrip", "_rstrip", "_start")

    def __init__(self, ids: Mapping[str, int], lstrip: frozenset[int] = frozenset(), rstrip: frozenset[int] = frozenset()) -> None:
        self._ids = {text: id for text, id in ids.items() if text}
        self._lstrip, self._rstrip = lstrip, rstrip
        lengths: dict[str, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[:2], set()).add(len(text))
        self._by_prefix = {prefix: sorted(found, reverse=True) for prefix, found in lengths.items()}
        # Two characters tell nearly every place apart: a lone space or "<" costs nothing in a vocabulary full of tags and space runs.
        prefixes = sorted(self._by_prefix, key=len, reverse=True)
        self._start = re.compile("|".join(map(re.escape, prefixes)), re.DOTALL) if prefixes else None

    def __bool__(self) -> bool:
        return bool(self._ids)

    @property
    def ids(self) -> Mapping[str, int]:
        """Token text -> id."""
        return self._ids

    def _at(self, text: str, start: int) -> tuple[int, int] | None:
        for prefix in (text[start : start + 2], text[start]):
            for length in self._by_prefix.get(prefix, ()):
                id = self._ids.get(text[start : start + length])
                if id is not None and start + length <= len(text):
                    return length, id
        return None

    def _place(self, text: str, position: int) -> int | None:
        """The next place where a token may begin; a prefix has at most two characters, so windows overlap by one."""
        if self._start is None:
            return None
        for first in range(position, len(text), _WINDOW):
            hit = self._start.search(text, first, first + _WINDOW + 1)
            if hit is not None:
                return hit.start()
        return None

    def find(self, text: str) -> Iterator[Match]:
        """Every match, left to right, none overlapping."""
        position, floor, length = 0, 0, len(text)
        while (hit := self._place(text, position)) is not None:
            found = self._at(text, hit)
            if found is None:
                position = hit + 1
                continue
            start, end, id = hit, hit + found[0], found[1]
            if id in self._lstrip:
                while start > floor and text[start - 1].isspace():
                    start -= 1
            if id in self._rstrip:
                while end < length and text[end].isspace():
                    end += 1
            yield Match(start, end, id)
            position = floor = end
