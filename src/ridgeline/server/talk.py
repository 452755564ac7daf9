"""A conversation, whatever protocol it came by: messages, tools, what the answer must look like; and its way to an engine request.

Runs beside the event loop: templates, tokenizing and grammars take milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ridgeline.engine.request import EngineRequest
from ridgeline.sampling.calls import check_tools, compile_calls, compile_calls_or
from ridgeline.sampling.grammar import GrammarSpec
from ridgeline.sampling.guide import Guide
from ridgeline.sampling.thinking import ThinkingGuide
from ridgeline.server.prompts import chat_ids, check_length
from ridgeline.server.reply import ReplyReader
from ridgeline.server.retention import Retention
from ridgeline.server.state import State
from ridgeline.text.reasoning import ReasoningStream, Start, start_of
from ridgeline.text.tools.base import StreamOptions, ToolSpec
from ridgeline.text.tools.prompt import with_tools
from ridgeline.text.tools.request import ToolChoice, read_choice, read_tools
from ridgeline.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Talk:
    """What a body says, in no protocol's words. tools and choice as clients send them, see `text/tools/request`.

    continues: the model goes on with the last message instead of beginning a new one; variables: for the template; format: of the answer;
    budget: tokens that reasoning may take.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    choice: Any = None
    parallel: bool = True
    template: str | None = None
    add_generation_prompt: bool = True
    continues: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)
    format: GrammarSpec | None = None
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class Ticket:
    """How the engine is to treat a request: its id, its place in the queue, whose cache it shares, how long its prefix is kept there."""

    id: str
    priority: int = 0
    cache_salt: str = ""
    keep: Retention = field(default_factory=Retention)


@dataclass(frozen=True, eq=False)
class Conversation:
    """A talk ready for the engine. `reader` makes the reader of one choice; None where all text is text. remarks: for the client."""

    request: EngineRequest
    reader: Callable[[], ReplyReader] | None
    choice: ToolChoice
    remarks: tuple[str, ...] = ()


def converse(state: State, talk: Talk, params: SamplingParams, ticket: Ticket) -> Conversation:
    """Raises `UserError` (`TemplateError`, `ContextLengthError`) for whatever is wrong with it."""
    manner = state.served.manner
    specs = read_tools(list(talk.tools))
    choice = read_choice(specs, talk.choice)
    text, ids = _render(state, talk, specs if choice.mode != "none" else ())
    check_length(state.served, ids, "messages")
    start: Start = "closed" if manner.tags is None else start_of(manner.tags, text)
    guide, remarks = _guide(state, talk, choice, start)
    calls = choice.mode != "none"
    if (calls and manner.calls_are_special) or manner.tags_are_special:
        params = replace(params, skip_special_tokens=False)
    if guide is not None and (choice.forced or talk.format is not None):
        # What a grammar binds ends with the grammar: a stop string inside it would cut it.
        params = replace(params, stop=())
    request = EngineRequest(
        ticket.id, ids, params, priority=ticket.priority, cache_salt=ticket.cache_salt, cache_rank=ticket.keep.rank,
        cache_ttl_s=ticket.keep.ttl_s, grammar=None if guide is None else guide.start,
    )  # fmt: skip
    return Conversation(request, _readers(state, talk, choice, start) if calls or manner.tags is not None else None, choice, remarks)


def count(state: State, talk: Talk) -> int:
    """Tokens of the prompt."""
    return len(render(state, talk)[1])


def render(state: State, talk: Talk) -> tuple[str, list[int]]:
    """(text, ids) of the prompt, however long."""
    specs = read_tools(list(talk.tools))
    return _render(state, talk, specs if read_choice(specs, talk.choice).mode != "none" else ())


def _render(state: State, talk: Talk, specs: Sequence[ToolSpec]) -> tuple[str, list[int]]:
    manner, messages = state.served.manner, talk.messages
    if not manner.knows_developer:
        messages = [{**m, "role": "system"} if m.get("role") == "developer" else m for m in messages if isinstance(m, Mapping)]
    tools: Sequence[Mapping[str, Any]] | None = [_openai_tool(t) for t in specs] or None
    if not manner.told and (specs or any(m.get("role") == "tool" or m.get("tool_calls") for m in messages)):
        messages, tools = with_tools(messages, specs, manner.dialect), None
    return chat_ids(
        state.served, state.bounds, messages, tools, template=talk.template, add_generation_prompt=talk.add_generation_prompt,
        continue_final_message=talk.continues, variables=talk.variables,
    )  # fmt: skip


def _openai_tool(tool: ToolSpec) -> dict[str, Any]:
    """The form that templates are written for, whatever protocol it came by."""
    function: dict[str, Any] = {"name": tool.name, "description": tool.description}
    if tool.parameters is not None:
        function["parameters"] = tool.parameters
    return {"type": "function", "function": function}


def _guide(state: State, talk: Talk, choice: ToolChoice, start: Start) -> tuple[Guide | None, tuple[str, ...]]:
    """What the reply is bound by: a forced call, a form, a budget of thoughts, or nothing."""
    manner = state.served.manner
    answer: Guide | None = None
    remarks: tuple[str, ...] = ()
    if choice.forced:
        if talk.format is not None:
            manner.grammars.compile(talk.format)  # binds what is said beside calls, here nothing; but it must be one
        answer = compile_calls(manner.grammars, manner.dialect, choice.tools, _parallel(talk, choice))
    elif talk.format is not None:
        if choice.mode == "auto":
            grammar = compile_calls_or(manner.grammars, manner.dialect, choice.tools, talk.parallel, talk.format)
        else:
            grammar = manner.grammars.compile(talk.format)
        answer, remarks = grammar, grammar.remarks
    else:
        check_tools(manner.grammars, choice.tools, strict_only=True)
    if manner.marks is not None and (answer is not None or talk.budget is not None):
        answer = ThinkingGuide(manner.marks, start, answer, talk.budget)
    return answer, remarks


def _parallel(talk: Talk, choice: ToolChoice) -> bool:
    """Whether several calls may come: a named function is called once."""
    return talk.parallel and choice.mode != "named"


def _readers(state: State, talk: Talk, choice: ToolChoice, start: Start) -> Callable[[], ReplyReader]:
    manner = state.served.manner
    options = StreamOptions(choice.tools, _parallel(talk, choice))

    def make() -> ReplyReader:
        reasoning = None if manner.tags is None else ReasoningStream(manner.tags, start)
        return ReplyReader(reasoning, manner.dialect.stream(options) if choice.mode != "none" else None)

    return make
