"""The input of a batch: one request a line in OpenAI's form, read once, checked, and put in an order that shares prefixes.

Knows custom_id, method, url and body. What a body means is the server's business. The file stays on disk: of a line only its place is kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

from ridgeline.errors import UserError

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
MAX_LINE = 64 << 20
MAX_CUSTOM_ID = 512
MAX_DEPTH = 200  # as the server's strict parser has it
# What comes first in the model's context, in the order in which it comes there.
_CONTEXT = ("model", "tools", "system", "instructions", "messages", "prompt", "input")
_CUTS = (1 << 10, 1 << 12, 1 << 14)


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a line cannot be asked: `code` for programs, `message` for people."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A line that is not blank. number: from 1; offset, size: bytes in the file; id: number and a digest of the line, so that an output
    line tells which input it answers; key: equal beginnings of contexts have equal beginnings of keys."""

    number: int
    offset: int
    size: int
    id: str
    custom_id: str | None
    key: tuple[str, ...] = ()
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """What is sent: the endpoint's path and the body as JSON."""

    url: str
    body: bytes


def read_entries(path: Path) -> list[Entry]:
    """All lines of the input. Raises `UserError` for a file that cannot be read or holds no line; a bad line is an entry with a fault."""
    if path.exists() and not path.is_file():
        raise UserError(
            f"{path} is no regular file", field=str(path), value=str(path), remedy="write the requests to one: it is read twice"
        )
    try:
        with path.open("rb") as file:
            found = list(_entries(file))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}", field=str(path), value=str(path), remedy="check the path") from None
    if not found:
        raise UserError(f"{path} holds no request", field=str(path), value=0, limit=1, remedy="one JSON object per line is expected")
    return found


def _entries(file: BinaryIO) -> Iterable[Entry]:
    seen: dict[str, int] = {}
    number = offset = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        start, offset = offset, offset + len(line)
        if len(line) > MAX_LINE and not line.endswith(b"\n"):
            offset += _skip(file)
            yield Entry(number, start, 0, entry_id(number, line), None, fault=Fault("line_too_long", f"longer than {MAX_LINE} bytes"))
        elif line.strip(b" \t\r\n\xef\xbb\xbf"):
            yield _entry(number, start, line, seen)


def _skip(file: BinaryIO) -> int:
    """Bytes to the end of a line that is too long."""
    passed = 0
    while rest := file.readline(MAX_LINE):
        passed += len(rest)
        if rest.endswith(b"\n"):
            break
    return passed


def entry_id(number: int, line: bytes) -> str:
    return f"batch_req_{number}_{blake2b(line.strip(), digest_size=6).hexdigest()}"


def _entry(number: int, offset: int, line: bytes, seen: dict[str, int]) -> Entry:
    id = entry_id(number, line)
    document, fault = _document(line)
    custom_id = document.get("custom_id")
    if not isinstance(custom_id, str):
        custom_id = None
    fault = fault or _check(document)
    if fault is None and custom_id is not None:
        first = seen.setdefault(custom_id, number)
        if first != number:
            fault = Fault("duplicate_custom_id", f"custom_id {custom_id[:80]!r} is line {first}'s, which is the one that is answered")
    key: tuple[str, ...] = ()
    if fault is None:
        key = sort_key(document["body"])
    return Entry(number, offset, len(line), id, custom_id, key, fault)


def _document(line: bytes) -> tuple[Mapping[str, Any], Fault | None]:
    try:
        found = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        return {}, Fault("invalid_json", f"the line is not JSON: {str(error)[:200]}")
    if not isinstance(found, dict):
        return {}, Fault("invalid_json", "the line is not a JSON object")
    if _deeper(found, MAX_DEPTH):
        return {"custom_id": found.get("custom_id")}, Fault("invalid_body", f"body is nested deeper than {MAX_DEPTH} levels")
    return found, None


def _deeper(value: Any, levels: int) -> bool:
    """Whether a value is nested deeper than that."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_deeper(v, levels - 1) for v in inside if isinstance(v, dict | list))


def _check(document: Mapping[str, Any]) -> Fault | None:
    """OpenAI's rules for a line; those for the body are the endpoint's."""
    custom_id, method, url, body = (document.get(name) for name in ("custom_id", "method", "url", "body"))
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID:
        return Fault("invalid_custom_id", f"custom_id must be a string of 1 to {MAX_CUSTOM_ID} characters")
    if method != "POST":
        return Fault("invalid_method", f'method is {_shown(method)}, must be "POST"')
    if url not in ENDPOINTS:
        return Fault("invalid_url", f"url is {_shown(url)}, must be one of {', '.join(ENDPOINTS)}")
    if not isinstance(body, dict):
        return Fault("invalid_body", f"body is {_shown(body)}, must be an object")
    if body.get("stream"):
        return Fault("stream_not_supported", "body.stream is true; an answer in a batch is whole: leave stream out")
    return None


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:80] + "..."


def sort_key(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Bodies sorted by this lie beside those that share the longest prefix with them; some 250 bytes, however long the body."""
    first = [json.dumps(body[name], ensure_ascii=False, sort_keys=True) for name in _CONTEXT if body.get(name) is not None]
    rest = {name: value for name, value in body.items() if name not in _CONTEXT}
    text = "\n".join([*first, json.dumps(rest, ensure_ascii=False, sort_keys=True)])
    digests = (blake2b(text[:cut].encode("utf8", "replace"), digest_size=8).hexdigest() for cut in _CUTS if len(text) > cut)
    return (text[:200], *digests)


def in_order(entries: Sequence[Entry]) -> list[Entry]:
    """Those that can be asked, so that equal prefixes follow each other; else in the order of the file."""
    return sorted((e for e in entries if e.fault is None), key=lambda e: (e.key, e.number))


def read_call(file: BinaryIO, entry: Entry) -> Call:
    """The request of an entry, read again. Raises `UserError` when the file is not what it was."""
    file.seek(entry.offset)
    line = file.read(entry.size)
    if entry_id(entry.number, line) != entry.id:
        raise UserError(f"line {entry.number} of the input changed while it was worked on", field="input", value=entry.number)
    document = json.loads(line.decode("utf-8-sig"))
    return Call(document["url"], json.dumps(document["body"], ensure_ascii=False).encode("utf8", "replace"))
