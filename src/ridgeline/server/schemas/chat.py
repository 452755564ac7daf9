"""The body of /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from ridgeline.server.body import Items
from ridgeline.server.schemas.sampling import SamplingFields


class ChatBody(SamplingFields):
    messages: Items[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: Items[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: Items[dict[str, Any]] | None = None
    include_reasoning: bool | None = None
    reasoning_effort: str | None = None
    thinking_token_budget: int | None = None
    # Known to OpenAI or vLLM, without a meaning here (a chat always has its one BOS); what would change the answer is refused by name.
    add_special_tokens: bool | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    modalities: Items[str] | None = None
    audio: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    verbosity: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    functions: Items[dict[str, Any]] | None = None
    function_call: str | dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None
