"""The body of /v1/responses."""

from __future__ import annotations

from typing import Any

from ridgeline.server.body import Body, Items


class ResponsesBody(Body):
    model: str | None = None
    input: str | Items[dict[str, Any]]
    instructions: str | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    tools: Items[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    include: Items[str] | None = None
    truncation: str | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    prompt: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    # vLLM's.
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | Items[str] | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    cache_salt: str | None = None
    priority: int | None = None
    cache_ttl_s: float | None = None
    cache_rank: int | None = None
