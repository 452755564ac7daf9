"""/v1/chat/completions: a conversation in, n answers out, whole or as events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

import ridgeline.server.retention as retention
from ridgeline.errors import UserError
from ridgeline.server.body import parse, read, warning_header
from ridgeline.server.formats import answer_format
from ridgeline.server.generation import Generation, collect
from ridgeline.server.openai.common import Head, UsageWish, WholeReply, fault_event, new_id, state_of, usage, usage_wish
from ridgeline.server.openai.logprobs import Spelling, chat_logprobs, prompt_logprobs
from ridgeline.server.reply import Piece, Reading, ReplyReader, Thinking, read_whole
from ridgeline.server.schemas.chat import ChatBody
from ridgeline.server.schemas.sampling import check_top, sampling_params
from ridgeline.server.sse import DONE, EventStream, dumps, event
from ridgeline.server.state import State
from ridgeline.server.talk import Conversation, Talk, Ticket, converse
from ridgeline.text.tools.base import TextDelta
from ridgeline.text.tools.request import finish_reason
from ridgeline.types import CompletionOutput, RequestOutput


@dataclass(frozen=True, eq=False)
class ChatJob:
    """A prepared chat request. top: alternatives per token, None for no logprobs."""

    head: Head
    body: ChatBody
    talk: Conversation
    wish: UsageWish
    spell: Spelling
    top: int | None


async def chat_completions(request: Request) -> Response:
    """Answers a conversation."""
    state = state_of(request)
    raw = await read(request.receive, request.headers, state.bounds.body)
    job, warnings = await state.think(prepare, state, raw)
    generation = Generation(state, [job.talk.request], request.scope)
    generation.start()
    headers = warning_header(warnings)
    if job.body.stream:
        return EventStream(stream(job, generation), generation, headers)
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
    maximum = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    params = sampling_params(body, served.defaults, bounds, max_tokens=maximum, logprobs=top, max_model_len=served.limits.max_model_len)
    keep = retention.asked(body.cache_ttl_s, body.cache_rank, body.prompt_cache_retention)
    ticket = Ticket(new_id("chatcmpl-"), body.priority or 0, body.cache_salt or "", keep)
    talk = converse(state, talk_of(body), params, ticket)
    kind = "chat.completion.chunk" if body.stream else "chat.completion"
    spell = Spelling(served.words.tokenizer, bool(body.return_tokens_as_token_ids))
    return ChatJob(Head(ticket.id, kind, model), body, talk, wish, spell, top), [*warnings, *talk.remarks]


def talk_of(body: ChatBody) -> Talk:
    """The body's conversation in no protocol's words."""
    if body.continue_final_message and body.add_generation_prompt:
        raise UserError("continue_final_message and add_generation_prompt exclude each other", field="continue_final_message")
    variables = dict(body.chat_template_kwargs or {})
    for name in ("reasoning_effort", "documents"):
        if getattr(body, name) is not None:
            variables.setdefault(name, getattr(body, name))
    return Talk(
        body.messages, body.tools or (), body.tool_choice, body.parallel_tool_calls is not False, body.chat_template,
        add_generation_prompt=not body.continue_final_message if body.add_generation_prompt is None else body.add_generation_prompt,
        continues=bool(body.continue_final_message), variables=variables,
        format=answer_format(body.response_format, body.structured_outputs, body.guided), budget=body.thinking_token_budget,
    )  # fmt: skip


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
    if output.prompt_logprobs:  # they take long to spell
        return await generation.beside(_document, job, generation, output)
    return _document(job, generation, output)


def _document(job: ChatJob, generation: Generation, output: RequestOutput) -> dict[str, Any]:
    choices = [_choice(job, choice) for choice in output.outputs]
    document = job.head.document(choices=choices, usage=usage(generation))
    if job.body.prompt_logprobs is not None:
        document["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs, job.spell)
    if job.body.return_token_ids:
        document["prompt_token_ids"] = output.prompt_token_ids
    return document


def _choice(job: ChatJob, choice: CompletionOutput) -> dict[str, Any]:
    reading = Reading(text=choice.text) if job.talk.reader is None else read_whole(job.talk.reader(), choice)
    content = reading.text if reading.text or not (reading.calls or reading.thoughts) else None
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if reading.thoughts and job.body.include_reasoning is not False:
        message["reasoning_content"] = message["reasoning"] = reading.thoughts
    if reading.calls:
        message["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in reading.calls
        ]
    finish = finish_reason(job.talk.choice, choice.finish_reason, len(reading.calls))
    return {
        "index": choice.index, "message": message, "logprobs": _logprobs(job, choice), "finish_reason": finish,
        "stop_reason": choice.stop_reason, **({"token_ids": choice.token_ids} if job.body.return_token_ids else {}),
    }  # fmt: skip


def _logprobs(job: ChatJob, part: CompletionOutput) -> dict[str, Any] | None:
    if job.top is None:
        return None
    return chat_logprobs(part.token_ids, part.logprobs or [], job.top, job.spell)


async def stream(job: ChatJob, generation: Generation) -> AsyncGenerator[bytes]:
    """The events of a request with stream. The role comes first and at once, so that headers do not wait for the prompt."""
    # The usual chunk is put together from strings: its JSON is built some hundred times per second.
    opening = "data: " + dumps(job.head.document())[:-1] + ',"choices":[{"index":'
    closing = ',"logprobs":null,"finish_reason":null}]' + (',"usage":null}\n\n' if job.wish.last else "}\n\n")
    plain = job.talk.reader is None and job.top is None and not job.body.return_token_ids and not job.wish.each
    writer = ChunkWriter(job, generation)
    try:
        for index in range(job.talk.request.params.n):
            yield f'{opening}{index},"delta":{{"role":"assistant","content":""}}{closing}'.encode()
        async with aclosing(generation.news()) as found:
            async for news in found:
                for part in news.output.outputs:
                    if plain and part.finish_reason is None:
                        if part.text:
                            yield f'{opening}{part.index},"delta":{{"content":{dumps(part.text)}}}{closing}'.encode()
                    else:
                        for chunk in writer.chunks(part):
                            yield event(chunk)
        if generation.aborted:
            return
        if job.wish.last:
            yield event(job.head.document(choices=[], usage=usage(generation)))
        yield DONE
    except Exception as error:
        yield fault_event(error)


class ChunkWriter:
    """The chunks of all choices: text, thoughts and tool calls, each choice with a reader of its own."""

    def __init__(self, job: ChatJob, generation: Generation) -> None:
        self._job, self._generation = job, generation
        make = job.talk.reader or ReplyReader
        self._readers = [make() for _ in range(job.talk.request.params.n)]

    def chunks(self, part: CompletionOutput) -> Iterator[dict[str, Any]]:
        """One chunk per piece; log-probabilities and ids of the step go with its last one."""
        reader, job = self._readers[part.index], self._job
        pieces = reader.read(part)
        deltas = [d for d in (self._delta(piece) for piece in pieces) if d is not None]
        wanted = job.top is not None or bool(job.body.return_token_ids)
        if part.finish_reason is not None or (not deltas and wanted and part.token_ids):
            deltas.append({})
        for number, delta in enumerate(deltas, 1):
            last = number == len(deltas)
            choice: dict[str, Any] = {
                "index": part.index, "delta": delta, "logprobs": _logprobs(job, part) if last else None, "finish_reason": None
            }  # fmt: skip
            if last and part.finish_reason is not None:
                choice["finish_reason"] = finish_reason(job.talk.choice, part.finish_reason, reader.calls)
                choice["stop_reason"] = part.stop_reason
            if last and job.body.return_token_ids:
                choice["token_ids"] = part.token_ids
            yield self._document(choice)

    def _delta(self, piece: Piece) -> dict[str, Any] | None:
        if isinstance(piece, TextDelta):
            return {"content": piece.text}
        if isinstance(piece, Thinking):
            if self._job.body.include_reasoning is False:
                return None
            return {"reasoning_content": piece.text, "reasoning": piece.text}
        call: dict[str, Any] = {"index": piece.index, "function": {"arguments": piece.arguments}}
        if piece.id is not None:
            call = {"index": piece.index, "id": piece.id, "type": "function"}
            call["function"] = {"name": piece.name, "arguments": piece.arguments}
        return {"tool_calls": [call]}

    def _document(self, choice: dict[str, Any]) -> dict[str, Any]:
        rest: dict[str, Any] = {"choices": [choice]}
        if self._job.wish.last:
            rest["usage"] = usage(self._generation) if self._job.wish.each else None
        return self._job.head.document(**rest)
