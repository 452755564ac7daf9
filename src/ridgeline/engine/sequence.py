"""One continuation in the making: its tokens, its blocks, and when it ends. Knows no backend and no order of execution."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import numpy.typing as npt

from ridgeline.errors import ContextLengthError, UserError
from ridgeline.sampling.plan import SampleRow, TopLogprobs
from ridgeline.text.stream import TextStream
from ridgeline.types import CompletionOutput, FinishReason, SamplingParams

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may not exceed. `vocab` is the tokenizer's size, `stop_ids` end a sequence unless ignored."""

    max_model_len: int
    vocab: int
    stop_ids: frozenset[int]


@dataclass(slots=True)
class Times:
    """Seconds of `perf_counter`: admission to the loop, first token, last token."""

    start: float = 0.0
    first: float = 0.0
    last: float = 0.0


@dataclass(slots=True, eq=False)
class Sequence:
    """Mutable state of one choice of one request. `tokens` are all known ids, the first `past` of them are computed.

    tables[g]: block ids of cache group g, int32; the first `columns` entries are in use, -1 is a block behind the window.
    """

    request: int
    choice: int
    params: SamplingParams
    tokens: list[int]
    prompt_len: int
    limit_len: int
    stop_ids: frozenset[int]
    end_ids: frozenset[int]
    vocab: int
    seed: int
    out: TextStream
    past: int = 0
    tables: list[Int32Array] = field(default_factory=list)
    columns: int = 0
    delta: str = ""
    finish: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: list[dict[int, float]] = field(default_factory=list)
    logprob_sum: float = 0.0
    times: Times = field(default_factory=Times)

    @property
    def key(self) -> int:
        """A number that no other sequence of the batch has (n is at most 1024)."""
        return self.request * 1024 + self.choice

    @property
    def text(self) -> str:
        return self.out.text

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt_len :]

    def row(self, row: int) -> SampleRow:
        """The draw of its next token from row `row` of the logits."""
        p, made = self.params, len(self.tokens) - self.prompt_len
        penalties = p.repetition_penalty != 1.0 or p.presence_penalty != 0.0 or p.frequency_penalty != 0.0
        ids = np.array(self.tokens, np.int32) if penalties else None
        return SampleRow(
            row=row, temperature=p.temperature, top_k=max(0, p.top_k), top_p=p.top_p, min_p=p.min_p,
            repetition_penalty=p.repetition_penalty, presence_penalty=p.presence_penalty, frequency_penalty=p.frequency_penalty,
            seed=self.seed, choice=self.choice, position=len(self.tokens),
            prompt_ids=None if ids is None else ids[: self.prompt_len], output_ids=None if ids is None else ids[self.prompt_len :],
            bias_ids=np.array([t for t, _ in p.logit_bias], np.int32) if p.logit_bias else None,
            bias_values=np.array([v for _, v in p.logit_bias], np.float32) if p.logit_bias else None,
            allowed=ban(self.end_ids, self.vocab) if made < p.min_tokens and self.end_ids else None,
            logprobs=p.logprobs,
        )  # fmt: skip

    def accept(self, token: int, logprob: float, top: TopLogprobs | None) -> None:
        """Append a drawn token and decide whether it was the last."""
        now = perf_counter()
        self.times.first = self.times.first or now
        self.times.last = now
        self.tokens.append(token)
        if self.params.logprobs is not None:
            listed = {} if top is None else dict(zip(top.ids.tolist(), top.values.tolist(), strict=True))
            self.logprobs.append({token: logprob, **listed})
            self.logprob_sum += logprob
        made = len(self.tokens) - self.prompt_len
        if token in self.stop_ids and made > self.params.min_tokens:
            self.delta = ""
            self._end("stop", token if token in self.params.stop_token_ids else None)
            return
        self.delta = self.out.push(token, may_stop=made >= self.params.min_tokens)
        if self.out.matched is not None:
            self._end("stop", self.out.matched)
        elif len(self.tokens) >= self.limit_len:
            self._end("length", None)

    def fail(self, why: str) -> None:
        """End it with an error; its neighbours go on."""
        self.finish, self.stop_reason, self.delta = "error", why, ""

    def _end(self, reason: FinishReason, stop_reason: int | str | None) -> None:
        held_back = self.out.matched is None
        self.delta += self.out.finish() if held_back else ""
        if held_back and self.out.matched is not None:
            reason, stop_reason = "stop", self.out.matched  # completed by the last, broken character
        self.finish, self.stop_reason = reason, stop_reason

    def output(self) -> CompletionOutput:
        wanted = self.params.logprobs is not None
        return CompletionOutput(
            index=self.choice, text=self.text, token_ids=self.generated, finish_reason=self.finish, stop_reason=self.stop_reason,
            cumulative_logprob=self.logprob_sum if wanted else None, logprobs=self.logprobs if wanted else None,
        )  # fmt: skip


def ban(ids: frozenset[int], vocab: int) -> npt.NDArray[np.uint32]:
    """A mask that allows every id but these: uint32 [ceil(vocab / 32)], bit i of word i // 32."""
    mask = np.full((vocab + 31) // 32, 0xFFFFFFFF, np.uint32)
    for i in ids:
        mask[i // 32] &= np.uint32(0xFFFFFFFF ^ (1 << (i % 32)))
    return mask


def check_request(prompt: list[int], params: SamplingParams, limits: Limits) -> None:
    """Raises `UserError` (field, value, limit) for a prompt or parameters that this model cannot serve."""
    if not prompt:
        raise UserError("the prompt has no tokens", field="prompt", value=0, limit=1, remedy="give at least one character")
    if len(prompt) >= limits.max_model_len:
        raise ContextLengthError(
            f"the prompt has {len(prompt)} tokens, the model length is {limits.max_model_len} (prompt and answer together)",
            field="prompt", value=len(prompt), limit=limits.max_model_len, remedy="shorten the prompt or raise --max-model-len",
        )  # fmt: skip
    for name, ids in (("prompt", prompt), ("stop_token_ids", params.stop_token_ids), ("logit_bias", [t for t, _ in params.logit_bias])):
        for i in ids:
            if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < limits.vocab:
                raise UserError(f"{name} holds token id {i}, ids go from 0 to {limits.vocab - 1}", field=name, value=i, limit=limits.vocab)
    if params.logprobs is not None and params.logprobs > limits.vocab:
        raise UserError(f"logprobs is {params.logprobs}, the vocabulary has {limits.vocab} tokens", field="logprobs", value=params.logprobs)
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        text = f"min_tokens is {params.min_tokens}, above max_tokens {params.max_tokens}"
        raise UserError(text, field="min_tokens", value=params.min_tokens, limit=params.max_tokens)


def admit(request: int, prompt: list[int], params: SamplingParams, limits: Limits, outs: list[TextStream]) -> list[Sequence]:
    """The `params.n` sequences of a checked request, `outs[i]` for choice i. An absent seed is drawn here, and kept."""
    check_request(prompt, params, limits)
    seed = int.from_bytes(os.urandom(8), "little") if params.seed is None else params.seed & (2**64 - 1)
    end_ids = frozenset(params.stop_token_ids) | limits.stop_ids
    stop_ids = frozenset(params.stop_token_ids) if params.ignore_eos else end_ids
    limit = limits.max_model_len if params.max_tokens is None else min(limits.max_model_len, len(prompt) + params.max_tokens)
    return [
        Sequence(request, choice, params, list(prompt), len(prompt), limit, stop_ids, end_ids, limits.vocab, seed, outs[choice])
        for choice in range(params.n)
    ]
