"""The dialect of Qwen3-Coder: `<function=name>` around `<parameter=key>` elements, each value between line ends, inside `<tool_call>`.

Values are text; what they mean follows from the tool's schema: a string parameter is taken literally, others are read as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from ridgeline.text.tools.base import Dialect, StreamOptions, ToolSpec, ToolStream
from ridgeline.text.tools.call_schema import inline, literal, property_schema
from ridgeline.text.tools.framed import Frame, FramedStream
from ridgeline.text.tools.reading import Call, Malformed, Reader, Sink, blank, exactly, short, until

OPEN, CLOSE, FUNCTION, PARAMETER = "<tool_call>", "</tool_call>", "<function=", "<parameter="
_END = "</parameter>"
_WORDS = {"True": "true", "False": "false", "None": "null"}


def _read(sink: Sink, opener: str) -> Reader[None]:
    if opener == OPEN:
        if (yield from blank()) != "<":
            raise Malformed
        yield from exactly(FUNCTION[1:])
    name, _ = yield from short(">")
    call = Call(sink)
    call.name(name)
    call.argued = True
    spec = next((tool for tool in sink.options.tools if tool.name == name), None)
    properties = ((spec.parameters or {}).get("properties") or {}) if spec is not None else {}
    call.argue("{")
    between = ""
    while True:
        if (yield from blank()) != "<":
            raise Malformed
        tag, _ = yield from short(">")
        if tag == "/function":
            break
        if not tag.startswith(PARAMETER[1:]):
            raise Malformed
        key = tag[len(PARAMETER) - 1 :]
        call.argue(f"{between}{json.dumps(key, ensure_ascii=False)}: ")
        between = ", "
        yield from _value(properties.get(key), call.argue)
    call.argue("}")
    call.end()


def _value(schema: Any, out: Callable[[str], None]) -> Reader[None]:
    if not is_text(schema):
        pieces: list[str] = []
        yield from until(_END, pieces.append)
        out(_json("".join(pieces).strip()))
        return
    held = _Trimmed(lambda piece: out(json.dumps(piece, ensure_ascii=False)[1:-1]))
    out('"')
    yield from until(_END, held.push)
    out('"')


class _Trimmed:
    """Passes text on without one line end at its start and one at its end."""

    def __init__(self, out: Callable[[str], None]) -> None:
        self._out, self._held, self._first = out, "", True

    def push(self, piece: str) -> None:
        if self._first and piece:
            self._first = False
            piece = piece.removeprefix("\n")
        piece = self._held + piece
        self._held = "\n" if piece.endswith("\n") else ""
        self._out(piece.removesuffix("\n"))


def is_text(schema: Any) -> bool:
    """Whether a parameter takes text as it is. One without a type does."""
    if not isinstance(schema, dict):
        return True
    kind = schema.get("type")
    if isinstance(kind, list):
        return "string" in kind
    if kind is None:
        options = [option for name in ("anyOf", "oneOf") for option in schema.get(name) or ()]
        return any(is_text(option) for option in options) if options else "$ref" not in schema
    return bool(kind == "string")


def _json(text: str) -> str:
    text = _WORDS.get(text, text)
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return text


def _stream(options: StreamOptions) -> ToolStream:
    return FramedStream(Frame(_read, (OPEN, FUNCTION), (CLOSE,)), options)


def _grammar(tools: Sequence[ToolSpec], parallel: bool, spell: Callable[[str], str]) -> str:
    one = " | ".join(f"tool{i}" for i in range(len(tools)))
    lines = [
        'start: call ("\\n" call)*' if parallel else "start: call",
        f'call: {spell(OPEN)} "\\n" ({one}) "</function>\\n" {spell(CLOSE)}',
        f"text[suffix={literal(_END)}]: /(.|\\n)*/",
    ]
    for index, tool in enumerate(tools):
        schema = tool.parameters or {}
        needed = set(schema.get("required") or ())
        parts = []
        for place, (key, kind) in enumerate((schema.get("properties") or {}).items()):
            name = f"tool{index}p{place}"
            body = "text" if is_text(kind) else f'"\\n" {inline(property_schema(tool, key))} "\\n{_END}"'
            lines.append(f'{name}: {literal(f"{PARAMETER}{key}>")} {body} "\\n"')
            parts.append(name if key in needed else f"{name}?")
        lines.append(f"tool{index}: {literal(f'{FUNCTION}{tool.name}>')} {literal(chr(10))} {' '.join(parts)}")
    return "\n".join(lines) + "\n"


QWEN_XML = Dialect("qwen_xml", _stream, _grammar, aliases=("qwen3_coder", "qwen3_xml"), template_marks=(PARAMETER,), markers=(OPEN, CLOSE))
