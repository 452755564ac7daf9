"""SentencePiece BPE with scores and byte fallback, as a plain encoder over the piece table of a GGUF file.

Not built on `tokenizers`: hashing Gemma's 262,144 pieces and 513,511 derived merges costs that library 1.0 s at every start, even from a
cache on disk; this needs one dict. The ids equal those of the library with the merges `transformers` derives (test_text_oracle.py).
Knows nothing of control tokens' meaning, chat or files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Literal

from ridgeline.text.matcher import TokenMatcher
from ridgeline.text.vocabulary import SPACE

Prefix = Literal["never", "first", "always"]
_WORDS = re.compile(f"{SPACE}+[^{SPACE}]*|[^{SPACE}]+")
_CACHED_WORDS = 65_536
_SHORT_WORD = 24


def _before_marks(pieces: Iterable[str]) -> frozenset[str]:
    """Characters that stand right before a word mark inside a piece. 262,144 pieces pass here at every start: string methods only."""
    text = ("\x00" + "\x00".join(pieces)).replace(f"\x00{SPACE}", "\x00")
    found, at = set(), text.find(SPACE)
    while at >= 0:
        found.add(text[at - 1])
        at = text.find(SPACE, at + 1)
    return frozenset(found - {SPACE, "\x00"})


class SpmEncoder:
    """Text -> ids. `pieces` maps text to id; `rank` maps id to its place by falling score, or is None where id order is score order.

    `prefix`: "first" puts the word mark before a text that does not begin with a space (Metaspace), "always" before every piece between
    added tokens (the older Prepend normalizer), "never" is Gemma's way. `added` finds user-defined tokens, `marks` all added tokens.
    """

    __slots__ = ("_added", "_bytes", "_cache", "_glue", "_marks", "_pieces", "_prefix", "_rank", "_unknown")

    def __init__(
        self,
        pieces: Mapping[str, int],
        rank: Sequence[int] | None,
        byte_ids: Sequence[int] | None,
        unknown: int | None,
        prefix: Prefix,
        added: TokenMatcher,
        marks: TokenMatcher,
    ) -> None:
        self._pieces, self._rank, self._bytes, self._unknown, self._prefix = pieces, rank, byte_ids, unknown, prefix
        self._added, self._marks = added, marks
        # Words are cut before a word mark. A character that some piece has right before a mark could merge across the cut: no cut there.
        self._glue = _before_marks(pieces)
        self._cache: dict[str, tuple[int, ...]] = {}

    def whole(self, text: str) -> list[int]:
        """Ids of a text in which control tokens count."""
        return self._split(text, self._marks, True)

    def plain(self, text: str, first: bool = True) -> list[int]:
        """Ids of a text in which control tokens are ordinary characters. `first`: the text begins the sequence."""
        return self._split(text, self._added, first)

    def bare(self, text: str, first: bool = True) -> list[int]:
        """Ids of a text in which every added token is ordinary characters."""
        ids: list[int] = []
        self._segment(text, first, ids)
        return ids

    def _split(self, text: str, matcher: TokenMatcher, first: bool) -> list[int]:
        ids: list[int] = []
        position = 0
        for match in matcher.find(text):
            self._segment(text[position : match.start], first and position == 0, ids)
            ids.append(match.id)
            position = match.end
        self._segment(text[position:], first and position == 0, ids)
        return ids

    def _segment(self, text: str, first: bool, ids: list[int]) -> None:
        if not text:
            return
        text = text.replace(" ", SPACE)
        if self._prefix == "always" or (self._prefix == "first" and first and not text.startswith(SPACE)):
            text = SPACE + text
        held = ""
        for found in _WORDS.finditer(text):  # not findall, which would keep the interpreter's lock through a long text
            word = found[0]
            held = held + word if held else word
            if held[-1] not in self._glue:
                ids.extend(self._word(held))
                held = ""
        if held:
            ids.extend(self._word(held))

    def _word(self, word: str) -> tuple[int, ...]:
        found = self._cache.get(word)
        if found is None:
            found = tuple(self._merge(word))
            if len(self._cache) >= _CACHED_WORDS:
                self._cache.clear()
            if len(word) <= 4 * _SHORT_WORD:
                self._cache[word] = found
        return found

    def _merge(self, word: str) -> list[int]:
        """Cut at characters that are no piece (they never merge), merge the runs between, spell the others as bytes."""
        pieces, ids, start = self._pieces, list[int](), 0
        for index, char in enumerate(word):
            if char not in pieces:
                ids.extend(self._run(word[start:index]))
                self._spell(char, ids)
                start = index + 1
        ids.extend(self._run(word[start:]))
        return ids

    def _spell(self, char: str, ids: list[int]) -> None:
        if self._bytes is not None:
            ids.extend(self._bytes[byte] for byte in char.encode("utf-8"))
        elif self._unknown is not None and (not ids or ids[-1] != self._unknown):
            ids.append(self._unknown)

    def _run(self, run: str) -> list[int]:
        if len(run) > _SHORT_WORD:
            return self._long_run(run)
        pieces, rank, parts = self._pieces, self._rank, list(run)
        while len(parts) > 1:
            best: tuple[int, int] | None = None
            at = 0
            for index in range(len(parts) - 1):
                id = pieces.get(parts[index] + parts[index + 1])
                if id is not None:
                    key = (id if rank is None else rank[id], -len(parts[index]))
                    if best is None or key < best:
                        best, at = key, index
            if best is None:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [pieces[part] for part in parts]

    def _long_run(self, run: str) -> list[int]:
        """The same merges with a heap: n log n for a text without spaces. An entry is stale once one of its sides has grown or gone."""
        pieces, rank = self._pieces, self._rank
        parts: list[str] = list(run)
        after = [*range(1, len(parts)), -1]
        before = list(range(-1, len(parts) - 1))

        def entry(left: int, right: int) -> tuple[int, int, int, str] | None:
            id = pieces.get(parts[left] + parts[right])
            return None if id is None else (id if rank is None else rank[id], -len(parts[left]), left, parts[right])

        heap = [found for left in range(len(parts) - 1) if (found := entry(left, left + 1)) is not None]
        heapify(heap)
        while heap:
            _, size, left, text = heappop(heap)
            right = after[left]
            if len(parts[left]) != -size or right < 0 or parts[right] != text or not parts[left]:
                continue
            parts[left] += text
            parts[right] = ""
            after[left] = after[right]
            if after[left] >= 0:
                before[after[left]] = left
            for pair in ((before[left], left), (left, after[left])):
                if min(pair) >= 0 and (found := entry(*pair)) is not None:
                    heappush(heap, found)
        return [pieces[part] for part in parts if part]
