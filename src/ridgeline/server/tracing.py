"""OpenTelemetry spans of requests, where the SDK is installed and an endpoint was named; without it nothing here is imported or costs.

Attribute names follow the semantic conventions for generative AI, and vLLM's where those have none. No prompt text is ever in a span.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ridgeline.errors import UserError

Record = Callable[[Mapping[str, Any], int, float], None]

_NAMES = {
    "id": "gen_ai.request.id", "prompt_tokens": "gen_ai.usage.prompt_tokens", "completion_tokens": "gen_ai.usage.completion_tokens",
    "finish": "gen_ai.response.finish_reasons", "ttft_s": "gen_ai.latency.time_to_first_token", "queue_s": "gen_ai.latency.time_in_queue",
    "cached_tokens": "ridgeline.cached_tokens", "cache": "ridgeline.cache_reason",
}  # fmt: skip


def span_recorder(model: str, *, endpoint: str | None = None, exporter: Any = None) -> Record:
    """What to call with (ASGI scope, status, seconds) when a request is over. Raises `UserError` when the SDK is missing.

    endpoint: of an OTLP/HTTP collector, e.g. http://localhost:4318/v1/traces; exporter: in its place, for tests.
    """
    try:
        from opentelemetry import propagate
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
        from opentelemetry.trace import SpanKind, StatusCode

        provider = TracerProvider(resource=Resource.create({"service.name": "ridgeline"}))
        if exporter is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        else:
            provider.add_span_processor(SimpleSpanProcessor(exporter))
    except ImportError as error:
        remedy = "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        raise UserError(f"--otlp-traces-endpoint needs OpenTelemetry: {error}", field="--otlp-traces-endpoint", remedy=remedy) from None
    tracer = provider.get_tracer("ridgeline")

    def record(scope: Mapping[str, Any], status: int, seconds: float) -> None:
        summary = scope.get("summary")
        if summary is None:
            return
        carrier = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"] if k in (b"traceparent", b"tracestate")}
        end = time.time_ns()
        attributes = {name: summary[key] for key, name in _NAMES.items() if summary.get(key) is not None}
        attributes |= {"gen_ai.response.model": model, "http.response.status_code": status, "url.path": scope["path"]}
        span = tracer.start_span(
            "llm_request",
            context=propagate.extract(carrier),
            kind=SpanKind.SERVER,
            start_time=end - int(seconds * 1e9),
            attributes=attributes,
        )
        if status >= 500:
            span.set_status(StatusCode.ERROR)
        span.end(end_time=end)

    return record
