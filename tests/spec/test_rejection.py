"""Case SD-01: the rejection rule draws from the target's distribution, whatever the guesses were drawn from; bonus token and acceptance.

Chi-square at 200,000 draws of the first two tokens against the exact joint distribution of target-only sampling, processors on both sides.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import count
from math import erfc, sqrt

import numpy as np
import pytest

from ridgeline.sampling import exact
from ridgeline.sampling.plan import SampleRow
from ridgeline.sampling.verify import Distribution, certain, distribution, rejection, residual, sample, uniform

VOCAB, DRAWS = 8, 200_000
KINDS = ("same", "uniform", "zeros", "worst")
PLAIN = {"temperature": 1.0}
PROCESSED = {"temperature": 0.7, "top_k": 3, "top_p": 0.8, "repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2}


def logits(kind: str, before: tuple[int, ...]) -> np.ndarray:
    """Target ("same") and drafts: a fixed row of numbers for each text."""
    target = np.random.default_rng([3, *before]).normal(0, 1.2, VOCAB).astype(np.float32)
    if kind == "uniform":
        return np.zeros(VOCAB, np.float32)
    if kind == "zeros":
        return np.where(target > np.median(target), -np.inf, target).astype(np.float32)
    if kind == "worst":
        return np.where(np.arange(VOCAB) == int(target.argmin()), 50.0, 0.0).astype(np.float32)
    return target


class World:
    """Distributions by text, each made once."""

    def __init__(self, kind: str, options: dict[str, float]) -> None:
        self._kind, self._options = kind, options
        self.p, self.q = cache(self._p), cache(self._q)

    def _of(self, kind: str, before: tuple[int, ...]) -> Distribution:
        seen = {"prompt_ids": np.array([1, 2], np.int32), "output_ids": np.array(before, np.int32)}
        found = distribution(logits(kind, before), SampleRow(0, **self._options, **seen))  # type: ignore[arg-type]
        assert found is not None
        return found

    def _p(self, before: tuple[int, ...]) -> Distribution:
        return self._of("same", before)

    def _q(self, before: tuple[int, ...]) -> Distribution:
        return self._of(self._kind, before)

    def step(self, before: tuple[int, ...], drafts: int, seed: int) -> tuple[list[int], int]:
        """One step after `before`: its tokens, and how many guesses were right."""
        guesses: list[int] = []
        for _ in range(drafts):
            here = (*before, *guesses)
            guesses.append(sample(self.q(here), exact.noise_key(seed, 0, len(here))))
        texts = [(*before, *guesses[:i]) for i in range(drafts + 1)]
        keys = [(seed, 0, len(text)) for text in texts]
        tokens = rejection([self.p(t) for t in texts], guesses, [self.q(t) for t in texts[:-1]], keys)
        return tokens, len(tokens) - 1


def chi_square_p(observed: Counter[tuple[int, int]], world: World, draws: int) -> float:
    """Chance of a deviation like this (Wilson and Hilferty's normal approximation of chi-square)."""
    exact_joint = {(a, b): world.p(()).of(a) * world.p((a,)).of(b) for a in range(VOCAB) for b in range(VOCAB)}
    assert all(exact_joint[pair] > 0 for pair in observed), "a token that the target never draws"
    cells = {pair: chance * draws for pair, chance in exact_joint.items() if chance * draws >= 5}
    rest = draws - sum(cells.values())
    x = sum((observed[pair] - want) ** 2 / want for pair, want in cells.items())
    if rest >= 5:
        x += (draws - sum(observed[pair] for pair in cells) - rest) ** 2 / rest
    k = max(1, len(cells) - (rest < 5))
    z = ((x / k) ** (1 / 3) - (1 - 2 / (9 * k))) / sqrt(2 / (9 * k))
    return 0.5 * erfc(z / sqrt(2))


def two_tokens(world: World, drafts: int, draws: int) -> tuple[Counter[tuple[int, int]], float]:
    """Counts of the first two tokens, and the share of guesses that were right."""
    observed: Counter[tuple[int, int]] = Counter()
    right = tried = 0
    seeds = count(1)
    for _ in range(draws):
        tokens: list[int] = []
        while len(tokens) < 2:
            more, accepted = world.step(tuple(tokens), drafts, next(seeds))
            tokens += more
            right, tried = right + accepted, tried + min(drafts, accepted + 1)
        observed[tokens[0], tokens[1]] += 1
    return observed, right / tried


ALL = [(kind, drafts, "processed") for kind in KINDS for drafts in (1, 2, 3, 4, 5)] + [(kind, 3, "plain") for kind in KINDS]


@pytest.mark.parametrize(("kind", "drafts", "name"), [pytest.param(*case, marks=pytest.mark.long) for case in ALL])
def test_sd_01_the_joint_distribution_is_the_targets(kind: str, drafts: int, name: str) -> None:
    world = World(kind, PLAIN if name == "plain" else PROCESSED)
    observed, share = two_tokens(world, drafts, DRAWS)
    assert chi_square_p(observed, world, DRAWS) > 0.001
    if kind == "same":
        assert share == 1.0


SHORT = [("uniform", 2, "processed"), ("zeros", 3, "plain"), ("worst", 1, "plain"), ("same", 4, "plain")]


@pytest.mark.parametrize(("kind", "drafts", "name"), SHORT)
def test_sd_01_in_short(kind: str, drafts: int, name: str) -> None:
    world = World(kind, PLAIN if name == "plain" else PROCESSED)
    observed, share = two_tokens(world, drafts, 8_000)
    assert chi_square_p(observed, world, 8_000) > 0.001
    assert share == 1.0 if kind == "same" else share < 1.0


def test_a_rule_that_keeps_every_guess_or_draws_from_p_after_a_rejection_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("uniform", PLAIN)
    monkeypatch.setattr("ridgeline.sampling.verify.residual", lambda p, q: p)
    assert chi_square_p(two_tokens(world, 2, 8_000)[0], world, 8_000) < 1e-6
    monkeypatch.undo()
    monkeypatch.setattr("ridgeline.sampling.verify.uniform", lambda key: 0.0)
    world = World("uniform", PLAIN)
    assert chi_square_p(two_tokens(world, 2, 8_000)[0], world, 8_000) < 1e-6


def test_acceptance_is_the_overlap_of_the_distributions() -> None:
    """a = sum min(p, q) (2211.17192, section 3)."""
    world = World("uniform", PLAIN)
    overlap = float(np.minimum(world.p(()).p, 1 / VOCAB).sum())
    right = sum(world.step((), 1, seed)[1] for seed in range(20_000)) / 20_000
    assert right == pytest.approx(overlap, abs=0.012)


def test_the_bonus_token_is_drawn_from_the_row_after_the_last_guess() -> None:
    p = [Distribution(np.array([1], np.int32), np.ones(1)), Distribution(np.array([4], np.int32), np.ones(1))]
    assert rejection(p, [1], [certain(1)], [(0, 0, 5), (0, 0, 6)]) == [1, 4]
    assert rejection(p, [2], [certain(2)], [(0, 0, 5), (0, 0, 6)]) == [1]
    assert rejection(p[1:], [], [], [(0, 0, 6)]) == [4]


def test_the_residual_has_what_the_draft_lacks() -> None:
    p = Distribution(np.array([0, 2, 3], np.int32), np.array([0.5, 0.3, 0.2]))
    q = Distribution(np.array([0, 1, 2], np.int32), np.array([0.7, 0.2, 0.1]))
    assert residual(p, q).p.tolist() == pytest.approx([0.0, 0.5, 0.5])
    assert residual(p, p).p.tolist() == p.p.tolist()


def test_uniform_numbers_are_uniform_and_repeat() -> None:
    drawn = np.array([uniform(exact.noise_key(seed, 0, 3)) for seed in range(5000)])
    assert ((drawn > 0) & (drawn < 1)).all() and abs(drawn.mean() - 0.5) < 0.015 and abs((drawn < 0.1).mean() - 0.1) < 0.015
    assert uniform(exact.noise_key(7, 1, 2)) == uniform(exact.noise_key(7, 1, 2))


def test_rows_without_numbers_have_no_distribution() -> None:
    bad = np.array([1.0, np.nan], np.float32)
    assert distribution(bad, SampleRow(0)) is None and distribution(np.full(2, -np.inf, np.float32), SampleRow(0)) is None
    greedy = distribution(np.array([1.0, 3.0, 3.0], np.float32), SampleRow(0, temperature=0.0))
    assert greedy is not None and greedy.ids.tolist() == [1]


def test_in_the_engine_the_first_tokens_have_the_targets_distribution() -> None:
    """A draft model of another opinion, 4 guesses a step, masks and penalties on: the second and third token of 600 answers."""
    from tests.engine.fakes import FakeProgram, hashed_logits
    from tests.engine.running import make_core, run, submit
    from tests.spec.test_rollback import LIMITS

    from ridgeline.engine.speculate import Speculator
    from ridgeline.kv.manager import KvCache
    from ridgeline.spec.draft import DraftProposer
    from ridgeline.types import SamplingParams

    letters = (65, 66, 67)
    target, other = cache_by_text(hashed_logits()), cache_by_text(lambda history: hashed_logits()([*history, 1]))
    core = make_core(FakeProgram(target, blocks=(600,)), limits=LIMITS, seqs=100, chunk=500)
    draft = FakeProgram(other, blocks=(600,))
    proposer = DraftProposer(draft, KvCache((None,), (600,), 4), 260, 300, distributions=True)
    core.speculator = Speculator(proposer, 3, rejection=True)
    options = {"max_tokens": 4, "allowed_token_ids": letters, "frequency_penalty": 0.5, "temperature": 0.8, "logprobs": 0}
    asked = [submit(core, [5, 6], SamplingParams(seed=i, n=15, **options)) for i in range(40)]  # type: ignore[arg-type]
    answers = run(core, *asked)
    counts = core.metrics.counts
    assert 0 < counts["spec_decode_num_accepted_tokens"] < counts["spec_decode_num_draft_tokens"]
    seen = Counter(tuple(a[:3]) for a in answers)

    def law(before: tuple[int, ...]) -> Distribution:
        mask = np.zeros(9, np.uint32)
        for letter in letters:
            mask[letter >> 5] |= np.uint32(1 << (letter & 31))
        row = SampleRow(0, temperature=0.8, frequency_penalty=0.5, output_ids=np.array(before, np.int32), allowed=mask)
        found = distribution(target([5, 6, *before]), row)
        assert found is not None
        return found

    x, cells = 0.0, 0
    for a in letters:
        for b in letters:
            for c in letters:
                want = len(answers) * law(()).of(a) * law((a,)).of(b) * law((a, b)).of(c)
                if want >= 5:
                    x, cells = x + (seen[a, b, c] - want) ** 2 / want, cells + 1
    assert cells > 8 and x < cells + 5 * sqrt(2 * cells)
    assert all(len(c.logprobs) == len(c.token_ids) == 4 for one in asked for c in one.choices)


def cache_by_text(logits_of):  # type: ignore[no-untyped-def]
    known: dict[tuple[int, ...], np.ndarray] = {}

    def logits(history: list[int]) -> np.ndarray:
        key = tuple(history)
        if key not in known:
            known[key] = logits_of(history)
        return known[key]

    return logits
