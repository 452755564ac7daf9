"""A request on its way: what was asked, checked against the model, and the choices that answer it.

Knows limits of the model and of the parameters. Refuses to know the scheduler's state and the clock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ridgeline.engine.choice import Choice
from ridgeline.engine.masks import Bans
from ridgeline.engine.words import TextSource
from ridgeline.errors import ContextLengthError, UserError
from ridgeline.sampling.guide import GuideState
from ridgeline.types import CacheReport, CompletionOutput, RequestOutput, RequestTimes, SamplingParams

PromptLogprobs = list[dict[int, float] | None]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may not exceed. `vocab` is the tokenizer's size, `stop_ids` end a sequence unless ignored."""

    max_model_len: int
    vocab: int
    stop_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What is asked of the engine. `prompt` is the text that the ids came from, if there was one.

    priority: lower is served first (scheduling policy "priority"). cache_salt and tenant: prefixes are shared only within the same ones.
    cache_rank, cache_ttl_s: soft priority and seconds for which its prefix stays cached. timeout_s: seconds after which it is aborted.
    grammar: makes the state of one choice; called once for each. While it `confines`, stop strings and stop_token_ids are not looked for,
    so that what ends with "stop" is whole.
    """

    id: str
    prompt_ids: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    prompt: str | None = None
    priority: int = 0
    cache_salt: str = ""
    tenant: str = ""
    cache_rank: int = 0
    cache_ttl_s: float = 0.0
    timeout_s: float | None = None
    grammar: Callable[[], GuideState] | None = None


@dataclass(slots=True, eq=False)
class RequestState:
    """Mutable: the choices of a checked request, its times, and what the prefix cache did for it. `alive` counts choices not yet ended."""

    request: EngineRequest
    prompt_ids: list[int]
    choices: list[Choice]
    times: RequestTimes
    alive: int
    prompt_logprobs: PromptLogprobs | None = None
    cache: CacheReport | None = None
    told_prompt: bool = False

    @property
    def id(self) -> str:
        return self.request.id

    def timed_out(self, now: float) -> bool:
        return self.request.timeout_s is not None and self.times.arrival + self.request.timeout_s <= now

    def output(self) -> RequestOutput:
        """Everything so far."""
        return self._output([c.output() for c in self.choices], self.prompt_logprobs)

    def news(self, touched: Iterable[Choice]) -> RequestOutput:
        """What the last step added to `touched` choices. The prompt's log-probabilities come once, with the first token."""
        logprobs = None if self.told_prompt else self.prompt_logprobs
        self.told_prompt = True
        return self._output([c.news() for c in touched], logprobs)

    def _output(self, outputs: list[CompletionOutput], prompt_logprobs: PromptLogprobs | None) -> RequestOutput:
        r, cache = self.request, self.cache
        cached = None if cache is None else cache.tokens
        return RequestOutput(r.id, r.prompt, self.prompt_ids, outputs, self.alive == 0, prompt_logprobs, cached, cache, self.times)


def prepare(request: EngineRequest, limits: Limits, text: TextSource) -> RequestState:
    """Check a request and make its choices. Raises `UserError` or `ContextLengthError`. An absent seed is drawn here, and kept."""
    check(request, limits)
    p = request.params
    seed = int.from_bytes(os.urandom(8), "little") if p.seed is None else p.seed & (2**64 - 1)
    end_ids = frozenset(p.stop_token_ids) | limits.stop_ids
    stop_ids = frozenset(p.stop_token_ids) if p.ignore_eos else end_ids
    bad_words = text.spellings(p.bad_words) if p.bad_words else ()
    times = RequestTimes()
    allowed = None if p.allowed_token_ids is None else np.array(p.allowed_token_ids, np.int64)  # once for all choices

    def choice(index: int) -> Choice:
        grammar = None if request.grammar is None else request.grammar()
        bans = Bans(
            limits.vocab, allowed=allowed, end_ids=end_ids, eos_ids=limits.stop_ids, min_tokens=p.min_tokens,
            bad_words=bad_words, grammar=grammar,
        )  # fmt: skip
        return Choice(request.id, index, p, seed, stop_ids, limits.stop_ids, bans, text.out(p) if p.detokenize else None, times)

    rows: PromptLogprobs | None = None if p.prompt_logprobs is None else [None]
    return RequestState(request, list(map(int, request.prompt_ids)), [choice(i) for i in range(p.n)], times, p.n, rows)


def check(request: EngineRequest, limits: Limits) -> None:
    """Raises `UserError` (field, value, limit) for a prompt or parameters that this model cannot serve."""
    prompt, p, vocab = request.prompt_ids, request.params, limits.vocab
    if len(prompt) == 0:
        raise UserError("the prompt has no tokens", field="prompt", value=0, limit=1, remedy="give at least one character")
    if len(prompt) >= limits.max_model_len:
        raise _too_long(len(prompt), limits)
    _check_ids("prompt", prompt, vocab)
    _check_ids("stop_token_ids", p.stop_token_ids, vocab)
    _check_ids("logit_bias", [t for t, _ in p.logit_bias], vocab)
    _check_ids("allowed_token_ids", p.allowed_token_ids or (), vocab)
    for name, k in (("logprobs", p.logprobs), ("prompt_logprobs", p.prompt_logprobs)):
        if k is not None and k > vocab:
            raise UserError(f"{name} is {k}, the vocabulary has {vocab} tokens", field=name, value=k, limit=vocab)
    if p.max_tokens is not None and p.min_tokens > p.max_tokens:
        text = f"min_tokens is {p.min_tokens}, above max_tokens {p.max_tokens}"
        raise UserError(text, field="min_tokens", value=p.min_tokens, limit=p.max_tokens)
    if request.timeout_s is not None and not request.timeout_s > 0:
        raise UserError(f"the timeout is {request.timeout_s} s, must be above 0", field="timeout_s", value=request.timeout_s, limit=0)


def refuse_hopeless(least: int, limits: Limits) -> None:
    """Raises `ContextLengthError` for a text of `least` tokens or more that cannot fit, before it is cut into them."""
    if least >= limits.max_model_len:
        raise _too_long(least, limits, "at least ")


def _too_long(count: int, limits: Limits, bound: str = "") -> ContextLengthError:
    return ContextLengthError(
        f"the prompt has {bound}{count} tokens, the model length is {limits.max_model_len} (prompt and answer together)",
        field="prompt", value=count, limit=limits.max_model_len, remedy="shorten the prompt or raise --max-model-len",
    )  # fmt: skip


def _check_ids(name: str, ids: Sequence[int], vocab: int) -> None:
    if isinstance(ids, np.ndarray) and ids.dtype.kind == "i" and ids.size and ids.min() >= 0 and ids.max() < vocab:
        return
    if len(ids) and set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < vocab:
        return
    for i in ids:
        if isinstance(i, bool) or not isinstance(i, int | np.integer) or not 0 <= i < vocab:
            raise UserError(f"{name} holds token id {i}, ids go from 0 to {vocab - 1}", field=name, value=i, limit=vocab)
