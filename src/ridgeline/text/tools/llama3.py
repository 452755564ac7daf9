"""The dialect of Llama 3: a reply that is `{"name": ..., "parameters": {...}}`, perhaps after `<|python_tag|>`; also `<function=...>`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ridgeline.text.tools.base import Dialect, StreamOptions, ToolSpec, ToolStream
from ridgeline.text.tools.call_schema import call_schema, inline
from ridgeline.text.tools.framed import Frame, FramedStream
from ridgeline.text.tools.reading import Call, Reader, Sink, arguments, blank, call_values, short

TAG, FUNCTION = "<|python_tag|>", "<function="


def _read(sink: Sink, opener: str) -> Reader[None]:
    if opener == FUNCTION:
        yield from function_tag(sink)
    else:
        yield from call_values(sink, (yield from blank()), known=not opener)


def function_tag(sink: Sink) -> Reader[None]:
    """After `<function=`: name, `>`, arguments."""
    call = Call(sink)
    name, _ = yield from short(">")
    call.name(name)
    yield from arguments(call, (yield from blank()))
    call.end()


def _stream(options: StreamOptions) -> ToolStream:
    return FramedStream(Frame(_read, (TAG, FUNCTION), ("</function>", "<|eom_id|>"), bare="{[", again="{", between=";,"), options)


def _grammar(tools: Sequence[ToolSpec], parallel: bool, spell: Callable[[str], str]) -> str:
    # One call: the templates of this family render no more than one per turn.
    return f"start: {inline(call_schema(tools, 'name', 'parameters'))}\n"


LLAMA3 = Dialect(
    "llama3", _stream, _grammar, aliases=("llama3_json", "llama", "llama4_json"), template_marks=(TAG, "ipython"),
    markers=(TAG, "<|eom_id|>"),
)  # fmt: skip
