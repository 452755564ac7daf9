"""From prepared prompts to streams of outputs: places in the queue, request ids, merging, aborting, errors. Knows no wire format."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, MutableMapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ridgeline.engine.request import EngineRequest
from ridgeline.errors import InternalError, OverloadedError
from ridgeline.server.failure import HttpError
from ridgeline.server.keys import Key
from ridgeline.server.state import State
from ridgeline.types import CompletionOutput, RequestOutput

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class News:
    """Something new about prompt number `prompt`."""

    prompt: int
    output: RequestOutput


class Generation:
    """The engine requests of one HTTP request. `start` submits them; read `news` once; `abort` may be called at any time.

    After the iteration, `prompt_tokens` counts each prompt once, `completion_tokens` all choices, `cached_tokens` what the cache had.
    """

    def __init__(self, state: State, requests: list[EngineRequest], scope: MutableMapping[str, Any] | None = None) -> None:
        self._state, self.requests = state, requests
        self._scope = scope if scope is not None else {}
        self._key: Key | None = self._scope.get("key")
        self._finishes: list[str] = []
        self._last: RequestOutput | None = None
        self._choices = self._reserved = 0
        self._streams: list[AsyncIterator[RequestOutput]] = []
        self.aborted = False
        self.prompt_tokens = sum(len(r.prompt_ids) for r in requests)
        self.completion_tokens = 0
        self.cached_tokens = 0
        self._cached = [0] * len(requests)
        self._guessed: dict[tuple[int, int], tuple[int, int]] = {}

    def start(self) -> None:
        """Raises `UserError` or `HttpError` for what the budget, the queue or the engine refuses; then nothing of it stays behind."""
        try:
            if self._key is not None:
                self._key.requests += 1
                self.requests = [self._within(self._key, request) for request in self.requests]
            choices = sum(r.params.n for r in self.requests)
            self._state.enter(choices)
            self._choices = choices
            for request in self.requests:
                self._streams.append(self._state.engine.generate(request))
        except BaseException as error:
            if isinstance(error, HttpError | OverloadedError):
                self._state.meters.refused[getattr(error, "code", None) or "overloaded"] += 1
            self.abort()
            self._streams.clear()
            self._leave()
            raise

    def _within(self, key: Key, request: EngineRequest) -> EngineRequest:
        """The request within its key's budget, which holds its room until the end. Raises 429."""
        p, prompt = request.params, len(request.prompt_ids)
        total = None if p.max_tokens is None else p.max_tokens * p.n
        allowed = key.allow(prompt, total)
        if key.budget is None or allowed is None:
            return request
        key.reserved += prompt + allowed
        self._reserved += prompt + allowed
        return request if total is not None else replace(request, params=replace(p, max_tokens=max(1, allowed // p.n)))

    def guesses(self) -> tuple[int, int] | None:
        """(accepted, rejected) draft tokens of all choices; None when nothing was guessed."""
        accepted = sum(a for _, a in self._guessed.values())
        return (accepted, sum(d for d, _ in self._guessed.values()) - accepted) if self._guessed else None

    def times(self) -> tuple[float, float, float] | None:
        """Seconds in the queue, of the prompt until its first token, of the rest, once all is said; None for several prompts."""
        if self._last is None or len(self.requests) != 1 or not self._last.finished:
            return None
        t = self._last.times
        if not t.admitted or not t.first_token:
            return None
        return t.admitted - t.arrival, t.first_token - t.admitted, t.last_token - t.first_token

    async def beside(self, work: Callable[..., T], *given: Any) -> T:
        """Run `work` beside the event loop."""
        return await self._state.think(work, *given)

    def gone(self) -> None:
        """The client went away."""
        self._state.meters.gone += 1
        self.abort()

    def close(self) -> None:
        """Whatever happened, nothing of it goes on after this."""
        if self._streams:
            self.abort()
            self._leave()

    def abort(self) -> None:
        """The rest is not wanted."""
        self.aborted = True
        for request in self.requests[: len(self._streams)]:
            self._state.engine.abort(request.id)

    def _leave(self) -> None:
        """Give places and reserved tokens back, count what was used. Once."""
        self._state.leave(self._choices)
        if self._key is not None:
            self._key.reserved -= self._reserved
            self._key.used += self.prompt_tokens + self.completion_tokens if self._streams else 0
        self._choices = self._reserved = 0
        self._streams = []
        self._scope["summary"] = self._summary()

    def _summary(self) -> dict[str, Any]:
        """For the log's line. Times in seconds, of the last prompt where there are several."""
        found: dict[str, Any] = {
            "id": self.requests[0].id if self.requests else None, "prompt_tokens": self.prompt_tokens, "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens, "finish": self._finishes,
        }  # fmt: skip
        if self._last is not None:
            times, cache = self._last.times, self._last.cache
            found["queue_s"] = round(times.admitted - times.arrival, 4) if times.admitted else None
            found["ttft_s"] = round(times.first_token - times.arrival, 4) if times.first_token else None
            found["cache"] = None if cache is None else cache.reason
        if self._state.features.log_prompts and self.requests:
            words = self._state.served.words.tokenizer
            found["prompts"] = [words.decode(list(r.prompt_ids)[:8192], skip_special=False) for r in self.requests[:8]]
        return found

    async def news(self) -> AsyncGenerator[News]:
        """What is new, until all ended. Raises `InternalError` when a choice failed, `HttpError` when we cut it short.

        To be closed (`aclosing`) by whoever leaves it early: then what still runs is aborted.
        """
        try:
            if len(self._streams) == 1:
                async for output in self._streams[0]:
                    self._count(0, output)
                    yield News(0, output)
            else:
                async for news in _merge(self._streams):
                    self._count(news.prompt, news.output)
                    yield news
        except BaseException:
            self.abort()
            raise
        finally:
            self._leave()

    def _count(self, prompt: int, output: RequestOutput) -> None:
        self._last = output
        for choice in output.outputs:
            self.completion_tokens += len(choice.token_ids)
            if choice.finish_reason is not None:
                self._finishes.append(choice.finish_reason)
            if choice.finish_reason == "error":
                raise InternalError(f"generation failed: {choice.stop_reason}")
            if choice.finish_reason == "abort" and not self.aborted:
                why = choice.stop_reason or "it was aborted"
                raise HttpError(503, f"the answer was cut short: {why}", code="aborted", headers={"retry-after": "5"})
        for c in output.outputs:
            if c.drafted_tokens:
                self._guessed[prompt, c.index] = c.drafted_tokens, c.accepted_tokens
        if output.num_cached_tokens is not None and not self._cached[prompt]:
            self._cached[prompt] = output.num_cached_tokens
            self.cached_tokens = sum(self._cached)


async def _merge(streams: list[AsyncIterator[RequestOutput]]) -> AsyncIterator[News]:
    """All streams at once, each in its own order. The first error ends the rest."""
    queue: asyncio.Queue[News | BaseException | None] = asyncio.Queue(4 * len(streams))

    async def feed(index: int, stream: AsyncIterator[RequestOutput]) -> None:
        try:
            async for output in stream:
                await queue.put(News(index, output))
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    tasks = [asyncio.ensure_future(feed(i, s)) for i, s in enumerate(streams)]
    try:
        alive = len(tasks)
        while alive:
            item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                alive -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()


async def collect(generation: Generation) -> list[RequestOutput]:
    """The whole outputs, one per prompt. Raises as `Generation.news`."""
    whole: list[RequestOutput | None] = [None] * len(generation.requests)
    async with aclosing(generation.news()) as found:
        async for news in found:
            seen = whole[news.prompt]
            if seen is None:
                n = generation.requests[news.prompt].params.n
                seen = whole[news.prompt] = RequestOutput(
                    news.output.request_id,
                    news.output.prompt,
                    news.output.prompt_token_ids,
                    [CompletionOutput(i, "", []) for i in range(n)],
                )
            _add(seen, news.output)
    return [w for w in whole if w is not None]


def _add(whole: RequestOutput, new: RequestOutput) -> None:
    for part in new.outputs:
        choice = whole.outputs[part.index]
        choice.text += part.text
        choice.token_ids += part.token_ids
        if part.logprobs is not None:
            choice.logprobs = choice.logprobs if choice.logprobs is not None else []
            choice.logprobs.extend(part.logprobs)
        choice.cumulative_logprob = part.cumulative_logprob
        choice.finish_reason, choice.stop_reason = part.finish_reason, part.stop_reason
    whole.prompt_logprobs = whole.prompt_logprobs or new.prompt_logprobs
    whole.num_cached_tokens = new.num_cached_tokens if new.num_cached_tokens is not None else whole.num_cached_tokens
    whole.cache, whole.times, whole.finished = new.cache or whole.cache, new.times, new.finished
