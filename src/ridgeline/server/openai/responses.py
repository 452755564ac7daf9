"""/v1/responses, stateless: nothing is stored, and what needs a store is refused by name."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

import ridgeline.server.retention as retention
from ridgeline.errors import UserError
from ridgeline.server.body import parse, read, warning_header
from ridgeline.server.generation import Generation, collect
from ridgeline.server.openai.common import WholeReply, new_id, now, state_of
from ridgeline.server.openai.items import talk_of
from ridgeline.server.openai.logprobs import Spelling, chat_logprobs
from ridgeline.server.openai.response_events import ResponseWriter, failed, item_events
from ridgeline.server.reply import Reading, ReplyReader, read_whole
from ridgeline.server.schemas.responses import ResponsesBody
from ridgeline.server.schemas.sampling import check_answer, check_top
from ridgeline.server.sse import EventStream
from ridgeline.server.state import State
from ridgeline.server.talk import Conversation, Ticket, converse
from ridgeline.types import CompletionOutput, SamplingParams

_SAME = (
    "temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty", "presence_penalty", "frequency_penalty", "ignore_eos",
    "min_tokens",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class ResponsesJob:
    """A prepared request. top: alternatives per token, None for no logprobs."""

    id: str
    model: str
    created: int
    body: ResponsesBody
    talk: Conversation
    spell: Spelling
    top: int | None


async def responses(request: Request) -> Response:
    """Answers a list of items."""
    state = state_of(request)
    raw = await read(request.receive, request.headers, state.bounds.body)
    job, warnings = await state.think(prepare, state, raw)
    generation = Generation(state, [job.talk.request], request.scope)
    generation.start()
    headers = warning_header(warnings)
    if job.body.stream:
        return EventStream(stream(job, generation), generation, headers)
    return WholeReply(generation, lambda: whole(job, generation), headers)


def prepare(state: State, raw: bytes) -> tuple[ResponsesJob, list[str]]:
    """Everything that can be known to be wrong raises here. Runs beside the event loop."""
    body, warnings = parse(raw, ResponsesBody)
    served = state.served
    model = served.require(body.model)
    _refuse_stateful(body)
    check_answer("max_output_tokens", body.max_output_tokens, served.limits.max_model_len)
    wanted = "message.output_text.logprobs" in (body.include or ())
    top = (body.top_logprobs or 0) if wanted or body.top_logprobs else None
    check_top("top_logprobs", body.top_logprobs, state.bounds)
    given = {n: getattr(body, n) for n in _SAME if getattr(body, n) is not None}
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    params = SamplingParams(**{**served.defaults, **given}, max_tokens=body.max_output_tokens, stop=stop, logprobs=top)
    id = new_id("resp_")
    keep = retention.asked(body.cache_ttl_s, body.cache_rank, body.prompt_cache_retention)
    talk = converse(state, talk_of(body), params, Ticket(id, body.priority or 0, body.cache_salt or "", keep))
    return ResponsesJob(id, model, now(), body, talk, Spelling(served.words.tokenizer), top), [*warnings, *talk.remarks]


def _refuse_stateful(body: ResponsesBody) -> None:
    for name in ("store", "previous_response_id", "conversation", "background", "prompt"):
        if getattr(body, name):
            remedy = "send the whole conversation as input" if name != "store" else "leave it out or send false"
            raise UserError(f"{name} is not supported: this server keeps nothing between requests", field=name, remedy=remedy)
    if body.truncation not in (None, "disabled"):
        raise UserError("truncation is not supported: nothing is ever cut silently", field="truncation", value=body.truncation)


def document(job: ResponsesJob, status: str, output: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
    """The response object. `status`: in_progress, completed, incomplete or failed."""
    body, params = job.body, job.talk.request.params
    return {
        "id": job.id, "object": "response", "created_at": job.created, "status": status, "background": False, "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None, "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens, "max_tool_calls": body.max_tool_calls, "model": job.model, "output": output,
        "parallel_tool_calls": body.parallel_tool_calls is not False, "previous_response_id": None,
        "reasoning": body.reasoning or {"effort": None, "summary": None}, "store": False, "temperature": params.temperature,
        "text": body.text or {"format": {"type": "text"}}, "tool_choice": body.tool_choice or "auto", "tools": body.tools or [],
        "top_logprobs": body.top_logprobs or 0, "top_p": params.top_p, "truncation": "disabled", "usage": usage, "user": body.user,
        "metadata": body.metadata or {}, "service_tier": "default",
    }  # fmt: skip


def usage(generation: Generation, thoughts: int) -> dict[str, Any]:
    return {
        "input_tokens": generation.prompt_tokens,
        "input_tokens_details": {"cached_tokens": generation.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": generation.completion_tokens, "output_tokens_details": {"reasoning_tokens": thoughts},
        "total_tokens": generation.prompt_tokens + generation.completion_tokens,
    }  # fmt: skip


def _logprobs(job: ResponsesJob, part: CompletionOutput) -> list[Any]:
    if job.top is None:
        return []
    found: list[Any] = chat_logprobs(part.token_ids, part.logprobs or [], job.top, job.spell)["content"]
    return found


async def whole(job: ResponsesJob, generation: Generation) -> dict[str, Any]:
    """The one document of a request without stream."""
    choice = (await collect(generation))[0].outputs[0]
    reading = Reading(text=choice.text) if job.talk.reader is None else read_whole(job.talk.reader(), choice)
    status = "incomplete" if choice.finish_reason == "length" else "completed"
    output: list[dict[str, Any]] = []
    if reading.thoughts:
        output.append(
            {"type": "reasoning", "id": new_id("rs_"), "summary": [], "content": [{"type": "reasoning_text", "text": reading.thoughts}]}
        )
    if reading.text or (not output and not reading.calls):
        part = {"type": "output_text", "text": reading.text, "annotations": [], "logprobs": _logprobs(job, choice)}
        output.append({"type": "message", "id": new_id("msg_"), "status": status, "role": "assistant", "content": [part]})
    for call in reading.calls:
        output.append(
            {
                "type": "function_call", "id": new_id("fc_"), "call_id": call.id, "name": call.name, "arguments": call.arguments,
                "status": status,
            }
        )  # fmt: skip
    return document(job, status, output, usage(generation, reading.thinking_tokens))


async def stream(job: ResponsesJob, generation: Generation) -> AsyncGenerator[bytes]:
    """The events of a request with stream."""
    writer = ResponseWriter(job.talk.reader() if job.talk.reader is not None else ReplyReader())
    try:
        begun = document(job, "in_progress", [], None)
        yield writer.event("response.created", {"response": begun})
        yield writer.event("response.in_progress", {"response": begun})
        async with aclosing(generation.news()) as found:
            async for news in found:
                for part in news.output.outputs:
                    for chunk in item_events(writer, part, _logprobs(job, part)):
                        yield chunk
                    if part.finish_reason is not None and not generation.aborted:
                        status = "incomplete" if part.finish_reason == "length" else "completed"
                        ended = document(job, status, writer.items, usage(generation, writer.reader.thinking_tokens))
                        yield writer.event(f"response.{status}", {"response": ended})
    except Exception as error:
        ended = document(job, "failed", writer.items, None)
        yield failed(writer, ended, error)
