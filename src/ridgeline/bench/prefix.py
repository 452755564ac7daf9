"""`bench prefix`: what the prefix cache does, shown on real requests: cold and warm, one changed letter, radix tree beside hashed blocks.

Knows prompts, hits and first tokens. Every answer is compared with the one that an engine without a cache gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ridgeline.bench.blocks import with_letter_changed
from ridgeline.bench.corpus import Corpus
from ridgeline.bench.engine_run import Job, Runner, ttft_s
from ridgeline.engine.loader import LoadedModel, load
from ridgeline.errors import UserError, within
from ridgeline.kv.manager import CachePolicy
from ridgeline.options import Options

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
    prompts = texts(asked, model)
    edited = edits(prompts[-1])
    every = [*prompts, *(text for _, text in edited)]
    if max(len(model.text.encode(text)) for text in every) + asked.output > model.plan.max_model_len:
        text = f"--shared {asked.shared} does not fit the model length of {model.plan.max_model_len}"
        raise UserError(text, field="--shared", value=asked.shared, limit=model.plan.max_model_len)
    plain: list[list[int]] = []
    found = []
    _ask(Runner(model, prefix_cache="off"), model.text.encode("The first request of a process pays for pages. " * 4), 2)
    for policy in POLICIES:
        say(f"prefix cache {policy}")
        result, words = _climb(model, policy, prompts, edited, plain, asked.output)
        plain = plain or words
        found.append(result)
    return PrefixReport(Path(model.plan.path).name, model.plan.block_size, asked.shared, (*found[1:], found[0]))


def texts(asked: PrefixOptions, model: LoadedModel) -> list[str]:
    """Prompts, which begin alike."""
    rng = np.random.default_rng(asked.seed)
    stem = Corpus().prose(rng, 8 * asked.shared + 200)
    ids = model.text.tokenizer.encode_plain(stem)
    stem = model.text.tokenizer.decode(ids[: asked.shared])
    tails = [Corpus().prose(rng, 6 * asked.own) for _ in range(asked.requests)]
    return [f"{stem}\nQuestion {i + 1}: {tail}" for i, tail in enumerate(tails)]


def edits(prompt: str, shares: Sequence[float] = (0.05, 0.5, 0.9)) -> list[tuple[int, str]]:
    """(place, changed prompt): one letter after the given shares of the text."""
    places = [next(i for i in range(int(share * len(prompt)), len(prompt)) if prompt[i].isalpha()) for share in shares]
    return [(at, with_letter_changed(prompt, at)) for at in places]


def _climb(
    model: LoadedModel,
    policy: CachePolicy,
    prompts: Sequence[str],
    edited: Sequence[tuple[int, str]],
    plain: list[list[int]],
    output: int,
) -> tuple[PolicyResult, list[list[int]]]:
    """All prompts and then the edited ones on one engine, and what they were answered with."""
    runner, encode = Runner(model, prefix_cache=policy), model.text.encode
    seen: list[list[int]] = []
    words: list[list[int]] = []
    done: list[Asked] = []
    for text in [*prompts, *(text for _, text in edited)]:
        ids = encode(text)
        common = max((shared_length(ids, s) for s in seen), default=0)
        ttft_ms, cached, made = _ask(runner, ids, output)
        same = not plain or plain[len(words)] == made
        done.append(Asked(len(ids), common, cached, ttft_ms, same))
        seen.append(ids)
        words.append(made)
    n = len(prompts)
    changed = tuple(Edit(at, prompts[-1][at], text[at], done[n + i]) for i, (at, text) in enumerate(edited))
    index = runner.core.state.kv.index
    unit = index.unit if index else 0
    return PolicyResult(policy, unit, done[0], tuple(done[1:n]), changed), words


def _ask(runner: Runner, ids: list[int], output: int) -> tuple[float, int, list[int]]:
    """(ms to the first token, tokens from the cache, answer) of a request that is alone."""
    asked = runner.answer(Job(np.array(ids, np.int32), output))
    return ttft_s(asked) * 1e3, asked.choices[0].cached_tokens, list(asked.choices[0].token_ids)


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
