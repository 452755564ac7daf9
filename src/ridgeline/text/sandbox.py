"""Jinja's immutable sandbox with every costly operation metered. Knows the language of templates, not messages or tokens.

Renders what `transformers` renders: trim_blocks, lstrip_blocks, loop controls, plain `tojson`, `strftime_now`, `raise_exception`,
`generation`.
Loops, calls, filters, arithmetic, concatenation, slices and literals pass through a `Meter`, so a hostile template ends early.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import BuiltinMethodType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from ridgeline.text.limits import METER

_WIDE_FIELD = re.compile(r"%[^a-zA-Z%]*\d{5,}|[:.][^{}]*\d{5,}[^{}]*\}")
_GIVEN_WIDTH = re.compile(r"%[^a-zA-Z%]*\*|\{[^{}]*\{")
_PADDING_CALLS = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs", "to_bytes", "splitlines"})
_PADDING_FILTERS = frozenset({"center", "indent", "wordwrap", "truncate", "round", "batch", "slice", "tojson", "filesizeformat"})


class _Raised(jinja2.TemplateError):
    """`raise_exception` of a template: its message is meant for the user."""


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks what the assistant said; here it renders its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _Names(Namespace):
    """`namespace()` that refuses underscore names, as `transformers` does."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, args = args[0], args[1:]
        values = dict(*args, **kwargs)
        for name in values:
            _refuse_private(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        Namespace.__setitem__(self, name, value)

    def template_values(self) -> list[Any]:
        """What printing this namespace would print."""
        return list(object.__getattribute__(self, "_Namespace__attrs").values())


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"chat templates cannot store the underscore name {name!r} on a namespace")


