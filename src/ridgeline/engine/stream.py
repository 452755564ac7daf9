"""The outputs of one request on their way to an event loop. Knows one consumer; refuses to know the engine.

A consumer that is behind gets its news joined, so that an unread stream holds one output and no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from ridgeline.engine.request import RequestState
from ridgeline.types import CompletionOutput, RequestOutput


class Channel:
    """The engine's end. `push` runs on the consumer's event loop, `fail` anywhere."""

    def __init__(self, asked: RequestState, loop: asyncio.AbstractEventLoop) -> None:
        self.asked, self.loop = asked, loop
        self.ready = asyncio.Event()
        self.news: RequestOutput | None = None
        self.error: Exception | None = None

    def push(self, output: RequestOutput) -> None:
        """One more output."""
        self.news = output if self.news is None else joined(self.news, output)
        self.ready.set()

    def fail(self, error: Exception) -> None:
        """The stream ends with an error after what was pushed."""

        def end() -> None:
            self.error = error
            self.ready.set()

        with suppress(RuntimeError):  # the loop was closed
            self.loop.call_soon_threadsafe(end)


class OutputStream(AsyncIterator[RequestOutput]):
    """The consumer's end: news of a request, the last one `finished`. Closing or dropping it before the end aborts the request."""

    def __init__(self, channel: Channel, abort: Callable[[str], None]) -> None:
        self._channel, self._abort = channel, abort
        self._ended = False

    @property
    def request_id(self) -> str:
        return self._channel.asked.id

    async def __anext__(self) -> RequestOutput:
        """What is new since the last time. Raises what ended the engine, if that is what ended the request."""
        channel = self._channel
        while not self._ended:
            if channel.news is not None:
                news, channel.news = channel.news, None
                self._ended = news.finished
                return news
            if channel.error is not None:
                self._ended = True
                raise channel.error
            channel.ready.clear()
            await channel.ready.wait()
        raise StopAsyncIteration

    def close(self) -> None:
        """Nobody reads on."""
        if not self._ended:
            self._ended = True
            self._abort(self.request_id)

    async def aclose(self) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    async def __aenter__(self) -> OutputStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def joined(first: RequestOutput, second: RequestOutput) -> RequestOutput:
    """Two news of one request, in order, as one."""
    by_index = {c.index: c for c in first.outputs}
    for c in second.outputs:
        by_index[c.index] = _joined(by_index[c.index], c) if c.index in by_index else c
    prompt = second.prompt_logprobs if first.prompt_logprobs is None else first.prompt_logprobs
    outputs = [by_index[i] for i in sorted(by_index)]
    return RequestOutput(
        second.request_id, second.prompt, second.prompt_token_ids, outputs, second.finished, prompt, second.num_cached_tokens, second.cache,
        second.times,
    )  # fmt: skip


def _joined(a: CompletionOutput, b: CompletionOutput) -> CompletionOutput:
    logprobs = None if a.logprobs is None or b.logprobs is None else a.logprobs + b.logprobs
    return CompletionOutput(
        a.index, a.text + b.text, a.token_ids + b.token_ids, b.finish_reason, b.stop_reason, b.cumulative_logprob, logprobs,
        b.drafted_tokens, b.accepted_tokens,
    )
