"""What a run came to: percentiles, rates, goodput, cache and machine use, price. Each figure by one definition, which stands beside it.

TTFT: arrival to first token, queue and prompt apart. ITL: gaps between tokens of one request, the first token not counted. TPOT: the mean
gap of a request. Goodput: requests per second that met TTFT and TPOT promises together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from decimal import Decimal
from typing import Any

import numpy as np

from ridgeline.bench.client_metrics import Slo
from ridgeline.bench.fragmentation import contiguous, held, paged
from ridgeline.bench.replica import Live
from ridgeline.bench.simulate import Run
from ridgeline.bench.stats import Floats, rate, summary
from ridgeline.planner.price import per_million, rounded
from ridgeline.planner.units import milliseconds

MAX_PLACED = 5000  # requests whose memory is laid out again
DEFINITIONS = {
    "ttft_ms": "arrival to first token = queue_ms + prefill_ms",
    "itl_ms": "gaps between tokens, all requests together, first token not counted",
    "tpot_ms": "(last token - first token) / (tokens - 1) of each request", "e2e_ms": "arrival to last token",
    "goodput_s": "requests/s with TTFT and TPOT within the promises",
    "slots_idle": "share of sequence slots that decode nothing while a step runs",
    "kv_waste": "memory reserved but empty (internal), or free but in pieces (external), for paged and contiguous KV",
    "utilization": "share of the time until the last token in which a replica ran a step",
}  # fmt: skip


def outcome(run: Run, promise: Slo, usd_per_hour: Decimal | None = None) -> dict[str, Any]:
    """Plain values; times in ms unless named otherwise. usd_per_hour: of the whole fleet; None without a price."""
    done = [live for live in run.lives if live.token_s]
    seconds = run.end_s
    made, asked = sum(len(live.token_s) for live in done), sum(len(live.job.prompt) for live in done)
    series = times(done)
    kept = [live for live in done if met(live, promise)]
    rates = {
        "output_tok_s": rate(made, seconds), "total_tok_s": rate(made + asked, seconds), "requests_s": rate(len(done), seconds),
        "goodput_s": rate(len(kept), seconds), "goodput_share": rate(len(kept), len(run.lives) + len(run.refused)),
    }  # fmt: skip
    usd = None if usd_per_hour is None or seconds == 0 else per_million(usd_per_hour, made / seconds)
    return {
        "workload": run.workload, "requests": len(run.lives) + len(run.refused), "completed": len(done), "refused": len(run.refused),
        "refused_why": [f"{name}: {why}" for name, why in run.refused[:5]], "ended": dict(Counter(live.reason for live in run.lives)),
        "seconds": seconds, "steps": sum(r.steps for r in run.replicas), "prompt_tokens": asked, "output_tokens": made, **rates,
        **{name: _summed(values * 1e3) for name, values in series.items()},
        "prefix_hit_rate": rate(sum(live.hit for live in done), asked), "preemptions": sum(live.preemptions for live in run.lives),
        **_machines(run), "kv_waste": _waste(run, done),
        "usd_per_hour": rounded(usd_per_hour), "usd_per_mtok": rounded(usd), "definitions": DEFINITIONS,
        "slo": {"ttft_ms": milliseconds(promise.ttft_s), "itl_ms": milliseconds(promise.tpot_s)},
    }  # fmt: skip


def times(done: Sequence[Live]) -> dict[str, Floats]:
    """Seconds per request, and per gap for ITL."""
    many = [live for live in done if len(live.token_s) > 1]
    gaps = [np.diff(live.token_s) for live in many]
    return {
        "ttft_ms": np.array([live.first_s - live.job.arrival_s for live in done]),
        "queue_ms": np.array([live.admitted_s - live.job.arrival_s for live in done]),
        "prefill_ms": np.array([live.first_s - live.admitted_s for live in done]),
        "itl_ms": np.concatenate(gaps) if gaps else np.empty(0),
        "tpot_ms": np.array([tpot(live) for live in many]),
        "e2e_ms": np.array([live.token_s[-1] - live.job.arrival_s for live in done]),
    }  # fmt: skip


def tpot(live: Live) -> float:
    return (live.token_s[-1] - live.token_s[0]) / max(1, len(live.token_s) - 1)


def met(live: Live, promise: Slo) -> bool:
    """Whether a request that has tokens kept both promises."""
    in_time = promise.ttft_s is None or live.first_s - live.job.arrival_s <= promise.ttft_s
    return in_time and (promise.tpot_s is None or tpot(live) <= promise.tpot_s) and live.reason == "length"


def _machines(run: Run) -> dict[str, Any]:
    seconds, slots = run.end_s or 1.0, run.fleet.budget.sequences
    busy = [r.busy_s / seconds for r in run.replicas]
    active = sum(live.token_s[-1] - max(0.0, live.admitted_s) for live in run.lives if live.token_s)
    ran = sum(r.busy_s for r in run.replicas)
    used = [log.used for logs in run.logs for log in logs if log.used >= 0]
    return {
        "replicas": len(run.replicas), "utilization": {"mean": float(np.mean(busy)), "min": min(busy), "max": max(busy)},
        "slots_idle": 1.0 - min(1.0, active / (ran * slots)) if ran else None,
        "kv_used": {"mean": float(np.mean(used)), "max": max(used)} if used else None, "kv_over_time": usage_over_time(run),
    }  # fmt: skip


def _waste(run: Run, done: Sequence[Live]) -> dict[str, float | None]:
    """The same requests in blocks, in regions of the greatest length, and in regions of exactly what each needs."""
    kept = held(done[:MAX_PLACED])
    size, longest = run.fleet.block_size, max((h.final for h in kept), default=1)
    capacity = run.fleet.blocks[0] * size
    exact = contiguous(kept, capacity)
    return {
        "paged_internal": paged(kept, size).internal, "max_len_internal": contiguous(kept, capacity, longest).internal,
        "exact_internal": exact.internal, "exact_external": exact.external,
    }  # fmt: skip


def usage_over_time(run: Run, points: int = 100) -> list[tuple[float, float]]:
    """(second, share of KV blocks in use), the mean over replicas, at most `points` of them."""
    samples = sorted((log.start_s, log.used) for logs in run.logs for log in logs if log.used >= 0)
    size = max(1, -(-len(samples) // points))
    groups = [samples[i : i + size] for i in range(0, len(samples), size)]
    return [(g[0][0], sum(u for _, u in g) / len(g)) for g in groups]


def _summed(values: Floats) -> dict[str, float] | None:
    found = summary(values)
    return None if found is None else asdict(found)
