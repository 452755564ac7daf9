"""The body of /v1/completions."""

from __future__ import annotations

from ridgeline.server.schemas.sampling import SamplingFields


class CompletionBody(SamplingFields):
    prompt: str | list[str] | list[int] | list[list[int]]
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    add_special_tokens: bool | None = None
