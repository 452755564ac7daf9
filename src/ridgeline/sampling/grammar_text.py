"""Grammars, regular expressions and choices as clients send them, to Lark source; and what they may cost. Knows no tokens.

The grammar library bounds its own work step by step; what it does not bound (rules that lead to rules thousands deep, terminals that grow
by a factor at each level, long texts) is counted here before it sees them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from ridgeline.errors import UserError
from ridgeline.sampling.regex_size import check_regex, regex_size
from ridgeline.sampling.schema import inline_schema

MAX_GRAMMAR_BYTES = 32_768
MAX_CALL_GRAMMAR_BYTES = 524_288
MAX_RULES = 800
MAX_TERMINAL_SIZE = 100_000
MAX_REPEATED = 200_000
MAX_REGEX_BYTES = 8_192
MAX_CHOICES = 4_096
MAX_CHOICE_BYTES = 131_072
_GBNF = re.compile(r"^\s*[A-Za-z0-9_-]+\s*::=", re.MULTILINE)
_QUIET = re.compile(r'"(?:\\.|[^"\\\n])*"i?|/(?:\\.|[^/\\\n])+/[imsx]*|//[^\n]*|#[^\n]*')
_QUIET_OR_JSON = re.compile(_QUIET.pattern + r"|%json\b")
_RULE = re.compile(r"^[ \t]*[?!]?([A-Za-z_][\w-]*)(?:\.\d+|\{[^}\n]*\}|\[[^\]\n]*\]|::[\w]+)*[ \t]*:", re.MULTILINE)
_RANGE = re.compile(r"~\s*(?:\d+\s*\.\.\s*)?(\d+)")
_NAME = re.compile(r"[A-Za-z_][\w-]*|\"\"|~\s*\d+(?:\s*\.\.\s*(\d+))?|\{[^}\n]*\}")


def lark_of_regex(pattern: Any) -> str:
    """A text that matches the whole of `pattern` (Rust's syntax: no look-around, no back references). `\\d` means 0 to 9."""
    from llguidance import regex_to_lark

    if not isinstance(pattern, str) or not pattern:
        raise UserError(f"regex is {pattern!r:.80}, must be text", field="regex")
    _bounded("regex", pattern, MAX_REGEX_BYTES)
    check_regex(pattern, "regex")
    inner: str = regex_to_lark(pattern, "d")
    return f"start: /{inner}/"


def lark_of_choice(choices: Any) -> str:
    """One of these texts."""
    if not isinstance(choices, Sequence) or isinstance(choices, str | bytes) or not choices:
        raise UserError("choice must be a list of at least one text", field="choice")
    if not all(isinstance(choice, str) and choice for choice in choices):
        raise UserError("choice holds something that is not text, or is empty", field="choice")
    if len(choices) > MAX_CHOICES:
        text = f"choice has {len(choices)} entries, at most {MAX_CHOICES} are allowed"
        raise UserError(text, field="choice", value=len(choices), limit=MAX_CHOICES)
    _bounded("choice", "".join(choices), MAX_CHOICE_BYTES)
    return "start: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in dict.fromkeys(choices))


def lark_of_grammar(source: Any) -> str:
    """A Lark grammar (rule `start`) or a GBNF / EBNF one (`root ::= ...`), as Lark, within limits."""
    if not isinstance(source, str) or not source.strip():
        raise UserError(f"grammar is {source!r:.80}, must be text", field="grammar")
    _bounded("grammar", source, MAX_GRAMMAR_BYTES)
    lark: str = source
    if _GBNF.search(lark):
        lark = _from_gbnf(lark)
        _bounded("grammar", lark, 4 * MAX_GRAMMAR_BYTES)
    lark = with_clear_schemas(lark)
    check_lark(lark)
    return lark


def with_clear_schemas(source: str) -> str:
    """The grammar with every `%json` schema checked and its blanks bounded."""
    pieces, at, decoder = [], 0, json.JSONDecoder()
    while (found := _QUIET_OR_JSON.search(source, at)) is not None:
        if found[0] != "%json":
            pieces.append(source[at : found.end()])
            at = found.end()
            continue
        start = len(source) - len(source[found.end() :].lstrip())
        try:
            schema, end = decoder.raw_decode(source, start)
        except (ValueError, RecursionError) as error:
            raise UserError(f"grammar has a %json schema that is not valid JSON ({error})", field="grammar") from None
        pieces += [source[at : found.start()], inline_schema(schema)]
        at = end
    return "".join(pieces) + source[at:]


def check_lark(source: str) -> None:
    """Raises `UserError` for too many rules, or terminals that grow too large when the terminals they name are put in."""
    for found in _QUIET.finditer(source):
        if found[0][0] == "/" and not found[0].startswith("//"):
            check_regex(found[0], "grammar")
    quiet = _QUIET.sub(lambda m: '""' if m[0][0] in '"/' and not m[0].startswith("//") else "", source)
    starts = list(_RULE.finditer(quiet))
    if len(starts) > MAX_RULES:
        text = f"grammar has {len(starts)} rules, at most {MAX_RULES} are allowed"
        raise UserError(text, field="grammar", value=len(starts), limit=MAX_RULES)
    repeated = regex_size(_RANGE.sub(lambda m: "{" + m[1] + "}", quiet))
    if repeated > MAX_REPEATED:
        text = f"grammar has {repeated} parts with its repetitions written out, at most {MAX_REPEATED} are allowed"
        raise UserError(text, field="grammar", value=repeated, limit=MAX_REPEATED, remedy="repeat less")
    ends = [*(match.start() for match in starts), len(quiet)][1:]
    bodies = {match[1]: quiet[match.end() : end] for match, end in zip(starts, ends, strict=False) if match[1].isupper()}
    sizes: dict[str, int] = {}
    for name in bodies:
        try:
            size = _size(name, bodies, sizes)
        except RecursionError:
            raise UserError(f"terminal {name} of the grammar leads through too many others", field="grammar") from None
        if size > MAX_TERMINAL_SIZE:
            text = f"terminal {name} of the grammar grows to {size} parts, at most {MAX_TERMINAL_SIZE} are allowed"
            raise UserError(text, field="grammar", value=size, limit=MAX_TERMINAL_SIZE, remedy="write it as a rule, in lower case")


def _size(name: str, bodies: dict[str, str], sizes: dict[str, int]) -> int:
    """Parts of a terminal with all others put in; one that leads to itself is refused by the library."""
    if name not in bodies:
        return 1
    if name not in sizes:
        sizes[name] = 1
        total = last = 0
        for part in _NAME.finditer(bodies[name]):
            word = part[0]
            if word[0] in "~{":
                numbers = [int(n[:9]) for n in re.findall(r"\d+", word)]
                total += last * (max(numbers, default=1) - 1) if last > 1 else 0
                continue
            last = _size(word, bodies, sizes)
            total += last
        sizes[name] = max(1, total)
    return sizes[name]


def _from_gbnf(source: str) -> str:
    from llguidance.gbnf_to_lark import any_to_lark

    depth = deepest = 0
    for char in source:
        depth += (char in "([{") - (char in ")]}")
        deepest = max(deepest, depth)
    if deepest > 64:
        raise UserError(f"grammar is nested {deepest} deep, at most 64 are allowed", field="grammar", value=deepest, limit=64)
    try:
        return str(any_to_lark(source))
    except RecursionError:
        raise UserError("grammar is nested too deeply", field="grammar") from None
    except Exception as error:
        raise UserError(f"grammar cannot be read: {' '.join(str(error).split())[:300]}", field="grammar") from None


def _bounded(field: str, text: str, limit: int) -> None:
    size = len(text.encode("utf-8", "replace"))
    if size > limit:
        raise UserError(f"{field} has {size} bytes, at most {limit} are allowed", field=field, value=size, limit=limit)
