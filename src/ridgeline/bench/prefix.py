"""`bench prefix`: what the prefix cache does, shown on real requests: cold and warm, one changed letter, radix tree beside hashed blocks.

Knows prompts, hits and first tokens. Every answer is compared with the one that an engine without a cache gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ridgeline.bench.corpus import Corpus
from ridgeline.engine.core import EngineCore
from ridgeline.engine.loader import LoadedModel, load, make_core
from ridgeline.engine.request import EngineRequest, prepare
from ridgeline.errors import UserError, within
from ridgeline.graph.caches import cache_groups
from ridgeline.kv.manager import CachePolicy, KvCache
from ridgeline.options import Options
from ridgeline.scheduler.state import SchedulerState
from ridgeline.types import SamplingParams

Say = Callable[[str], None]
POLICIES: tuple[CachePolicy, ...] = ("off", "radix", "hash")  # without a cache first: its words are what the others must say


@dataclass(frozen=True, slots=True)
class PrefixOptions:
    """requests, one after the other, of `shared` common tokens and about `own` different ones, each answered with `output` tokens."""

    options: Options
    requests: int = 10
    shared: int = 1000
    own: int = 16
    output: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low in (("requests", 2), ("shared", 32), ("own", 1), ("output", 1)):
            within(f"--{name}", getattr(self, name), low, 1 << 20)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. common: tokens that its prompt shares with an earlier one; cached: tokens that the cache gave; same: whether the answer
    is token for token that of an engine without a cache."""

    prompt: int
    common: int
    cached: int
    ttft_ms: float
    same: bool


@dataclass(frozen=True, slots=True)
class Edit:
    """A prompt with letter number `letter` changed: the common tokens end at `common`."""

    letter: int
    before: str
    after: str
    asked: Asked


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """first: the cold request; rest: the warm ones."""

    policy: str
    unit: int
    first: Asked
    rest: tuple[Asked, ...]
    edits: tuple[Edit, ...]

    @property
    def warm_ms(self) -> float:
        return median(a.ttft_ms for a in self.rest)


