"""What every handler needs: the model's words, the engine, the limits, the counters. One object per server, made once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from ridgeline.engine.request import Limits
from ridgeline.engine.words import Words
from ridgeline.server.anthropic.diagnosis import Diagnoses
from ridgeline.server.bounds import Bounds
from ridgeline.server.engine import Engine
from ridgeline.server.failure import HttpError
from ridgeline.server.manner import Manner, manner_of
from ridgeline.server.meters import Meters

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Served:
    """The model that is served. names: all it answers to, the first is the one in replies; defaults: sampling of its generation config.

    template: a chat template that replaces the model's own; tool_parser, reasoning_parser: by name instead of from the template;
    created: unix seconds.
    """

    names: tuple[str, ...]
    words: Words
    limits: Limits
    defaults: Mapping[str, Any] = field(default_factory=dict)
    template: str | None = None
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    @cached_property
    def manner(self) -> Manner:
        """How the model speaks. Raises `UserError` for a parser that nobody knows."""
        return manner_of(self.words, self.template, self.tool_parser, self.reasoning_parser)

    @property
    def name(self) -> str:
        return self.names[0]

    def require(self, asked: str | None) -> str:
        """The name to reply with. Raises 404 for a model that is not served; no name means the only one there is."""
        if not asked:
            return self.name
        if asked in self.names:
            return asked
        shown = asked if len(asked) <= 120 else asked[:120] + "..."
        message = f"the model {shown!r} does not exist here; served: {', '.join(self.names)}"
        raise HttpError(404, message, param="model", code="model_not_found")


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What this machine was measured to do at most, per second: bytes from memory, integer and float32 operations, and those of attention
    over a bfloat16 or int8 cache."""

    read_bytes_per_s: float
    integer_per_s: float
    float_per_s: float
    bfloat16_per_s: float


@dataclass(frozen=True, slots=True)
class Features:
    """Switches of `ridgeline serve`, and what it reports of itself: version, the KV cache's configuration, ceilings where measured."""

    version: str = "0"
    ceilings: Ceilings | None = None
    cache_info: Mapping[str, str] = field(default_factory=dict)
    show_cache: bool = False
    log_prompts: bool = False
    allow_template: bool = False


@dataclass(eq=False)
class State:
    """One server. `pending` counts choices handed to the engine and not yet ended; `draining` is set by SIGTERM."""

    served: Served
    engine: Engine
    bounds: Bounds = field(default_factory=Bounds)
    features: Features = field(default_factory=Features)
    workers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, "ridgeline-words"))
    diagnoses: Diagnoses = field(default_factory=Diagnoses)
    meters: Meters = field(default_factory=Meters)
    pending: int = 0
    draining: bool = False

    async def think(self, work: Callable[..., T], *given: Any) -> T:
        """Run `work` (templates, tokenizing, grammars) beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self.workers, work, *given)

    def enter(self, choices: int) -> None:
        """Take places in the queue. Raises 429 when it is full, 503 when the server is about to end."""
        if self.draining:
            raise HttpError(503, "the server is shutting down", code="shutting_down", headers={"retry-after": "5"})
        if self.pending + choices > self.bounds.queue:
            message = f"{self.pending} choices are waiting or running, {choices} more would exceed {self.bounds.queue}; try again later"
            raise HttpError(429, message, code="queue_full", headers={"retry-after": "1"})
        self.pending += choices

    def leave(self, choices: int) -> None:
        self.pending -= choices
