"""What arrives: requests with times, prompts and output lengths, for the simulator and for load on a real server. Same seed, same load.

Open loops know all arrivals beforehand; closed loops and agents ask for the next request when one has ended. Token ids carry no meaning,
only equality: prompts that share a prefix share its ids.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ridgeline.errors import FileFormatError, UserError, within
from ridgeline.graph.step import Int32Array

MAX_TRACE_BYTES = 1 << 30
MAX_TOKENS = 1 << 24
_POOL = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One request: int32 prompt ids, the number of tokens it generates, and the session it belongs to ("" for none)."""

    id: str
    arrival_s: float
    prompt: Int32Array
    output: int
    session: str = ""
    turn: int = 0


class Workload(Protocol):
    """A source of requests."""

    @property
    def name(self) -> str: ...

    def start(self) -> Sequence[Job]:
        """All that is known before anything ran."""

    def after(self, job: Job, now_s: float, output: Int32Array) -> Job | None:
        """What follows when `job` has ended with these tokens; None for nothing."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of prompt and output, each uniform within +-spread (0.0 to 1.0) of its middle."""

    prompt: int = 512
    output: int = 128
    spread: float = 0.0

    def __post_init__(self) -> None:
        for name in ("prompt", "output"):
            within(f"--{name}", getattr(self, name), 1, MAX_TOKENS)
        if not 0 <= self.spread < 1:
            raise UserError(f"--spread is {self.spread:g}, must be from 0 to below 1", field="--spread", value=self.spread, limit=(0, 1))

    def draw(self, rng: np.random.Generator) -> tuple[int, int]:
        low, high = 1 - self.spread, 1 + self.spread
        return max(1, round(self.prompt * rng.uniform(low, high))), max(1, round(self.output * rng.uniform(low, high)))


class Tokens:
    """Prompts that share nothing unless they are told to: slices of one pool of random ids, each beginning with an id of its own."""

    def __init__(self, seed: int) -> None:
        once = np.random.default_rng(seed).integers(1000, 1 << 20, _POOL, np.int32)
        self._pool = np.concatenate((once, once))
        self._next = 1 << 21

    def fresh(self, length: int) -> Int32Array:
        """int32 [length], equal to nothing before in its first id."""
        start = (self._next * 7919) % _POOL
        ids = self._pool[start : start + length].copy() if length <= _POOL else np.resize(self._pool, length)
        ids[0] = self._next
        self._next += 1
        return ids

    def named(self, name: str, length: int) -> Int32Array:
        """The same ids for the same name, whatever was drawn before."""
        seed = int.from_bytes(name.encode("utf8", "surrogatepass")[:64].ljust(1, b"\0"), "little")
        ids = np.random.default_rng([seed % (1 << 63), len(name)]).integers(1 << 20, 1 << 21, max(1, length), np.int32)
        return ids[:length]


class OpenLoop:
    """Requests at times of their own."""

    def __init__(self, name: str, jobs: Sequence[Job]) -> None:
        self.name, self._jobs = name, tuple(jobs)

    def start(self) -> Sequence[Job]:
        return self._jobs

    def after(self, job: Job, now_s: float, output: Int32Array) -> Job | None:
        return None


def poisson(count: int, rate: float, lengths: Lengths, seed: int = 0, prefix: int = 0) -> OpenLoop:
    """`count` requests with exponential gaps of mean 1 / rate; the first `prefix` tokens of every prompt are the same."""
    return OpenLoop("poisson", list(_arrivals(count, rate, 1, lengths, seed, prefix)))


def bursts(count: int, rate: float, size: int, lengths: Lengths, seed: int = 0, prefix: int = 0) -> OpenLoop:
    """Groups of `size` requests at one moment, the groups Poisson, `rate` requests/s in all."""
    within("--burst", size, 1, MAX_TOKENS)
    return OpenLoop("bursts", list(_arrivals(count, rate, size, lengths, seed, prefix)))


def _arrivals(count: int, rate: float, size: int, lengths: Lengths, seed: int, prefix: int) -> Iterator[Job]:
    within("--requests", count, 1, MAX_TOKENS)
    if not (rate > 0 and math.isfinite(rate)):
        raise UserError(f"--rate is {rate:g}, must be above 0", field="--rate", value=rate, limit=0)
    rng, tokens, now = np.random.default_rng(seed), Tokens(seed), 0.0
    shared = tokens.named("system", prefix)
    for i in range(count):
        if i % size == 0:
            now += float(rng.exponential(size / rate))
        prompt, output = lengths.draw(rng)
        ids = tokens.fresh(prompt)
        yield Job(f"r{i}", now, np.concatenate((shared, ids)) if prefix else ids, output)


