"""A conversation, whatever protocol it came by: messages, tools, what the answer must look like; and its way to an engine request.

Runs beside the event loop: templates, tokenizing and grammars take milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ridgeline.engine.request import EngineRequest
from ridgeline.errors import UserError
from ridgeline.server.prompts import chat_ids, check_length
from ridgeline.server.reply import ReplyReader
from ridgeline.server.state import State
from ridgeline.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Talk:
    """What a body says, in no protocol's words. tools: OpenAI's form; choice: "auto", "none", "required" or, with `named`, a tool's name.

    continues: the model goes on with the last message instead of beginning a new one; variables: for the template.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    choice: str = "auto"
    named: bool = False
    parallel: bool = True
    template: str | None = None
    add_generation_prompt: bool = True
    continues: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ticket:
    """How the engine is to treat a request: its id, its place in the queue, whose cache it shares."""

    id: str
    priority: int = 0
    cache_salt: str = ""


@dataclass(frozen=True, eq=False)
class Conversation:
    """A talk ready for the engine. `reader` makes the reader of one choice; None where all text is text."""

    request: EngineRequest
    reader: Callable[[], ReplyReader] | None
    named: bool = False
    remarks: tuple[str, ...] = ()


def converse(state: State, talk: Talk, params: SamplingParams, ticket: Ticket) -> Conversation:
    """Raises `UserError` (`TemplateError`, `ContextLengthError`) for whatever is wrong with it."""
    check_choice(talk)
    _, ids = render(state, talk)
    check_length(state.served, ids, "messages")
    return Conversation(EngineRequest(ticket.id, ids, params, priority=ticket.priority, cache_salt=ticket.cache_salt), None)


def render(state: State, talk: Talk) -> tuple[str, list[int]]:
    """(text, ids) of the prompt."""
    return chat_ids(
        state.served, state.bounds, talk.messages, talk.tools or None, template=talk.template,
        add_generation_prompt=talk.add_generation_prompt, continue_final_message=talk.continues, variables=talk.variables,
    )  # fmt: skip


def check_choice(talk: Talk) -> None:
    names = [str(t.get("function", {}).get("name")) for t in talk.tools]
    if talk.named and talk.choice not in names:
        text = f"tool_choice names {talk.choice!r}, tools are {', '.join(names[:20]) or 'none'}"
        raise UserError(text, field="tool_choice", value=talk.choice)
    if talk.choice == "required" and not names:
        raise UserError('tool_choice "required" needs tools', field="tool_choice", value="required")
