"""What a server says of itself at /metrics while a cell runs: queue and prefill times, KV in use. Knows vLLM's names, ours too."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter

from ridgeline.bench.client import Client

_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{[^}\n]*\})? +(\S+)", re.M)
_KV = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage", "llamacpp:kv_cache_usage_ratio")
_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class ServerView:
    """Means over the requests of a cell, ms, None where the server does not say. kv: (second of the cell, share of KV in use)."""

    queue_ms: float | None = None
    prefill_ms: float | None = None
    preemptions: float | None = None
    kv: tuple[tuple[float, float], ...] = ()


def values(text: str) -> dict[str, float]:
    """Sums over labels of each plain series of a Prometheus page."""
    found: dict[str, float] = {}
    for name, _, value in _LINE.findall(text):
        try:
            found[name] = found.get(name, 0.0) + float(value)
        except ValueError:
            continue
    return found


async def read(client: Client) -> dict[str, float]:
    """Empty when the server has no such page."""
    reply = await client.fetch("GET", "/metrics", timeout_s=5.0)
    return values(reply.body.decode("utf8", "replace")) if reply.status == 200 else {}


class Sampler:
    """Reads the page once a second while a cell runs, from its own connection. Mutable until `view`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._before: Mapping[str, float] = {}
        self._kv: list[tuple[float, float]] = []
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        self._before = await read(self._client)
        if self._before:
            self._task = asyncio.create_task(self._sample(perf_counter()))

    async def _sample(self, begun: float) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            found = await read(self._client)
            used = next((found[name] for name in _KV if name in found), None)
            if used is not None:
                self._kv.append((perf_counter() - begun, used))

    async def view(self) -> ServerView | None:
        """None for a server without metrics."""
        if self._task is None:
            return None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        after = await read(self._client)
        return ServerView(
            self._mean(after, "request_queue_time_seconds"), self._mean(after, "request_prefill_time_seconds"),
            self._added(after, "vllm:num_preemptions_total"), tuple(self._kv),
        )  # fmt: skip

    def _mean(self, after: Mapping[str, float], name: str) -> float | None:
        count, total = self._added(after, f"vllm:{name}_count"), self._added(after, f"vllm:{name}_sum")
        return total / count * 1e3 if count and total is not None else None

    def _added(self, after: Mapping[str, float], name: str) -> float | None:
        return after[name] - self._before.get(name, 0.0) if name in after else None
