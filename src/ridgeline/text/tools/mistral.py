"""The dialects of Mistral: `[TOOL_CALLS]` and then a list of calls, or (newer models) a name, `[ARGS]` and the arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ridgeline.text.tools.base import Dialect, StreamOptions, ToolSpec, ToolStream, short_id
from ridgeline.text.tools.call_schema import definitions_of, inline, list_schema, literal
from ridgeline.text.tools.framed import Frame, FramedStream
from ridgeline.text.tools.reading import Call, Malformed, Reader, Sink, arguments, blank, call_values, exactly, short

CALLS, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


def _read(sink: Sink, opener: str) -> Reader[None]:
    first = yield from blank()
    if first in "[{":
        yield from call_values(sink, first)
    else:
        yield from _named(sink, first)


def _named(sink: Sink, first: str) -> Reader[None]:
    """A name, perhaps an id, then the arguments."""
    call = Call(sink)
    name, end = yield from short("[{", first)
    id = None
    if end == "[":
        mark = yield
        if mark == CALL_ID[1]:
            yield from exactly(CALL_ID[2:])
            id, end = yield from short("[")
            mark = yield
        if mark != ARGS[1]:
            raise Malformed
        yield from exactly(ARGS[2:])
        end = yield from blank()
    call.name(name, id or None)
    yield from arguments(call, end)
    call.end()


def _stream(options: StreamOptions) -> ToolStream:
    return FramedStream(Frame(_read, (CALLS,), ("</s>",), between=",", new_id=short_id), options)


def _list_grammar(tools: Sequence[ToolSpec], parallel: bool, spell: Callable[[str], str]) -> str:
    return f'start: {spell(CALLS)} " "? body\nbody: {inline(list_schema(tools, parallel))}\n'


def _args_grammar(tools: Sequence[ToolSpec], parallel: bool, spell: Callable[[str], str]) -> str:
    calls = [f"call{i}: {spell(CALLS)} {literal(tool.name)} {spell(ARGS)} {inline(definitions_of(tool))}" for i, tool in enumerate(tools)]
    one = " | ".join(f"call{i}" for i in range(len(tools)))
    return f"start: ({one}){'+' if parallel else ''}\n" + "\n".join(calls) + "\n"


_MARKERS = (CALLS, ARGS, CALL_ID)
MISTRAL = Dialect("mistral", _stream, _list_grammar, aliases=("mistral_v3",), template_marks=(CALLS,), markers=_MARKERS)
MISTRAL_ARGS = Dialect("mistral_args", _stream, _args_grammar, aliases=("mistral_v11",), template_marks=(ARGS,), markers=_MARKERS)
