"""From bodies to prompt ids: conversations through the template, texts and lists of ids as they are. Knows no parameters of sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.errors import ContextLengthError, UserError
from ridgeline.server.bounds import Bounds
from ridgeline.server.state import Served
from ridgeline.text.chat import encode_chat, encode_prompt

Ids = list[int]


def chat_ids(
    served: Served,
    bounds: Bounds,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    *,
    template: str | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> tuple[str, Ids]:
    """(text, ids) of a conversation, however long. Raises `UserError` or `TemplateError` naming the message."""
    if len(messages) > bounds.messages:
        text = f"messages has {len(messages)} entries, at most {bounds.messages}"
        raise UserError(text, field="messages", value=len(messages), limit=bounds.messages)
    if tools is not None and len(tools) > bounds.tools:
        raise UserError(f"tools has {len(tools)} entries, at most {bounds.tools}", field="tools", value=len(tools), limit=bounds.tools)
    if template is None and served.template is None:
        served.words.require_template()
    refuse_hopeless(served, sum(len(m["content"]) for m in messages if isinstance(m.get("content"), str)), "messages")
    names = [n for n in variables or () if n in _TAKEN or not n.isidentifier()]
    if names:
        raise UserError(f"chat_template_kwargs may not set {names[0]!r}", field="chat_template_kwargs", value=names[0])
    chat = encode_chat(
        served.words.tokenizer, messages, tools, add_generation_prompt, template=template or served.template,
        continue_final_message=continue_final_message, **(variables or {}),
    )  # fmt: skip
    return chat.text, chat.ids


_TAKEN = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message", "template", "tokenizer", "bos_token", "eos_token"}
)


def completion_ids(served: Served, bounds: Bounds, prompt: Any, *, add_special_tokens: bool = True) -> list[tuple[str | None, Ids]]:
    """(text, ids) of each prompt of a completions body: a text, ids, or a list of either."""
    singles: list[Any] = [prompt] if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)) else list(prompt)
    if not singles:
        raise UserError("prompt is an empty list, needs at least one prompt", field="prompt", value=[])
    if len(singles) > bounds.prompts:
        text = f"prompt has {len(singles)} entries, at most {bounds.prompts}"
        raise UserError(text, field="prompt", value=len(singles), limit=bounds.prompts)
    return [_single(served, single, add_special_tokens) for single in singles]


def _single(served: Served, prompt: str | Ids, add_special_tokens: bool) -> tuple[str | None, Ids]:
    if not isinstance(prompt, str):
        return None, check_length(served, prompt, "prompt")
    return prompt, check_length(served, text_ids(served, prompt, add_special_tokens), "prompt")


def text_ids(served: Served, text: str, add_special_tokens: bool) -> Ids:
    """Ids of a raw text; control tokens may be written out."""
    refuse_hopeless(served, len(text), "prompt", text)
    if add_special_tokens:
        return encode_prompt(served.words.tokenizer, text)
    return served.words.tokenizer.encode(text, add_special=False, parse_special=True)


def refuse_hopeless(served: Served, characters: int, field: str, text: str | None = None) -> None:
    """A text that cannot fit however it is cut into tokens is refused before it costs anything."""
    least = -(-characters // (4 * served.words.tokenizer.vocabulary.longest)) if text is None else served.words.tokenizer.least_ids(text)
    if least > served.limits.max_model_len:
        raise _too_long(served, least, field, "at least ")


def check_length(served: Served, ids: Ids, field: str) -> Ids:
    """The engine checks as well; here the field has the client's name."""
    if not ids:
        raise UserError(f"{field} has no tokens", field=field, value=0, limit=1, remedy="give at least one character")
    if len(ids) >= served.limits.max_model_len:
        raise _too_long(served, len(ids), field, "")
    return ids


def _too_long(served: Served, count: int, field: str, bound: str) -> ContextLengthError:
    limit = served.limits.max_model_len
    return ContextLengthError(
        f"This model's maximum context length is {limit} tokens (prompt and answer together), the prompt has {bound}{count}",
        field=field, value=count, limit=limit, remedy="shorten it, or start the server with a larger --max-model-len",
    )  # fmt: skip
