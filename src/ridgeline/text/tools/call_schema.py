"""Tools to JSON schema: what a call of one of them may look like. Knows schemas, not dialects and not how grammars are compiled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ridgeline.sampling.schema import inline_schema
from ridgeline.text.tools.base import ToolSpec

_OPEN = {"type": "object"}


def call_schema(tools: Sequence[ToolSpec], name_key: str = "name", arguments_key: str = "arguments") -> dict[str, Any]:
    """An object with the name of one of the tools and, after it, arguments that fit its parameters."""
    calls, shared = [], {}
    for index, tool in enumerate(tools):
        parameters, definitions = embedded(tool, f"tool{index}")
        shared.update(definitions)
        properties = {name_key: {"const": tool.name}, arguments_key: parameters}
        calls.append({"type": "object", "properties": properties, "required": [name_key, arguments_key], "additionalProperties": False})
    schema: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return {**schema, "$defs": shared} if shared else schema


def list_schema(tools: Sequence[ToolSpec], parallel: bool, name_key: str = "name", arguments_key: str = "arguments") -> dict[str, Any]:
    """A list of such objects, of one where calls may not be parallel."""
    item = call_schema(tools, name_key, arguments_key)
    shared = item.pop("$defs", None)
    schema = {"type": "array", "minItems": 1, "items": item, **({} if parallel else {"maxItems": 1})}
    return {**schema, "$defs": shared} if shared else schema


def embedded(tool: ToolSpec, place: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(schema for the arguments, definitions it needs): where references occur, the whole schema becomes definition `place`."""
    schema = {k: v for k, v in (tool.parameters or _OPEN).items() if k not in ("$schema", "$id", "x-guidance")}
    if not schema or ("type" not in schema and "$ref" not in schema and not schema.keys() & {"anyOf", "oneOf", "allOf"}):
        schema = {"type": "object", **schema}
    if not _refers(schema):
        return schema, {}
    return {"$ref": f"#/$defs/{place}"}, {place: _moved(schema, f"#/$defs/{place}")}


def definitions_of(tool: ToolSpec) -> dict[str, Any]:
    """The schema of one tool's arguments, by itself."""
    schema, definitions = embedded(tool, "tool")
    return {**schema, "$defs": definitions} if definitions else schema


def property_schema(tool: ToolSpec, key: str) -> dict[str, Any]:
    """The schema of one property of a tool's arguments, by itself."""
    schema, definitions = embedded(tool, "tool")
    if not definitions:
        kind = schema["properties"][key]
        return kind if isinstance(kind, dict) else {}
    pointer = key.replace("~", "~0").replace("/", "~1")
    return {"$ref": f"#/$defs/tool/properties/{pointer}", "$defs": definitions}


def inline(schema: dict[str, Any]) -> str:
    """A schema inside a Lark grammar: runs of blanks are bounded, and keywords that cannot be enforced are ignored."""
    return inline_schema(schema, lenient=True)


def literal(text: str) -> str:
    """A text inside a Lark grammar."""
    return json.dumps(text, ensure_ascii=False)


def _refers(value: Any) -> bool:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            if isinstance(item.get("$ref"), str):
                return True
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    return False


def _moved(value: Any, root: str) -> Any:
    """A copy whose local references start at `root`. Depth is bounded by who reads the request."""
    if isinstance(value, list):
        return [_moved(item, root) for item in value]
    if not isinstance(value, dict):
        return value
    moved = {key: _moved(item, root) for key, item in value.items()}
    reference = moved.get("$ref")
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        moved["$ref"] = root + reference[1:]
    return moved
