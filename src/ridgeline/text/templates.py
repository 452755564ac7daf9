"""Chat templates: Jinja source to a function from messages to text, in the sandbox and within limits. Knows no tokens.

Whatever goes wrong inside a template (sandbox, limits, its own `raise_exception`, any Python error) becomes one `TemplateError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from ridgeline.errors import TemplateError
from ridgeline.text.limits import METER, Limits, Meter, weigh


class ChatTemplate:
    """A compiled template. `render` gives the text `transformers` would give for the same variables; threads may share it."""

    __slots__ = ("_template", "limits", "literals", "source")

    def __init__(self, source: str, limits: Limits | None = None) -> None:
        """Raises `TemplateError` when the source is too long or not a template."""
        self.source, self.limits = source, limits or Limits()
        if len(source) > self.limits.source:
            raise TemplateError(
                f"chat template has {len(source)} characters, at most {self.limits.source} are allowed",
                field="chat_template",
                value=len(source),
                limit=self.limits.source,
            )
        self._template, self.literals = _guarded(lambda: _compile(source), self.limits, 0)

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text. Raises `TemplateError` with one plain line."""

        return str(_guarded(lambda: "".join(self._pieces(variables)), self.limits, weigh(variables)))

    def _pieces(self, variables: Mapping[str, Any]) -> list[str]:
        meter, pieces = METER.get(), list[str]()
        for piece in self._template.generate(**variables):
            meter.made(piece)
            pieces.append(piece)
        return pieces


@lru_cache(maxsize=32)
def chat_template(source: str) -> ChatTemplate:
    """The compiled template of `source`, kept for the next request."""
    return ChatTemplate(source)


def _compile(source: str) -> tuple[Any, str]:
    # Jinja takes 40 ms to import: only who renders a template pays for it.
    from jinja2 import nodes

    from ridgeline.text.sandbox import Sandbox

    environment = Sandbox()
    tree = environment.parse(source)
    literals = [node.data for node in tree.find_all(nodes.TemplateData)]
    literals += [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    return environment.from_string(tree), "\x00".join(literals)


def _guarded(run: Callable[[], Any], limits: Limits, input_size: int) -> Any:
    token = METER.set(Meter(limits, input_size))
    try:
        return run()
    except TemplateError:
        raise
    except Exception as error:
        raise _plain(error) from None
    finally:
        METER.reset(token)


def _plain(error: Exception) -> TemplateError:
    from ridgeline.text.sandbox import raised_message

    own = raised_message(error)
    if own is not None:
        return TemplateError(f"the chat template refuses this conversation: {_line(own)}", field="messages", value=_line(own))
    return TemplateError(f"chat template failed: {type(error).__name__}: {_line(str(error))}", field="chat_template")


def _line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 300 else text[:300] + "..."
