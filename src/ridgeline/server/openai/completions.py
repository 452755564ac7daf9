"""/v1/completions: texts or token ids in, continuations out, whole or as events; echo returns the prompt and its log-probabilities."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

import ridgeline.server.retention as retention
from ridgeline.engine.request import EngineRequest
from ridgeline.errors import UserError
from ridgeline.server.body import parse, read, warning_header
from ridgeline.server.formats import answer_format
from ridgeline.server.generation import Generation, collect
from ridgeline.server.openai.common import Head, UsageWish, WholeReply, fault_event, new_id, state_of, usage, usage_wish
from ridgeline.server.openai.logprobs import Position, Spelling, completion_logprobs, prompt_logprobs
from ridgeline.server.prompts import completion_ids
from ridgeline.server.schemas.completions import CompletionBody
from ridgeline.server.schemas.sampling import check_top, sampling_params
from ridgeline.server.sse import DONE, EventStream, event
from ridgeline.server.state import State
from ridgeline.types import CompletionOutput, RequestOutput

DEFAULT_MAX_TOKENS = 16


@dataclass(frozen=True, eq=False)
class CompletionJob:
    """A prepared completions request. scoring: max_tokens 0 with echo, the prompt's values only; wanted: choices returned per prompt."""

    head: Head
    body: CompletionBody
    requests: list[EngineRequest]
    wish: UsageWish
    spell: Spelling
    scoring: bool
    wanted: int


async def completions(request: Request) -> Response:
    """Continues texts."""
    state = state_of(request)
    raw = await read(request.receive, request.headers, state.bounds.body)
    job, warnings = await state.think(prepare, state, raw)
    generation = Generation(state, job.requests, request.scope)
    generation.start()
    headers = warning_header(warnings)
    if job.body.stream:
        return EventStream(stream(job, generation), generation, headers)
    return WholeReply(generation, lambda: whole(job, generation), headers)


def prepare(state: State, raw: bytes) -> tuple[CompletionJob, list[str]]:
    """Everything that can be known to be wrong raises here. Runs beside the event loop."""
    body, warnings = parse(raw, CompletionBody)
    served, bounds = state.served, state.bounds
    model = served.require(body.model)
    if body.suffix:
        raise UserError("suffix is not supported: the model continues texts, it does not fill gaps", field="suffix", remedy="leave it out")
    wish = usage_wish(body)
    check_top("logprobs", body.logprobs, bounds)
    scoring = bool(body.echo) and body.max_tokens == 0
    maximum = DEFAULT_MAX_TOKENS if body.max_tokens is None else 1 if scoring else body.max_tokens
    wanted, best_of = _best_of(body, bounds.n)
    top = 0 if best_of > wanted and body.logprobs is None else body.logprobs
    scored = body.prompt_logprobs if body.logprobs is None or not body.echo else max(body.logprobs, body.prompt_logprobs or 0)
    needed = body.model_copy(update={"n": best_of, "prompt_logprobs": scored})  # the body itself says what the reply shows
    params = sampling_params(
        needed, served.defaults, bounds, max_tokens=maximum, logprobs=top, max_model_len=served.limits.max_model_len
    )
    prompts = completion_ids(served, bounds, body.prompt, add_special_tokens=body.add_special_tokens is not False)
    if len(prompts) * params.n > bounds.samples:
        text = f"{len(prompts)} prompts with n {params.n} are {len(prompts) * params.n} answers, at most {bounds.samples}"
        raise UserError(text, field="n", value=params.n, limit=bounds.samples)
    id = new_id("cmpl-")
    form = answer_format(body.response_format, body.structured_outputs, body.guided)
    grammar = None if form is None else served.manner.grammars.compile(form)
    keep = retention.asked(body.cache_ttl_s, body.cache_rank, body.prompt_cache_retention)
    requests = [
        EngineRequest(
            f"{id}-{i}", ids, params if grammar is None else replace(params, stop=()), text, priority=body.priority or 0,
            cache_salt=body.cache_salt or "", cache_rank=keep.rank, cache_ttl_s=keep.ttl_s,
            grammar=None if grammar is None else grammar.start,
        )
        for i, (text, ids) in enumerate(prompts)
    ]  # fmt: skip
    spell = Spelling(served.words.tokenizer, bool(body.return_tokens_as_token_ids))
    return CompletionJob(Head(id, "text_completion", model), body, requests, wish, spell, scoring, wanted), [
        *warnings,
        *(grammar.remarks if grammar else ()),
    ]


def _best_of(body: CompletionBody, most: int) -> tuple[int, int]:
    """(choices wanted, choices made)."""
    wanted = 1 if body.n is None else body.n
    best_of = wanted if body.best_of is None else body.best_of
    if body.best_of is not None and not wanted <= best_of <= most:
        text = f"best_of is {best_of}, must be from n ({wanted}) to {most}"
        raise UserError(text, field="best_of", value=best_of, limit=(wanted, most))
    if best_of > wanted and body.stream:
        raise UserError("best_of above n cannot be streamed", field="best_of", value=best_of, remedy="leave stream out")
    return wanted, best_of


