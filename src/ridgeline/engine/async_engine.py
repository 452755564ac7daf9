"""`AsyncEngine`: the engine on its own thread beside an asyncio program. Requests go in, streams of outputs come out.

Knows threads, event loops and requests. Refuses to know HTTP, and what a step does. An idle engine waits without using the CPU.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, TypeVar

from ridgeline.engine.choice import Choice
from ridgeline.engine.core import EngineCore
from ridgeline.engine.loader import LoadedModel, make_core
from ridgeline.engine.metrics import Metrics, gauges
from ridgeline.engine.request import EngineRequest, RequestState, prepare
from ridgeline.engine.stream import Channel, OutputStream
from ridgeline.errors import InternalError, OverloadedError, RidgelineError, UserError
from ridgeline.types import RequestOutput, SamplingParams

T = TypeVar("T")


class AsyncEngine:
    """A running engine. Methods may be called from any thread with a running event loop; `close` from anywhere.

    A stream that is closed or dropped before its end (a cancelled task drops what it holds) aborts its request within one step.
    """

    def __init__(self, model: LoadedModel, core: EngineCore | None = None) -> None:
        self.model = model
        self.core = core or make_core(model)  # the engine thread's; others go through `call`
        self._most = model.plan.max_num_queued_reqs + model.plan.max_num_seqs
        self._wake = threading.Condition()
        self._inbox: list[Callable[[EngineCore], None]] = []
        self._channels: dict[str, Channel] = {}
        self._fault: str | None = None
        self._closing = self._draining = False
        self._numbers = count()
        self._thread = threading.Thread(target=self._run, name="ridgeline-engine", daemon=True)
        self._thread.start()
        atexit.register(self.stop)

    @property
    def metrics(self) -> Metrics:
        return self.core.metrics

    @property
    def alive(self) -> int:
        """Requests that have not ended."""
        return len(self._channels)

    def fault(self) -> str | None:
        """Why the engine serves no more; None while it does."""
        return "the engine was closed" if self._closing and self._fault is None else self._fault

    def stats(self) -> dict[str, Any]:
        """Counters and gauges by name; histograms are in `metrics`."""
        core = self.core
        with core.lock:
            counted = {**core.metrics.counts, **core.state.counts, **core.state.kv.counts, **gauges(core.state)}
        traffic = None if core.pace is None else core.pace.traffic
        return counted if traffic is None else {**counted, **traffic.figures()}

    def new_id(self) -> str:
        """A request id that nobody else got."""
        return f"req-{next(self._numbers)}"

    def ask(self, prompt: str | Sequence[int], params: SamplingParams | None = None, **more: Any) -> EngineRequest:
        """A request with an id of its own, from a text or ids. `more`: the other fields of `EngineRequest`."""
        ids = self.model.text.encode(prompt) if isinstance(prompt, str) else prompt
        text = prompt if isinstance(prompt, str) else None
        return EngineRequest(**{"id": self.new_id(), "prompt_ids": ids, "params": params or SamplingParams(), "prompt": text, **more})

    def generate(self, request: EngineRequest) -> OutputStream:
        """Queue a request; its outputs, each what is new since the last, come to the event loop that is running here.

        Raises `UserError`, `ContextLengthError` or `OverloadedError` before anything is queued."""
        asked = prepare(request, self.core.limits, self.model.text)
        self.core.state.check_prompt(len(asked.prompt_ids))
        channel = Channel(asked, asyncio.get_running_loop())
        with self._wake:
            if self._closing or self._draining:
                raise OverloadedError("the engine is shutting down")
            if len(self._channels) >= self._most:
                raise OverloadedError(f"{len(self._channels)} requests are queued or running, at most {self._most}; try again later")
            if request.id in self._channels:
                raise UserError(f"request id {request.id!r} is already in use", field="request_id", value=request.id)
            self._channels[request.id] = channel
            self._inbox.append(lambda core: self._enter(core, asked))
            self._wake.notify()
        return OutputStream(channel, self.abort)

    def abort(self, request_id: str) -> None:
        """End a request within one step, wherever it is; its stream ends with finish_reason "abort". Unknown ids are passed over."""
        if request_id in self._channels:
            self._tell(lambda core: _abort(core, request_id))

    async def call(self, work: Callable[[EngineCore], T]) -> T:
        """Run `work(core)` on the engine's thread between two steps: gauges, traces, a flush of the cache."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def run(core: EngineCore) -> None:
            try:
                found = work(core)
            except Exception as error:
                loop.call_soon_threadsafe(_unless_done, answer, answer.set_exception, error)
            else:
                loop.call_soon_threadsafe(_unless_done, answer, answer.set_result, found)

        if self._closing:
            raise InternalError("the engine was closed")
        self._tell(run)
        return await answer

    async def close(self, drain_s: float = 0.0) -> None:
        """Take no more requests, let those alive go on for up to `drain_s` seconds, abort the rest, end the thread."""
        self._draining = True
        loop = asyncio.get_running_loop()
        until = loop.time() + drain_s
        while self._channels and loop.time() < until:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(self.stop)

    def stop(self) -> None:
        """Abort everything, reply, end the thread. Safe to call twice."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()
        atexit.unregister(self.stop)

    def _tell(self, command: Callable[[EngineCore], None]) -> None:
        with self._wake:
            self._inbox.append(command)
            self._wake.notify()

    def _enter(self, core: EngineCore, asked: RequestState) -> None:
        try:
            core.submit(asked)
        except Exception as error:
            self._drop(asked.id, error)

    def _drop(self, request_id: str, error: Exception) -> None:
        with self._wake:
            channel = self._channels.pop(request_id, None)
        if channel is not None:
            channel.fail(error)

    def _run(self) -> None:
        """The engine's thread: commands, a step, replies; asleep when there is nothing to do."""
        try:
            while self._turn():
                pass
            why: RidgelineError = OverloadedError("the engine is shutting down")
        except BaseException as fault:  # nothing that a request does comes here
            self._fault = f"{type(fault).__name__}: {fault}"
            self._closing = True
            why = InternalError(f"the engine has failed: {self._fault}")
        for request_id in list(self._channels):
            self._drop(request_id, why)

    def _turn(self) -> bool:
        core = self.core
        with self._wake:
            while not (self._inbox or core.busy or self._closing):
                self._wake.wait()
            commands, self._inbox = self._inbox, []
            closing = self._closing
        for command in commands:
            command(core)
        self._deliver(core.close() if closing else core.step())
        return not closing

    def _deliver(self, touched: Sequence[Choice]) -> None:
        """News of a step to the loops of their streams, one wake-up per loop."""
        by_request: dict[str, list[Choice]] = {}
        for choice in touched:
            by_request.setdefault(choice.request_id, []).append(choice)
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Channel, RequestOutput]]] = {}
        for request_id, choices in by_request.items():
            channel = self._channels.get(request_id)
            if channel is None:
                continue
            if channel.asked.alive == 0:
                with self._wake:
                    del self._channels[request_id]
            by_loop.setdefault(channel.loop, []).append((channel, channel.asked.news(choices)))
        for loop, news in by_loop.items():
            try:
                loop.call_soon_threadsafe(_push, news)
            except RuntimeError:  # that loop was closed: nobody listens any more
                for channel, _ in news:
                    self.abort(channel.asked.id)


def _push(news: list[tuple[Channel, RequestOutput]]) -> None:
    for channel, output in news:
        channel.push(output)


def _abort(core: EngineCore, request_id: str) -> None:
    core.abort(request_id)


def _unless_done(answer: asyncio.Future[Any], act: Callable[[Any], None], value: Any) -> None:
    if not answer.done():
        act(value)
