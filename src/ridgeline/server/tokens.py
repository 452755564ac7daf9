"""/tokenize, /detokenize and /tokenizer_info: the model's own view of a text, no engine needed."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ridgeline.errors import UserError
from ridgeline.server.body import parse, read, warning_header
from ridgeline.server.openai.common import json_response, state_of
from ridgeline.server.prompts import text_ids
from ridgeline.server.schemas.sampling import check_count
from ridgeline.server.schemas.tokens import DetokenizeBody, TokenizeBody
from ridgeline.server.state import State
from ridgeline.server.talk import Talk, render


async def tokenize(request: Request) -> Response:
    """Ids of a prompt or of a conversation."""
    state = state_of(request)
    raw = await read(request.receive, request.headers, state.bounds.body)
    document, warnings = await state.think(_tokenize, state, raw)
    return json_response(document, warning_header(warnings))


def _tokenize(state: State, raw: bytes) -> tuple[dict[str, Any], list[str]]:
    body, warnings = parse(raw, TokenizeBody)
    served = state.served
    served.require(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise UserError("give either prompt or messages", field="prompt")
    if body.messages is not None:
        generation = not body.continue_final_message if body.add_generation_prompt is None else body.add_generation_prompt
        talk = Talk(
            body.messages, body.tools or (), add_generation_prompt=generation, continues=bool(body.continue_final_message),
            variables=body.chat_template_kwargs or {},
        )  # fmt: skip
        _, ids = render(state, talk)
    else:
        ids = text_ids(served, body.prompt or "", body.add_special_tokens is not False)
    document: dict[str, Any] = {"count": len(ids), "max_model_len": served.limits.max_model_len, "tokens": ids}
    spell = served.words.tokenizer.token_bytes
    document["token_strs"] = [spell(i).decode("utf-8", "replace") for i in ids] if body.return_token_strs else None
    return document, warnings


async def detokenize(request: Request) -> Response:
    """The text of ids, control tokens included."""
    state = state_of(request)
    raw = await read(request.receive, request.headers, state.bounds.body)
    document, warnings = await state.think(_detokenize, state, raw)
    return json_response(document, warning_header(warnings))


def _detokenize(state: State, raw: bytes) -> tuple[dict[str, Any], list[str]]:
    body, warnings = parse(raw, DetokenizeBody)
    served = state.served
    served.require(body.model)
    check_count("tokens", body.tokens, max(state.bounds.detokenize, served.limits.max_model_len))
    wrong = next((i for i in body.tokens if not 0 <= i < served.limits.vocab), None)
    if wrong is not None:
        text = f"tokens holds id {wrong}, ids go from 0 to {served.limits.vocab - 1}"
        raise UserError(text, field="tokens", value=wrong, limit=served.limits.vocab)
    return {"prompt": served.words.tokenizer.decode(body.tokens, skip_special=False)}, warnings


async def tokenizer_info(request: Request) -> Response:
    """Special tokens, length and the model's own chat template, for clients that render and count by themselves (lm-evaluation-harness)."""
    served = state_of(request).served
    tokenizer = served.words.tokenizer
    # A template that the operator put in its place is theirs to show.
    shown = None if served.template is not None else tokenizer.chat_template
    return json_response({
        **tokenizer.special_tokens, "tokenizer_class": "ridgeline", "model_max_length": served.limits.max_model_len,
        "vocab_size": tokenizer.size, "add_bos_token": tokenizer.adds_bos, "chat_template": shown,
    })  # fmt: skip
