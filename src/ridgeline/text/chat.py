"""From a conversation to prompt ids: template, control tokens, exactly one BOS. Knows the tokenizer and the template, not files.

The template's own words map to control ids; what users, tools and clients wrote never does, wherever the template puts it.
Text that a template rewrites into a control token (say, by lower-casing) is outside what can be tracked.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.errors import TemplateError, UserError
from ridgeline.text.marks import Danger, Rendered, render_marked
from ridgeline.text.messages import normalize_messages, normalize_tools, plain_data
from ridgeline.text.templates import ChatTemplate, chat_template
from ridgeline.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """The prompt of a chat: its ids (BOS included) and the text that the template rendered."""

    ids: list[int]
    text: str


def encode_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    *,
    template: str | None = None,
    continue_final_message: bool = False,
    **variables: Any,
) -> ChatPrompt:
    """Render `messages` with the model's chat template (or `template`) and encode the result.

    continue_final_message ends the prompt within the last message, after its content, so that the model goes on with it.

    `text` is, byte for byte, what `apply_chat_template` of `transformers` renders for the normalized messages (see `messages`).
    Raises `TemplateError` when there is no template or it fails, `UserError` for messages that are not well formed.
    """
    if continue_final_message:
        rendered = _unclosed(_render(tokenizer, messages, tools, False, template, variables), normalize_messages(messages)[-1]["content"])
    else:
        rendered = _render(tokenizer, messages, tools, add_generation_prompt, template, variables)
    ids = tokenizer.encode_mixed(rendered.text, rendered.tainted)
    if tokenizer.adds_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
        ids.insert(0, tokenizer.bos_id)
    return ChatPrompt(ids, rendered.text)


def encode_prompt(tokenizer: Tokenizer, text: str, *, parse_special: bool = True) -> list[int]:
    """Ids of a raw completion prompt: control tokens may be written out, BOS is added where the tokenizer adds it, never doubled.

    A prompt that already begins with the BOS text keeps that one, with a logged warning.
    """
    ids = tokenizer.encode(text, add_special=False, parse_special=parse_special)
    prefix = list(tokenizer.prefix)
    if tokenizer.adds_bos and ids[:1] == [tokenizer.bos_id]:
        logger.warning("the prompt begins with the BOS text %r: no second one is added", tokenizer.special_tokens.get("bos_token"))
        prefix.remove(ids[0])
    return [*prefix, *ids]


def _render(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    add_generation_prompt: bool,
    template: str | None,
    variables: Mapping[str, Any],
) -> Rendered:
    source = template if template is not None else tokenizer.chat_template
    if source is None:
        raise TemplateError(
            "the model has no chat template (it is probably a base model)",
            field="chat_template",
            remedy="use `ridgeline run --raw` with a plain prompt, or a chat model",
        )
    compiled = chat_template(source)
    given = {"documents": None, **{name: plain_data(value, name) for name, value in variables.items()}}
    given |= {"messages": normalize_messages(messages), "tools": normalize_tools(tools)}
    trusted = {**tokenizer.special_tokens, "add_generation_prompt": add_generation_prompt}
    return render_marked(compiled.render, trusted, given, _danger(tokenizer, compiled))


def _unclosed(rendered: Rendered, content: str) -> Rendered:
    """The text up to where the last message's content ends; templates may have stripped white space around it."""
    bare = content.strip()
    start = rendered.text.rfind(bare) if bare else -1
    if start < 0:
        raise UserError("the last message has no text to continue", field="continue_final_message", remedy="give it some content")
    whole = rendered.text.find(content, max(0, start - len(content) + len(content.lstrip())))
    end = whole + len(content) if whole >= 0 else start + len(bare)
    return Rendered(rendered.text[:end], tuple(at for at in rendered.tainted if at < end))


def _danger(tokenizer: Tokenizer, compiled: ChatTemplate) -> Danger:
    """Beside the control tokens: added tokens that this template writes itself (`<tool_call>`, `<think>`); white space is never one."""
    structural = {text: id for text, id in tokenizer.added.items() if text.strip() and text in compiled.literals}
    return Danger(tokenizer.control, structural)
