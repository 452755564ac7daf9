"""`bench engine`, scenarios that show what the engine does rather than how fast: reuse, shared samples, overload, a suspended session.

Each runs the same requests with and without what it shows, and compares the words. Knows no terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from ridgeline.bench.engine_run import Job, Runner, prompts, ttft_s
from ridgeline.bench.runner import Ids
from ridgeline.engine.loader import LoadedModel
from ridgeline.engine.request import RequestState
from ridgeline.graph.caches import cache_groups
from ridgeline.kv.layout import peak_blocks


@dataclass(frozen=True, slots=True)
class ReuseResult:
    """A prompt cold, then again with another end. cached: tokens of the second that were not computed; same: words as without a cache."""

    prompt: int
    cached: int
    cold_ttft_s: float
    ttft_s: float
    same: bool


@dataclass(frozen=True, slots=True)
class SamplesResult:
    """n samples of one prompt. blocks: most in use at once, of all cache groups; apart: the same for n requests without sharing."""

    n: int
    prompt: int
    gen: int
    blocks: int
    apart: int
    copies: int
    same: bool


@dataclass(frozen=True, slots=True)
class OverloadResult:
    """More requests than blocks: `share` of what they need is there. computed_again: tokens recomputed over tokens that were asked for;
    fairness: Jain's index of the requests' waits (finish - arrival), 1 when all wait alike; in_order: finished as they arrived, share of
    pairs; slowdown: time over the time with room for all."""

    requests: int
    share: float
    finished: int
    preemptions: int
    most_of_one: int
    computed_again: float
    fairness: float
    in_order: float
    slowdown: float
    same: bool


@dataclass(frozen=True, slots=True)
class SessionResult:
    """A session that waits for a tool while others fill the cache. hit_*: tokens found on return by what was asked for."""

    session: int
    others: int
    hit_ttl: int
    hit_rank: int
    hit_plain: int
    ttft_ttl_s: float
    ttft_plain_s: float


class Facts:
    """Runs the scenarios on one model. vocab bounds the made-up prompts."""

    def __init__(self, model: LoadedModel) -> None:
        self.model, self.vocab = model, model.limits.vocab
        self._groups = cache_groups(model.program.graph.caches)

    def _ask(self, runner: Runner, prompt: Ids, gen: int, **more: Any) -> RequestState:
        """Sampled: words that depend on more than the largest logit are told apart sooner."""
        return runner.submit(Job(prompt, gen), temperature=0.8, seed=7, **more)

    def _finish(self, runner: Runner) -> tuple[int, int]:
        """To the end: the most blocks that were in use, and tokens that were computed."""
        most = computed = 0
        while runner.core.busy:
            step = runner.step()
            computed += step.decodes + step.chunk
            most = max(most, sum(used for _, _, used in runner.core.state.kv.usage()))
        return most, computed

    def reuse(self, length: int = 1000, tail: int = 16, gen: int = 16) -> ReuseResult:
        """A prefix that is met again."""
        stem, tails = prompts(1, length, self.vocab, 600)[0], prompts(2, tail, self.vocab, 601)
        first, second = (np.concatenate((stem, t)) for t in tails)
        runner, plain = Runner(self.model), Runner(self.model, prefix_cache="off")
        self._ask(plain, first, 2)  # first touch of memory
        self._finish(plain)
        cold = self._ask(runner, first, gen)
        self._finish(runner)
        warm = self._ask(runner, second, gen)
        self._finish(runner)
        alone = self._ask(plain, second, gen)
        self._finish(plain)
        cached = warm.choices[0].cached_tokens
        return ReuseResult(len(second), cached, ttft_s(cold), ttft_s(warm), _words([warm]) == _words([alone]))

    def samples(self, n: int = 4, length: int = 500, gen: int = 24) -> SamplesResult:
        """Samples that share their prompt."""
        prompt = prompts(1, length, self.vocab, 610)[0]
        shared, apart = Runner(self.model), Runner(self.model, prefix_cache="off")
        together = self._ask(shared, prompt, gen, n=n)
        blocks, _ = self._finish(shared)
        shared.core.state.kv.check()
        for _ in range(n):
            self._ask(apart, prompt, gen)
        needed, _ = self._finish(apart)
        again = Runner(self.model, prefix_cache="off")
        alone = self._ask(again, prompt, gen, n=n)
        self._finish(again)
        copies, same = shared.core.state.kv.counts["copies_on_write"], _words([together]) == _words([alone])
        return SamplesResult(n, length, gen, blocks, needed, copies, same)

    def overload(self, count: int = 24, length: int = 128, gen: int = 64, share: float = 0.25) -> OverloadResult:
        """Fewer blocks than the requests need."""
        count = min(count, self.model.plan.max_num_seqs)
        all_blocks = [count * peak_blocks(g.window, self.model.plan.block_size, length + gen) for g in self._groups]
        tight = [max(int(b * share), 2 + b // count) for b in all_blocks]
        jobs = prompts(count, length, self.vocab, 620)
        found = []
        for blocks in (tight, None):
            runner = Runner(self.model, blocks=blocks)
            start = perf_counter()
            asked = [self._ask(runner, p, gen) for p in jobs]
            _, computed = self._finish(runner)
            took = perf_counter() - start
            runner.core.state.kv.check()
            found.append((runner.core.state.counts["preemptions"], asked, took, computed))
        (preempted, asked, took, computed), (_, free, roomy, _) = found
        waits = np.array([a.times.finished - a.times.arrival for a in asked])
        known = sum(len(p) + gen - 1 for p in jobs)
        done = sum(all(c.finish == "length" for c in a.choices) for a in asked)
        return OverloadResult(
            count, share, done, preempted, max(a.times.preemptions for a in asked), computed / known - 1,
            float(waits.sum() ** 2 / (len(waits) * (waits**2).sum())), _in_order(waits), took / roomy, _words(asked) == _words(free),
        )  # fmt: skip

    def session(self, length: int = 600, gen: int = 8, others: int = 12) -> SessionResult:
        """A session that comes back. The pool holds the session and two others."""
        size = self.model.plan.block_size
        blocks = [3 * peak_blocks(g.window, size, length + 64) + 4 for g in self._groups]
        talk, noise = prompts(1, length, self.vocab, 630)[0], prompts(others, length, self.vocab, 631)
        more = prompts(1, 8, self.vocab, 632)[0]
        hits: list[int] = []
        ttfts: list[float] = []
        for ttl_s, rank in ((3600.0, 0), (0.0, 1), (0.0, 0)):
            runner = Runner(self.model, blocks=blocks)
            turn = self._ask(runner, talk, gen, ttl_s=ttl_s, rank=rank)
            self._finish(runner)
            for prompt in noise:
                self._ask(runner, prompt, gen)
                self._finish(runner)
            back = np.concatenate((talk, np.array(turn.choices[0].token_ids, np.int32), more))
            returned = self._ask(runner, back, gen)
            self._finish(runner)
            hits.append(returned.choices[0].cached_tokens)
            ttfts.append(ttft_s(returned))
        return SessionResult(length, others, hits[0], hits[1], hits[2], ttfts[0], ttfts[2])


def _words(asked: Sequence[RequestState]) -> list[list[int]]:
    return [c.token_ids for a in asked for c in a.choices]


def _in_order(ends: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Share of pairs that ended in the order of their arrival."""
    pairs = [(i, j) for j in range(len(ends)) for i in range(j)]
    return sum(bool(ends[i] <= ends[j]) for i, j in pairs) / max(1, len(pairs))