class ClosedLoop:
    """`users` who each ask again the moment they have an answer, `count` requests in all."""

    name = "closed"

    def __init__(self, count: int, users: int, lengths: Lengths, seed: int = 0, prefix: int = 0) -> None:
        within("--requests", count, 1, MAX_TOKENS)
        within("--users", users, 1, MAX_TOKENS)
        self._count, self._users, self._lengths = count, users, lengths
        self._rng, self._tokens, self._made = np.random.default_rng(seed), Tokens(seed), 0
        self._shared = self._tokens.named("system", prefix)

    def start(self) -> Sequence[Job]:
        return [self._job(0.0) for _ in range(min(self._users, self._count))]

    def after(self, job: Job, now_s: float, output: Int32Array) -> Job | None:
        return self._job(now_s) if self._made < self._count else None

    def _job(self, now: float) -> Job:
        prompt, output = self._lengths.draw(self._rng)
        self._made += 1
        ids = self._tokens.fresh(prompt)
        return Job(f"r{self._made - 1}", now, np.concatenate((self._shared, ids)) if len(self._shared) else ids, output)


class Agents:
    """Sessions of several turns: each prompt is all that was said before and something new; sessions of one role share its system prompt.

    `rate` sessions/s begin (Poisson); a turn follows `think_s` after the answer. lengths.prompt: new tokens of a turn.
    """

    name = "agents"

    def __init__(
        self,
        sessions: int,
        turns: int,
        rate: float,
        lengths: Lengths,
        seed: int = 0,
        *,
        system: int = 1024,
        roles: int = 4,
        think_s: float = 1.0,
    ) -> None:
        for option, value in (("--requests", sessions), ("--turns", turns), ("--roles", roles)):
            within(option, value, 1, MAX_TOKENS)
        self._turns, self._lengths, self._think = turns, lengths, think_s
        self._rng, self._tokens = np.random.default_rng(seed), Tokens(seed)
        now, first = 0.0, []
        for i in range(sessions):
            now += float(self._rng.exponential(1 / rate))
            role = self._tokens.named(f"role {i % roles}", system)
            prompt, output = lengths.draw(self._rng)
            first.append(Job(f"s{i}.0", now, np.concatenate((role, self._tokens.fresh(prompt))), output, f"s{i}"))
        self._first = tuple(first)

    def start(self) -> Sequence[Job]:
        return self._first

    def after(self, job: Job, now_s: float, output: Int32Array) -> Job | None:
        turn = job.turn + 1
        if turn >= self._turns:
            return None
        prompt, length = self._lengths.draw(self._rng)
        said = np.concatenate((job.prompt, output, self._tokens.fresh(prompt)))
        return Job(f"{job.session}.{turn}", now_s + self._think, said, length, job.session, turn)


def trace_file(path: Path) -> OpenLoop:
    """One JSON object a line: `arrival` (seconds), `prompt_len`, `output_len`, and perhaps `prefix_id` with `prefix_len`.

    Prompts of one prefix_id begin with the same `prefix_len` tokens (all of the prompt when it is left out).
    """
    try:
        if path.stat().st_size > MAX_TRACE_BYTES:
            raise FileFormatError(f"{path}: over {MAX_TRACE_BYTES} bytes", field=str(path), limit=MAX_TRACE_BYTES)
        lines = path.read_text("utf8").splitlines()
    except OSError as error:
        raise FileFormatError(f"{path}: {error.strerror or error}", field=str(path), remedy="check the path") from None
    except UnicodeDecodeError:
        raise FileFormatError(f"{path}: not UTF-8 text", field=str(path), remedy="one JSON object a line") from None
    tokens = Tokens(0)
    jobs = [_traced(line, f"{path}, line {i}", f"t{i}", tokens) for i, line in enumerate(lines, 1) if line.strip()]
    if not jobs:
        raise FileFormatError(f"{path}: no request in it", field=str(path), remedy="one JSON object a line")
    return OpenLoop("trace", sorted(jobs, key=lambda j: j.arrival_s))


def _traced(line: str, where: str, name: str, tokens: Tokens) -> Job:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise FileFormatError(
            f"{where}: not a JSON object", field=where, remedy='like {"arrival": 0.5, "prompt_len": 512, "output_len": 64}'
        )
    arrival, prefix = found.get("arrival"), found.get("prefix_id")
    if isinstance(arrival, bool) or not isinstance(arrival, int | float) or not math.isfinite(arrival) or arrival < 0:
        raise FileFormatError(f"{where}: arrival is {arrival!r}, must be seconds from 0", field="arrival", value=arrival)
    length, output = _whole(found, "prompt_len", where), _whole(found, "output_len", where)
    if prefix is None:
        return Job(name, float(arrival), tokens.fresh(length), output)
    same = min(length, _whole(found, "prefix_len", where) if "prefix_len" in found else length)
    rest = [tokens.fresh(length - same)] if length > same else []
    return Job(name, float(arrival), np.concatenate([tokens.named(str(prefix), same), *rest]), output)


def _whole(found: dict[str, Any], key: str, where: str) -> int:
    value = found.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_TOKENS:
        raise FileFormatError(f"{where}: {key} is {value!r}, must be a whole number from 1 to {MAX_TOKENS}", field=key, value=value)
    return value

