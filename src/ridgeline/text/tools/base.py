"""What every tool dialect shares: tools as asked for, calls as found, deltas as streamed. Knows no dialect and no protocol.

A stream reads the model's text in any pieces and gives deltas; joined, they are the same for every way to cut the text.
`arguments` are passed on as the model wrote them (JSON text), never parsed and written again, never completed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A function the model may call. `parameters` is its JSON schema, None where the client gave none; `strict` as OpenAI has it."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the model made. `arguments` is JSON text, cut short where generation was."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of call `index` (0, 1, ...). `id` and `name` come once, in the first delta of an index; `arguments` pieces are joined."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


Delta = TextDelta | CallDelta


class ToolStream(Protocol):
    """Reads one reply. `push` takes the next piece of text, `finish` gives what was held back; both return deltas in order."""

    def push(self, text: str) -> list[Delta]: ...

    def finish(self) -> list[Delta]: ...


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """names: the tools offered (empty: any name is taken); parallel: more than one call may come, else later ones are left out.
    tools: the same with their schemas, for dialects whose arguments are typed by them."""

    tools: tuple[ToolSpec, ...] = ()
    parallel: bool = True

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a family of models writes tool calls. One file each makes one of these.

    aliases: what others call it (vLLM's `--tool-call-parser`). template_marks: found in a chat template's source, they tell the dialect.
    markers: texts that frame calls; a tokenizer may hold them as control tokens, whose text must then be kept (see `keeps_special`).
    grammar: (tools, parallel, spell) -> Lark source of one or more calls of these tools; `spell(marker)` writes a marker as the grammar
    needs it. write: a call of (name, JSON arguments) as text, for models that learn the dialect from their prompt (`prompt.py`).
    """

    name: str
    stream: Callable[[StreamOptions], ToolStream]
    grammar: Callable[[Sequence[ToolSpec], bool, Callable[[str], str]], str]
    aliases: tuple[str, ...] = ()
    template_marks: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    write: Callable[[str, str], str] | None = None


_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def call_id() -> str:
    """As OpenAI's: `call_` and 24 letters and digits."""
    return "call_" + "".join(secrets.choice(_ALPHABET) for _ in range(24))


def short_id() -> str:
    """Nine letters and digits, which Mistral's templates insist on."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(9))
