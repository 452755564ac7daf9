"""A scripted engine for server tests: it says what it is told, with faults and waits where asked. No model, no thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.cli.tiny_gguf import END_ID, TEMPLATE, metadata

from ridgeline.engine.metrics import Metrics
from ridgeline.engine.request import EngineRequest, Limits, prepare
from ridgeline.engine.words import Words
from ridgeline.server.state import Served
from ridgeline.text.from_gguf import tokenizer_from_gguf
from ridgeline.types import CacheReport, CompletionOutput, FinishReason, RequestOutput, RequestTimes, SamplingParams

VOCAB = 260
LENGTH = 512


def words(template: str | None = TEMPLATE) -> Words:
    tokenizer = tokenizer_from_gguf(metadata(template))
    return Words(tokenizer, tokenizer.eos_ids, "tiny")


def served(template: str | None = TEMPLATE, *, length: int = LENGTH, **changes: Any) -> Served:
    made = words(template)
    return Served(**{"names": ("tiny", "tiny-alias"), "words": made, "limits": Limits(length, made.vocab_size, made.stop_ids), **changes})


@dataclass
class FakeEngine:
    """`says(request, choice)` gives the text (or ids) of a choice; `chunk` tokens come per output.

    fault_after: after so many outputs the choice ends with "error" ("raise": the stream raises instead); hold: an event that is waited
    for before the second output. `live` and `aborted` tell what became of requests.
    """

    says: Callable[[EngineRequest, int], str | list[int]] = lambda request, choice: "hello world"
    chunk: int = 1
    fault_after: int | None = None
    raises: bool = False
    hold: asyncio.Event | None = None
    refuse: Exception | None = None
    cached: int = 0
    words: Words = field(default_factory=words)
    live: dict[str, asyncio.Event] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    aborted: list[str] = field(default_factory=list)
    seen: list[EngineRequest] = field(default_factory=list)
    closed: bool = False
    length: int = LENGTH
    broken: str | None = None
    metrics: Metrics = field(default_factory=Metrics)

    def generate(self, request: EngineRequest) -> AsyncIterator[RequestOutput]:
        if self.refuse is not None:
            raise self.refuse
        prepare(request, Limits(self.length, VOCAB, self.words.stop_ids), self.words)
        self.seen.append(request)
        self.live[request.id] = asyncio.Event()
        return self._run(request)

    def abort(self, request_id: str) -> None:
        if request_id in self.live:
            self.live[request_id].set()
            if request_id not in self.begun:  # nobody reads it, so that its end would never come
                del self.live[request_id]
                self.aborted.append(request_id)

    @property
    def alive(self) -> int:
        return len(self.live)

    def stats(self) -> Mapping[str, Any]:
        return {"running": len(self.live)}

    async def call(self, work: Callable[[Any], Any]) -> Any:
        return work(self)

    def fault(self) -> str | None:
        return self.broken

    async def close(self) -> None:
        self.closed = True

    async def _run(self, request: EngineRequest) -> AsyncIterator[RequestOutput]:
        self.begun.add(request.id)
        try:
            plans = [self._plan(request, i) for i in range(request.params.n)]
            count = 0
            while any(plans):
                for plan in plans:
                    if not plan:
                        continue
                    if self.live[request.id].is_set():
                        self.aborted.append(request.id)
                        yield self._output(request, [CompletionOutput(i, "", [], "abort") for i, p in enumerate(plans) if p], True)
                        return
                    part = plan.pop(0)
                    if self.fault_after is not None and count >= self.fault_after:
                        if self.raises:
                            raise RuntimeError("the engine broke")
                        part.finish_reason, part.stop_reason = "error", "NaN"
                        plan.clear()
                    yield self._output(request, [part], not any(plans))
                    count += 1
                    await asyncio.sleep(0)
                    if self.hold is not None and count == 1:
                        await self._wait(request)
        finally:
            self.live.pop(request.id, None)

    async def _wait(self, request: EngineRequest) -> None:
        assert self.hold is not None
        waits = [asyncio.ensure_future(self.hold.wait()), asyncio.ensure_future(self.live[request.id].wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    def _plan(self, request: EngineRequest, choice: int) -> list[CompletionOutput]:
        """The choice's outputs in order, through the real stop strings and detokenizer."""
        said = self.says(request, choice)
        ids = [*self.words.tokenizer.encode_plain(said), END_ID] if isinstance(said, str) else list(said)
        p: SamplingParams = request.params
        limit = min(p.max_tokens or self.length, self.length - len(request.prompt_ids))
        out, parts = self.words.out(p), list[CompletionOutput]()
        for made, id in enumerate(ids, 1):
            finish: FinishReason | None = None
            reason: str | int | None = None
            text = ""
            if id == END_ID and not p.ignore_eos:
                finish, text = "stop", out.finish()
            else:
                text = out.push(id)
                if out.matched is not None:
                    finish, reason = "stop", out.matched
                elif made >= limit:
                    finish, text = "length", text + out.finish()
            logprobs = None
            if p.logprobs is not None:
                logprobs = [{id: -0.5, **{i: -1.0 - i / 100 for i in range(p.logprobs) if i != id}}]
            parts.append(CompletionOutput(choice, text, [id], finish, reason, -0.5 * made if logprobs else None, logprobs))
            if finish is not None:
                break
        else:
            parts[-1].finish_reason = "length"
        return [_joined(parts[i : i + self.chunk]) for i in range(0, len(parts), self.chunk)]

    def _output(self, request: EngineRequest, parts: list[CompletionOutput], finished: bool) -> RequestOutput:
        prompt = list(request.prompt_ids)
        rows: list[dict[int, float] | None] | None = None
        if request.params.prompt_logprobs is not None:
            rows = [None, *({i: -0.25} for i in prompt[1:])]
        report = CacheReport(len(prompt), self.cached, self.cached, "never_seen", self.cached, None, 16)
        times = RequestTimes(1.0, 1.1, 1.2, 1.3, 1.4 if finished else 0.0)
        return RequestOutput(request.id, request.prompt, prompt, parts, finished, rows, self.cached, report, times)


def _joined(parts: list[CompletionOutput]) -> CompletionOutput:
    last = parts[-1]
    logprobs = [row for p in parts for row in p.logprobs or []] if last.logprobs is not None else None
    ids = [i for p in parts for i in p.token_ids]
    return CompletionOutput(
        last.index, "".join(p.text for p in parts), ids, last.finish_reason, last.stop_reason, last.cumulative_logprob, logprobs
    )
