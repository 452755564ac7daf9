"""What one request may cost, in figures. Plain data; each limit is checked where the thing it bounds is first seen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of the server. Sizes in bytes or counts, times in seconds. What goes over is refused with 400, 413, 429 or 431.

    header: request line and headers; body: one request; messages, tools, prompts: entries of these lists; n: choices of one prompt;
    samples: choices of all prompts of one request together; queue: choices waiting or running in the whole server;
    top_logprobs: alternatives per token; bias: logit_bias entries; stop_ids, allowed_ids: entries of stop_token_ids and allowed_token_ids;
    detokenize: ids of one /detokenize, at least the model length; schema: bytes of a JSON schema, regex or grammar.
    head_s: from the connection to the end of the headers; body_s: pause within a body; write_s: a reader that takes nothing;
    idle_s: a kept-alive connection without a request; drain_s: from SIGTERM to the end of what is running.
    """

    header: int = 64 << 10
    body: int = 32 << 20
    messages: int = 10_000
    tools: int = 512
    prompts: int = 1024
    n: int = 128
    samples: int = 1024
    queue: int = 1024
    top_logprobs: int = 20
    bias: int = 1024
    stop_ids: int = 1024
    allowed_ids: int = 1 << 18
    detokenize: int = 1 << 17
    schema: int = 256 << 10
    head_s: float = 30.0
    body_s: float = 60.0
    write_s: float = 60.0
    idle_s: float = 120.0
    drain_s: float = 30.0
