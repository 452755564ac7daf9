"""/metrics: what the engine and the server count, as Prometheus text. Our names, and vLLM's with its labels and buckets.

Knows names and where their numbers lie; counts nothing itself but HTTP replies. Sources: vLLM 0.30's catalogue of metrics,
the Prometheus text format 0.0.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from starlette.requests import Request
from starlette.responses import Response

from ridgeline.engine.metrics import Histogram
from ridgeline.server.openai.common import state_of
from ridgeline.server.state import State

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABELS = ("model_name", "engine")
MISS_REASONS = ("complete", "never_seen", "evicted", "salted", "too_short", "ineligible")
_FINISHES = ("stop", "length", "abort", "error")

# vLLM's name, help, where it lies in the engine's numbers.
_GAUGES = (
    ("vllm:num_requests_running", "Sequences in the running batch", "num_requests_running"),
    ("vllm:num_requests_waiting", "Sequences waiting to be admitted", "num_requests_waiting"),
    ("vllm:kv_cache_usage_perc", "Share of KV blocks in use by running sequences, 0 to 1", "kv_cache_usage_perc"),
    ("ridgeline:kv_cache_held_perc", "Share of KV blocks in use or holding cached prefixes, 0 to 1", "kv_cache_held_perc"),
)
_COUNTERS = (
    ("vllm:prompt_tokens", "Prompt tokens of finished requests", "prompt_tokens"),
    ("vllm:prompt_tokens_cached", "Prompt tokens that came from the prefix cache", "prompt_tokens_cached"),
    ("vllm:generation_tokens", "Tokens generated", "generation_tokens"),
    ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache, each request once", "prefix_tokens_queried"),
    ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache", "prefix_tokens_hit"),
    ("vllm:num_preemptions", "Preemptions", "preemptions"),
    ("vllm:spec_decode_num_drafts", "Drafts verified, one per sequence and step", "spec_decode_num_drafts"),
    ("vllm:spec_decode_num_draft_tokens", "Draft tokens verified", "spec_decode_num_draft_tokens"),
    ("vllm:spec_decode_num_accepted_tokens", "Draft tokens that came true", "spec_decode_num_accepted_tokens"),
    ("ridgeline:requests", "Requests submitted to the engine", "requests"),
    ("ridgeline:steps", "Steps of the engine", "steps"),
    ("ridgeline:computed_prompt_tokens", "Prompt tokens computed, recomputation after preemption included", "computed_prompt_tokens"),
    ("ridgeline:kv_evictions", "KV blocks evicted from the prefix cache", "evictions"),
    ("ridgeline:kv_copies_on_write", "KV blocks copied before a write", "copies_on_write"),
    ("ridgeline:shared_walks", "Spans that shared the walk over a common prefix", "shared_walks"),
    ("ridgeline:timeouts", "Requests aborted at their own timeout", "timeouts"),
    ("ridgeline:backend_faults", "Steps on which the backend failed", "backend_faults"),
    ("ridgeline:speculation_faults", "1 when a draft model failed: answers go on without guesses", "speculation_faults"),
    ("ridgeline:engine_restarts", "Times the engine started anew after a broken invariant", "engine_restarts"),
)
_FLOPS = {"integer": "flops_integer", "float": "flops_float", "bfloat16": "flops_bfloat16"}
_BYTES = {"weights": "bytes_weights", "kv_read": "bytes_kv_read", "kv_written": "bytes_kv_written"}
_HISTOGRAM_HELP = {
    "time_to_first_token_seconds": "Seconds from arrival to the first token",
    "inter_token_latency_seconds": "Seconds between tokens of one sequence",
    "request_time_per_output_token_seconds": "Seconds per output token after the first, per request",
    "e2e_request_latency_seconds": "Seconds from arrival to the end",
    "request_queue_time_seconds": "Seconds in the queue",
    "request_prefill_time_seconds": "Seconds from admission to the first token",
    "request_decode_time_seconds": "Seconds from the first to the last token",
    "request_inference_time_seconds": "Seconds from admission to the last token",
    "request_prompt_tokens": "Prompt tokens per request",
    "request_max_num_generation_tokens": "Tokens of a request's longest choice",
    "request_params_max_tokens": "The max_tokens of requests",
    "request_prefill_kv_computed_tokens": "Prompt tokens per request that the cache did not have",
    "request_generation_tokens": "Generated tokens per request",
    "request_num_preemptions": "Preemptions per request",
    "request_params_n": "The n of requests",
    "iteration_tokens_total": "Tokens per step",
}


class Collected:
    """A collector of one scrape: reads the numbers where they lie. Counters never fall, so none is kept twice."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._labels = [state.served.name, "0"]

    def collect(self) -> Iterator[Metric]:
        state = self._state
        stats = state.engine.stats()
        for name, text, key in _GAUGES:
            yield self._one(GaugeMetricFamily, name, text, stats.get(key, 0))
        yield self._by(GaugeMetricFamily, "vllm:num_requests_waiting_by_reason", "Sequences waiting, by reason", "reason",
                       {"capacity": stats.get("num_requests_waiting", 0), "deferred": 0})  # fmt: skip
        for name, text, key in _COUNTERS:
            yield self._one(CounterMetricFamily, name, text, stats.get(key, 0))
        yield from self._labelled(stats)
        for name, histogram in state.engine.metrics.histograms.items():
            yield self._histogram("vllm:" + name, _HISTOGRAM_HELP.get(name, name), histogram)
        yield from self._http()
        yield self._info()

    def _labelled(self, stats: Mapping[str, Any]) -> Iterator[Metric]:
        finished = {reason: stats.get(f"finished_{reason}", 0) for reason in _FINISHES}
        yield self._by(CounterMetricFamily, "vllm:request_success", "Choices that ended, by reason", "finished_reason", finished)
        yield self._one(CounterMetricFamily, "vllm:corrupted_requests", "Choices that ended by NaN or another fault", finished["error"])
        hits = stats.get("prompt_tokens_cached", 0)
        source = {
            "local_compute": stats.get("prompt_tokens", 0) - hits, "local_cache_hit": hits, "external_kv_transfer": 0,
        }  # fmt: skip
        yield self._by(
            CounterMetricFamily, "vllm:prompt_tokens_by_source", "Prompt tokens of finished requests, by source", "source", source
        )
        misses = {reason: stats.get(f"prefix_{reason}", 0) for reason in MISS_REASONS}
        yield self._by(
            CounterMetricFamily,
            "ridgeline:prefix_lookups",
            "Prefix lookups, by why no more was reused (complete: all was)",
            "reason",
            misses,
        )
        prefix = "spec_decode_num_accepted_tokens_per_pos_"
        by_position = {k.removeprefix(prefix): stats[k] for k in sorted(stats) if k.startswith(prefix)}
        yield self._by(CounterMetricFamily, "vllm:spec_decode_num_accepted_tokens_per_pos", "Draft tokens that came true, by their place",
                       "position", by_position or {"0": 0})  # fmt: skip
        seconds = stats.get("step_microseconds", 0) / 1e6
        yield self._one(CounterMetricFamily, "ridgeline:step_seconds", "Seconds spent in steps", seconds)
        yield from self._traffic(stats)
        yield from self._grammars()

    def _grammars(self) -> Iterator[Metric]:
        """What structured output costs."""
        times = self._state.served.manner.grammars.times
        yield self._one(CounterMetricFamily, "ridgeline:grammars_compiled", "Schemas, expressions and grammars compiled", times.compiled)
        yield self._one(CounterMetricFamily, "ridgeline:grammar_compile_seconds", "Seconds spent compiling them", times.compile_s)
        yield self._one(CounterMetricFamily, "ridgeline:grammar_masks", "Masks of tokens that a grammar allows", times.masks)
        yield self._one(CounterMetricFamily, "ridgeline:grammar_mask_seconds", "Seconds spent making masks", times.mask_s)

    def _traffic(self, stats: Mapping[str, Any]) -> Iterator[Metric]:
        """Bytes and operations of the steps, from the graph's costs; shares of this machine's ceilings where those were measured."""

        def some(kinds: Mapping[str, str]) -> dict[str, float]:
            return {kind: stats.get(name, 0) for kind, name in kinds.items()}

        count, gauge, ceilings = CounterMetricFamily, GaugeMetricFamily, self._state.features.ceilings
        done, moved, inside = some(_FLOPS), some(_BYTES), stats.get("bytes_activations", 0)
        text = "Operations of steps, a multiply-add is two, by arithmetic (bfloat16: attention over such a KV cache)"
        yield self._by(count, "ridgeline:flops", text, "kind", done)
        yield self._by(count, "ridgeline:memory_bytes", "Bytes of weights and KV that steps moved", "kind", moved)
        yield self._one(count, "ridgeline:activation_bytes", "Bytes of activations between operations; caches keep most of them", inside)
        yield self._one(count, "vllm:estimated_flops_per_gpu", "Operations of steps", sum(done.values()))
        read = moved["weights"] + moved["kv_read"]
        yield self._one(count, "vllm:estimated_read_bytes_per_gpu", "Bytes of weights and KV read", read)
        yield self._one(count, "vllm:estimated_write_bytes_per_gpu", "Bytes of KV written", moved["kv_written"])
        if ceilings is not None:
            share = stats.get("recent_memory_bytes_per_s", 0.0) / ceilings.read_bytes_per_s
            yield self._one(gauge, "ridgeline:memory_bandwidth_share", "Measured bandwidth that recent steps used, 0 to 1", share)
            share = stats.get("recent_flops_integer_per_s", 0.0) / ceilings.integer_per_s
            share += stats.get("recent_flops_float_per_s", 0.0) / ceilings.float_per_s
            share += stats.get("recent_flops_bfloat16_per_s", 0.0) / ceilings.bfloat16_per_s
            yield self._one(gauge, "ridgeline:compute_share", "Measured peaks of arithmetic that recent steps used, 0 to 1", share)
            yield self._one(gauge, "ridgeline:memory_bandwidth_ceiling", "Measured bytes per second from memory", ceilings.read_bytes_per_s)

    def _http(self) -> Iterator[Metric]:
        meters, state = self._state.meters, self._state
        family = CounterMetricFamily("ridgeline:http_replies", "HTTP replies by route and status", labels=("path", "status"))
        for (path, status), count in sorted(meters.replies.items()):
            family.add_metric([path, str(status)], count)
        yield family
        rejected = {reason: meters.refused[reason] for reason in ("queue_full", "insufficient_quota", "shutting_down", "overloaded")}
        yield self._by(CounterMetricFamily, "vllm:admission_rejections", "Requests refused before they were queued", "reason", rejected)
        yield self._one(CounterMetricFamily, "ridgeline:clients_gone", "Requests whose client went away before the end", meters.gone)
        yield self._one(GaugeMetricFamily, "ridgeline:choices_pending", "Choices handed to the engine and not ended", state.pending)
        yield self._one(GaugeMetricFamily, "ridgeline:queue_limit", "Most choices that may be pending", state.bounds.queue)
        yield self._one(GaugeMetricFamily, "vllm:engine_healthy", "1 while the engine serves", int(state.engine.fault() is None))

    def _info(self) -> Metric:
        """vLLM's info gauge: the numbers that tell capacity, as labels."""
        info = {k: str(v) for k, v in self._state.features.cache_info.items()}
        family = GaugeMetricFamily("vllm:cache_config_info", "Configuration of the KV cache", labels=(*LABELS, *info))
        family.add_metric([*self._labels, *info.values()], 1)
        return family

    def _one(self, kind: type[Any], name: str, text: str, value: float) -> Metric:
        family: Metric = kind(name, text, labels=LABELS)
        family.add_metric(self._labels, value)  # type: ignore[attr-defined]
        return family

    def _by(self, kind: type[Any], name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family: Metric = kind(name, text, labels=(*LABELS, label))
        for key, value in values.items():
            family.add_metric([*self._labels, key], value)  # type: ignore[attr-defined]
        return family

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(name, text, labels=LABELS)
        counts, below, buckets = list(histogram.counts), 0, []
        for bound, count in zip((*histogram.bounds, None), counts, strict=True):
            below += count
            buckets.append(("+Inf" if bound is None else repr(float(bound)), below))
        family.add_metric(self._labels, buckets, histogram.total)
        return family


async def metrics(request: Request) -> Response:
    """Prometheus text."""
    state = state_of(request)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collected(state))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE)
