"""Sends sessions: closed loop (so many at once) or open loop (at their times), and keeps every outcome. Knows the wire form of a request.

In an open loop a request's arrival is its due time, whenever it left: a slow client or server cannot hide the wait it causes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from ridgeline.bench.client import Client
from ridgeline.bench.client_metrics import Outcome
from ridgeline.bench.client_read import Reading
from ridgeline.bench.load_workloads import Endpoint, Session


@dataclass(frozen=True, slots=True)
class Manner:
    """How requests are written. prefix: of the API's paths; ignore_eos: answers run to their full length where the server knows it."""

    model: str
    endpoint: Endpoint = "chat"
    prefix: str = "/v1"
    ignore_eos: bool = True
    temperature: float = 0.0

    @property
    def path(self) -> str:
        return f"{self.prefix}/{'chat/completions' if self.endpoint == 'chat' else 'completions'}"

    def body(self, talk: Sequence[tuple[str, str]], max_tokens: int, n: int, seed: int) -> dict[str, Any]:
        """The JSON of one request. talk: (role, text) pairs."""
        found: dict[str, Any] = {
            "model": self.model, "max_tokens": max_tokens, "temperature": self.temperature if n == 1 else self.temperature or 1.0,
            "seed": seed, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        if n > 1:
            found["n"] = n
        if self.ignore_eos:
            found["ignore_eos"] = True
        if self.endpoint == "chat":
            found["messages"] = [{"role": role, "content": text} for role, text in talk]
        else:
            found["prompt"] = "\n".join(text for _, text in talk)
        return found


class Load:
    """One cell's run. Mutable: outcomes as they come, and how many are under way."""

    def __init__(self, client: Client, manner: Manner, limit_s: float, seed: int = 0) -> None:
        self._client, self._manner, self._limit_s, self._seed = client, manner, limit_s, seed
        self.outcomes: list[Outcome] = []
        self.active = self.peak_active = self.unsent = 0
        self.begun_s = 0.0

    async def closed(self, made: Sequence[Session], users: int) -> None:
        """`users` sessions under way at once until none is left or the time is up; then no new one begins."""
        self.begun_s = perf_counter()
        rest = iter(made)
        await asyncio.gather(*(self._user(rest) for _ in range(min(users, len(made)))))
        self.unsent = sum(1 for _ in rest)

    async def _user(self, rest: Iterator[Session]) -> None:
        while perf_counter() - self.begun_s < self._limit_s:
            session = next(rest, None)
            if session is None:
                return
            await self._session(session, perf_counter())

    async def opened(self, made: Sequence[Session]) -> None:
        """Each session at its time; arrivals after the limit are not sent."""
        self.begun_s = perf_counter()
        running: set[asyncio.Task[None]] = set()
        for i, session in enumerate(made):
            due = self.begun_s + session.arrival_s
            await asyncio.sleep(max(0.0, due - perf_counter()))
            if session.arrival_s > self._limit_s:
                self.unsent = len(made) - i
                break
            task = asyncio.create_task(self._session(session, due))
            running.add(task)
            task.add_done_callback(running.discard)
        if running:
            await asyncio.gather(*running)

    async def _session(self, session: Session, due: float) -> None:
        """All turns; one that fails ends the session, and the turns that follow it are failures too: they were asked for and not served."""
        self.active += 1
        self.peak_active = max(self.peak_active, self.active)
        talk = [("system", session.system)] if session.system else []
        try:
            for number, turn in enumerate(session.turns):
                talk.append(("user", turn.text))
                body = self._manner.body(talk, turn.max_tokens, session.n, self._seed)
                sent, reading = await self._client.ask(self._manner.path, body)
                now = perf_counter()
                self.outcomes.append(Outcome(f"{session.id}.{number}", due, sent, reading, number, session.n, now))
                if reading.error is not None:
                    self._forfeit(session, number + 1, now)
                    return
                talk.append(("assistant", reading.text))
                due = perf_counter()
        finally:
            self.active -= 1

    def _forfeit(self, session: Session, first: int, now: float) -> None:
        for number in range(first, len(session.turns)):
            reading = Reading(error="an earlier turn of the session failed")
            self.outcomes.append(Outcome(f"{session.id}.{number}", now, now, reading, number, session.n, now))
