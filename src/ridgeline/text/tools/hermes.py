"""The dialect of Hermes and Qwen: `<tool_call>` around `{"name": ..., "arguments": {...}}`, one frame per call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ridgeline.text.tools.base import Dialect, StreamOptions, ToolSpec, ToolStream
from ridgeline.text.tools.call_schema import call_schema, inline
from ridgeline.text.tools.framed import Frame, FramedStream
from ridgeline.text.tools.reading import Reader, Sink, blank, call_values

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def _read(sink: Sink, opener: str) -> Reader[None]:
    yield from call_values(sink, (yield from blank()))


def _stream(options: StreamOptions) -> ToolStream:
    return FramedStream(Frame(_read, (OPEN,), (CLOSE,), again="{[", between=","), options)


def _grammar(tools: Sequence[ToolSpec], parallel: bool, spell: Callable[[str], str]) -> str:
    call = f'{spell(OPEN)} "\\n" body "\\n" {spell(CLOSE)}'
    start = 'call ("\\n" call)*' if parallel else "call"
    return f"start: {start}\ncall: {call}\nbody: {inline(call_schema(tools))}\n"


HERMES = Dialect(
    "hermes", _stream, _grammar, aliases=("qwen", "qwen2", "qwen2_5", "qwen3", "smollm3"), template_marks=(OPEN,), markers=(OPEN, CLOSE)
)
