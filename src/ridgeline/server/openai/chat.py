"""/v1/chat/completions: a conversation in, n answers out, whole or as events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ridgeline.engine.request import EngineRequest
from ridgeline.errors import UserError
from ridgeline.server.body import parse, read, warning_header
from ridgeline.server.generation import Generation, check_ended, collect
from ridgeline.server.openai.common import Head, UsageWish, WholeReply, fault_event, new_id, state_of, usage, usage_wish
from ridgeline.server.openai.logprobs import Spelling, chat_logprobs, prompt_logprobs
from ridgeline.server.prompts import chat_ids
from ridgeline.server.schemas.chat import ChatBody
from ridgeline.server.schemas.sampling import check_top, sampling_params
from ridgeline.server.sse import DONE, EventStream, dumps, event
from ridgeline.server.state import State
from ridgeline.types import CompletionOutput


@dataclass(frozen=True, eq=False)
class ChatJob:
    """A prepared chat request. top: alternatives per token, None for no logprobs."""

    head: Head
    body: ChatBody
    request: EngineRequest
    wish: UsageWish
    spell: Spelling
    top: int | None


async def chat_completions(request: Request) -> Response:
    """Answers a conversation."""
    state = state_of(request)
    raw = await read(request.receive, request.headers, state.bounds.body)
    job, warnings = await state.think(prepare, state, raw)
    generation = Generation(state, [job.request])
    generation.start()
    headers = warning_header(warnings)
    if job.body.stream:
        return EventStream(stream(job, generation), generation.abort, headers)
    return WholeReply(generation, lambda: whole(job, generation), headers)


def prepare(state: State, raw: bytes) -> tuple[ChatJob, list[str]]:
    """Everything that can be known to be wrong raises here. Runs beside the event loop."""
    body, warnings = parse(raw, ChatBody)
    served, bounds = state.served, state.bounds
    model = served.require(body.model)
    refuse_unserved(body)
    wish = usage_wish(body)
    top = _top_logprobs(body)
    check_top("top_logprobs", top, bounds)
    if body.chat_template is not None and not state.features.allow_template:
        text = "chat_template in a request is not allowed on this server"
        raise UserError(text, field="chat_template", remedy="start it with --trust-request-chat-template")
    if body.continue_final_message and body.add_generation_prompt:
        raise UserError("continue_final_message and add_generation_prompt exclude each other", field="continue_final_message")
    maximum = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    params = sampling_params(body, served.defaults, bounds, max_tokens=maximum, logprobs=top, max_model_len=served.limits.max_model_len)
    variables = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
    if body.documents is not None:
        variables.setdefault("documents", body.documents)
    text, ids = chat_ids(
        served, bounds, body.messages, template=body.chat_template, variables=variables,
        add_generation_prompt=not body.continue_final_message if body.add_generation_prompt is None else body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
    )  # fmt: skip
    id = new_id("chatcmpl-")
    request = EngineRequest(id, ids, params, text, priority=body.priority or 0, cache_salt=body.cache_salt or "")
    kind = "chat.completion.chunk" if body.stream else "chat.completion"
    spell = Spelling(served.words.tokenizer, bool(body.return_tokens_as_token_ids))
    return ChatJob(Head(id, kind, model), body, request, wish, spell, top), warnings


def _top_logprobs(body: ChatBody) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise UserError("top_logprobs needs logprobs: true", field="top_logprobs", value=body.top_logprobs)
    return (body.top_logprobs or 0) if body.logprobs else None


def refuse_unserved(body: ChatBody) -> None:
    """What would change the answer and is not served is refused by name."""
    if (body.modalities and body.modalities != ["text"]) or body.audio is not None:
        raise UserError("this model answers in text only", field="modalities" if body.modalities else "audio", value=body.modalities)
    for name in ("functions", "function_call", "web_search_options"):
        if getattr(body, name) is not None:
            remedy = None if name == "web_search_options" else "use tools and tool_choice"
            raise UserError(f"{name} is not supported", field=name, remedy=remedy)


async def whole(job: ChatJob, generation: Generation) -> dict[str, Any]:
    """The one document of a request without stream."""
    output = (await collect(generation))[0]
    choices = [_choice(job, choice) for choice in output.outputs]
    document = job.head.document(choices=choices, usage=usage(generation))
    if job.body.prompt_logprobs is not None:
        document["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs, job.spell)
    if job.body.return_token_ids:
        document["prompt_token_ids"] = output.prompt_token_ids
    return document


def _choice(job: ChatJob, choice: CompletionOutput) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    return {
        "index": choice.index, "message": message, "logprobs": _logprobs(job, choice),
        "finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason,
        **({"token_ids": choice.token_ids} if job.body.return_token_ids else {}),
    }  # fmt: skip


def _logprobs(job: ChatJob, part: CompletionOutput) -> dict[str, Any] | None:
    if job.top is None:
        return None
    return chat_logprobs(part.token_ids, part.logprobs or [], job.top, job.spell)


async def stream(job: ChatJob, generation: Generation) -> AsyncIterator[bytes]:
    """The events of a request with stream. The role comes first and at once, so that headers do not wait for the prompt."""
    # The usual chunk is put together from strings: its JSON is built some hundred times per second.
    opening = "data: " + dumps(job.head.document())[:-1] + ',"choices":[{"index":'
    closing = ',"logprobs":null,"finish_reason":null}]' + (',"usage":null}\n\n' if job.wish.last else "}\n\n")
    plain = job.top is None and not job.body.return_token_ids and not job.wish.each
    try:
        for index in range(job.request.params.n):
            yield f'{opening}{index},"delta":{{"role":"assistant","content":""}}{closing}'.encode()
        async for news in generation:
            for part in news.output.outputs:
                check_ended(part)
                if plain and part.finish_reason is None:
                    if part.text:
                        yield f'{opening}{part.index},"delta":{{"content":{dumps(part.text)}}}{closing}'.encode()
                elif part.text or part.token_ids or part.finish_reason is not None:
                    yield event(_chunk(job, generation, part))
        if generation.aborted:
            return
        if job.wish.last:
            yield event(job.head.document(choices=[], usage=usage(generation)))
        yield DONE
    except Exception as error:
        yield fault_event(error)


def _chunk(job: ChatJob, generation: Generation, part: CompletionOutput) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": part.index, "delta": {"content": part.text} if part.text else {}, "logprobs": _logprobs(job, part),
        "finish_reason": part.finish_reason,
    }  # fmt: skip
    if part.finish_reason is not None:
        choice["stop_reason"] = part.stop_reason
    if job.body.return_token_ids:
        choice["token_ids"] = part.token_ids
    rest: dict[str, Any] = {"choices": [choice]}
    if job.wish.last:
        rest["usage"] = usage(generation) if job.wish.each else None
    return job.head.document(**rest)
