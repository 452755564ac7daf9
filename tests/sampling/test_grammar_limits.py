"""What one request may cost (case SE-04): what cannot be used is refused in one line and soon; nothing ends or stalls the process."""

from __future__ import annotations

import json
import random
import re
import time
from typing import Any

import pytest
from tests.sampling.grammar_world import compiled, compiler, draw, ids_of, schema

from ridgeline.errors import UserError
from ridgeline.sampling.calls import compile_calls
from ridgeline.sampling.grammar import GrammarSpec
from ridgeline.sampling.regex_size import regex_size
from ridgeline.text.tools.base import ToolSpec
from ridgeline.text.tools.choose import choose_dialect


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (GrammarSpec("regex", "("), "regex"),
        (GrammarSpec("regex", "(?=a)b"), "look"),
        (GrammarSpec("regex", ""), "text"),
        (GrammarSpec("regex", 5), "text"),
        (GrammarSpec("regex", "a" * 10_000), "8192"),
        (GrammarSpec("regex", "(" * 4000), "regex"),
        (GrammarSpec("regex", "(" * 4000 + ")" * 4000), "regex"),
        (GrammarSpec("choice", []), "at least one"),
        (GrammarSpec("choice", "ab"), "list"),
        (GrammarSpec("choice", ["a", 1]), "text"),
        (GrammarSpec("choice", [""]), "empty"),
        (GrammarSpec("choice", [str(i) for i in range(5000)]), "4096"),
        (GrammarSpec("choice", ["x" * 200_000]), "131072"),
        (GrammarSpec("grammar", ""), "text"),
        (GrammarSpec("grammar", "}{"), "grammar"),
        (GrammarSpec("grammar", "start: nowhere"), "nowhere"),
        (GrammarSpec("grammar", "start: " + "(" * 60_000), "32768"),
        (GrammarSpec("grammar", "start: " + "(" * 10_000 + '"a"' + ")" * 10_000), "nested"),
        (GrammarSpec("grammar", "root ::= " + "(" * 10_000 + '"a"' + ")" * 10_000), "nested"),
        (GrammarSpec("grammar", "start: start"), "grammar"),
        (GrammarSpec("grammar", "start: A0\n" + "".join(f"A{i}: A{i + 1}\n" for i in range(2000)) + 'A2000: "a"'), "800"),
        (GrammarSpec("grammar", "start: a0\n" + "".join(f"a{i}: a{i + 1}\n" for i in range(2000)) + 'a2000: "a"'), "800"),
        (
            GrammarSpec("grammar", 'start: A9\nA0: "lol"\n' + "".join(f"A{i}: {' '.join([f'A{i - 1}'] * 10)}\n" for i in range(1, 10))),
            "100000",
        ),
        (GrammarSpec("grammar", 'start: A9\nA0: "lol" "x"\n' + "".join(f"A{i}: A{i - 1}{{10}}\n" for i in range(1, 10))), "100000"),
        (GrammarSpec("grammar", "start: %json {" + '"items":{' * 2000 + "}" * 2000 + "}"), "recursion"),
        (GrammarSpec("grammar", "start: <nope>"), "nope"),
        (schema({"type": "object", "properties": {f"p{i}": {} for i in range(2000)}}), "1000"),
        (schema('{"items":' * 60_000 + "{}" + "}" * 60_000), "bytes"),
        (schema('{"items":' * 5000 + "{}" + "}" * 5000), "json_schema"),
        (schema('{"items":' * 120 + "{}" + "}" * 120), "96"),
        (schema({"enum": ["x" * 300_000]}), "262144"),
    ],
    ids=lambda value: f"{value.kind} {str(value.source)[:24]}" if isinstance(value, GrammarSpec) else "",
)
def test_what_cannot_be_used_is_refused_in_one_line_and_soon(spec: GrammarSpec, reason: str) -> None:
    began = time.process_time()
    with pytest.raises(UserError, match=re.escape(reason)) as caught:
        compiled(spec)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700 and caught.value.field is not None
    assert time.process_time() - began < 5  # five times the budget


@pytest.mark.parametrize(
    "spec",
    [
        GrammarSpec("regex", "(a{1,1000}){1,1000}"),
        GrammarSpec("regex", "((a|b){1,1000}c){1,1000}"),
        GrammarSpec("regex", "(a+)+$"),
        GrammarSpec("regex", "(.|\n)*x(.|\n){1000}"),
        GrammarSpec("grammar", "start: " + "|".join(['"a"'] * 7000)),
        GrammarSpec("grammar", 'start: "a"{1000000000}'),
        GrammarSpec("grammar", 'start: s\ns: s s | s s s | "a" | '),
        GrammarSpec("grammar", 'start: A8\nA0: "a" | "b"\n' + "".join(f"A{i}: A{i - 1} A{i - 1}\n" for i in range(1, 9))),
        GrammarSpec("grammar", 'start: a9\na0: "lol"\n' + "".join(f"a{i}: {' '.join([f'a{i - 1}'] * 10)}\n" for i in range(1, 10))),
        GrammarSpec("grammar", "start: A\nA: /(a|b)*a(a|b){20}/ & ~/(a|b)*b(a|b){20}/"),
        GrammarSpec("json_object"),
        schema({"enum": [f"value {i}" for i in range(5000)]}),
        schema({"type": "string", "pattern": "(a{1,1000}){1,1000}"}),
    ],
    ids=lambda spec: f"{spec.kind} {str(spec.source)[:30]}",
)
def test_costly_grammars_are_used_or_refused_but_never_hang(spec: GrammarSpec) -> None:
    began = time.process_time()
    try:
        state = compiled(spec).start()
        draw(state, random.Random(0), limit=20, prefer=ids_of(b"a", b"b"))
    except (UserError, AssertionError) as error:  # over a limit of the library at some step
        assert "\n" not in str(error)
    assert time.process_time() - began < 10


