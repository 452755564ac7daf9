"""JSON schemas as clients send them: checked for size and shape, and cleared of what means nothing. Knows where the grammar library takes
minutes, or the process with it, but does not call it.

A `format` that cannot be enforced is dropped (the specification makes it a remark), a bound beyond 2^53 is narrowed to it; the library
refuses other keywords it does not know.
"""

from __future__ import annotations

import json
from decimal import Decimal
from math import lcm
from typing import Any

from ridgeline.errors import UserError
from ridgeline.sampling.regex_size import check_regex

MAX_BLANKS = 8  # in a row, outside strings
BLANKS = f"[\\x20\\x0A\\x0D\\x09]{{1,{MAX_BLANKS}}}"
MAX_SCHEMA_BYTES = 262_144
MAX_DEPTH = 96
MAX_PROPERTIES = 1_000
MAX_MULTIPLE = 50_000
MAX_NUMBER = 2**63 - 1024
SAFE_BOUND = 2**53 - 1
FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "additionalItems", "not", "if", "then", "else", "contains", "propertyNames")
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


def prepare_schema(schema: Any) -> tuple[str, list[str]]:
    """(JSON text of an object schema, remarks about what was dropped). Raises `UserError` naming the place and the limit."""
    clean, remarks = clear_schema(parse_json(schema) if isinstance(schema, str | bytes) else schema)
    try:
        text = json.dumps(clean, ensure_ascii=False, allow_nan=False)
        _check_size(len(text.encode()))
    except (ValueError, TypeError) as error:
        raise UserError(f"json_schema is not JSON ({error})", field="json_schema") from None
    return text, remarks


def clear_schema(schema: Any) -> tuple[dict[str, Any], list[str]]:
    """(an object schema that the library can be given, remarks). Raises `UserError`."""
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        kind = "false, which allows nothing" if schema is False else f"of type {type(schema).__name__}"
        raise UserError(f"json_schema is {kind}, must be an object", field="json_schema")
    _check_depth(schema)
    remarks: list[str] = []
    clean = _cleared({key: value for key, value in schema.items() if key != "x-guidance"}, "", remarks)
    _check_parts(clean)
    return clean, remarks


def inline_schema(schema: Any, *, lenient: bool = False) -> str:
    """A schema inside a Lark grammar, where runs of blanks are bounded too. Raises `UserError`."""
    clean, _ = clear_schema(schema)
    text = json.dumps({**clean, "x-guidance": {"whitespace_pattern": BLANKS, "lenient": lenient}}, ensure_ascii=False)
    return f"%json {text}"


def parse_json(text: str | bytes) -> Any:
    """A schema that was sent as text."""
    _check_size(len(text))
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"json_schema is not valid JSON ({error})", field="json_schema") from None


def _refused(text: str, value: object, limit: object, remedy: str | None = None) -> UserError:
    return UserError(f"json_schema {text}", field="json_schema", value=value, limit=limit, remedy=remedy)


def _check_size(size: int) -> None:
    if size > MAX_SCHEMA_BYTES:
        raise _refused(f"has {size} bytes, at most {MAX_SCHEMA_BYTES} are allowed", size, MAX_SCHEMA_BYTES)


def _check_depth(schema: dict[str, Any]) -> None:
    """Before anything recursive sees it: this walk is not."""
    stack: list[tuple[Any, int]] = [(schema, 1)]
    while stack:
        item, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise _refused(f"is nested more than {MAX_DEPTH} deep", depth, MAX_DEPTH, "move the inner parts to $defs")
        inner = item.values() if isinstance(item, dict) else item
        stack.extend((part, depth + 1) for part in inner if isinstance(part, dict | list))


def _check_parts(schema: dict[str, Any]) -> None:
    """Wherever a part stands (references reach it anywhere): counts, numbers and patterns that would cost too much."""
    stack: list[Any] = [schema]
    multiple = 1
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            if len(item) > MAX_PROPERTIES:
                raise _refused(f"has an object with {len(item)} entries, at most {MAX_PROPERTIES} are allowed", len(item), MAX_PROPERTIES)
            if isinstance(item.get("pattern"), str):
                check_regex(item["pattern"], "json_schema")
            multiple = lcm(multiple, _digits(item.get("multipleOf")))
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
        elif isinstance(item, int | float) and abs(item) > MAX_NUMBER:
            raise _refused(f"holds the number {item:.5g}, at most {MAX_NUMBER} is allowed", item, MAX_NUMBER, "use text")
    if multiple > MAX_MULTIPLE:
        text = f"has multipleOf values whose common multiple has the digits {multiple}, at most {MAX_MULTIPLE} are allowed"
        raise _refused(text, multiple, MAX_MULTIPLE)


def _digits(step: Any) -> int:
    """The digits of a number without its zeros at the ends: what an automaton for its multiples grows with."""
    if isinstance(step, bool) or not isinstance(step, int | float) or not abs(step) < 1e300 or step == 0:
        return 1
    return int("".join(map(str, Decimal(repr(step)).as_tuple().digits)).rstrip("0")[:40] or "1")


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
        if key in _MAPS and isinstance(value, dict):
            if key == "patternProperties":
                for pattern in value:
                    check_regex(pattern, "json_schema")
            value = {name: _cleared(item, f"{place}/{name}", remarks) for name, item in value.items()}
        elif key in _LISTS and isinstance(value, list):
            value = [_cleared(item, f"{place}/{index}", remarks) for index, item in enumerate(value)]
        elif key in _SINGLE:
            value = _cleared(value, place, remarks)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            value = _narrowed(key, value, place, remarks)
        clean[key] = value
    return clean


def _narrowed(key: str, value: float, place: str, remarks: list[str]) -> float:
    """A bound that is wide of anything (int64's, say) narrowed: what fits it fits the client's."""
    narrow = -SAFE_BOUND if key in _LOWER and value < -SAFE_BOUND else SAFE_BOUND if key in _UPPER and value > SAFE_BOUND else value
    if narrow != value:
        remarks.append(f"{key} at {place} is narrowed to {narrow}")
    return narrow
