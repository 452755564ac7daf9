"""Plain facts that every folder may use: what a user asks (`SamplingParams`) and gets (`RequestOutput`), and the KV dtypes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from ridgeline.errors import UserError

FinishReason = Literal["stop", "length", "abort", "error"]
KvDtype = Literal["f32", "bf16", "f16"]
KV_DTYPE_BYTES: dict[str, int] = {"f32": 4, "bf16": 2, "f16": 2}
Isa = Literal["portable", "avx2", "avx512"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to continue a prompt. Names and defaults are those of vLLM and OpenAI.

    temperature 0 is greedy; top_k 0 or -1 is off; seed None draws one at admission; stop strings are matched on text.
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
    logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        elif not isinstance(self.stop, tuple):
            object.__setattr__(self, "stop", tuple(self.stop or ()))
        if not isinstance(self.stop_token_ids, tuple):
            object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
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
        for name, low, high in (("max_tokens", 1, 2**31 - 1), ("seed", -(2**63), 2**64 - 1), ("logprobs", 0, 2**31 - 1)):
            if getattr(self, name) is not None:
                whole(name, low, high)
        if any(not isinstance(s, str) or s == "" for s in self.stop):
            raise UserError("stop holds an empty string, which would match at once", field="stop", value="", remedy="leave it out")
        for token, value in self.logit_bias:
            if isinstance(token, bool) or not isinstance(token, int) or token < 0 or not -100 <= value <= 100:
                text = f"logit_bias {token}: {value}, needs a token id and a value from -100 to 100"
                raise UserError(text, field="logit_bias", value=token)


@dataclass(slots=True)
class CompletionOutput:
    """One continuation of a prompt. `token_ids` are the generated ids, an ending EOS included."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, float]] | None = None


@dataclass(slots=True)
class RequestOutput:
    """What became of one prompt: its ids and `n` continuations."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
