"""Text that prompts are made of: prose that is shipped beside this file and this program's own sources. Same seed, same text.

Knows nothing of tokens: lengths are characters here, and the caller knows how many go into a token.
"""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path

import numpy as np

_HERE = Path(__file__).parent


class Corpus:
    """Reads its files once, when first asked."""

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        text = (_HERE / "data" / "prose.txt").read_text("utf8")
        return tuple(s for line in text.splitlines() for s in re.split(r"(?<=[.?!]) ", line.strip()) if s)

    @cached_property
    def functions(self) -> tuple[str, ...]:
        """Top-level pieces of our own modules, in the order of their paths."""
        found: list[str] = []
        for path in sorted(_HERE.parent.rglob("*.py")):
            pieces = re.split(r"\n\n\n", path.read_text("utf8"))
            found += [p.strip() for p in pieces if 200 < len(p) < 4000]
        return tuple(found)

    def prose(self, rng: np.random.Generator, characters: int) -> str:
        """Sentences in an order of their own, cut at a blank near `characters`."""
        return _take(self.sentences, rng, characters, " ")

    def code(self, rng: np.random.Generator, characters: int) -> str:
        """Python, cut at a blank near `characters`."""
        return _take(self.functions, rng, characters, "\n\n\n")

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Short common words, in alphabetical order: nearly always one token each."""
        counts: dict[str, int] = {}
        for word in re.findall(r"[a-z]{2,6}", " ".join(self.sentences)):
            counts[word] = counts.get(word, 0) + 1
        return tuple(sorted(w for w, n in counts.items() if n >= 2))


def _take(parts: tuple[str, ...], rng: np.random.Generator, characters: int, between: str) -> str:
    found: list[str] = []
    size = 0
    while size < characters:
        for i in rng.permutation(len(parts)):
            found.append(parts[i])
            size += len(parts[i]) + len(between)
            if size >= characters:
                break
    text = between.join(found)[: max(1, characters)]
    head, _, tail = text.rpartition(" ")
    return head if head and len(tail) < 20 else text
