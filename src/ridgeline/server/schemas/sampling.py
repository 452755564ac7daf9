"""The sampling fields that all OpenAI-style endpoints share, vLLM's extra ones included, and their translation to `SamplingParams`."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Annotated, Any

from pydantic import Field

from ridgeline.errors import UserError
from ridgeline.server.body import Body, Items, shown
from ridgeline.server.bounds import Bounds
from ridgeline.types import SamplingParams

# Fields that mean the same in the body and in SamplingParams.
_SAME = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "ignore_eos",
    "min_tokens", "skip_special_tokens", "include_stop_str_in_output",
)  # fmt: skip


# Numbers by id; what they are is checked once it is known that they are not too many.
LogitBias = Annotated[dict[str, Any], Field(json_schema_extra={"additionalProperties": {"type": "number"}})]


class SamplingFields(Body):
    """What is absent or null takes the model's generation config, then OpenAI's default."""

    model: str | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | Items[str] | None = None
    stop_token_ids: Items[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    logit_bias: LogitBias | None = None
    bad_words: Items[str] | None = None
    allowed_token_ids: Items[int] | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    cache_salt: str | None = None
    priority: int | None = None
    # Ours and OpenAI's: how long the prefix stays cached.
    cache_ttl_s: float | None = None
    cache_rank: int | None = None
    prompt_cache_retention: str | None = None
    user: str | None = None
    # Structured output, as OpenAI and vLLM spell it.
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Items[str] | None = None
    guided_grammar: str | None = None

    @property
    def guided(self) -> dict[str, Any]:
        return {"json": self.guided_json, "regex": self.guided_regex, "choice": self.guided_choice, "grammar": self.guided_grammar}


class StreamOptions(Body):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


SamplingFields.model_rebuild()


def sampling_params(
    body: SamplingFields, defaults: Mapping[str, Any], bounds: Bounds, *, max_tokens: int | None, logprobs: int | None, max_model_len: int
) -> SamplingParams:
    """Raises `UserError` naming the field. `max_tokens` and `logprobs` are what the endpoint made of its own fields."""
    n = 1 if body.n is None else body.n
    if not 1 <= n <= bounds.n:
        raise UserError(f"n is {n}, must be from 1 to {bounds.n}", field="n", value=n, limit=bounds.n)
    check_answer("max_tokens", max_tokens, max_model_len)
    check_top("prompt_logprobs", body.prompt_logprobs, bounds)
    check_count("stop_token_ids", body.stop_token_ids, bounds.stop_ids)
    check_count("allowed_token_ids", body.allowed_token_ids, bounds.allowed_ids)
    given = {name: getattr(body, name) for name in _SAME if getattr(body, name) is not None}
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return SamplingParams(
        **{**defaults, **given}, n=n, max_tokens=max_tokens, stop=stop, stop_token_ids=tuple(body.stop_token_ids or ()),
        logit_bias=_bias(body.logit_bias, bounds), bad_words=tuple(body.bad_words or ()),
        allowed_token_ids=None if body.allowed_token_ids is None else tuple(body.allowed_token_ids),
        logprobs=logprobs, prompt_logprobs=body.prompt_logprobs,
    )  # fmt: skip


def check_answer(name: str, tokens: int | None, max_model_len: int) -> None:
    """An answer is no longer than the model; one that does not fit behind its prompt is cut later."""
    if tokens is not None and tokens > max_model_len:
        text = f"{name} is {tokens}, the model length is {max_model_len} (prompt and answer together)"
        raise UserError(text, field=name, value=tokens, limit=max_model_len)


def check_top(name: str, value: int | None, bounds: Bounds) -> None:
    """Alternatives per token: from 0 to the bound."""
    if value is not None and not 0 <= value <= bounds.top_logprobs:
        text = f"{name} is {value}, must be from 0 to {bounds.top_logprobs}"
        raise UserError(text, field=name, value=value, limit=bounds.top_logprobs)


def check_count(name: str, given: Sized | None, limit: int) -> None:
    """No list is longer than its bound."""
    if given is not None and len(given) > limit:
        raise UserError(f"{name} has {len(given)} entries, at most {limit}", field=name, value=len(given), limit=limit)


def _bias(given: Mapping[str, Any] | None, bounds: Bounds) -> tuple[tuple[int, float], ...]:
    if not given:
        return ()
    check_count("logit_bias", given, bounds.bias)
    pairs = []
    for key, value in given.items():
        number = isinstance(value, int | float) and not isinstance(value, bool) and -100 <= value <= 100
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and number):
            name, text = (shown(part, 40) for part in (key, value))
            raise UserError(f"logit_bias has {name}: {text}, keys are token ids, values from -100 to 100", field="logit_bias", value=name)
        pairs.append((int(key), float(value)))
    return tuple(pairs)
