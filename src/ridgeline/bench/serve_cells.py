"""One load on one server: warm-up, calibration of text to tokens, and cells, each run again when others disturbed it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

import numpy as np

from ridgeline.bench.client import Client
from ridgeline.bench.client_metrics import Figures, Outcome, figures
from ridgeline.bench.corpus import Corpus
from ridgeline.bench.load import Load, Manner
from ridgeline.bench.load_workloads import Recipe, Session, Turn, sessions, timed, traced
from ridgeline.bench.machine_load import Noise, Watch
from ridgeline.bench.record import now
from ridgeline.bench.serve_metrics import Sampler, ServerView
from ridgeline.bench.serve_options import ServeOptions
from ridgeline.bench.serve_predict import Forecast, Forecaster
from ridgeline.bench.serve_server import Server
from ridgeline.errors import UserError

Say = Callable[[str], None]
DEFAULT_CHARACTERS = 4.2
_SHORT, _LONG = 400, 2000
_PROGRESS_S = 10.0


@dataclass(frozen=True, slots=True)
class Cell:
    """What one load came to. load: users (closed) or sessions/s (open); unsent: sessions that the time limit left out; tries: how often it
    was run, of which the least disturbed is this; turns: figures of each turn where there are several;
    forecast: written down before it ran."""

    kind: Literal["concurrency", "rate", "trace"]
    load: float
    figures: Figures
    turns: tuple[Figures, ...]
    outcomes: tuple[Outcome, ...]
    noise: Noise | None
    server: ServerView | None
    salt: str
    started: str
    unsent: int
    peak_active: int
    tries: int
    forecast: Forecast | None = None

    @property
    def growing(self) -> bool:
        """Whether the wait grew all along: of a third of the requests at the end twice that of the first third, and over 0.2 s."""
        done = sorted((o for o in self.outcomes if o.ok), key=lambda o: o.arrival_s)
        third = len(done) // 3
        if third < 3:
            return False
        early, late = (median(o.ttft_s for o in part) for part in (done[:third], done[-third:]))
        return late > 2 * early and late > 0.2


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Kept apart from all figures. cold_ms: TTFT of the very first request; characters: of the text per token."""

    cold_ms: float | None
    warm_ms: float | None
    characters: float
    characters_from: Literal["usage", "assumed"]
    requests: int