class _Dict:
    """The `dict` of templates: a constructor, and nothing else of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class _Metered(CodeGenerator):
    """Writes the template's Python so that values made without a call are counted too."""

    def _wrapped(self, node: nodes.Node, frame: Frame, visit: Callable[..., None]) -> None:
        self.write("environment.made(")
        visit(node, frame)
        self.write(")")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._wrapped(node, frame, super().visit_List)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._wrapped(node, frame, super().visit_Dict)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "load":
            self._wrapped(node, frame, super().visit_Tuple)
        else:
            super().visit_Tuple(node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if isinstance(node.arg, nodes.Slice):
            self._wrapped(node, frame, super().visit_Getitem)
        else:
            super().visit_Getitem(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class Sandbox(ImmutableSandboxedEnvironment):
    """The one environment in which templates of any origin are compiled and run. Rendering needs a `Meter` in `METER`."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})
    code_generator_class = _Metered

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControlExtension], finalize=_printable, cache_size=0
        )
        self.concat = _concat  # type: ignore[method-assign]
        self.filters["tojson"] = _tojson
        self.filters = {name: _metered_filter(name, function) for name, function in self.filters.items()}
        self.globals.pop("lipsum", None)
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now, "dict": _Dict(), "namespace": _Names}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            # Each turn reads the property below: the cheapest statement that can count.
            loop.body.insert(0, nodes.ExprStmt(nodes.EnvironmentAttribute("tick")).set_lineno(loop.lineno))
        return tree

    @property
    def tick(self) -> None:
        """One turn of a loop."""
        METER.get().step()

    def made(self, value: Any) -> Any:
        return METER.get().made(value)

    def joined(self, parts: Iterable[Any]) -> str:
        meter = METER.get()
        meter.step()
        parts = list(parts)
        meter.plan(meter.size(parts))
        return str(meter.made("".join(map(str, parts))))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter = METER.get()
        meter.step()
        if operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if isinstance(times, int) and not isinstance(sequence, int | float):
                    meter.plan(meter.size(sequence) * max(0, times))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            meter.size(1 << min(abs(left).bit_length() * max(0, right), 1 << 20))
        elif operator == "%" and isinstance(left, str | bytes):
            _check_format(left, right)
        return meter.made(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        inner = super().wrap_str_format(value)
        if inner is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            mapped = args[0].values() if len(args) == 1 and isinstance(args[0], Mapping) else ()
            _check_format(value.__self__, [*args, *mapped, *kwargs.values()])
            return inner(*args, **kwargs)

        return checked

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        meter = METER.get()
        meter.step()
        if isinstance(obj, BuiltinMethodType):
            if obj.__name__ == "join" and len(args) == 1 and not isinstance(args[0], str):
                args = (list(args[0]),)
            _check_method(obj.__self__, obj.__name__, args, kwargs)
        return meter.made(super().call(context, obj, *args, **kwargs))


def _printable(value: Any) -> Any:
    """Seen by every `{{ ... }}`: a value that would print too long stops here."""
    if not isinstance(value, str):
        METER.get().size(value)
    return value


def _concat(parts: Iterable[str]) -> str:
    return str(METER.get().made("".join(parts)))


def _check_format(pattern: Any, values: Any) -> None:
    """`%` and `format`: no number in the pattern, or given as a width, may be huge."""
    meter = METER.get()
    text = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
    if _WIDE_FIELD.search(text):
        meter.width(1 << 62)
    if _GIVEN_WIDTH.search(text):
        meter.width(*(values if isinstance(values, list | tuple) else values.values() if isinstance(values, Mapping) else (values,)))
    pieces = text.count("%") + text.count("{") + 1
    meter.plan(len(text) + pieces * meter.size(values))


def _check_method(owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Methods of plain values that can make far more than they are given."""
    meter = METER.get()
    values = (*args, *kwargs.values())
    if name in _PADDING_CALLS:
        meter.width(*values)
        if name == "expandtabs" and isinstance(owner, str | bytes):
            meter.plan(len(owner) * (1 + max((value for value in values if isinstance(value, int)), default=8)))
    elif name == "replace" and len(args) >= 2:
        _check_replace(owner, args[0], args[1])
    elif name == "join" and args:
        meter.plan(meter.size(args[0]) * (1 + len(owner)))
    elif name == "translate" and args and isinstance(args[0], Mapping):
        meter.plan(len(owner) * max((len(value) for value in args[0].values() if isinstance(value, str)), default=1))


def _check_replace(text: Any, old: Any, new: Any) -> None:
    if isinstance(text, str | bytes) and isinstance(new, str | bytes) and isinstance(old, type(text)):
        METER.get().plan(len(text) + text.count(old) * len(new))  # type: ignore[arg-type]


def _metered_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter with its step, the size of what it gets, and its result counted."""
    passes = 1 if hasattr(function, "jinja_pass_arg") else 0

    def metered(*args: Any, **kwargs: Any) -> Any:
        meter = METER.get()
        meter.step()
        if name == "join" and len(args) > passes and not isinstance(args[passes], str | list | tuple | Mapping):
            args = (*args[:passes], list(args[passes]), *args[passes + 1 :])
        given = args[passes:]
        for value in given:
            meter.size(value)
        if name in _PADDING_FILTERS:
            meter.width(*given[1:], *kwargs.values())
        if name == "indent" and isinstance(given[0], str):
            widths = [len(value) if isinstance(value, str) else value for value in (*given[1:], *kwargs.values())]
            meter.plan(len(given[0]) + (1 + given[0].count("\n")) * max((width for width in widths if isinstance(width, int)), default=4))
        elif name == "tojson":
            indent = max((value for value in (*given[1:], *kwargs.values()) if isinstance(value, int)), default=0)
            meter.plan(meter.size(given[0]) * (1 + int(indent)))
        elif name == "round":
            precision = next((value for value in (*given[1:], *kwargs.values()) if isinstance(value, int)), 0)
            meter.width(precision * 10_000)
        elif name == "replace" and len(given) >= 3:
            _check_replace(str(given[0]), str(given[1]), str(given[2]))
        elif name == "format":
            _check_format(str(given[0]), list(given[1:]) or kwargs)
        elif name == "join":
            separator = str(given[1]) if len(given) > 1 else str(kwargs.get("d", ""))
            meter.plan((meter.size(given[0]) + 1) * (1 + len(separator)))
        return meter.made(function(*args, **kwargs))

    metered.__name__ = name
    for attribute in ("jinja_pass_arg", "jinja_async_variant"):
        if hasattr(function, attribute):
            setattr(metered, attribute, getattr(function, attribute))
    return metered


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: tuple[str, str] | None = None, sort_keys: bool = False
) -> str:
    """JSON as `transformers` writes it: nothing is escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise _Raised(str(message))


def _strftime_now(format: str) -> str:
    METER.get().width(len(format) * 1000)
    return datetime.now().strftime(format)


def raised_message(error: BaseException) -> str | None:
    """The text of a template's own `raise_exception`, None for any other error."""
    return str(error) if isinstance(error, _Raised) else None
