"""Tools for models whose template does not present them: told in the system message, with past calls and results written out as text.

Knows messages and a dialect's way to write a call; refuses to know templates and tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.text.messages import normalize_messages
from ridgeline.text.tools.base import Dialect, ToolSpec
from ridgeline.text.tools.generic import GENERIC


def with_tools(messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolSpec], dialect: Dialect) -> list[dict[str, Any]]:
    """The conversation without tool turns: results become a user's turn, as does what follows them, so that roles keep alternating."""
    write = dialect.write or GENERIC.write
    assert write is not None
    turns: list[dict[str, Any]] = []
    for message in normalize_messages(messages):
        calls = message.pop("tool_calls", None)
        if message["role"] == "tool":
            message = {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
            follows = True
        else:
            follows = message["role"] == "user" and bool(turns) and turns[-1].get("result", False)
        if calls:
            written = [write(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in map(_call, calls)]
            message["content"] = "\n".join(text for text in (message["content"], *written) if text)
        if follows and turns and turns[-1]["role"] == "user" and turns[-1].get("result", False):
            turns[-1]["content"] += "\n" + message["content"]
        else:
            turns.append({**message, "result": message["content"].startswith("<tool_response>") and follows})
    for turn in turns:
        del turn["result"]
    if not tools:
        return turns
    told = _instructions(tools, write("NAME", '{"PARAMETER": VALUE}'))
    if turns[0]["role"] in ("system", "developer"):
        turns[0]["content"] = f"{turns[0]['content']}\n\n{told}".strip()
        return turns
    return [{"role": "system", "content": told}, *turns]


def _call(call: Mapping[str, Any]) -> tuple[str, Any]:
    inner = call.get("function", call)
    return str(inner.get("name", "")), inner.get("arguments", {})


def _instructions(tools: Sequence[ToolSpec], form: str) -> str:
    described = [
        json.dumps(
            {"name": t.name, **({"description": t.description} if t.description else {}), "parameters": t.parameters or {}},
            ensure_ascii=False,
        )
        for t in tools
    ]
    return (
        "You can call functions. These are available, one per line, with the JSON schema of their parameters:\n"
        + "\n".join(described)
        + f"\n\nTo call one, answer with exactly this form and nothing else:\n{form}\n"
        "The result comes in the next turn. When no function helps, answer in plain text."
    )
