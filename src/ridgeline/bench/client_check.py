"""How exact the client is on this machine: a fake server in a process of its own streams at scripted times, and the client reports them.

Streams begin one after the other within one gap, so that what is measured is many streams under way, not many connections at one moment.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from ridgeline.bench.client import Client, Target
from ridgeline.bench.client_metrics import Slo, figures
from ridgeline.bench.engines_process import Process, ended, free_port
from ridgeline.bench.load import Load, Manner
from ridgeline.bench.load_workloads import Session, Turn
from ridgeline.errors import UserError

TOLERANCE_MS, TOLERANCE = 2.0, 0.02
CPU_LIMIT = 0.15
READY_S = 30.0


@dataclass(frozen=True, slots=True)
class Check:
    """One number of streams. Scripted and reported times in ms (medians and p99 over all); cpu: share of one core at `tok_s`."""

    streams: int
    tok_s: float
    scripted_ttft_ms: float
    reported_ttft_ms: float
    ttft_p99_ms: float
    scripted_gap_ms: float
    reported_itl_ms: float
    reported_tpot_ms: float
    cpu: float
    failed: int

    @property
    def exact(self) -> bool:
        """Within 2 ms or 2%, whichever is more."""
        pairs = ((self.scripted_ttft_ms, self.reported_ttft_ms), (self.scripted_gap_ms, self.reported_itl_ms),
                 (self.scripted_gap_ms, self.reported_tpot_ms))  # fmt: skip
        return not self.failed and all(abs(b - a) <= max(TOLERANCE_MS, TOLERANCE * a) for a, b in pairs)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"exact": self.exact}


def check(streams: int, tok_s: float = 1000.0, seconds: float = 5.0) -> Check:
    """`streams` at once, `tok_s` together, each for about `seconds`. Raises `UserError` when the fake server does not start."""
    port = free_port()
    target = Target.of(f"http://127.0.0.1:{port}")
    command = [sys.executable, "-m", "ridgeline.bench.client_fake", str(port)]
    with TemporaryDirectory() as folder, ended(Process(command, Path(folder) / "log")) as server:
        server.wait(target, "/health", READY_S)
        return asyncio.run(_check(target, streams, tok_s, seconds))


async def _check(target: Target, streams: int, tok_s: float, seconds: float) -> Check:
    gap = streams / tok_s
    tokens, ttft = max(2, round(seconds / gap)), 0.1
    manner = Manner(f"role=0.01,ttft={ttft},gap={gap}")
    client = Client(target, 60.0)
    await Load(client, manner, 60.0).closed(_sessions(streams, 2, 0.0), streams)  # connections are made beforehand
    load = Load(client, manner, 60.0)
    wall, cpu = perf_counter(), sum(os.times()[:2])
    await load.opened(_sessions(streams, tokens, gap))
    cpu, wall = sum(os.times()[:2]) - cpu, perf_counter() - wall
    client.close()
    done = [o for o in load.outcomes if o.ok]
    f = figures(load.outcomes, Slo())
    if f.ttft_ms is None or f.itl_ms is None or f.tpot_ms is None:
        raise UserError(f"no stream ended well: {f.failures}", field="bench client")
    assert len(done) == f.completed
    return Check(
        streams, f.output_tokens / wall, ttft * 1e3, f.ttft_ms.p50, f.ttft_ms.p99, gap * 1e3, f.itl_ms.p50,
        median(o.tpot_s or 0.0 for o in done) * 1e3, cpu / wall, f.failed,
    )  # fmt: skip


def _sessions(count: int, tokens: int, within_s: float) -> list[Session]:
    return [Session(f"s{i}", "", (Turn("go", tokens),), arrival_s=i * within_s / count) for i in range(count)]


def render(checks: list[Check]) -> str:
    """One line a check."""
    lines = [f"{'streams':>7} {'tok/s':>7}  {'TTFT ms':>16}  {'ITL ms':>16}  {'TPOT ms':>9}  {'p99 TTFT':>8}  {'CPU':>6}"]
    for c in checks:
        lines.append(
            f"{c.streams:>7} {c.tok_s:>7.0f}  {c.scripted_ttft_ms:>7.1f} {c.reported_ttft_ms:>8.2f}  {c.scripted_gap_ms:>7.1f} "
            f"{c.reported_itl_ms:>8.2f}  {c.reported_tpot_ms:>9.2f}  {c.ttft_p99_ms:>8.1f}  {c.cpu:>6.1%}  "
            + ("exact" if c.exact else "NOT within 2 ms or 2%")
            + ("" if c.cpu < CPU_LIMIT else f", over {CPU_LIMIT:.0%} of a core")
        )
    return "\n".join([*lines, "pairs are scripted, reported (medians); CPU is the client's, of one core"])
