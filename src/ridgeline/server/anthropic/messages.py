"""/v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ridgeline.errors import UserError
from ridgeline.server.anthropic.convert import talk_of
from ridgeline.server.anthropic.diagnosis import Diagnoses, Fingerprint, fingerprint
from ridgeline.server.body import parse, read, warning_header
from ridgeline.server.failure import anthropic_error, stream_fault
from ridgeline.server.generation import Generation, collect
from ridgeline.server.openai.common import WholeReply, json_response, state_of
from ridgeline.server.reply import Piece, Reading, ReplyReader, Thinking, read_whole
from ridgeline.server.retention import of_messages
from ridgeline.server.schemas.messages import CountBody, MessagesBody
from ridgeline.server.schemas.sampling import check_answer
from ridgeline.server.sse import EventStream, named_event
from ridgeline.server.state import State
from ridgeline.server.talk import Conversation, Ticket, converse, count
from ridgeline.text.tools.base import TextDelta
from ridgeline.types import CacheReport, CompletionOutput, SamplingParams


@dataclass(frozen=True, eq=False)
class MessagesJob:
    """A prepared request. mark: the body's fingerprint where diagnostics were asked for."""

    id: str
    model: str
    body: MessagesBody
    talk: Conversation
    mark: Fingerprint | None


async def messages(request: Request) -> Response:
    """Answers a conversation."""
    state = state_of(request)
    raw = await read(request.receive, request.headers, state.bounds.body)
    job, warnings = await state.think(prepare, state, raw)
    generation = Generation(state, [job.talk.request], request.scope)
    generation.start()
    headers = {**warning_header(warnings), "request-id": str(request.scope.get("request_id", ""))}
    if job.body.stream:
        return EventStream(stream(job, generation, state.diagnoses), generation, headers)
    return WholeReply(generation, lambda: whole(job, generation, state.diagnoses), headers)


async def count_tokens(request: Request) -> Response:
    """Tokens of a prompt, without running it."""
    state = state_of(request)
    raw = await read(request.receive, request.headers, state.bounds.body)

    def counted() -> tuple[int, list[str]]:
        body, warnings = parse(raw, CountBody)
        state.served.require(body.model)
        return count(state, talk_of(body)), warnings

    tokens, warnings = await state.think(counted)
    return json_response({"input_tokens": tokens}, warning_header(warnings))


def prepare(state: State, raw: bytes) -> tuple[MessagesJob, list[str]]:
    """Everything that can be known to be wrong raises here. Runs beside the event loop."""
    body, warnings = parse(raw, MessagesBody)
    served = state.served
    model = served.require(body.model)
    for name in ("container", "mcp_servers", "context_management"):
        if getattr(body, name):
            raise UserError(f"{name} is not supported", field=name)
    id = "msg_" + secrets.token_hex(12)
    ticket = Ticket(id, body.priority or 0, body.cache_salt or "", of_messages(body))
    talk = converse(state, talk_of(body), _params(state, body), ticket)
    asked = "diagnostics" in body.model_fields_set and body.diagnostics is not None
    mark = fingerprint(body, model, len(talk.request.prompt_ids)) if asked else None
    return MessagesJob(id, model, body, talk, mark), [*warnings, *talk.remarks]


def _params(state: State, body: MessagesBody) -> SamplingParams:
    check_answer("max_tokens", body.max_tokens, state.served.limits.max_model_len)
    names = ("temperature", "top_p", "top_k", "min_p", "seed")
    given = {n: getattr(body, n) for n in names if getattr(body, n) is not None}
    return SamplingParams(**{**state.served.defaults, **given}, max_tokens=body.max_tokens, stop=tuple(body.stop_sequences or ()))


def _stop_reason(job: MessagesJob, generation: Generation, part: CompletionOutput, called: bool) -> tuple[str, str | None]:
    """(stop_reason, stop_sequence)."""
    if part.finish_reason == "length":
        full = generation.completion_tokens < job.body.max_tokens
        return ("model_context_window_exceeded" if full else "max_tokens"), None
    if isinstance(part.stop_reason, str):
        return "stop_sequence", part.stop_reason
    return ("tool_use" if called else "end_turn"), None


def _usage(generation: Generation) -> dict[str, Any]:
    """What was read from the cache is not counted among input_tokens, as Anthropic has it."""
    cached = generation.cached_tokens
    return {
        "input_tokens": generation.prompt_tokens - cached, "cache_read_input_tokens": cached, "cache_creation_input_tokens": 0,
        "output_tokens": generation.completion_tokens,
    }  # fmt: skip


