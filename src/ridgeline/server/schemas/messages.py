"""The bodies of /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Any

from ridgeline.server.body import Body, Items


class CountBody(Body):
    model: str | None = None
    messages: Items[dict[str, Any]]
    system: str | Items[dict[str, Any]] | None = None
    tools: Items[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None


class MessagesBody(CountBody):
    max_tokens: int
    stream: bool | None = None
    stop_sequences: Items[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    diagnostics: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    # Known to Anthropic, without a meaning here.
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    container: Any = None
    context_management: dict[str, Any] | None = None
    inference_geo: str | None = None
    mcp_servers: Items[dict[str, Any]] | None = None
    betas: Items[str] | None = None
    # Ours and vLLM's.
    seed: int | None = None
    min_p: float | None = None
    cache_salt: str | None = None
    priority: int | None = None
    cache_ttl_s: float | None = None
    cache_rank: int | None = None
