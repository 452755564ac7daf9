"""A needle in a haystack: one sentence with a number, hidden at some depth of a long text, asked for at its end.

Knows how to build such texts at a length in tokens. What answers is passed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.bench.corpus import Corpus
from ridgeline.bench.quality_tasks import Asker, begins
from ridgeline.text.tokenizer import Tokenizer

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
_PLACES = ("Farholm", "Ostvik", "Grayness", "Millport", "Sandhook", "Torsay", "Whitby Head", "Kelda")


@dataclass(frozen=True, slots=True)
class Needle:
    """A haystack of about `tokens` tokens with the needle after the share `depth` of its sentences."""

    tokens: int
    depth: float
    prompt: str
    answer: str


@dataclass(frozen=True, slots=True)
class Found:
    """found of asked needles at one length and depth."""

    tokens: int
    depth: float
    asked: int
    found: int


def needles(tokenizer: Tokenizer, lengths: Sequence[int], depths: Sequence[float] = DEPTHS, each: int = 2, seed: int = 0) -> list[Needle]:
    """`each` needles per length and depth; hay, place and number change with every one."""
    sentences = Corpus().sentences
    sizes = {s: len(tokenizer.encode_plain(" " + s)) for s in sentences}
    made = []
    for tokens in lengths:
        for depth in depths:
            for number in range(each):
                rng = np.random.default_rng((seed, tokens, round(depth * 1000), number))
                made.append(_needle(tokens, depth, rng, sentences, sizes))
    return made


def _needle(tokens: int, depth: float, rng: np.random.Generator, sentences: Sequence[str], sizes: dict[str, int]) -> Needle:
    place, answer = str(rng.choice(_PLACES)), str(rng.integers(10_000, 100_000))
    needle = f"The secret number of the lighthouse at {place} is {answer}."
    question = f"The secret number of the lighthouse at {place} is"
    room, hay = tokens - 40, list[str]()
    while room > 0:
        for i in rng.permutation(len(sentences)):
            room -= sizes[sentences[i]]
            if room <= 0:
                break
            hay.append(sentences[i])
    at = round(depth * len(hay))
    return Needle(tokens, depth, " ".join([*hay[:at], needle, *hay[at:], question]), answer)


def search(asker: Asker, asked: Sequence[Needle]) -> list[Found]:
    """How many were found, per length and depth, in the order in which they come."""
    cells: dict[tuple[int, float], list[bool]] = {}
    for needle in asked:
        right = begins(asker.go_on(needle.prompt, needle.answer), needle.answer)
        cells.setdefault((needle.tokens, needle.depth), []).append(right)
    return [Found(tokens, depth, len(rights), sum(rights)) for (tokens, depth), rights in cells.items()]
