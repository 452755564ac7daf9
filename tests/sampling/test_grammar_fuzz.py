"""Mutated grammars, patterns and schemas (case SE-04): each is used or refused in one line; no crash, no impossible mask at the start."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.sampling.grammar_world import compiled, draw
from tests.sampling.test_grammar_json import SCHEMAS

from ridgeline.errors import RidgelineError
from ridgeline.sampling.grammar import GrammarSpec

GRAMMARS = [
    'start: "x" pair ("," pair)*\npair: KEY "=" /[0-9]+/\nKEY: /[a-z]{1,3}/',
    "start: A\nA: /(a|b)*a(a|b){5}/ & ~/(a|b)*b(a|b){5}/",
    'root ::= "a" ([b-d]{2} | "x")* "y"?',
    "start: f+\nf[lazy]: /.*;/\n%ignore / +/",
    'start: %json {"type":"object","properties":{"a":{"type":"integer"}}}',
    'start: s\ns: s s | "(" s ")" | ',
    'start: <[*]> "a"{1,5}\n%import common.INT',
]
PATTERNS = ["(a|b)*c{2,5}", "[а-я]+ü?", "\\d{3}-\\w+", "^(a+)+$", "(?i)x[^y]*"]
PIECES = [
    *'(){}[]*+?|"/~&\\.:\n aA<>$^0\x00é🙂',
    "start",
    "%json",
    "%ignore",
    "{1000}",
    "{1,100000}",
    "::=",
    "99999",
    '"a"',
    "/a/",
    "//",
    "#",
    "A: A\n",
    "@x",
    "[max_tokens=3]",
    '[stop="x"]',
    "~3..9",
]
KEYS = [
    "type", "properties", "exclusiveMinimum", "patternProperties", "items", "anyOf", "oneOf", "allOf", "$ref", "$defs", "enum", "const",
    "pattern", "format", "minimum", "maximum", "minLength", "maxLength", "required", "additionalProperties", "minItems", "maxItems",
    "multipleOf", "prefixItems", "not", "if",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 1.5, 1e308, 10**40, -(10**40), -(2**63), 2**63 - 1, 1000003, "", "a", "#", "#/$defs/a", "string", "integer",
    "object", [], {}, ["a"], [1], "(", "a{1000}{1000}{1000}", "date", "\ud800", "\x00",
]  # fmt: skip


def mutated_text(rng: random.Random, text: str) -> str:
    for _ in range(rng.randint(1, 4)):
        start = rng.randint(0, len(text))
        end = start + rng.choice([0, 0, 1, 1, 3, 10])
        text = text[:start] + rng.choice(PIECES) * rng.choice([1, 1, 1, 3, 50]) + text[end:]
    return text


def mutated_schema(rng: random.Random, value: Any, depth: int = 0) -> Any:
    if isinstance(value, dict):
        fresh = {key: mutated_schema(rng, item, depth + 1) for key, item in value.items()}
        if rng.random() < 0.25:
            fresh[rng.choice(KEYS)] = rng.choice([*VALUES, value if depth < 3 else 1, rng.choice(list(SCHEMAS.values()))[0]])
        return fresh
    if isinstance(value, list):
        return [mutated_schema(rng, item, depth + 1) for item in value]
    return rng.choice(VALUES) if rng.random() < 0.1 else value


@pytest.mark.parametrize("seed", range(4))
def test_mutants_are_used_or_refused(seed: int) -> None:
    rng, used, refused = random.Random(seed), 0, 0
    for _ in range(150):
        kind = rng.choice(["grammar", "regex", "json_schema", "json_schema"])
        if kind == "grammar":
            spec = GrammarSpec("grammar", mutated_text(rng, rng.choice(GRAMMARS)))
        elif kind == "regex":
            spec = GrammarSpec("regex", mutated_text(rng, rng.choice(PATTERNS)))
        else:
            spec = GrammarSpec("json_schema", mutated_schema(rng, rng.choice(list(SCHEMAS.values()))[0]), lenient=rng.random() < 0.3)
        try:
            draw(compiled(spec).start(), rng, limit=25, close=0.2)
            used += 1
        except RidgelineError as error:
            assert "\n" not in str(error) and len(str(error)) < 700
            refused += 1
    assert used > 20 and refused > 20