def chain(link: Any, length: int) -> Any:
    """A schema whose references lead `length` deep."""
    halves = {f"h{h}": {f"d{i}": link(f"#/$defs/h{(i + 1) % 8}/d{i + 1}") for i in range(h, length, 8)} for h in range(8)}
    halves[f"h{length % 8}"][f"d{length}"] = {"type": "integer"}
    return {"$ref": "#/$defs/h0/d0", "$defs": halves}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        # Each of these ended the process, or took a minute of it, before the library saw only what it can take.
        ({"const": -(2**63)}, "number"),
        ({"enum": [1, {"a": [-(10**40)]}]}, "number"),
        ({"allOf": [{"const": -1e300}, {"type": "integer"}]}, "number"),
        ({"$ref": "#/elsewhere", "elsewhere": {"type": "integer", "const": -(2**63)}}, "number"),
        ({"type": "integer", "multipleOf": 1000003}, "multiple"),
        ({"allOf": [{"type": "integer", "multipleOf": 997}, {"multipleOf": 991}]}, "multiple"),
        (chain(lambda ref: {"allOf": [{"$ref": ref}, {"minimum": 1}]}, 3000), "large|bytes"),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.parametrize("inside", ["schema", "grammar", "tool"])
def test_schemas_that_the_library_does_not_survive_are_refused(value: Any, reason: str, inside: str) -> None:
    text = json.dumps(value)
    with pytest.raises(UserError, match="32768" if inside == "grammar" and len(text) > 32_000 else reason):
        if inside == "schema":
            compiled(schema(value))
        elif inside == "grammar":
            compiled(GrammarSpec("grammar", f"start: %json {text}"))
        else:
            tool = ToolSpec("f", parameters={"type": "object", "properties": {"a": value}, "$defs": value.get("$defs", {})})
            compile_calls(compiler(), choose_dialect(None, "hermes"), (tool,))


@pytest.mark.parametrize(
    "link",
    [
        lambda ref: {"$ref": ref},
        lambda ref: {"type": "array", "items": {"$ref": ref}},
        lambda ref: {"type": "object", "properties": {"a": {"$ref": ref}}, "required": ["a"]},
        lambda ref: {"anyOf": [{"$ref": ref}, {"type": "null"}]},
        lambda ref: {"type": "object", "additionalProperties": {"$ref": ref}},
    ],
    ids=["ref", "items", "properties", "anyOf", "additional"],
)
def test_long_chains_of_references_do_not_end_the_process(link: Any) -> None:
    try:
        draw(compiled(schema(chain(link, 2500))).start(), random.Random(0), limit=50)
    except UserError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("join", ["A{0}: A{1}", 'A{0}: "x" A{1} | "y"', "a{0}: a{1}", "A{0}: ~A{1}"])
def test_long_chains_of_rules_are_used_or_refused(join: str) -> None:
    first = join[0]
    source = f"start: {first}0\n" + "\n".join(join.format(i, i + 1) for i in range(790)) + f'\n{first}790: "a"\n'
    try:
        draw(compiled(GrammarSpec("grammar", source)).start(), random.Random(0), limit=10)
    except UserError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("", 0),
        ("ab+c?", 3),
        ("a{3}", 3),
        ("a{1,1000}{1000}", 1_000_000),
        ("(ab|c){2,}x", 9),
        (r"\{1000}[{5}a]{2}\d{3}", 11),
        ("((a{1000}){1000}b){1000}{1000}", 10**12),
        ("{3}(", 0),
        ("a{999999999999999}", 999_999_999_999),
        ("a{x}", 4),
    ],
)
def test_the_size_of_a_pattern(pattern: str, size: int) -> None:
    assert regex_size(pattern) == size


@pytest.mark.parametrize(
    "spec",
    [
        GrammarSpec("regex", "a{1000}{1000}{1000}"),
        schema({"type": "string", "pattern": "((x{1000}){1000}){1000}"}),
        schema({"type": "object", "patternProperties": {"x{1000}{1000}{9}": {}}}),
        GrammarSpec("grammar", "start: A\nA: /x{1000}{1000}{1000}/"),
    ],
)
def test_patterns_that_would_explode_are_refused_before_they_do(spec: GrammarSpec) -> None:
    with pytest.raises(UserError, match="written out"):
        compiled(spec)
