"""A question as text, key by key, as a query string carries it: the command line's option names and the quantities people type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ridgeline.errors import UserError
from ridgeline.options import parse_count
from ridgeline.planner import units
from ridgeline.planner.question import Question, check

Reader = Callable[[str, str], Any]
MAX_TEXT, MAX_CONTEXT = 200, 1 << 22  # characters of a value; tokens, so that no answer takes long


def _count(text: str, option: str) -> int:
    return parse_count(text, name=option)


def _flag(text: str, option: str) -> bool:
    if text not in ("0", "1"):
        raise UserError(f"{option} is {text!r}, must be 0 or 1", field=option, value=text, limit=("0", "1"))
    return text == "1"


def _words(text: str, option: str) -> str:
    return text


READERS: Mapping[str, Reader] = {
    "model": _words, "device": _words, "preset": _words, "weight_dtype": _words, "kv_dtype": _words, "math": _words,
    "workshop": _flag, "ideal": _flag, "ignore_window": _flag,
    "context": _count, "output": _count, "users": _count, "batch": _count, "cached": _count, "kv_heads": _count, "tp": _count,
    "pp": _count, "ep": _count, "replicas": _count, "rate": units.per_second, "ttft": units.seconds, "itl": units.seconds,
    "price": units.usd_per_hour, "utilization": units.fraction, "weights_bytes": units.byte_count, "bandwidth": units.bandwidth,
    "memory": units.byte_count, "overhead": units.share_or_bytes,
}  # fmt: skip


def option_of(key: str) -> str:
    """The option that a key stands for, as errors name it."""
    return "MODEL" if key == "model" else "--overhead-bytes" if key == "overhead" else "--" + key.replace("_", "-")


def texts_of(asked: Question) -> dict[str, str]:
    """The keys of a question that differ from the default, as `question_of` reads them."""
    usual, found = vars(Question(asked.model)), {"model": asked.model}
    for key in READERS:
        value = getattr(asked, key)
        if value is None or value == usual[key]:
            continue
        match key:
            case "ttft" | "itl":
                found[key] = f"{value * 1e3:.10g}ms"
            case "overhead":
                found[key] = f"{value[1] * 100:.10g}%" if value[1] else f"{value[0]:.15g}"
            case _:
                found[key] = "1" if value is True else f"{value:.15g}" if isinstance(value, float) else str(value)
    return {k: v for k, v in found.items() if v}


def question_of(texts: Mapping[str, str]) -> Question:
    """Empty values count as not given. Raises `UserError` naming the option for what is unknown, unreadable or excludes itself."""
    given: dict[str, Any] = {}
    for key, text in texts.items():
        reader = READERS.get(key)
        if reader is None:
            raise UserError(f"{key[:60]!r} is not asked here", field=key[:60], limit=tuple(READERS), remedy=f"one of {', '.join(READERS)}")
        if len(text) > MAX_TEXT:
            raise UserError(f"{option_of(key)} has {len(text)} characters, at most {MAX_TEXT}", field=option_of(key), limit=MAX_TEXT)
        if text.strip():
            given[key] = reader(text.strip(), option_of(key))
    if "model" not in given:
        raise UserError("no model was named", field="MODEL", remedy="give a name of the models table")
    asked = Question(**given)
    check(asked)
    for key in ("context", "output"):
        value = given.get(key)
        if value is not None and value > MAX_CONTEXT:
            raise UserError(f"--{key} is {value}, at most {MAX_CONTEXT} here", field=f"--{key}", value=value, limit=MAX_CONTEXT)
    return asked
