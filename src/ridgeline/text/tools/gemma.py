"""The dialects of Gemma: FunctionGemma and Gemma 4 write `call:name{key:value}` in frames of their own, with strings between marks;
older models are told to answer with `{"name": ..., "parameters": {...}}`, which they often fence as code."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from ridgeline.text.tools.base import Dialect, StreamOptions, ToolSpec, ToolStream
from ridgeline.text.tools.call_schema import call_schema, inline, literal
from ridgeline.text.tools.framed import Frame, FramedStream
from ridgeline.text.tools.reading import Call, Malformed, Reader, Sink, blank, call_values, exactly, short, until

FUNCTION_OPEN, FUNCTION_CLOSE, ESCAPE = "<start_function_call>", "<end_function_call>", "<escape>"
CALL_OPEN, CALL_CLOSE, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_MARK = {FUNCTION_OPEN: ESCAPE, CALL_OPEN: QUOTE}
_MAX_DEPTH = 64
FENCES = ("```json", "```tool_code", "```tool_call")


def _read(sink: Sink, opener: str) -> Reader[None]:
    if opener in _MARK:
        yield from _native(sink, _MARK[opener])
    else:
        yield from call_values(sink, (yield from blank()), known=True)


def _native(sink: Sink, mark: str) -> Reader[None]:
    """`call:`, a name, then an object whose strings stand between marks."""
    if (yield from blank()) != "c":
        raise Malformed
    yield from exactly("all:")
    call = Call(sink)
    name, _ = yield from short("{")
    call.name(name)
    call.argued = True
    yield from _object(mark, call.argue)
    call.end()


def _object(mark: str, out: Callable[[str], None], depth: int = 0) -> Reader[None]:
    if depth > _MAX_DEPTH:
        raise Malformed
    out("{")
    char, more = (yield from blank()), ""
    while char != "}":
        out(more)
        if char == mark[0]:
            yield from exactly(mark[1:])
            yield from _text(mark, out)
            if (yield from blank()) != ":":
                raise Malformed
        else:
            key, _ = yield from short(":", char)
            out(json.dumps(key.strip('"'), ensure_ascii=False))
        out(": ")
        char = yield from _value((yield from blank()), mark, out, depth)
        if char == ",":
            char, more = (yield from blank()), ", "
        elif char != "}":
            raise Malformed
    out("}")


def _list(mark: str, out: Callable[[str], None], depth: int) -> Reader[None]:
    if depth > _MAX_DEPTH:
        raise Malformed
    out("[")
    char, more = (yield from blank()), ""
    while char != "]":
        out(more)
        char = yield from _value(char, mark, out, depth)
        if char == ",":
            char, more = (yield from blank()), ", "
        elif char != "]":
            raise Malformed
    out("]")


def _value(first: str, mark: str, out: Callable[[str], None], depth: int) -> Reader[str]:
    """A value, as JSON, and the first character after it."""
    if first == mark[0]:
        yield from exactly(mark[1:])
        yield from _text(mark, out)
        return (yield from blank())
    if first == "{":
        yield from _object(mark, out, depth + 1)
        return (yield from blank())
    if first == "[":
        yield from _list(mark, out, depth + 1)
        return (yield from blank())
    word, end = yield from short(",}]", first)
    out(_word(word))
    return end


def _text(mark: str, out: Callable[[str], None]) -> Reader[None]:
    out('"')
    yield from until(mark, lambda piece: out(json.dumps(piece, ensure_ascii=False)[1:-1]))
    out('"')


def _word(word: str) -> str:
    """A number, true, false or null as it is; anything else is a text whose marks are missing."""
    try:
        json.loads(word)
    except ValueError:
        return json.dumps(word, ensure_ascii=False)
    return word


def _stream(options: StreamOptions) -> ToolStream:
    frame = Frame(
        _read, (FUNCTION_OPEN, CALL_OPEN, *FENCES), (FUNCTION_CLOSE, CALL_CLOSE, "<start_function_response>", "<|tool_response>", "```"),
        bare="{[", again="{", between=",",
    )  # fmt: skip
    return FramedStream(frame, options)


def _json_grammar(tools: Sequence[ToolSpec], parallel: bool, spell: Callable[[str], str]) -> str:
    return f"start: {inline(call_schema(tools, 'name', 'parameters'))}\n"


def _native_grammar(opener: str, closer: str) -> Callable[[Sequence[ToolSpec], bool, Callable[[str], str]], str]:
    def grammar(tools: Sequence[ToolSpec], parallel: bool, spell: Callable[[str], str]) -> str:
        mark = spell(_MARK[opener])
        lines = [
            f"start: call{'+' if parallel else ''}",
            f'call: {spell(opener)} "call:" ({" | ".join(f"tool{i}" for i in range(len(tools)))}) {spell(closer)}',
            'value: text | NUMBER | WORD | "{" (pair ("," pair)*)? "}" | "[" (value ("," value)*)? "]"',
            'pair: KEY ":" value',
            f"text: {mark} TEXT {mark}",
            "KEY: /[A-Za-z_][A-Za-z0-9_]{0,63}/",
            "NUMBER: /-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?/",
            "INTEGER: /-?(0|[1-9][0-9]*)/",
            'WORD: "true" | "false" | "null"',
            "TEXT: /[^<]*/",
        ]
        for index, tool in enumerate(tools):
            lines += _tool_rules(index, tool, mark)
        return "\n".join(lines) + "\n"

    return grammar


def _tool_rules(index: int, tool: ToolSpec, mark: str) -> list[str]:
    """`name{...}`: properties in their order, the required ones all there, simple types kept."""
    schema = tool.parameters or {}
    properties = schema.get("properties") or {}
    needed = set(schema.get("required") or ())
    if not properties:
        return [f'tool{index}: {literal(tool.name + "{")} (pair ("," pair)*)? "}}"']
    order = sorted(properties, key=lambda key: key not in needed)
    names = {key: f"tool{index}p{place}" for place, key in enumerate(order)}
    lines = [f"{names[key]}: {literal(key + ':')} {_typed(properties[key], mark)}" for key in order]
    required, optional = [names[k] for k in order if k in needed], [names[k] for k in order if k not in needed]
    if required:
        body = ' "," '.join(required) + "".join(f' ("," {name})?' for name in optional)
    else:
        tails = [name + "".join(f' ("," {later})?' for later in optional[at + 1 :]) for at, name in enumerate(optional)]
        body = f"({' | '.join(tails)})?"
    return [f'tool{index}: {literal(tool.name + "{")} {body} "}}"', *lines]


def _typed(kind: object, mark: str) -> str:
    schema = kind if isinstance(kind, dict) else {}
    choices = schema.get("enum")
    if isinstance(choices, list) and choices and all(isinstance(c, str) and "<" not in c for c in choices):
        return f"{mark} ({' | '.join(literal(c) for c in choices)}) {mark}"
    simple = {"string": "text", "integer": "INTEGER", "number": "NUMBER", "boolean": '("true" | "false")', "null": '"null"'}
    named = schema.get("type")
    return simple.get(named, "value") if isinstance(named, str) else "value"


def _write(name: str, arguments: str) -> str:
    return f'{{"name": {literal(name)}, "parameters": {arguments}}}'


GEMMA = Dialect("gemma", _stream, _json_grammar, aliases=("gemma2", "gemma3"), template_marks=("<start_of_turn>",), write=_write)
FUNCTION_GEMMA = Dialect(
    "functiongemma", _stream, _native_grammar(FUNCTION_OPEN, FUNCTION_CLOSE), template_marks=(FUNCTION_OPEN,),
    markers=(FUNCTION_OPEN, FUNCTION_CLOSE, ESCAPE),
)  # fmt: skip
GEMMA4 = Dialect(
    "gemma4", _stream, _native_grammar(CALL_OPEN, CALL_CLOSE), template_marks=(CALL_OPEN,), markers=(CALL_OPEN, CALL_CLOSE, QUOTE)
)