async def whole(job: CompletionJob, generation: Generation) -> dict[str, Any]:
    """The one document of a request without stream."""
    outputs = await collect(generation)
    if any(output.prompt_logprobs for output in outputs):  # they take long to spell
        return await generation.beside(_document, job, generation, outputs)
    return _document(job, generation, outputs)


def _document(job: CompletionJob, generation: Generation, outputs: list[RequestOutput]) -> dict[str, Any]:
    choices: list[dict[str, Any]] = []
    for number, output in enumerate(outputs):
        best = sorted(output.outputs, key=lambda c: -(c.cumulative_logprob or 0.0))[: job.wanted]
        if job.wanted == len(output.outputs):
            best = output.outputs
        for index, choice in enumerate(best):
            choices.append(_whole_choice(job, output, choice, number * job.wanted + index))
    if job.scoring:
        generation.completion_tokens = 0
    return job.head.document(choices=choices, usage=usage(generation))


def _whole_choice(job: CompletionJob, output: RequestOutput, choice: CompletionOutput, index: int) -> dict[str, Any]:
    if job.scoring:
        choice = CompletionOutput(choice.index, "", [], "length", None, None, [])
    first = Writer(job, output)
    text = (first.echo if job.body.echo else "") + choice.text
    shown: dict[str, Any] = {
        "index": index, "text": text, "logprobs": first.logprobs(choice, with_prompt=bool(job.body.echo)),
        "finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason,
    }  # fmt: skip
    if job.body.prompt_logprobs is not None:
        shown["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs, job.spell)
    if job.body.return_token_ids:
        shown |= {"prompt_token_ids": output.prompt_token_ids, "token_ids": choice.token_ids}
    return shown


@dataclass(eq=False)
class Writer:
    """One choice on its way out: what has been echoed, and the text offset of its next token."""

    job: CompletionJob
    output: RequestOutput
    offset: int = 0
    echo: str = field(init=False)

    def __post_init__(self) -> None:
        tokenizer = self.job.spell.tokenizer
        asked = bool(self.job.body.echo)
        self.echo = ""
        if asked:
            self.echo = tokenizer.decode(self.output.prompt_token_ids) if self.output.prompt is None else self.output.prompt

    def logprobs(self, part: CompletionOutput, *, with_prompt: bool) -> dict[str, Any] | None:
        if self.job.body.logprobs is None:
            return None
        ids, positions = list[int](), list[Position | None]()
        if with_prompt:
            ids += self.output.prompt_token_ids
            positions += self.output.prompt_logprobs or [None] * len(ids)
        ids += part.token_ids
        positions += part.logprobs or []
        shown, self.offset = completion_logprobs(ids, positions, self.job.body.logprobs, self.job.spell, self.offset)
        return shown


async def stream(job: CompletionJob, generation: Generation) -> AsyncGenerator[bytes]:
    """The events of a request with stream. With echo a choice's first event holds its prompt."""
    n = job.wanted
    writers: dict[int, Writer] = {}
    try:
        async with aclosing(generation.news()) as found:
            async for news in found:
                for part in news.output.outputs:
                    index = news.prompt * n + part.index
                    first = index not in writers
                    if first:
                        writers[index] = Writer(job, news.output)
                    if first and news.output.prompt_logprobs:
                        yield event(await generation.beside(_chunk, job, generation, writers[index], part, index, True))
                    elif first or part.text or part.token_ids or part.finish_reason is not None:
                        yield event(_chunk(job, generation, writers[index], part, index, first))
        if generation.aborted:
            return
        if job.scoring:
            generation.completion_tokens = 0
        if job.wish.last:
            yield event(job.head.document(choices=[], usage=usage(generation)))
        yield DONE
    except Exception as error:
        yield fault_event(error)


def _chunk(job: CompletionJob, generation: Generation, writer: Writer, part: CompletionOutput, index: int, first: bool) -> dict[str, Any]:
    if job.scoring:
        part = CompletionOutput(part.index, "", [], part.finish_reason and "length", None, None, [])
    echo = bool(job.body.echo) and first
    choice: dict[str, Any] = {
        "index": index, "text": (writer.echo if echo else "") + part.text, "logprobs": writer.logprobs(part, with_prompt=echo),
        "finish_reason": part.finish_reason,
    }  # fmt: skip
    if part.finish_reason is not None:
        choice["stop_reason"] = part.stop_reason
    if job.body.return_token_ids:
        choice["token_ids"] = part.token_ids
        if first:
            choice["prompt_token_ids"] = writer.output.prompt_token_ids
    rest: dict[str, Any] = {"choices": [choice]}
    if job.wish.last:
        rest["usage"] = usage(generation) if job.wish.each else None
    return job.head.document(**rest)
