"""A run as pictures: a Chrome/Perfetto trace, and the Gantt chart of requests as one page of HTML without scripts.

Knows times of requests and steps. Every bar is a simulated time, none is drawn by hand.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ridgeline.bench.replica import Live
from ridgeline.bench.simulate import Run

MAX_REQUESTS = 20_000
ROWS, WIDTH, ROW, LEFT = 48, 900, 12, 90  # requests shown, pixels of time, of a row, and left of the bars


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


def gantt_page(runs: Sequence[tuple[str, Run, dict[str, Any]]]) -> str:
    """HTML of (title, run, outcome): one chart each under the same time scale, with idle slots and latencies in words."""
    longest = max((_end(run) for _, run, _ in runs), default=1.0) or 1.0
    charts = "\n".join(_chart(title, run, found, longest) for title, run, found in runs)
    head = f"<!doctype html>\n<meta charset=utf-8><title>Ridgeline simulation</title>\n<style>{_STYLE}</style>"
    return f"{head}\n<h1>Simulated schedule</h1>\n{charts}\n"


_STYLE = (
    "body{font:14px system-ui;margin:24px;color:#1a1a1a;background:#fff}text{font:10px system-ui;fill:currentColor}"
    ".queue{fill:#c9c9c9}.prefill{fill:#d98a2b}.decode{fill:#2b6cb0}svg{max-width:100%;height:auto}"
    "@media(prefers-color-scheme:dark){body{color:#e6e6e6;background:#161616}.queue{fill:#555}}"
)


def _shown(run: Run) -> list[Live]:
    return sorted((live for live in run.lives if live.token_s), key=lambda live: live.job.arrival_s)[:ROWS]


def _end(run: Run) -> float:
    return max((live.token_s[-1] for live in _shown(run)), default=0.0)


def _chart(title: str, run: Run, found: dict[str, Any], longest: float) -> str:
    rows = []
    for i, live in enumerate(_shown(run)):
        top = i * ROW
        rows.append(f'<text x="0" y="{top + ROW - 3}">{html.escape(live.job.id[:14])}</text>')
        for name, start, end in phases(live):
            x, width = LEFT + WIDTH * start / longest, max(0.5, WIDTH * (end - start) / longest)
            said = html.escape(f"{live.job.id} {name}: {end - start:.3f} s")
            box = f'x="{x:.1f}" y="{top + 1}" width="{width:.1f}" height="{ROW - 3}"'
            rows.append(f'<rect class="{name}" {box}><title>{said}</title></rect>')
    height = max(1, len(_shown(run))) * ROW + 14
    axis = f'<text x="{LEFT}" y="{height - 2}">0 s</text><text x="{LEFT + WIDTH - 40}" y="{height - 2}">{longest:.2f} s</text>'
    idle, ttft = found["slots_idle"], found["ttft_ms"]
    words = f"idle slots {idle:.0%}" if idle is not None else "nothing ran"
    if ttft is not None:
        words += f", TTFT p50 {ttft['p50']:.0f} ms, p95 {ttft['p95']:.0f} ms, {found['output_tok_s']:,.0f} tok/s"
        words += f", all done after {run.end_s:.2f} s"
    name, size = html.escape(title), f'viewBox="0 0 {LEFT + WIDTH} {height}" width="{LEFT + WIDTH}"'
    return (
        f"<h2>{name}</h2><p>{words}. Grey waits, orange computes its prompt, blue generates.</p>"
        f'<svg {size} role="img" aria-label="{name}">{"".join(rows)}{axis}</svg>'
    )
