"""Plain facts that every folder may use: what a user asks (`SamplingParams`) and gets (`RequestOutput`), and the KV dtypes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from ridgeline.errors import UserError

FinishReason = Literal["stop", "length", "abort", "error"]
KvDtype = Literal["f32", "bf16", "f16", "int8", "int4"]
KV_DTYPE_BYTES: dict[str, int] = {"f32": 4, "bf16": 2, "f16": 2}
Isa = Literal["portable", "avx2", "avx512", "avx512_bf16"]
PAIRS_ISA: Isa = "avx512_bf16"  # whose kernels multiply a bfloat16 or int8 KV cache in pairs; the others as float32
MissReason = Literal["complete", "never_seen", "evicted", "salted", "too_short", "ineligible"]
MAX_STOPS = 128
MAX_STOP_CHARACTERS = 1024  # of one stop string or bad word


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to continue a prompt. Names and defaults are those of vLLM and OpenAI.

    temperature 0 is greedy; top_k 0 or -1 is off; seed None draws one at admission; stop strings are matched on text.
    repetition_penalty counts prompt and output, presence and frequency the output only. bad_words are never completed, however they are
    spelled in tokens; allowed_token_ids, where given, are all that may be drawn. logprobs and prompt_logprobs: the raw log-softmax of the
    token and of so many alternatives, whatever the other settings.
    Raises `UserError` naming the field, the value and the limit.
    """

    n: int = 1
    max_tokens: int | None = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        for name in ("stop", "bad_words"):
            if isinstance(getattr(self, name), str):
                object.__setattr__(self, name, (getattr(self, name),))
        for name in ("stop", "bad_words", "stop_token_ids"):
            if not isinstance(getattr(self, name), tuple):
                object.__setattr__(self, name, tuple(getattr(self, name) or ()))
        if self.allowed_token_ids is not None:
            object.__setattr__(self, "allowed_token_ids", tuple(self.allowed_token_ids))
        if isinstance(self.logit_bias, dict):
            object.__setattr__(self, "logit_bias", tuple(self.logit_bias.items()))
        self._check()

    def _check(self) -> None:
        def real(name: str, low: float, high: float, *, above: bool = False) -> None:
            value = getattr(self, name)
            inside = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not inside or value > high or value < low or (above and value == low):
                sign = ">" if above else ">="
                raise UserError(f"{name} is {value}, must be {sign} {low:g} and <= {high:g}", field=name, value=value, limit=(low, high))

        def whole(name: str, low: int, high: int) -> None:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                text = f"{name} is {value}, must be a whole number from {low} to {high}"
                raise UserError(text, field=name, value=value, limit=(low, high))

        real("temperature", 0.0, 1e6)
        real("top_p", 0.0, 1.0, above=True)
        real("min_p", 0.0, 1.0)
        real("presence_penalty", -2.0, 2.0)
        real("frequency_penalty", -2.0, 2.0)
        real("repetition_penalty", 0.0, 1e6, above=True)
        whole("n", 1, 1024)
        whole("top_k", -1, 2**31 - 1)
        whole("min_tokens", 0, 2**31 - 1)
        most = 2**31 - 1
        optional = (("max_tokens", 1, most), ("seed", -(2**63), 2**64 - 1), ("logprobs", 0, most), ("prompt_logprobs", 0, most))
        for name, low, high in optional:
            if getattr(self, name) is not None:
                whole(name, low, high)
        self._check_texts()
        if self.allowed_token_ids == ():
            raise UserError("allowed_token_ids is empty, so nothing could be drawn", field="allowed_token_ids", value=(), limit=1)
        for token, value in self.logit_bias:
            if isinstance(token, bool) or not isinstance(token, int) or token < 0 or not -100 <= value <= 100:
                text = f"logit_bias {token}: {value}, needs a token id and a value from -100 to 100"
                raise UserError(text, field="logit_bias", value=token)

    def _check_texts(self) -> None:
        for name in ("stop", "bad_words"):
            texts = getattr(self, name)
            if any(not isinstance(s, str) or s == "" for s in texts):
                raise UserError(f"{name} holds an empty string, which would match at once", field=name, value="", remedy="leave it out")
            if len(texts) > MAX_STOPS:
                text = f"{name} holds {len(texts)} strings, at most {MAX_STOPS}"
                raise UserError(text, field=name, value=len(texts), limit=MAX_STOPS)
            longest = max(map(len, texts), default=0)
            if longest > MAX_STOP_CHARACTERS:
                text = f"{name} holds a string of {longest} characters, at most {MAX_STOP_CHARACTERS}"
                raise UserError(text, field=name, value=longest, limit=MAX_STOP_CHARACTERS)
        if self.stop and not self.detokenize:
            text = "stop strings are matched on text, detokenize is off"
            raise UserError(text, field="stop", value=self.stop, remedy="switch detokenize on or use stop_token_ids")


@dataclass(slots=True)
class CompletionOutput:
    """One continuation of a prompt. `token_ids` are the generated ids, an ending EOS included. drafted_tokens, accepted_tokens: what
    speculation guessed for it so far, and how much of that came true; neither changes the ids."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, float]] | None = None
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class CacheReport:
    """What the prefix cache did for one request, and why no more. Counted once, at first admission.

    tokens: reused; matched: compared equal to something seen, evicted or not; divergent: the first token that nothing seen continues
    with (None when all matched); evicted_at: when the first block that would have helped was lost; unit: smallest reusable unit.
    """

    prompt: int
    tokens: int
    matched: int
    reason: MissReason
    divergent: int | None = None
    evicted_at: float | None = None
    unit: int = 1


@dataclass(slots=True)
class RequestTimes:
    """When it happened, in seconds of one monotonic clock; 0.0: not yet.

    arrival; admitted (left the queue first); first_token and last_token of any choice; finished. preemptions: of all choices together.
    """

    arrival: float = 0.0
    admitted: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    finished: float = 0.0
    preemptions: int = 0


@dataclass(slots=True)
class RequestOutput:
    """What became of one prompt: its ids and `n` continuations. Whole, or (from a stream) only what is new since the last one.

    prompt_logprobs: one entry per prompt token, None for the first, which nothing predicts; cache: why a prefix was not reused;
    num_cached_tokens: prompt tokens that were. Both are None until the request has left the queue.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    prompt_logprobs: list[dict[int, float] | None] | None = None
    num_cached_tokens: int | None = None
    cache: CacheReport | None = None
    times: RequestTimes = field(default_factory=RequestTimes)
