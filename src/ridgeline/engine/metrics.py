"""What the engine counts: totals, histograms and a record of each finished request. Plain numbers; who publishes them is elsewhere.

Knows no protocol. Names are vLLM's without their prefix; seconds and tokens throughout. Python's integers never overflow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ridgeline.engine.request import RequestState
from ridgeline.scheduler.state import SchedulerState, StepRecord
from ridgeline.types import FinishReason, MissReason

# vLLM's buckets, so that its dashboards work.
TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
LATENCY_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
TOKENS = tuple(d * 10**e for e in range(7) for d in (1, 2, 5))
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Histogram:
    """Counts of values by bucket: counts[i] holds values in (bounds[i-1], bounds[i]], the last one everything above."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One finished request. queue_s: arrival to leaving the queue; prefill_s: to the first token; decode_s: first to last token;
    None where it never came to that. generated: tokens of each choice."""

    id: str
    arrival: float
    prompt_tokens: int
    cached_tokens: int
    miss_reason: MissReason | None
    generated: tuple[int, ...]
    finish_reasons: tuple[FinishReason | None, ...]
    preemptions: int
    queue_s: float | None
    ttft_s: float | None
    prefill_s: float | None
    decode_s: float | None
    tpot_s: float | None
    e2e_s: float


class Metrics:
    """Mutable, one writer (the engine's thread); others may read totals at any time. `recent`: the last finished requests."""

    def __init__(self, keep: int = 1024) -> None:
        self.counts: Counter[str] = Counter()
        self.recent: deque[RequestRecord] = deque(maxlen=keep)
        self.histograms = {
            "time_to_first_token_seconds": Histogram(TTFT_S),
            "inter_token_latency_seconds": Histogram(ITL_S),
            "request_time_per_output_token_seconds": Histogram(ITL_S),
            "e2e_request_latency_seconds": Histogram(LATENCY_S),
            "request_queue_time_seconds": Histogram(LATENCY_S),
            "request_prefill_time_seconds": Histogram(LATENCY_S),
            "request_decode_time_seconds": Histogram(LATENCY_S),
            "request_inference_time_seconds": Histogram(LATENCY_S),
            "request_prompt_tokens": Histogram(TOKENS),
            "request_generation_tokens": Histogram(TOKENS),
            "request_max_num_generation_tokens": Histogram(TOKENS),
            "request_params_max_tokens": Histogram(TOKENS),
            "request_prefill_kv_computed_tokens": Histogram(TOKENS),
            "request_num_preemptions": Histogram((0, 1, 2, 5, 10, 20, 50)),
            "request_params_n": Histogram((1, 2, 5, 10, 20)),
            "iteration_tokens_total": Histogram(STEP_TOKENS),
        }
        self._itl = self.histograms["inter_token_latency_seconds"]
        self._ttft = self.histograms["time_to_first_token_seconds"]
        self._iteration = self.histograms["iteration_tokens_total"]

    def arrived(self, asked: RequestState) -> None:
        self.counts["requests"] += 1
        self.histograms["request_params_n"].observe(asked.request.params.n)

    def stepped(self, record: StepRecord, gaps: Iterable[float | None], seconds: float, accepted: Iterable[int] = ()) -> None:
        """A step that ran. gaps: seconds since each one's token before; below 0: since the arrival,
        for a request's first token; None: the first of a further sample, or a token that came with the one before it, which are neither.
        accepted: drafts that came true, of each sequence that had some."""
        made = 0
        for gap in gaps:
            made += 1
            if gap is None:
                continue
            if gap < 0:
                self._ttft.observe(-gap)
            else:
                self._itl.observe(gap)
        counts = self.counts
        counts["steps"] += 1
        counts["generation_tokens"] += made
        counts["computed_prompt_tokens"] += record.chunk_tokens
        counts["step_microseconds"] += int(seconds * 1e6)
        self._iteration.observe(record.decodes + record.draft_tokens + record.chunk_tokens)
        if record.drafts:
            counts["spec_decode_num_drafts"] += len(record.drafts)
            counts["spec_decode_num_draft_tokens"] += record.draft_tokens
            for right in accepted:
                counts["spec_decode_num_accepted_tokens"] += right
                for position in range(right):
                    counts[f"spec_decode_num_accepted_tokens_per_pos_{position}"] += 1

    def finished(self, asked: RequestState) -> None:
        """The last choice of a request ended."""
        record = record_of(asked)
        self.recent.append(record)
        self.counts["finished"] += 1
        self.counts["prompt_tokens"] += record.prompt_tokens
        self.counts["prompt_tokens_cached"] += record.cached_tokens
        for reason in record.finish_reasons:
            self.counts[f"finished_{reason}"] += 1
        if record.miss_reason is not None:
            self.counts[f"prefix_{record.miss_reason}"] += 1
        ran = None if record.prefill_s is None else record.prefill_s + (record.decode_s or 0.0)
        found = {
            "request_inference_time_seconds": ran, "request_max_num_generation_tokens": max(record.generated, default=0),
            "request_params_max_tokens": asked.request.params.max_tokens,
            "request_prefill_kv_computed_tokens": record.prompt_tokens - record.cached_tokens,
            "request_time_per_output_token_seconds": record.tpot_s, "e2e_request_latency_seconds": record.e2e_s,
            "request_queue_time_seconds": record.queue_s, "request_prefill_time_seconds": record.prefill_s,
            "request_decode_time_seconds": record.decode_s, "request_prompt_tokens": record.prompt_tokens,
            "request_generation_tokens": sum(record.generated), "request_num_preemptions": record.preemptions,
        }  # fmt: skip
        for name, value in found.items():
            if value is not None:
                self.histograms[name].observe(value)


def record_of(asked: RequestState) -> RequestRecord:
    t, cache = asked.times, asked.cache
    made = tuple(len(c.token_ids) for c in asked.choices)
    longest = max(made, default=0)
    decode = t.last_token - t.first_token if t.first_token else None
    return RequestRecord(
        asked.id, t.arrival, len(asked.prompt_ids), 0 if cache is None else cache.tokens, None if cache is None else cache.reason,
        made, tuple(c.finish for c in asked.choices), t.preemptions,
        queue_s=t.admitted - t.arrival if t.admitted else None, ttft_s=t.first_token - t.arrival if t.first_token else None,
        prefill_s=t.first_token - t.admitted if t.first_token else None, decode_s=decode,
        tpot_s=decode / (longest - 1) if decode is not None and longest > 1 else None, e2e_s=t.finished - t.arrival,
    )  # fmt: skip


def gauges(state: SchedulerState) -> dict[str, float]:
    """What is the case now: requests running and waiting, and the fullest pool's share of blocks held and in use (0..1)."""
    usage = [(free, cached, used) for free, cached, used in state.kv.usage()]
    sizes = [max(1, sum(pool)) for pool in usage]
    return {
        "num_requests_running": len(state.running), "num_requests_waiting": len(state.waiting),
        "kv_cache_usage_perc": max((used / size for (_, _, used), size in zip(usage, sizes, strict=True)), default=0.0),
        "kv_cache_held_perc": max(((used + cached) / size for (_, cached, used), size in zip(usage, sizes, strict=True)), default=0.0),
    }  # fmt: skip
