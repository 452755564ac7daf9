"""What the server asks of an engine. The real one is `engine/async_engine`; tests put a scripted one in its place."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from ridgeline.engine.request import EngineRequest
from ridgeline.types import RequestOutput


class Engine(Protocol):
    """Requests in, streams of outputs out. All methods are called from the event loop and return at once."""

    def generate(self, request: EngineRequest) -> AsyncIterator[RequestOutput]:
        """What is new, until `finished`. Whatever can be known to be wrong raises here, or at the latest before the first output."""

    def abort(self, request_id: str) -> None:
        """End it wherever it is; its stream ends with finish_reason "abort". An unknown or finished id is no error."""

    def stats(self) -> Mapping[str, Any]:
        """Counters and gauges of the engine by name, for /metrics."""

    def cache_tree(self, limit: int) -> Mapping[str, Any]:
        """The prefix tree, its `limit` largest nodes: tokens, references, seconds since last use, seconds to live."""

    def fault(self) -> str | None:
        """Why the engine serves no more, None while it does."""

    async def close(self) -> None:
        """End what runs, stop the engine thread."""
