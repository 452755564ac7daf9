"""The body of /v1/completions."""

from __future__ import annotations

from ridgeline.server.body import Items
from ridgeline.server.schemas.sampling import SamplingFields


class CompletionBody(SamplingFields):
    prompt: str | Items[str] | Items[int] | Items[Items[int]]
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    add_special_tokens: bool | None = None
