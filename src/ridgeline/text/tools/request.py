"""`tools` and `tool_choice` as clients send them (OpenAI chat and responses, Anthropic), checked. Knows no dialect and no HTTP."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ridgeline.errors import UserError
from ridgeline.text.tools.base import ToolSpec

Mode = Literal["auto", "none", "required", "named"]
MAX_TOOLS = 512
# Inside markers, JSON and grammars any printable text without quotes and brackets is safe.
_NAME = re.compile(r"[^\s\"'`<>{}\[\]()=\\\x00-\x1f\x7f]{1,128}")
_WORDS: dict[str, Mode] = {"auto": "auto", "none": "none", "required": "required", "any": "required"}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """mode, and the tools that may be called: all, the named one, or the allowed ones; none in mode "none"."""

    mode: Mode
    tools: tuple[ToolSpec, ...]

    @property
    def forced(self) -> bool:
        """A call must come: compile a grammar for `tools`."""
        return self.mode in ("required", "named")


def read_tools(tools: Any) -> tuple[ToolSpec, ...]:
    """The functions offered; () when there are none. Raises `UserError` naming the entry."""
    if tools is None or tools == []:
        return ()
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise UserError(f"tools is of type {type(tools).__name__}, must be a list", field="tools")
    if len(tools) > MAX_TOOLS:
        text = f"tools has {len(tools)} entries, at most {MAX_TOOLS} are allowed"
        raise UserError(text, field="tools", value=len(tools), limit=MAX_TOOLS)
    found: dict[str, ToolSpec] = {}
    for index, tool in enumerate(tools):
        spec = _tool(tool, f"tools[{index}]")
        if spec.name in found:
            raise UserError(f"tools[{index}] has the name {spec.name!r}, as an earlier tool has", field=f"tools[{index}]", value=spec.name)
        found[spec.name] = spec
    return tuple(found.values())


def _tool(tool: Any, where: str) -> ToolSpec:
    if not isinstance(tool, Mapping):
        raise UserError(f"{where} is of type {type(tool).__name__}, must be an object", field=where)
    kind = tool.get("type", "function")
    if kind not in ("function", "custom") or (kind == "custom" and "input_schema" not in tool):
        raise UserError(f"{where}.type is {kind!r}, only functions are supported", field=f"{where}.type", value=kind)
    inner = tool.get("function", tool)
    if not isinstance(inner, Mapping):
        raise UserError(f"{where}.function is of type {type(inner).__name__}, must be an object", field=f"{where}.function")
    name = inner.get("name")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        text = f"{where} has the name {name!r:.140}, must be 1 to 128 characters without spaces, quotes and brackets"
        raise UserError(text, field=f"{where}.name", value=name)
    parameters = inner.get("parameters", inner.get("input_schema"))
    if parameters is not None and not isinstance(parameters, Mapping):
        raise UserError(f"{where}.parameters is of type {type(parameters).__name__}, must be a JSON schema", field=f"{where}.parameters")
    description = inner.get("description")
    return ToolSpec(
        name, description if isinstance(description, str) else "", None if parameters is None else dict(parameters),
        inner.get("strict") is True,
    )  # fmt: skip


def read_choice(tools: Sequence[ToolSpec], choice: Any) -> ToolChoice:
    """What `tool_choice` asks. Absent: auto where there are tools. Raises `UserError` for a tool that is not offered."""
    every = tuple(tools)
    if choice is None:
        return ToolChoice("auto", every) if every else ToolChoice("none", ())
    if isinstance(choice, str) and choice in _WORDS:
        return _checked(_WORDS[choice], every)
    if isinstance(choice, Mapping):
        kind, inner = choice.get("type"), choice.get("function", choice)
        if kind == "allowed_tools":
            return _allowed(every, choice.get("allowed_tools", choice))
        if kind in ("function", "tool") and isinstance(inner, Mapping):
            name = inner.get("name")
            named = tuple(tool for tool in every if tool.name == name)
            if not named:
                known = ", ".join(tool.name for tool in every) or "none"
                text = f"tool_choice names {name!r}, which is not among the tools ({known:.200})"
                raise UserError(text, field="tool_choice", value=name)
            return ToolChoice("named", named)
        if isinstance(kind, str) and kind in _WORDS:
            return _checked(_WORDS[kind], every)
    words = ", ".join(_WORDS)
    raise UserError(f"tool_choice is {choice!r:.200}, must be {words} or name a function", field="tool_choice", value=choice)


def _checked(mode: Mode, tools: tuple[ToolSpec, ...]) -> ToolChoice:
    if mode == "required" and not tools:
        raise UserError("tool_choice asks for a call, but there are no tools", field="tool_choice", value=mode, remedy="send tools")
    return ToolChoice("none", ()) if mode == "none" or not tools else ToolChoice(mode, tools)


def _allowed(tools: tuple[ToolSpec, ...], asked: Any) -> ToolChoice:
    entries = asked.get("tools") if isinstance(asked, Mapping) else None
    if not isinstance(entries, list) or not entries:
        raise UserError("tool_choice.allowed_tools needs a list of tools", field="tool_choice")
    names = [read_choice(tools, {**entry, "type": "function"}).tools[0].name if isinstance(entry, Mapping) else None for entry in entries]
    mode: Mode = "required" if asked.get("mode") == "required" else "auto"
    return ToolChoice(mode, tuple(tool for tool in tools if tool.name in names))


def finish_reason(choice: ToolChoice, reason: str | None, calls: int) -> str | None:
    """OpenAI's `finish_reason`: "tool_calls" for calls the model chose or was free to choose among, "stop" for a named one."""
    return "tool_calls" if reason == "stop" and calls and choice.mode != "named" else reason
