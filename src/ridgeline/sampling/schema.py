"""JSON schemas as clients send them: checked for size and shape, and cleared of what means nothing. Knows no grammar library.

A `format` that cannot be enforced is dropped (the specification makes it a remark); the library refuses other keywords it does not know.
"""

from __future__ import annotations

import json
from typing import Any

from ridgeline.errors import UserError
from ridgeline.sampling.regex_size import check_regex

MAX_BLANKS = 8  # in a row, outside strings
BLANKS = f"[\\x20\\x0A\\x0D\\x09]{{1,{MAX_BLANKS}}}"
MAX_SCHEMA_BYTES = 262_144
MAX_DEPTH = 96
MAX_PROPERTIES = 1_000
FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "additionalItems", "not", "if", "then", "else", "contains", "propertyNames")


def prepare_schema(schema: Any) -> tuple[str, list[str]]:
    """(JSON text of an object schema, remarks about what was dropped). Raises `UserError` naming the place and the limit."""
    if isinstance(schema, str | bytes):
        schema = parse_json(schema)
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        kind = "false, which allows nothing" if schema is False else f"of type {type(schema).__name__}"
        raise UserError(f"json_schema is {kind}, must be an object", field="json_schema")
    _check_depth(schema)
    remarks: list[str] = []
    clean = _cleared({key: value for key, value in schema.items() if key != "x-guidance"}, "", remarks)
    try:
        text = json.dumps(clean, ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
    except (ValueError, TypeError) as error:
        raise UserError(f"json_schema is not JSON ({error})", field="json_schema") from None
    if size > MAX_SCHEMA_BYTES:
        raise UserError(
            f"json_schema has {size} bytes, at most {MAX_SCHEMA_BYTES} are allowed", field="json_schema", value=size, limit=MAX_SCHEMA_BYTES
        )
    return text, remarks


def parse_json(text: str | bytes) -> Any:
    """A schema that was sent as text."""
    if len(text) > MAX_SCHEMA_BYTES:
        size = len(text)
        raise UserError(
            f"json_schema has {size} bytes, at most {MAX_SCHEMA_BYTES} are allowed", field="json_schema", value=size, limit=MAX_SCHEMA_BYTES
        )
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"json_schema is not valid JSON ({error})", field="json_schema") from None


def _check_depth(schema: dict[str, Any]) -> None:
    """Before anything recursive sees it: this walk is not."""
    stack: list[tuple[Any, int]] = [(schema, 1)]
    while stack:
        item, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise UserError(
                f"json_schema is nested more than {MAX_DEPTH} deep", field="json_schema", value=depth, limit=MAX_DEPTH,
                remedy="move the inner parts to $defs",
            )  # fmt: skip
        if isinstance(item, dict):
            stack.extend((inner, depth + 1) for inner in item.values() if isinstance(inner, dict | list))
        elif isinstance(item, list):
            stack.extend((inner, depth + 1) for inner in item if isinstance(inner, dict | list))


def _cleared(schema: Any, where: str, remarks: list[str]) -> Any:
    """A copy that walks only where schemas are, so that data (enum, const, default) and names stay as they are."""
    if not isinstance(schema, dict):
        return schema
    clean = {}
    for key, value in schema.items():
        place = f"{where}/{key}"
        if key == "format" and isinstance(value, str) and value not in FORMATS:
            remarks.append(f"format {value!r} at {where or '/'} is not enforced")
            continue
        if key == "pattern" and isinstance(value, str):
            check_regex(value, "json_schema")
        if key in _MAPS and isinstance(value, dict):
            if key == "patternProperties":
                for pattern in value:
                    check_regex(pattern, "json_schema")
            if len(value) > MAX_PROPERTIES:
                text = f"json_schema has {len(value)} entries at {place}, at most {MAX_PROPERTIES} are allowed"
                raise UserError(text, field="json_schema", value=len(value), limit=MAX_PROPERTIES)
            value = {name: _cleared(item, f"{place}/{name}", remarks) for name, item in value.items()}
        elif key in _LISTS and isinstance(value, list):
            value = [_cleared(item, f"{place}/{index}", remarks) for index, item in enumerate(value)]
        elif key in _SINGLE:
            value = _cleared(value, place, remarks)
        clean[key] = value
    return clean
