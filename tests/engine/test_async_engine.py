"""`AsyncEngine`: streams, deltas, aborts at every point of a request's life (case ST-06), overload, shutdown, idleness."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from tests.engine.fakes import VOCAB, hashed_logits, loaded, scripted

from ridgeline.engine.async_engine import AsyncEngine
from ridgeline.engine.llm import LLM
from ridgeline.engine.request import EngineRequest
from ridgeline.errors import ContextLengthError, InternalError, OverloadedError, UserError
from ridgeline.types import CompletionOutput, RequestOutput, SamplingParams

GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)


def with_engine(work: Callable[[AsyncEngine], Awaitable[Any]], **options: Any) -> Any:
    """Run `work(engine)` on a fresh engine and loop; at the end the engine must be empty and its thread gone."""

    async def main() -> Any:
        engine = AsyncEngine(loaded(options.pop("logits", hashed_logits()), **options))
        try:
            return await asyncio.wait_for(work(engine), 60)
        finally:
            await engine.close()
            assert not engine._thread.is_alive() and engine.alive == 0

    return asyncio.run(main())


async def collect(engine: AsyncEngine, request: EngineRequest) -> list[RequestOutput]:
    return [news async for news in engine.generate(request)]


def whole(news: list[RequestOutput]) -> list[tuple[int, str, list[int], str | None]]:
    """The outputs that joined news come to."""
    found: dict[int, CompletionOutput] = {}
    for one in news:
        for c in one.outputs:
            old = found.get(c.index, CompletionOutput(c.index, "", []))
            assert old.finish_reason is None, "news after the end"
            found[c.index] = CompletionOutput(c.index, old.text + c.text, old.token_ids + c.token_ids, c.finish_reason)
    return [(c.index, c.text, c.token_ids, c.finish_reason) for _, c in sorted(found.items())]


def expected(prompt: list[int], params: SamplingParams, **options: Any) -> list[tuple[int, str, list[int], str | None]]:
    outs = LLM.from_loaded(loaded(hashed_logits(), **options)).generate([prompt], params)[0].outputs
    return [(c.index, c.text, c.token_ids, c.finish_reason) for c in outs]


def test_joined_news_are_the_whole_answer() -> None:
    several, probable = SamplingParams(n=3, max_tokens=7, seed=1), SamplingParams(max_tokens=9, seed=2, logprobs=2)
    cases = [([1, 2, 3], GREEDY), ([4] * 9, several), ([5, 6], probable)]

    async def work(engine: AsyncEngine) -> None:
        found = await asyncio.gather(*[collect(engine, engine.ask(p, q)) for p, q in cases])
        for (prompt, params), news in zip(cases, found, strict=True):
            assert whole(news) == expected(prompt, params)
            assert [one.finished for one in news] == [False] * (len(news) - 1) + [True]
            assert news[-1].prompt_token_ids == prompt and news[-1].num_cached_tokens is not None

    with_engine(work)


def test_a_slow_consumer_gets_joined_news() -> None:
    async def work(engine: AsyncEngine) -> None:
        stream = engine.generate(engine.ask([1, 2, 3], GREEDY))
        first = await anext(stream)
        while engine.alive:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        rest = [news async for news in stream]
        assert len(rest) <= 1 and whole([first, *rest]) == expected([1, 2, 3], GREEDY)  # none where the first took all

    with_engine(work)


def test_refusals_come_before_anything_is_queued() -> None:
    async def work(engine: AsyncEngine) -> None:
        for prompt, params, error in (([], GREEDY, UserError), ([1] * 64, GREEDY, ContextLengthError), ([VOCAB], GREEDY, UserError)):
            with pytest.raises(error):
                engine.generate(engine.ask(prompt, params))
        held = engine.generate(EngineRequest("same", [1, 2], GREEDY))
        with pytest.raises(UserError, match="same"):
            engine.generate(EngineRequest("same", [1, 2], GREEDY))
        assert whole([news async for news in held]) == expected([1, 2], GREEDY)
        assert engine.metrics.counts["requests"] == 1

    with_engine(work, logits=slow(0.02))


def test_a_full_queue_refuses() -> None:
    async def work(engine: AsyncEngine) -> None:
        engine._most = 3
        streams = [engine.generate(engine.ask([i], GREEDY)) for i in range(3)]
        with pytest.raises(OverloadedError, match="at most 3"):
            engine.generate(engine.ask([9], GREEDY))
        for i, stream in enumerate(streams):
            assert whole([news async for news in stream]) == expected([i], GREEDY)
        assert len(await collect(engine, engine.ask([9], GREEDY))) > 0

    with_engine(work, logits=slow(0.02))


def slow(seconds: float) -> Any:
    answer = hashed_logits()

    def logits(history: list[int]) -> np.ndarray:
        time.sleep(seconds)
        return answer(history)

    return logits


LONG = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)


def test_clients_that_go_away_leave_nothing_behind() -> None:
    """ST-06: streams are dropped before they start, in the queue, in mid-prompt, after a token, at the end; a neighbour notices nothing."""

    async def leave(engine: AsyncEngine, i: int) -> None:
        prompt = [int(t) for t in np.random.default_rng(i).integers(0, 200, 1 + i % 40)]
        stream = engine.generate(engine.ask(prompt, SamplingParams(n=1 + i % 3, max_tokens=1 + i % 9, seed=i, ignore_eos=True)))
        way = i % 5
        if way == 0:
            stream.close()
        elif way == 1:
            del stream
        elif way == 2:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(_never_ends(stream), 0.0005 * (i % 7))
        elif way == 3:
            async with stream:
                await anext(stream)
        else:
            assert [news async for news in stream][-1].finished

    async def work(engine: AsyncEngine) -> None:
        before = engine.core.state.kv.usage()
        neighbours = [asyncio.ensure_future(collect(engine, engine.ask([7, i], LONG))) for i in range(3)]
        await asyncio.gather(*[leave(engine, i) for i in range(300)])
        for i, news in enumerate(await asyncio.gather(*neighbours)):
            assert whole(news) == expected([7, i], LONG)
        while engine.alive:
            await asyncio.sleep(0.001)

        def empty(core: Any) -> bool:
            core.state.kv.check()
            core.state.kv.evict()
            return not core.busy and not core.state.alive and core.state.kv.usage() == before and not core.state.running

        assert await engine.call(empty)
        counts = engine.metrics.counts
        assert counts["finished"] == counts["requests"] == 303 and counts["finished_abort"] > 100 and counts["finished_error"] == 0
        assert counts["finished_length"] > 60

    with_engine(work)


async def _never_ends(stream: Any) -> None:
    async for _ in stream:
        pass
    await asyncio.sleep(10)


def test_an_abort_ends_its_stream_within_a_step() -> None:
    async def work(engine: AsyncEngine) -> None:
        request = engine.ask([1, 2], LONG)
        news = []
        async for one in engine.generate(request):
            news.append(one)
            engine.abort(request.id)
        found = whole(news)[0]
        assert found[3] == "abort" and len(found[2]) <= 4
        engine.abort(request.id)
        engine.abort("nobody")

    with_engine(work, logits=slow(0.002))


def test_a_timeout_aborts_and_says_so() -> None:
    async def work(engine: AsyncEngine) -> None:
        news = await collect(engine, engine.ask([1, 2], LONG, timeout_s=0.03))
        last = news[-1].outputs[0]
        assert last.finish_reason == "abort" and "0.03" in str(last.stop_reason)
        assert engine.stats()["timeouts"] == 1

    with_engine(work, logits=slow(0.005))


def test_closing_ends_every_stream_and_refuses_more() -> None:
    async def work(engine: AsyncEngine) -> None:
        tasks = [asyncio.ensure_future(collect(engine, engine.ask([i], LONG))) for i in range(12)]
        await asyncio.sleep(0.02)
        await engine.close()
        ends = [whole(news)[0][3] for news in await asyncio.gather(*tasks)]
        assert set(ends) <= {"abort", "length"} and "abort" in ends
        assert engine.fault() is not None
        with pytest.raises(OverloadedError):
            engine.generate(engine.ask([1], GREEDY))
        with pytest.raises(InternalError):
            await engine.call(lambda core: None)

    with_engine(work, logits=slow(0.001))


def test_draining_lets_the_running_ones_finish() -> None:
    async def work(engine: AsyncEngine) -> None:
        task = asyncio.ensure_future(collect(engine, engine.ask([1], GREEDY)))
        await asyncio.sleep(0)
        await engine.close(drain_s=30)
        assert whole(await task) == expected([1], GREEDY)

    with_engine(work, logits=slow(0.001))


def test_an_idle_engine_does_nothing() -> None:
    async def work(engine: AsyncEngine) -> None:
        await collect(engine, engine.ask([1], GREEDY))
        steps, cpu = engine.metrics.counts["steps"], time.process_time()
        await asyncio.sleep(0.4)
        assert engine.metrics.counts["steps"] == steps and time.process_time() - cpu < 0.2

    with_engine(work)


def test_what_a_call_raises_comes_back_and_the_engine_lives() -> None:
    async def work(engine: AsyncEngine) -> None:
        with pytest.raises(ZeroDivisionError):
            await engine.call(lambda core: 1 // 0)
        assert (await engine.call(lambda core: len(core.requests))) == 0
        assert whole(await collect(engine, engine.ask([1], GREEDY))) == expected([1], GREEDY)

    with_engine(work)


def test_text_prompts_and_stop_strings_stream() -> None:
    async def work(engine: AsyncEngine) -> None:
        request = engine.ask("hi", SamplingParams(max_tokens=30, temperature=0, stop=("own fox",)))
        news = await collect(engine, request)
        assert whole(news)[0][1] == "The quick br" and news[-1].prompt == "hi"

    with_engine(work, logits=scripted(b"The quick brown fox jumps", 2))