class Bench:
    """Runs cells against one server. Mutable only in its salt counter."""

    def __init__(self, asked: ServeOptions, server: Server, say: Say, forecaster: Forecaster | None = None) -> None:
        self.asked, self.server, self._say, self._forecaster = asked, server, say, forecaster
        self.corpus = Corpus()
        self.run_salt = asked.salt if asked.salt is not None else secrets.token_hex(3)
        self._cells = 0
        self.manner = Manner(
            server.model, asked.endpoint or asked.preset.endpoint, server.target.prefix, asked.ignore_eos,
            asked.temperature,
        )  # fmt: skip

    def warm_up(self) -> WarmUp:
        """Raises `UserError` when the first request fails: what follows would fail too."""
        return asyncio.run(self._warm_up())

    async def _warm_up(self) -> WarmUp:
        client = Client(self.server.target, self.asked.timeout_s)
        write = self.corpus.code if self.asked.preset.text == "code" else self.corpus.prose
        found: list[Outcome] = []
        try:
            for i, size in enumerate([_SHORT, _LONG, *[_SHORT] * self.asked.warmup]):
                text = f"[{self.run_salt}w{i}] " + write(np.random.default_rng([i, 99]), size)
                load = Load(client, self.manner, 60.0)
                await load.closed([Session("w", "", (Turn(text, 8),))], 1)
                found += load.outcomes
                if not found[0].ok:
                    raise UserError(
                        f"the first request failed: {found[0].reading.error}", field="--url", value=self.server.target.url,
                        remedy="see what the server says; --endpoint completions is for models without a chat template",
                    )  # fmt: skip
        finally:
            client.close()
        counts = [o.reading.prompt_tokens for o in found[:2]]
        told = counts[0] is not None and counts[1] is not None and counts[1] > counts[0]
        characters = (_LONG - _SHORT) / ((counts[1] or 0) - (counts[0] or 0)) if told else DEFAULT_CHARACTERS
        later = [o.ttft_s * 1e3 for o in found[2:] if o.ok]
        return WarmUp(
            found[0].ttft_s * 1e3, median(later) if later else None, characters, "usage" if told else "assumed", len(found)
        )

    def make(self, warm: WarmUp, salt: str, rate: float | None, seed: int, users: int = 0) -> list[Session]:
        """The sessions of a cell: as many as are asked for, and at least as many as shall be at once."""
        asked = self.asked
        if asked.trace is not None:
            return traced(asked.trace, self.corpus, salt)
        made = sessions(Recipe(asked.preset, max(asked.count, users), seed, salt, warm.characters, asked.scale), self.corpus)
        return made if rate is None else timed(made, rate, asked.burst, seed)

    def cell(self, warm: WarmUp, users: int | None, rate: float | None, seed: int | None = None) -> Cell:
        """The least disturbed of at most `repeats` + 1 tries. seed: other than asked, for new prompts in each round."""
        seed = self.asked.seed if seed is None else seed
        forecast = self._forecast(warm, users, rate, seed)
        tries: list[Cell] = []
        while True:
            salt = self.run_salt if self.asked.keep_cache else f"{self.run_salt}{self._cells:x}"
            self._cells += 1
            tries.append(asyncio.run(self._cell(self.make(warm, salt, rate, seed, users or 0), users, rate, salt)))
            noise = tries[-1].noise
            if noise is None or not noise.disturbed or len(tries) > self.asked.repeats:
                break
            self._say(f"others took {noise.taken:.0%} of the CPUs: running the cell again")
        best = min(tries, key=lambda c: 0.0 if c.noise is None else c.noise.taken)
        return replace(best, tries=len(tries), forecast=forecast)

    async def _progress(self, load: Load, requests: int) -> None:
        """A line every ten seconds, for whoever waits."""
        while True:
            await asyncio.sleep(_PROGRESS_S)
            failed = sum(not o.ok for o in load.outcomes)
            self._say(f"  {len(load.outcomes)} of {requests} requests, {load.active} under way" + (f", {failed} failed" if failed else ""))

    def _forecast(self, warm: WarmUp, users: int | None, rate: float | None, seed: int) -> Forecast | None:
        """With a salt of its own: same lengths, same sharing."""
        if self._forecaster is None:
            return None
        try:
            found = self._forecaster.of(self.make(warm, f"{self.run_salt}p", rate, seed, users or 0), self.manner.endpoint, users)
        except UserError as error:
            self._say(f"  no prediction: {error}")
            return None
        if found is not None:
            self._say(f"  predicted {found.output_tok_s:.1f} output tok/s, TTFT p50 {found.ttft_ms:.0f} ms")
        return found

    async def _cell(self, made: Sequence[Session], users: int | None, rate: float | None, salt: str) -> Cell:
        client, side = Client(self.server.target, self.asked.timeout_s), Client(self.server.target, 5.0)
        load, sampler = Load(client, self.manner, self.asked.limit_s, self.asked.seed), Sampler(side)
        started = now()
        try:
            await sampler.begin()
            progress = asyncio.create_task(self._progress(load, sum(s.requests for s in made)))
            watch = Watch(self.server.pid)
            if users is None:
                await load.opened(made)
            else:
                await load.closed(made, users)
            noise, view = watch.end(), await sampler.view()
            progress.cancel()
        finally:
            client.close()
            side.close()
        outcomes, slo = tuple(load.outcomes), self.asked.promise
        turns = sorted({o.turn for o in outcomes})
        per_turn = tuple(figures([o for o in outcomes if o.turn == t], slo) for t in turns) if len(turns) > 1 else ()
        kind: Literal["concurrency", "rate", "trace"] = "concurrency" if users is not None else "rate" if rate is not None else "trace"
        size = float(users) if users is not None else rate if rate is not None else len(made) / max(1e-9, made[-1].arrival_s)
        return Cell(
            kind, size, figures(outcomes, slo), per_turn, outcomes, noise, view, salt, started, load.unsent, load.peak_active, 1
        )

