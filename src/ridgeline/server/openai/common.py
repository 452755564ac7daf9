"""What the OpenAI endpoints share: ids, usage, options of streams, the frame around one request."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import PydanticSerializationError, to_json
from starlette.requests import Request
from starlette.responses import Response

from ridgeline.errors import UserError
from ridgeline.server.failure import openai_error, stream_fault
from ridgeline.server.generation import Generation
from ridgeline.server.schemas.sampling import SamplingFields
from ridgeline.server.sse import dumps, event, watching
from ridgeline.server.state import State


def state_of(request: Request) -> State:
    state: State = request.app.state.server
    return state


def new_id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex


def now() -> int:
    return int(time.time())


@dataclass(frozen=True, slots=True)
class Head:
    """The fields that every document of one reply begins with."""

    id: str
    object: str
    model: str
    created: int = field(default_factory=now)

    def document(self, **rest: Any) -> dict[str, Any]:
        return {"id": self.id, "object": self.object, "created": self.created, "model": self.model, **rest}


@dataclass(frozen=True, slots=True)
class UsageWish:
    """What stream_options asked: a last chunk with the totals, and (vLLM) running totals on each chunk."""

    last: bool = False
    each: bool = False


def usage_wish(body: SamplingFields) -> UsageWish:
    """Raises `UserError` for stream_options without stream."""
    options = body.stream_options
    if options is None:
        return UsageWish()
    if not body.stream:
        raise UserError("stream_options is allowed only with stream: true", field="stream_options")
    return UsageWish(bool(options.include_usage), bool(options.include_usage and options.continuous_usage_stats))


def usage(generation: Generation, reasoning_tokens: int | None = None) -> dict[str, Any]:
    """OpenAI's counts; once all is said also the seconds, under Groq's names: queue_time, prompt_time, completion_time, total_time."""
    prompt, made = generation.prompt_tokens, generation.completion_tokens
    document: dict[str, Any] = {
        "prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": generation.cached_tokens},
    }  # fmt: skip
    details: dict[str, int] = {} if reasoning_tokens is None else {"reasoning_tokens": reasoning_tokens}
    guesses = generation.guesses()
    if guesses is not None:  # not among completion_tokens: a rejected guess is nobody's token
        details |= {"accepted_prediction_tokens": guesses[0], "rejected_prediction_tokens": guesses[1]}
    if details:
        document["completion_tokens_details"] = details
    times = generation.times()
    if times is not None:
        names = ("queue_time", "prompt_time", "completion_time", "total_time")
        document |= {name: round(seconds, 6) for name, seconds in zip(names, (*times, sum(times)), strict=True)}
    return document


def json_response(document: Any, headers: Mapping[str, str] | None = None, status: int = 200) -> Response:
    """A document with thousands of log-probabilities is written ten times faster than the standard library does, which blocks all else."""
    try:
        raw = to_json(document, inf_nan_mode="null")
    except PydanticSerializationError:  # a lone surrogate
        raw = dumps(document).encode("utf-8", "replace")
    return Response(raw, status, dict(headers or {}), "application/json")


def fault_event(error: BaseException) -> bytes:
    """The one event that tells of a fault after the stream began; the connection is then closed without [DONE]."""
    return event(openai_error(stream_fault(error)))


class WholeReply(Response):
    """Generates while watching the client, then replies with one document."""

    def __init__(self, generation: Generation, make: Any, headers: Mapping[str, str]) -> None:
        self.generation, self.make, self.extra = generation, make, headers
        self.status_code, self.background, self.body = 200, None, b""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with watching(receive, self.generation):
            document = await self.make()
            left = self.generation.aborted
        if not left:  # a reply that nobody reads was none: the gate counts it as 499
            await json_response(document, self.extra)(scope, receive, send)
