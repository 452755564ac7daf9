"""A run as a Chrome/Perfetto trace. Knows times of requests and steps; every slice is a simulated time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ridgeline.bench.replica import Live
from ridgeline.bench.simulate import Run

MAX_REQUESTS = 20_000


def write_trace(run: Run, path: Path) -> None:
    """Opens in ui.perfetto.dev: a process per replica, its steps in one row, its requests' queue, prefill and decode as async slices."""
    with open(path, "w", encoding="utf8") as file:
        json.dump({"traceEvents": list(_events(run)), "displayTimeUnit": "ms"}, file)
        file.write("\n")


def _events(run: Run) -> Iterator[dict[str, Any]]:
    for index, logs in enumerate(run.logs):
        yield {"name": "process_name", "ph": "M", "pid": index, "args": {"name": f"replica {index}"}}
        for log in logs:
            facts = {"decodes": log.decodes, "chunk_tokens": log.chunk_tokens}
            yield {"name": "step", "ph": "X", "ts": _us(log.start_s), "dur": _us(log.seconds), "pid": index, "tid": 0, "args": facts}
            lines = {"running": log.running, "waiting": log.waiting}
            yield {"name": "sequences", "ph": "C", "ts": _us(log.start_s), "pid": index, "args": lines}
            if log.used >= 0:
                yield {"name": "KV blocks", "ph": "C", "ts": _us(log.start_s), "pid": index, "args": {"used": log.used}}
    for live in run.lives[:MAX_REQUESTS]:
        for name, start, end in phases(live):
            common = {"cat": "request", "name": name, "id": live.job.id, "pid": live.replica, "tid": 1}
            yield {**common, "ph": "b", "ts": _us(start), "args": {"prompt": len(live.job.prompt), "hit": live.hit}}
            yield {**common, "ph": "e", "ts": _us(end)}


def phases(live: Live) -> list[tuple[str, float, float]]:
    """(name, start, end) in seconds of queue, prefill and decode, as far as they happened."""
    found = []
    if live.admitted_s >= 0:
        found.append(("queue", live.job.arrival_s, live.admitted_s))
    if live.token_s:
        found += [("prefill", live.admitted_s, live.token_s[0]), ("decode", live.token_s[0], live.token_s[-1])]
    return found


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 1)
