"""Items of the Responses protocol to a `Talk`. Knows no sampling and no reply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ridgeline.errors import UserError
from ridgeline.server.formats import answer_format
from ridgeline.server.schemas.responses import ResponsesBody
from ridgeline.server.talk import Talk


def talk_of(body: ResponsesBody) -> Talk:
    """Raises `UserError` naming the item that cannot be served."""
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    if not items:
        raise UserError("input is empty", field="input", value=[])
    names: dict[str, str] = {}
    for index, item in enumerate(items):
        _add(messages, item, f"input[{index}]", names)
    effort = (body.reasoning or {}).get("effort")
    variables = {} if effort is None else {"reasoning_effort": effort}
    given = (body.text or {}).get("format")
    if given is not None and not isinstance(given, dict):
        raise UserError("text.format must be an object", field="text.format")
    return Talk(
        messages, body.tools or (), body.tool_choice, body.parallel_tool_calls is not False, variables=variables,
        format=answer_format(given, None, {}),
    )  # fmt: skip


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any], where: str, names: dict[str, str]) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        role = item.get("role")
        if role not in ("user", "assistant", "system", "developer"):
            raise UserError(f"{where}.role is {str(role)[:40]!r}, must be user, assistant, system or developer", field=f"{where}.role")
        text = _text(item.get("content"), f"{where}.content")
        if role == "assistant" and _pending(messages, "content"):
            messages[-1]["content"] = text
        else:
            messages.append({"role": role, "content": text})
    elif kind == "reasoning":
        text = _text(item.get("content") or item.get("summary") or [], f"{where}.content")
        messages.append({"role": "assistant", "content": "", "reasoning_content": text})
    elif kind == "function_call":
        name, id = item.get("name"), item.get("call_id")
        if not isinstance(name, str) or not isinstance(id, str):
            raise UserError(f"{where} needs name and call_id", field=where)
        names[id] = name
        call = {"id": id, "type": "function", "function": {"name": name, "arguments": item.get("arguments") or "{}"}}
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        id = str(item.get("call_id"))
        result = {"role": "tool", "tool_call_id": id, "content": _text(item.get("output"), f"{where}.output")}
        messages.append(result | ({"name": names[id]} if id in names else {}))
    else:
        raise UserError(f"{where} is of type {str(kind)[:60]!r}, which is not supported", field=f"{where}.type", value=str(kind)[:60])


def _pending(messages: list[dict[str, Any]], name: str) -> bool:
    """The last message is an assistant's reasoning that waits for its text."""
    return bool(messages) and messages[-1]["role"] == "assistant" and not messages[-1][name] and "tool_calls" not in messages[-1]


def _text(content: Any, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise UserError(f"{where} must be text or a list of parts", field=where)
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
        if kind not in ("input_text", "output_text", "text", "reasoning_text", "summary_text", "refusal") or not isinstance(text, str):
            place = f"{where}[{index}]"
            raise UserError(f"{place} is a part of type {str(kind)[:40]!r}, only text is supported", field=place, value=str(kind)[:40])
        texts.append(text)
    return "".join(texts)
