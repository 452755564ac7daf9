"""Anthropic's bodies to a `Talk`: system blocks, content blocks, tools and their results. Knows no sampling and no reply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ridgeline.errors import UserError
from ridgeline.server.formats import claude_format
from ridgeline.server.schemas.messages import CountBody
from ridgeline.server.talk import Talk

# A coding agent puts a block that changes with each request in front of its system prompt; kept, no prefix would ever be reused.
_BILLING = "x-anthropic-billing-header"
_DROPPED = frozenset({"redacted_thinking"})


def talk_of(body: CountBody) -> Talk:
    """Raises `UserError` naming the block that cannot be served."""
    messages: list[dict[str, Any]] = []
    system = _system(body.system)
    if system:
        messages.append({"role": "system", "content": system})
    names: dict[str, str] = {}
    for index, message in enumerate(body.messages):
        messages += _message(message, f"messages[{index}]", names)
    for index, tool in enumerate(body.tools or ()):
        if tool.get("type") not in (None, "custom") or not isinstance(tool.get("input_schema"), dict):
            text = f"tools[{index}] is of type {str(tool.get('type'))[:60]!r}, only tools with an input_schema are supported"
            raise UserError(text, field=f"tools[{index}].type", value=str(tool.get("type"))[:60])
    continues = bool(body.messages) and body.messages[-1].get("role") == "assistant"
    tools = [{**t, "type": "custom"} for t in body.tools or ()]
    return Talk(
        messages, tools, body.tool_choice, _parallel(body.tool_choice), add_generation_prompt=not continues, continues=continues,
        variables={"enable_thinking": thinking_on(body.thinking)}, budget=_budget(body.thinking),
        format=claude_format(body.output_config, body.output_format),
    )  # fmt: skip


def thinking_on(given: Mapping[str, Any] | None) -> bool:
    """Anthropic's default is not to think. Raises `UserError` for a type that it does not have."""
    kind = "disabled" if given is None else given.get("type")
    if kind not in ("enabled", "disabled", "adaptive"):
        raise UserError(f"thinking.type is {str(kind)[:40]!r}, must be enabled, disabled or adaptive", field="thinking.type")
    return kind != "disabled"


def _budget(given: Mapping[str, Any] | None) -> int | None:
    budget = None if given is None else given.get("budget_tokens")
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int) or budget < 0):
        raise UserError(f"thinking.budget_tokens is {str(budget)[:40]}, must be a whole number", field="thinking.budget_tokens")
    return budget


def _system(system: str | list[dict[str, Any]] | None) -> str:
    if system is None or isinstance(system, str):
        return system or ""
    texts = [_text(block, f"system[{index}]") for index, block in enumerate(system)]
    return "\n".join(text for text in texts if not text.startswith(_BILLING))


def _text(block: Any, where: str) -> str:
    if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
        return str(block["text"])
    kind = block.get("type") if isinstance(block, dict) else type(block).__name__
    raise UserError(f"{where} is a block of type {str(kind)[:40]!r}, only text is supported", field=where, value=str(kind)[:40])


def _message(message: Mapping[str, Any], where: str, names: dict[str, str]) -> list[dict[str, Any]]:
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise UserError(f"{where}.role is {str(role)[:40]!r}, must be user or assistant", field=f"{where}.role", value=str(role)[:40])
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise UserError(f"{where}.content must be text or a list of blocks", field=f"{where}.content")
    return _assistant(content, where, names) if role == "assistant" else _given(str(role), content, where, names)


def _assistant(blocks: list[Any], where: str, names: dict[str, str]) -> list[dict[str, Any]]:
    text, thoughts, calls = "", "", list[dict[str, Any]]()
    for index, block in enumerate(blocks):
        place = f"{where}.content[{index}]"
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            name, given = block.get("name"), block.get("input")
            if not isinstance(name, str) or not isinstance(given, dict):
                raise UserError(f"{place} needs a name and an input object", field=place)
            names[str(block.get("id"))] = name
            calls.append({"id": str(block.get("id")), "type": "function", "function": {"name": name, "arguments": given}})
        elif kind == "thinking":
            thoughts += str(block.get("thinking") or "")
        elif kind not in _DROPPED:
            text += _text(block, place)
    message: dict[str, Any] = {"role": "assistant", "content": text}
    return [message | ({"tool_calls": calls} if calls else {}) | ({"reasoning_content": thoughts} if thoughts else {})]


def _given(role: str, blocks: list[Any], where: str, names: dict[str, str]) -> list[dict[str, Any]]:
    """A user's blocks: results of tools become messages of their own, in order with the text around them."""
    found: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        place = f"{where}.content[{index}]"
        if isinstance(block, dict) and block.get("type") == "tool_result":
            id = str(block.get("tool_use_id"))
            result = {"role": "tool", "tool_call_id": id, "content": _result(block.get("content"), place)}
            found.append(result | ({"name": names[id]} if id in names else {}))
            continue
        text = _text(block, place)
        if found and found[-1]["role"] == role:
            found[-1]["content"] += text
        else:
            found.append({"role": role, "content": text})
    return found or [{"role": role, "content": ""}]


def _result(content: Any, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise UserError(f"{where}.content must be text or a list of blocks", field=f"{where}.content")
    return "".join(_text(block, f"{where}.content[{index}]") for index, block in enumerate(content))


def _parallel(choice: Mapping[str, Any] | None) -> bool:
    return choice is None or choice.get("disable_parallel_tool_use") is not True
