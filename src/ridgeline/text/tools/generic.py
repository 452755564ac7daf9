"""The dialect for models whose template knows no tools: Hermes' frame, which the prompt asks for (`prompt.py`), or JSON, fenced or bare."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ridgeline.text.tools.base import Dialect, StreamOptions, ToolSpec, ToolStream
from ridgeline.text.tools.call_schema import call_schema, inline, literal
from ridgeline.text.tools.framed import Frame, FramedStream
from ridgeline.text.tools.gemma import FENCES
from ridgeline.text.tools.hermes import CLOSE, OPEN
from ridgeline.text.tools.reading import Reader, Sink, blank, call_values


def _read(sink: Sink, opener: str) -> Reader[None]:
    yield from call_values(sink, (yield from blank()), known=opener != OPEN)


def _stream(options: StreamOptions) -> ToolStream:
    return FramedStream(Frame(_read, (OPEN, *FENCES), (CLOSE, "```"), bare="{[", again="{[", between=","), options)


def _grammar(tools: Sequence[ToolSpec], parallel: bool, spell: Callable[[str], str]) -> str:
    call = f'{spell(OPEN)} "\\n" body "\\n" {spell(CLOSE)}'
    start = 'call ("\\n" call)*' if parallel else "call"
    return f"start: {start}\ncall: {call}\nbody: {inline(call_schema(tools))}\n"


def _write(name: str, arguments: str) -> str:
    return f'{OPEN}\n{{"name": {literal(name)}, "arguments": {arguments}}}\n{CLOSE}'


GENERIC = Dialect("generic", _stream, _grammar, aliases=("json",), markers=(OPEN, CLOSE), write=_write)