def _message(job: MessagesJob, content: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": job.id, "type": "message", "role": "assistant", "model": job.model, "content": content, "stop_reason": None,
        "stop_sequence": None, "usage": usage,
    }  # fmt: skip


def _diagnose(job: MessagesJob, diagnoses: Diagnoses, report: CacheReport | None) -> dict[str, Any] | None:
    if job.mark is None:
        return None
    previous = (job.body.diagnostics or {}).get("previous_message_id")
    found = diagnoses.explain(job.mark, previous if isinstance(previous, str) else None, report)
    diagnoses.remember(job.id, job.mark)
    return found


async def whole(job: MessagesJob, generation: Generation, diagnoses: Diagnoses) -> dict[str, Any]:
    """The one document of a request without stream."""
    output = (await collect(generation))[0]
    choice = output.outputs[0]
    reading = Reading(text=choice.text) if job.talk.reader is None else read_whole(job.talk.reader(), choice)
    content: list[dict[str, Any]] = []
    if reading.thoughts:
        content.append({"type": "thinking", "thinking": reading.thoughts, "signature": ""})
    if reading.text:
        content.append({"type": "text", "text": reading.text})
    content += [{"type": "tool_use", "id": c.id, "name": c.name, "input": _input(c.arguments)} for c in reading.calls]
    document = _message(job, content, _usage(generation))
    document["stop_reason"], document["stop_sequence"] = _stop_reason(job, generation, choice, bool(reading.calls))
    if job.mark is not None:
        document["diagnostics"] = _diagnose(job, diagnoses, output.cache)
    return document


def _input(arguments: str) -> Any:
    """A call's arguments as an object; text that is none (it was cut short) is kept as text."""
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return {"_unfinished": arguments}


async def stream(job: MessagesJob, generation: Generation, diagnoses: Diagnoses) -> AsyncGenerator[bytes]:
    """The events of a request with stream. message_start waits for the first token: only then is the cache's part known."""
    writer = BlockWriter(job.talk.reader() if job.talk.reader is not None else ReplyReader())
    started = False
    try:
        async with aclosing(generation.news()) as found:
            async for news in found:
                for part in news.output.outputs:
                    if not started:
                        started = True
                        message = _message(job, [], {**_usage(generation), "output_tokens": 1})
                        if job.mark is not None:
                            message["diagnostics"] = _diagnose(job, diagnoses, news.output.cache)
                        yield named_event("message_start", {"type": "message_start", "message": message})
                    for document in writer.events(part):
                        yield named_event(document["type"], document)
                    if part.finish_reason is not None and not generation.aborted:
                        reason, sequence = _stop_reason(job, generation, part, writer.called)
                        delta = {"stop_reason": reason, "stop_sequence": sequence}
                        yield named_event("message_delta", {"type": "message_delta", "delta": delta, "usage": _usage(generation)})
                        yield named_event("message_stop", {"type": "message_stop"})
    except Exception as error:
        yield named_event("error", anthropic_error(stream_fault(error)))


class BlockWriter:
    """Pieces to content blocks: one block per run of text, of thoughts, and per call; each is started, filled and stopped."""

    def __init__(self, reader: ReplyReader) -> None:
        self._reader = reader
        self._index = -1
        self._open: str | None = None

    @property
    def called(self) -> bool:
        return self._reader.calls > 0

    def events(self, part: CompletionOutput) -> Iterator[dict[str, Any]]:
        for piece in self._reader.read(part):
            yield from self._piece(piece)
        if part.finish_reason is not None:
            yield from self._close()

    def _piece(self, piece: Piece) -> Iterator[dict[str, Any]]:
        if isinstance(piece, Thinking):
            yield from self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            yield self._delta({"type": "thinking_delta", "thinking": piece.text})
        elif isinstance(piece, TextDelta):
            yield from self._begin("text", {"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": piece.text})
        else:
            if piece.id is not None:
                yield from self._close()
                yield from self._begin("tool_use", {"type": "tool_use", "id": piece.id, "name": piece.name, "input": {}})
            if piece.arguments:
                yield self._delta({"type": "input_json_delta", "partial_json": piece.arguments})

    def _begin(self, kind: str, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if self._open == kind and kind != "tool_use":
            return
        yield from self._close()
        self._open = kind
        self._index += 1
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _close(self) -> Iterator[dict[str, Any]]:
        if self._open == "thinking":
            yield self._delta({"type": "signature_delta", "signature": ""})
        if self._open is not None:
            self._open = None
            yield {"type": "content_block_stop", "index": self._index}
