"""Prompt lookup: what it finds equals a search by definition, and what it costs does not grow with the sequence."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.sampling.plan import SampleRow
from ridgeline.spec.base import Asked
from ridgeline.spec.ngram import Index, NgramProposer


def by_definition(tokens: list[int], least: int, longest: int) -> tuple[int, int]:
    """The longest end (up to `longest`, at least `least`) that stood somewhere before the very end, latest place first."""
    for size in range(min(longest, len(tokens) - 1), least - 1, -1):
        for end in range(len(tokens) - 1, size - 1, -1):
            if tokens[end - size : end] == tokens[len(tokens) - size :]:
                return end, size
    return 0, 0


@pytest.mark.parametrize(("least", "longest", "letters"), [(1, 3, 4), (2, 8, 3), (3, 64, 2), (2, 16, 40)])
def test_it_finds_the_longest_and_latest_place(least: int, longest: int, letters: int) -> None:
    rng = np.random.default_rng(letters)
    tokens = rng.integers(0, letters, 60).astype(np.int32)
    index = Index(least)
    for known in range(1, len(tokens) + 1):
        if known % 3:
            index.extend(tokens[:known])
            place, agreed = index.find(longest)
            assert agreed == by_definition(tokens[:known].tolist(), least, longest)[1]
            if agreed:  # the latest of those that agree as far, within the places it looks at
                assert tokens[place - agreed : place].tolist() == tokens[known - agreed : known].tolist()


def ask(tokens: list[int], most: int = 4, id: int = 0) -> Asked:
    return Asked(id, np.array(tokens, np.int32), most, lambda row, drafts: SampleRow(row))


def test_what_followed_is_guessed_and_a_loop_is_guessed_as_one() -> None:
    proposer = NgramProposer(2, 8)
    texts = [ask([1, 2, 3, 4, 5, 6, 7, 9, 2, 3], 4, 0), ask([8, 5, 6, 5, 6], 7, 1), ask([1, 2, 3], 4, 2), ask([1], 4, 3)]
    quoted, loop, new, short = proposer.propose(texts)
    assert (quoted.tokens, quoted.strength, quoted.rising) == ([4, 5, 6, 7], 2, True)
    assert loop.tokens == [5, 6, 5, 6, 5, 6, 5]
    assert new.tokens == short.tokens == []


def test_sequences_are_apart_and_forgotten() -> None:
    proposer = NgramProposer(1, 4)
    assert proposer.propose([ask([1, 2, 1], id=1)])[0].tokens == [2, 1, 2, 1]
    assert proposer.propose([ask([9, 1], id=2)])[0].tokens == []
    proposer.forget([1])
    assert proposer.propose([ask([3, 1], id=1)])[0].tokens == []


def test_the_latest_place_wins() -> None:
    assert NgramProposer(2, 2).propose([ask([1, 2, 7, 1, 2, 8, 1, 2], 1)])[0].tokens == [8]
    assert NgramProposer(2, 3).propose([ask([5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2], 1)])[0].tokens == [7]


def test_places_that_are_looked_at_are_bounded() -> None:
    """A text of one run has thousands of earlier places; the work of a step must not grow with them."""
    index = Index(2)
    rng = np.random.default_rng(0)
    tokens = np.concatenate([np.append(rng.integers(10, 10**6, 3), (1, 2)) for _ in range(2000)]).astype(np.int32)
    index.extend(tokens)
    looked = 0

    class Counted(list[int]):
        def __getitem__(self, at: object) -> int:  # type: ignore[override]
            nonlocal looked
            looked += 1
            return super().__getitem__(at)  # type: ignore[index]

    index._earlier = Counted(index._earlier)
    assert index.find(16) == (len(tokens) - 5, 2) and looked <= 32
