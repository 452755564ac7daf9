"""What a cell should come to before it is measured: the same sessions through our scheduler and cache on this host's calibrated clock.

Only for our own engine, a file at hand and a host that was calibrated. HTTP, JSON and the client's own work are not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ridgeline.bench.clocked import Clocked, fitted
from ridgeline.bench.load_workloads import Endpoint, Session
from ridgeline.bench.outcome import times
from ridgeline.bench.workloads import Job
from ridgeline.engine.loader import open_model
from ridgeline.engine.words import Words
from ridgeline.graph.step import Int32Array
from ridgeline.options import make_options


@dataclass(frozen=True, slots=True)
class Forecast:
    """Medians in ms, output tokens of all requests over the time until the last of them. calibrated: when the host was."""

    output_tok_s: float
    ttft_ms: float
    tpot_ms: float | None
    calibrated: str


@dataclass(eq=False)
class Sessions:
    """Sessions as a `Workload` of the simulator. users: closed loop of so many; None: each at its time. Mutable as it runs."""

    made: Sequence[Session]
    words: Words
    endpoint: Endpoint
    users: int | None
    name: str = "sessions"
    _next: int = 0
    _turn: dict[str, tuple[Session, int]] = field(default_factory=dict)

    def start(self) -> Sequence[Job]:
        count = len(self.made) if self.users is None else min(self.users, len(self.made))
        return [self._begin(0.0 if self.users is not None else self.made[i].arrival_s) for i in range(count)]

    def after(self, job: Job, now_s: float, output: Int32Array) -> Job | None:
        """The session's next turn, which reads all that was said; else the next session of a closed loop."""
        session, turn = self._turn[job.session]
        if turn + 1 < len(session.turns):
            self._turn[job.session] = (session, turn + 1)
            said = session.turns[turn + 1]
            ids = np.concatenate((job.prompt, output, np.array(self._ids([("user", said.text)]), np.int32)))
            return Job(f"{session.id}.{turn + 1}", now_s, ids, said.max_tokens, session.id, turn + 1)
        return self._begin(now_s) if self.users is not None and self._next < len(self.made) else None

    def _begin(self, now_s: float) -> Job:
        session = self.made[self._next]
        self._next += 1
        self._turn[session.id] = (session, 0)
        talk = [("system", session.system)] if session.system else []
        ids = self._ids([*talk, ("user", session.turns[0].text)])
        return Job(f"{session.id}.0", now_s, np.array(ids, np.int32), session.turns[0].max_tokens, session.id)

    def _ids(self, talk: Sequence[tuple[str, str]]) -> list[int]:
        if self.endpoint == "chat":
            return self.words.render([{"role": role, "content": text} for role, text in talk])[1]
        return self.words.encode("\n".join(text for _, text in talk))


class Forecaster:
    """Holds the model's graph and tokenizer, no weights. Raises `UserError` for a model that cannot be opened."""

    def __init__(self, model: str, context: int, seqs: int, threads: int | None) -> None:
        opened = open_model(make_options(model, {"max_model_len": context, "max_num_seqs": seqs, "threads": threads}))
        seconds = fitted(opened)
        self._clocked, self._date = Clocked(opened, seconds), seconds.calibration.date

    def of(self, made: Sequence[Session], endpoint: Endpoint, users: int | None) -> Forecast | None:
        """None for several samples a prompt, which the clock's driver does not ask for."""
        if any(s.n > 1 for s in made):
            return None
        done = self._clocked.run(Sessions(made, self._clocked.text, endpoint, users))
        series = times(done.lives)
        tokens = sum(len(live.token_s) for live in done.lives)
        tpot = float(np.median(series["tpot_ms"]) * 1e3) if len(series["tpot_ms"]) else None
        return Forecast(tokens / done.seconds, float(np.median(series["ttft_ms"]) * 1e3), tpot, self._date)
