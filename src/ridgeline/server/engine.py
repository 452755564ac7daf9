"""What the server asks of an engine. The real one is `engine/async_engine`; tests put a scripted one in its place."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol, TypeVar

from ridgeline.engine.core import EngineCore
from ridgeline.engine.metrics import Metrics
from ridgeline.engine.request import EngineRequest
from ridgeline.types import RequestOutput

T = TypeVar("T")


class Engine(Protocol):
    """Requests in, streams of outputs out. All but the last two are called on the event loop and return at once."""

    @property
    def metrics(self) -> Metrics:
        """Histograms; counters and gauges are in `stats`."""

    def generate(self, request: EngineRequest) -> AsyncIterator[RequestOutput]:
        """What is new, until `finished`. Whatever can be known to be wrong raises here, before anything is queued."""

    def abort(self, request_id: str) -> None:
        """End it wherever it is; its stream ends with finish_reason "abort". An unknown or finished id is no error."""

    def stats(self) -> Mapping[str, Any]:
        """Counters and gauges of the engine by name."""

    def fault(self) -> str | None:
        """Why the engine serves no more, None while it does."""

    async def call(self, work: Callable[[EngineCore], T]) -> T:
        """Run `work` between two steps."""

    async def close(self) -> None:
        """End what runs, stop the engine."""
