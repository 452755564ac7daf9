"""Batches: every line of a JSONL file gets its reply in another, whatever happens in between.

Knows the order of work, retries, progress and the end. Who answers is passed in; refuses to know engines, servers and terminals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from ridgeline.bench.batch_journal import Journal, is_good
from ridgeline.bench.batch_lines import Call, Entry, in_order, read_call, read_entries
from ridgeline.bench.record import clock_text
from ridgeline.errors import InternalError

BUSY = (429, 503)
TRIES = 8
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 20.0
SYNC_S = 1.0
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Reply:
    """What an endpoint said, whatever its status."""

    status: int
    body: Any
    request_id: str | None = None
    wait_s: float | None = None  # as its retry-after says


class Unreachable(Exception):
    """Nobody answered: refused, reset, timed out, or something that is no JSON."""


class Answerer(Protocol):
    """Whoever answers calls: an engine in this process, or a server."""

    async def ask(self, call: Call) -> Reply:
        """Raises `Unreachable`."""

    def fault(self) -> str | None:
        """Why nothing will be answered any more; None while there is hope."""


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """asked: what replies depend on beside the input, kept with them. concurrency: calls at once. every_s: seconds between two lines of
    progress. retry_errors: lines that ended with an error are asked again. sort: by prefix; False: as they come."""

    input: Path
    output: Path
    asked: dict[str, Any]
    concurrency: int = 64
    every_s: float = 5.0
    overwrite: bool = False
    retry_errors: bool = False
    sort: bool = True


@dataclass(slots=True)
class Summary:
    """lines: not blank; resumed: answered by an earlier run; errors: by code, of all lines; client_errors, server_errors: how many of
    them are the input's and the answerer's; tokens and seconds: of this run."""

    lines: int = 0
    resumed: int = 0
    answered: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    client_errors: int = 0
    server_errors: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    retries: int = 0
    seconds: float = 0.0

    @property
    def output_tok_s(self) -> float | None:
        return self.output_tokens / self.seconds if self.seconds > 0 else None

    @property
    def exit_code(self) -> int:
        """0: all answered; 2: some lines cannot be; 1: the answerer failed on some."""
        return 1 if self.server_errors else 2 if self.client_errors else 0

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"output_tok_s": self.output_tok_s}


async def run(asked: BatchOptions, make: Callable[[], Answerer], say: Say = lambda line: None) -> Summary:
    """Answer what has no reply yet. `make` is called when there is something to ask. Raises `UserError` for files that cannot be used,
    `InternalError` when the answerer is gone for good; what was answered until then is kept."""
    entries = await asyncio.to_thread(read_entries, asked.input)
    ids = {e.id: e.number for e in entries}
    journal = Journal(asked.output, ids, asked.asked, overwrite=asked.overwrite, retry=asked.retry_errors)
    try:
        work = _Work(asked, entries, journal, say)
        todo = [e for e in (in_order(entries) if asked.sort else [e for e in entries if not e.fault]) if e.number not in journal.done]
        if work.summary.resumed:
            say(f"{work.summary.resumed} of {len(entries)} lines were answered before, {len(todo)} are left")
        work.refuse_bad()
        if todo:
            await work.go(todo, make())
        journal.finish()
        return work.summary
    finally:
        journal.close()


class _Work:
    """One run. Mutable: counts, and the answers that come in."""

    def __init__(self, asked: BatchOptions, entries: list[Entry], journal: Journal, say: Say) -> None:
        self.asked, self.journal, self.say = asked, journal, say
        self.entries = entries
        self.summary = Summary(len(entries), len(journal.done))
        self._successes = self._fresh = 0
        self._todo = 0
        self._told = False
        self._begun = perf_counter()
        if journal.done:
            self._count_before()

    def _count_before(self) -> None:
        bad = sum(not place.good for place in self.journal.done.values())
        self.summary.answered += len(self.journal.done) - bad
        if bad:
            self.summary.errors["from an earlier run"] = bad
            self.summary.client_errors += bad

    def refuse_bad(self) -> None:
        """Replies to lines that cannot be asked."""
        for entry in self.entries:
            if entry.fault is not None and entry.number not in self.journal.done:
                self._end(entry, None, {"code": entry.fault.code, "message": entry.fault.message, "line": entry.number})

    async def go(self, todo: list[Entry], answerer: Answerer) -> None:
        self._begun, self._todo = perf_counter(), len(todo)
        ticker = asyncio.ensure_future(self._tick())
        rest = iter(todo)
        try:
            with self.asked.input.open("rb") as file:

                def calls() -> Iterator[tuple[Entry, Call]]:
                    for entry in rest:
                        yield entry, read_call(file, entry)

                source = calls()
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(self.asked.concurrency, len(todo))):
                        group.create_task(self._serve(source, answerer))
        except BaseExceptionGroup as group_error:
            raise _first(group_error) from None
        finally:
            ticker.cancel()
            self.summary.seconds = perf_counter() - self._begun
            self.journal.flush()
        self.say(self._progress())

    async def _serve(self, source: Iterator[tuple[Entry, Call]], answerer: Answerer) -> None:
        for entry, call in source:
            reply, error = await self._ask(entry, call, answerer)
            self._end(entry, reply, error)

    async def _ask(self, entry: Entry, call: Call, answerer: Answerer) -> tuple[Reply | None, dict[str, Any] | None]:
        """Ask until there is a reply worth keeping. An answerer that is gone while nobody else gets an answer either ends the run."""
        before, wait = self._successes, FIRST_WAIT_S
        last = ""
        for attempt in range(TRIES):
            if attempt:
                self.summary.retries += 1
                await asyncio.sleep(wait)
                wait = min(LONGEST_WAIT_S, 2 * wait)
            try:
                reply = await answerer.ask(call)
            except Unreachable as error:
                last = str(error)
                if self._successes == 0 and not self._told:
                    self._told = True
                    self.say(f"no answer yet ({last}): trying again, with pauses, for about a minute")
                if answerer.fault() is not None:
                    break
                continue
            if reply.status in BUSY and attempt + 1 < TRIES and answerer.fault() is None:
                wait = max(wait, min(LONGEST_WAIT_S, reply.wait_s or 0.0))
                continue
            if reply.status >= 500 and answerer.fault() is not None:
                break
            if reply.status < 500:
                self._successes += 1
            return reply, None
        gone = answerer.fault()
        if gone is not None or self._successes == before:
            left = self._todo - self._fresh
            raise InternalError(f"nothing answers any more: {gone or last}; {left} lines are left, the same command goes on with them")
        return None, {"code": "unreachable", "message": last, "line": entry.number}

    def _end(self, entry: Entry, reply: Reply | None, error: dict[str, Any] | None) -> None:
        response = None
        if reply is not None:
            response = {"status_code": reply.status, "request_id": reply.request_id or entry.id, "body": reply.body}
        document = {"id": entry.id, "custom_id": entry.custom_id, "response": response, "error": error}
        self.journal.add(document)
        self._fresh += reply is not None
        self._count(document, reply)

    def _count(self, document: dict[str, Any], reply: Reply | None) -> None:
        s = self.summary
        if is_good(document):
            s.answered += 1
            _add_usage(s, reply.body if reply is not None else None)
            return
        code = str(reply.status) if reply is not None else str(document["error"]["code"])
        s.errors[code] = s.errors.get(code, 0) + 1
        if code == "unreachable" or (reply is not None and reply.status >= 500):
            s.server_errors += 1
        else:
            s.client_errors += 1

    async def _tick(self) -> None:
        """Progress now and then, and the journal to disk every second."""
        told = perf_counter()
        while True:
            await asyncio.sleep(SYNC_S)
            await asyncio.to_thread(self.journal.flush)
            if perf_counter() - told >= self.asked.every_s:
                told = perf_counter()
                self.summary.seconds = told - self._begun
                self.say(self._progress())

    def _progress(self) -> str:
        s, done = self.summary, len(self.journal.done)
        seconds = max(1e-9, s.seconds)
        bad = sum(s.errors.values())
        parts = [f"{done} of {s.lines} lines ({done / s.lines:.0%})", f"{s.output_tokens / seconds:.1f} output tok/s"]
        if s.prompt_tokens:
            parts.append(f"{s.prompt_tokens / seconds:.0f} prompt tok/s, {s.cached_tokens / s.prompt_tokens:.0%} from the prefix cache")
        if bad:
            parts.append(f"{bad} with errors")
        left = self._todo - self._fresh
        if left > 0:
            parts.append(f"ETA {clock_text(left * seconds / self._fresh)}" if self._fresh else "ETA after the first reply")
        return ", ".join(parts)


def _add_usage(s: Summary, body: Any) -> None:
    usage = body.get("usage") if isinstance(body, dict) else None
    if not isinstance(usage, dict):
        return

    def whole(*names: str) -> int:
        return next((v for v in (usage.get(n) for n in names) if isinstance(v, int)), 0)

    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    s.prompt_tokens += whole("prompt_tokens", "input_tokens") + whole("cache_read_input_tokens")
    s.output_tokens += whole("completion_tokens", "output_tokens")
    s.cached_tokens += cached if isinstance(cached, int) else whole("cache_read_input_tokens")


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
