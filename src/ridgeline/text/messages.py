"""OpenAI-style messages and tools, checked and brought into the shape chat templates are written for. Knows no template and no tokens.

The rules (case CT-04): `arguments` strings become mappings ("" is {}), a missing, null or part-list content becomes text, null fields are
dropped, an empty `tool_calls` counts as absent, reasoning is filed under the names that templates read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.errors import UserError

_REASONING = ("reasoning_content", "thinking", "reasoning")
_MAX_DEPTH = 64


def normalize_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Fresh plain dicts, safe to hand to a template. Raises `UserError` naming the message and the field."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise UserError(f"messages is {_kind(messages)}, must be a list of messages", field="messages")
    if not messages:
        raise UserError("messages is empty, needs at least one message", field="messages", value=[])
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def normalize_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Tool schemas as plain dicts; None when there are none."""
    if not tools:
        return None
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence):
        raise UserError(f"tools is {_kind(tools)}, must be a list of tool schemas", field="tools")
    plain = []
    for index, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise UserError(f"tools[{index}] is {_kind(tool)}, must be an object", field=f"tools[{index}]")
        plain.append(plain_data(tool, f"tools[{index}]"))
    return plain


def plain_data(value: Any, where: str, depth: int = 0) -> Any:
    """A copy made of JSON types only, so that a template meets no object with methods of its own."""
    if depth > _MAX_DEPTH:
        raise UserError(f"{where} is nested more than {_MAX_DEPTH} deep", field=where, limit=_MAX_DEPTH)
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, bool):
        return bool(value)
    for base in (str, int, float):
        if isinstance(value, base):
            return base(value)
    if isinstance(value, Mapping):
        return {plain_data(key, where, depth + 1): plain_data(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(item, where, depth + 1) for item in value]
    raise UserError(f"{where} holds {_kind(value)}, only JSON values are allowed", field=where)


def _kind(value: object) -> str:
    return f"of type {type(value).__name__}"


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise UserError(f"{where} is {_kind(message)}, must be an object with role and content", field=where)
    plain: dict[str, Any] = {key: item for key, item in plain_data(message, where).items() if item is not None}
    role = plain.get("role")
    if not isinstance(role, str) or not role:
        raise UserError(f"{where}.role is {role!r}, must be text such as user, assistant or system", field=f"{where}.role", value=role)
    plain["content"] = _content(plain.get("content"), f"{where}.content")
    if "tool_calls" in plain:
        calls = plain.pop("tool_calls")
        if not isinstance(calls, list):
            raise UserError(f"{where}.tool_calls is {_kind(calls)}, must be a list", field=f"{where}.tool_calls")
        if calls:
            plain["tool_calls"] = [_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(calls)]
    reasoning = next((plain[key] for key in _REASONING if key in plain), None)
    if reasoning is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    return plain


def _content(content: Any, where: str) -> str:
    """Text parts are joined without anything between, as templates that read parts do."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise UserError(f"{where} is {_kind(content)}, must be text or a list of text parts", field=where)
    texts: list[str] = []
    for index, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text") if isinstance(part, dict) else None
        if kind not in ("text", "input_text", "output_text") or not isinstance(text, str):
            place, remedy = f"{where}[{index}]", 'send text parts only: {"type": "text", "text": ...}'
            raise UserError(f"{place} is a part of type {kind!r}, only text is supported", field=place, value=kind, remedy=remedy)
        texts.append(text)
    return "".join(texts)


def _call(call: Any, where: str) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise UserError(f"{where} is {_kind(call)}, must be an object", field=where)
    plain: dict[str, Any] = {key: item for key, item in call.items() if item is not None}
    inner = plain.get("function")
    if isinstance(inner, dict):
        plain["function"] = {**inner, "arguments": _arguments(inner.get("arguments"), f"{where}.function.arguments")}
    elif "arguments" in plain:
        plain["arguments"] = _arguments(plain["arguments"], f"{where}.arguments")
    return plain


def _arguments(arguments: Any, where: str) -> dict[str, Any]:
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            arguments = plain_data(json.loads(arguments), where)
        except (ValueError, RecursionError) as error:
            shown = arguments if len(arguments) <= 80 else arguments[:80] + "..."
            message = f"{where} is {shown!r}, not valid JSON ({error})"
            raise UserError(message, field=where, value=shown, remedy="send a JSON object") from None
    if not isinstance(arguments, dict):
        raise UserError(f"{where} is {_kind(arguments)}, must be a JSON object", field=where)
    return {str(key): item for key, item in arguments.items()}