def lines(reuse: ReuseResult | None, samples: SamplesResult | None, over: OverloadResult | None, talk: SessionResult | None) -> list[str]:
    """The results for people."""
    found = []
    if reuse is not None:
        found.append(
            f"  reuse     {reuse.prompt} tokens, a prompt again with another end: {reuse.cached} cached, TTFT {reuse.cold_ttft_s * 1e3:.0f}"
            f" -> {reuse.ttft_s * 1e3:.0f} ms, {_same(reuse.same)}"
        )
    if samples is not None:
        found.append(
            f"  samples   {samples.n} of a prompt of {samples.prompt} tokens: {samples.blocks} blocks in use, {samples.apart} apart;"
            f" {samples.copies} copied on write, {_same(samples.same)}"
        )
    if over is not None:
        found.append(
            f"  overload  {over.requests} requests with {over.share:.0%} of the blocks they need: {over.finished} finished,"
            f" {over.preemptions} preemptions (at most {over.most_of_one} of one), {over.computed_again:.0%} computed again,"
            f" {over.slowdown:.2f}x the time; fairness {over.fairness:.2f}, {over.in_order:.0%} in order, {_same(over.same)}"
        )
    if talk is not None:
        found.append(
            f"  session   {talk.session} tokens, back after {talk.others} others: {talk.hit_ttl} cached with cache_ttl_s, {talk.hit_rank}"
            f" with cache_rank, {talk.hit_plain} without; TTFT {talk.ttft_ttl_s * 1e3:.0f} against {talk.ttft_plain_s * 1e3:.0f} ms"
        )
    return found


def _same(same: bool) -> str:
    return "same words" if same else "OTHER WORDS"
