"""The bodies of /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from typing import Any

from ridgeline.server.body import Body, Items


class TokenizeBody(Body):
    model: str | None = None
    prompt: str | None = None
    messages: Items[dict[str, Any]] | None = None
    tools: Items[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Body):
    model: str | None = None
    tokens: Items[int]