@dataclass(frozen=True, slots=True)
class PrefixReport:
    model: str
    block_size: int
    shared: int
    policies: tuple[PolicyResult, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def run(asked: PrefixOptions, say: Say = lambda line: None) -> PrefixReport:
    """Raises `UserError` for a model that cannot be loaded, or a prompt that does not fit it."""
    model = load(asked.options)
    prompts, letters = texts(asked, model)
    if max(len(p) for p in prompts) + asked.output > model.plan.max_model_len:
        text = f"--shared {asked.shared} does not fit the model length of {model.plan.max_model_len}"
        raise UserError(text, field="--shared", value=asked.shared, limit=model.plan.max_model_len)
    edited = edits(prompts[-1], letters)
    plain: list[list[int]] = []
    found = []
    _warm_up(model)
    for policy in POLICIES:
        say(f"prefix cache {policy}")
        result, words = _climb(model, policy, prompts, edited, plain, asked.output)
        plain = plain or words
        found.append(result)
    return PrefixReport(Path(model.plan.path).name, model.plan.block_size, asked.shared, (*found[1:], found[0]))


def texts(asked: PrefixOptions, model: LoadedModel) -> tuple[list[str], Callable[[str], list[int]]]:
    """Prompts as text, which begin alike, and how they are cut into tokens."""
    rng = np.random.default_rng(asked.seed)
    encode = model.text.encode
    stem = Corpus().prose(rng, 8 * asked.shared + 200)
    ids = model.text.tokenizer.encode_plain(stem)
    stem = model.text.tokenizer.decode(ids[: asked.shared])
    tails = [Corpus().prose(rng, 6 * asked.own) for _ in range(asked.requests)]
    return [f"{stem}\nQuestion {i + 1}: {tail}" for i, tail in enumerate(tails)], encode


def edits(prompt: str, encode: Callable[[str], list[int]], shares: Sequence[float] = (0.05, 0.5, 0.9)) -> list[tuple[int, str, str, str]]:
    """(place, letter before, letter after, changed prompt): one letter after the given shares of the text."""
    found = []
    for share in shares:
        at = next(i for i in range(int(share * len(prompt)), len(prompt)) if prompt[i].isalpha())
        letter = "x" if prompt[at].lower() != "x" else "y"
        found.append((at, prompt[at], letter, prompt[:at] + letter + prompt[at + 1 :]))
    return found


def core_of(model: LoadedModel, policy: CachePolicy) -> EngineCore:
    """An idle engine whose prefix cache is of this kind."""
    core = make_core(model, prefix_caching=policy != "off", paced=False)
    windows = [group.window for group in cache_groups(model.program.graph.caches)]
    core.state = SchedulerState(KvCache(windows, model.plan.blocks, model.plan.block_size, policy), core.state.config)
    return core


def _warm_up(model: LoadedModel) -> None:
    core = core_of(model, "off")
    _ask(core, model, model.text.encode("The first request of a process pays for pages and caches. " * 4), 2, "warm")


def _climb(
    model: LoadedModel,
    policy: CachePolicy,
    prompts: Sequence[str],
    edited: Sequence[tuple[int, str, str, str]],
    plain: list[list[int]],
    output: int,
) -> tuple[PolicyResult, list[list[int]]]:
    """All prompts and then the edited ones on one engine, and what they were answered with."""
    core, encode = core_of(model, policy), model.text.encode
    seen: list[list[int]] = []
    words: list[list[int]] = []
    done: list[Asked] = []
    numbers = count()
    for text in [*prompts, *(e[3] for e in edited)]:
        ids = encode(text)
        common = max((shared_length(ids, s) for s in seen), default=0)
        ttft_ms, cached, made = _ask(core, model, ids, output, f"p{next(numbers)}")
        same = not plain or plain[len(words)] == made
        done.append(Asked(len(ids), common, cached, ttft_ms, same))
        seen.append(ids)
        words.append(made)
    n = len(prompts)
    changed = tuple(Edit(at, a, b, done[n + i]) for i, (at, a, b, _) in enumerate(edited))
    unit = core.state.kv.index.unit if core.state.kv.index else 0
    return PolicyResult(policy, unit, done[0], tuple(done[1:n]), changed), words


def _ask(core: EngineCore, model: LoadedModel, ids: list[int], output: int, name: str) -> tuple[float, int, list[int]]:
    """(ms to the first token, tokens from the cache, answer) of a request that is alone."""
    params = SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True, detokenize=False)
    asked = prepare(EngineRequest(name, ids, params), core.limits, model.text)
    core.submit(asked)
    while core.busy:
        core.step()
    cached = 0 if asked.cache is None else asked.cache.tokens
    return (asked.times.first_token - asked.times.arrival) * 1e3, cached, list(asked.choices[0].token_ids)


def shared_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens at the beginning that are equal."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def render(report: PrefixReport) -> str:
    """A table a policy."""
    lines = [f"{report.model}: {len(report.policies[0].rest) + 1} requests one after the other, about {report.shared} tokens in common"]
    lines.append(
        f"{'policy':<8}{'unit':>5}{'cold TTFT ms':>14}{'warm ms':>10}{'ratio':>8}{'cached, mean':>14}{'in common':>11}{'same words':>12}"
    )
    for p in report.policies:
        cached, common = (sum(getattr(a, n) for a in p.rest) / len(p.rest) for n in ("cached", "common"))
        every = [p.first, *p.rest, *(e.asked for e in p.edits)]
        same = f"{sum(a.same for a in every)}/{len(every)}"
        ratio = p.first.ttft_ms / p.warm_ms
        lines.append(
            f"{p.policy:<8}{p.unit:>5}{p.first.ttft_ms:>14.1f}{p.warm_ms:>10.1f}{ratio:>7.1f}x{cached:>14.1f}{common:>11.1f}{same:>12}"
        )
    lines += ["", "one letter changed: tokens before it stay cached, rounded down to what the policy can share"]
    lines.append(f"{'policy':<8}{'letter':>8}{'change':>9}{'prompt':>8}{'common':>8}{'cached':>8}{'TTFT ms':>10}")
    for p in report.policies:
        for e in p.edits:
            a = e.asked
            lines.append(
                f"{p.policy:<8}{e.letter:>8}{f'{e.before} to {e.after}':>9}{a.prompt:>8}{a.common:>8}{a.cached:>8}{a.ttft_ms:>10.1f}"
            )
    return "\n".join(lines)
