"""A request's body: read within its limit, parsed as strict JSON, checked against its schema. Knows no endpoint's meaning.

Unknown fields are accepted, as OpenAI-compatible clients send all sorts of them, and named in a warning.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from itertools import islice
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, ValidationError
from pydantic_core import from_json

from ridgeline.errors import UserError
from ridgeline.server.failure import HttpError

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
B = TypeVar("B", bound="Body")
T = TypeVar("T")


class _First(FailFast):
    """pydantic's mark, which cannot stand in a union as long as it has no hash."""

    __hash__ = object.__hash__


# A list whose first fault is told: a million wrong entries would be a million faults, made under the interpreter's lock.
Items = Annotated[list[T], _First()]
_MAX_DEPTH = 200  # as the strict parser's
_LENIENT_BYTES = 2 << 20  # the second, lenient parser is slow and lets no other thread run


class Body(BaseModel):
    """Base of all request bodies. Strict: "1" is no number, 1 is no boolean; fields it does not know are kept aside."""

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())


class ClientGone(Exception):
    """The client went away before it had sent its request."""


async def read(receive: Receive, headers: Mapping[str, str], limit: int) -> bytes:
    """The whole body. Raises 413 as soon as it is known to be too long, 415 for one that is packed."""
    packed = headers.get("content-encoding", "identity")
    if packed.lower() != "identity":
        text = f"content-encoding {packed[:40]!r} is not supported; send the body as it is"
        raise HttpError(415, text, code="unsupported_encoding", headers={"connection": "close"})
    declared = headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(int(declared), limit)
    chunks, size = list[bytes](), 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(size, limit)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _too_large(size: int, limit: int) -> HttpError:
    message = f"the body has at least {size} bytes, at most {limit} are allowed"
    return HttpError(413, message, code="request_too_large", headers={"connection": "close"})


def parse(raw: bytes, schema: type[B]) -> tuple[B, list[str]]:
    """The checked body, and warnings about fields that mean nothing here. Raises `UserError` naming the field."""
    document = _decode(raw)
    if not isinstance(document, dict):
        raise UserError(f"the body is a JSON {_kind(document)}, must be an object", field=None)
    try:
        body = schema.model_validate(document)
    except ValidationError as error:
        raise _first_fault(error) from None
    return body, [_unknown(name, schema) for name in list(body.model_extra or ())[:20]]


def _decode(raw: bytes) -> Any:
    raw = raw.removeprefix(b"\xef\xbb\xbf")  # Windows' tools begin files with it
    try:
        return from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        first = str(error)
    if b"\\u" not in raw or len(raw) > _LENIENT_BYTES:
        raise UserError(f"the body is not valid JSON: {first}")
    try:
        # The strict parser refuses lone surrogates, which clients send that cut an emoji in two: they become U+FFFD.
        return _well_formed(json.loads(raw, parse_constant=_no_constant), _MAX_DEPTH)
    except (ValueError, RecursionError):
        raise UserError(f"the body is not valid JSON: {first}") from None


def _well_formed(value: Any, depth: int) -> Any:
    if depth == 0:
        raise ValueError("nested too deep")
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {_well_formed(k, depth - 1): _well_formed(v, depth - 1) for k, v in value.items()}
    return [_well_formed(v, depth - 1) for v in value] if isinstance(value, list) else value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _kind(value: object) -> str:
    return {list: "list", str: "string", bool: "boolean", type(None): "null"}.get(type(value), "number")


def _first_fault(error: ValidationError) -> UserError:
    """The first fault in a client's words. A union's branches are summed up by their shortest path."""
    faults = error.errors(include_url=False, include_context=False)
    fault: Any = min(faults, key=lambda f: len(f["loc"]))
    path = ""
    for step in fault["loc"]:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step.isidentifier() and step not in _BRANCHES:
            path += f".{step}" if path else step
    text = shown(fault["input"])
    if fault.get("type") == "missing":
        return UserError(f"{path} is required", field=path or None)
    message = fault["msg"].removeprefix("Input ").removeprefix("Value error, ")
    return UserError(f"{path or 'the body'} is {text}: {message}", field=path or None, value=text)


# Names that pydantic puts into a path for the branches of a union.
_BRANCHES = frozenset({"str", "int", "float", "bool", "list", "dict", "none"})


def shown(value: object, most: int = 80) -> str:
    """A value for a message: its JSON, cut. No more of it is written than is shown."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        cut = value[: most + 1] if isinstance(value, str) else value
        text = "".join(islice(json.JSONEncoder(ensure_ascii=False, default=str).iterencode(cut), most + 1))
    except (ValueError, RecursionError):
        text = _kind(value)
    return text if len(text) <= most else text[:most] + "..."


def _unknown(name: str, schema: type[Body]) -> str:
    shown = name if len(name) <= 60 else name[:60] + "..."
    near = difflib.get_close_matches(name[:60], schema.model_fields, 1, 0.75)
    return f"unknown field {shown!r}" + (f", did you mean {near[0]!r}?" if near else " is ignored")


def warning_header(warnings: list[str]) -> dict[str, str]:
    """Warnings as one header value: printable ASCII of bounded length."""
    if not warnings:
        return {}
    text = "; ".join(warnings)
    return {"x-ridgeline-warning": "".join(c if " " <= c <= "~" else "?" for c in text)[:1000]}
