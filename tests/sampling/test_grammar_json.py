"""JSON by grammar (cases SO-01, SO-03, SO-04): what a stub model writes under the masks validates; what is valid can be written."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.sampling.grammar_world import compiled, draw, ids_of, loads, schema, spellings, takes, takes_text, text_of, tokenizer

from ridgeline.errors import UserError
from ridgeline.sampling.grammar import GrammarSpec
from ridgeline.sampling.schema import MAX_BLANKS

OBJECT = GrammarSpec("json_object")
TWO = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
CITIES = ["北京", "Zürich", "🙂", 'a"b', "tab\t"]


def outside_strings(text: str) -> str:
    return re.sub(r'"(?:\\.|[^"\\])*"?', '""', text)


@pytest.mark.parametrize("blank", [b"\n", b" ", b"\n\n", b" " * 16, b"        ", b"\t", b"\r", b" \n"])
@pytest.mark.parametrize(
    "spec", [OBJECT, schema(TWO), schema({"type": "array", "items": {"type": "null"}, "maxItems": 3})], ids=["object", "two", "list"]
)
def test_blanks_come_to_an_end(spec: GrammarSpec, blank: bytes) -> None:
    """The model wants nothing but blanks, and otherwise what closes a string or an object."""
    prefer = ids_of(blank, b"\n", b" ", b"}", b"]", b'"')
    for seed in range(3):
        ids, finish = draw(compiled(spec).start(), random.Random(seed), limit=400, prefer=prefer)
        runs = [len(run) for run in re.findall(r"[ \t\r\n]+", outside_strings(text_of(ids)))]
        assert max(runs, default=0) <= MAX_BLANKS
        if finish == "stop":
            loads(text_of(ids))
        else:  # only inside a string may it go on for ever
            assert text_of(ids).count('"') % 2 == 1


def test_blanks_inside_strings_are_free() -> None:
    state = compiled(schema(TWO)).start()
    for token in next(spellings('{"a":1,"b":"' + " " * 200, random.Random(0))):
        state.accept(token)
    assert not state.done


@pytest.mark.parametrize("indent", [None, 0, 1, 2])
def test_pretty_printing_stays_possible(indent: int | None) -> None:
    value = {"a": [1, {"b": []}], "c": {"d": None}}
    assert takes_text(compiled(OBJECT), json.dumps(value, indent=indent))
    assert takes_text(compiled(OBJECT), json.dumps(value, separators=(",", ":")))


SCHEMAS: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "no properties": ({"type": "object", "properties": {}}, [{}, {"x": 1}], [[], 1]),
    "closed": ({"type": "object", "properties": {}, "additionalProperties": False}, [{}], [{"a": 1}]),
    "two": (
        TWO,
        [{"a": -3, "b": ""}, {"a": 0, "b": "北京"}],
        [{"a": 1}, {"a": 1.5, "b": ""}, {"a": "1", "b": ""}, {"a": 1, "b": "", "c": 0}],
    ),
    "extra": (
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        [{"a": 1, "z": [1]}],
        [{"z": 1}, {"a": "x"}],
    ),
    "typed extra": ({"type": "object", "additionalProperties": {"type": "integer"}}, [{}, {"k": 1, "l": 2}], [{"k": "x"}]),
    "list bounds": (
        {"type": "array", "minItems": 2, "maxItems": 3, "items": {"type": "boolean"}},
        [[True, False]],
        [[True], [True] * 4, [1, 2]],
    ),
    "long list": (
        {"type": "array", "minItems": 10, "maxItems": 1000, "items": {"type": "integer"}},
        [list(range(10)), [1] * 1000],
        [[1] * 9, [1] * 1001],
    ),
    "tuple": (
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "null"}], "items": False},
        [["x", None], []],
        [["x", 1], ["x", None, 1]],
    ),
    "pattern": ({"type": "string", "pattern": "^(([a-z]{1,3}-){2,4}|(\\d+(\\.\\d+)?))+$"}, ["ab-c-", "12.5", "1a-b-"], ["ab-", "", "x"]),
    "cyrillic": ({"type": "string", "pattern": "^[а-я]{3}$"}, ["нап"], ["на", "abc", "напа"]),
    "open pattern": ({"type": "string", "pattern": "(a+)+$"}, ["xxaa", "a"], ["ab"]),
    "null or text": ({"oneOf": [{"type": "string"}, {"type": "null"}]}, ["x", None], [1]),
    "any": ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, [1, None], ["x"]),
    "types": ({"type": ["integer", "null"]}, [1, None], ["x", 1.5]),
    "tagged": (
        {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"k": {"const": c}, c: {"type": "integer"}},
                    "required": ["k", c],
                    "additionalProperties": False,
                }
                for c in "xy"
            ]
        },
        [{"k": "x", "x": 1}, {"k": "y", "y": 2}],
        [{"k": "x", "y": 1}, {"k": "z"}],
    ),
    "range": ({"type": "integer", "minimum": -5, "maximum": 300}, [-5, 0, 300, 99], [-6, 301, 1.5]),
    "open range": ({"type": "number", "exclusiveMinimum": -1.5, "maximum": 2}, [-1.25, 0, 2], [-1.5, 2.5]),
    "multiple": ({"type": "integer", "multipleOf": 7}, [0, 14, -7], [8]),
    "const": ({"const": {"a": [1, None, {"b": "x"}]}}, [{"a": [1, None, {"b": "x"}]}], [{"a": []}]),
    "enum": ({"enum": [*CITIES, 1, None]}, [*CITIES, 1, None], ["x", 2]),
    "key": (
        {"type": "object", "properties": {"naïve": {"const": "é"}}, "required": ["naïve"], "additionalProperties": False},
        [{"naïve": "é"}],
        [{"naive": "é"}],
    ),
    "defs": (
        {
            "type": "object",
            "properties": {"n": {"$ref": "#/$defs/n"}},
            "required": ["n"],
            "$defs": {"n": {"type": "integer", "minimum": 1, "maximum": 9}},
        },
        [{"n": 3}],
        [{"n": 0}],
    ),
    "tree": (
        {
            "$ref": "#/$defs/t",
            "$defs": {
                "t": {
                    "type": "object",
                    "properties": {"l": {"anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]}},
                    "required": ["l"],
                    "additionalProperties": False,
                }
            },
        },
        [{"l": None}, {"l": {"l": None}}],
        [{"l": 1}, {}],
    ),
    "all": ({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}, [3, 5], [2, 6]),
    "key patterns": (
        {"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
        [{"x1": 1}],
        [{"y": 1}, {"x": "a"}],
    ),
    "format": ({"type": "string", "format": "date"}, ["2024-02-28"], ["2024-13-01", "yesterday"]),
    "anything": ({}, [1, "x", [{}]], []),
    "true": (True, [1, {"a": []}], []),
    "nothing said": (
        {"title": "T", "description": "d", "default": 1, "examples": [1], "$comment": "c", "deprecated": True, "type": "null"},
        [None],
        [1],
    ),
    "named like keywords": (
        {
            "type": "object",
            "properties": {"format": {"type": "string"}, "properties": {"enum": [{"format": "x"}]}},
            "required": ["format", "properties"],
            "additionalProperties": False,
        },
        [{"format": "foo", "properties": {"format": "x"}}],
        [{"format": "foo", "properties": {}}],
    ),
    **{
        f"maxLength {n}": ({"type": "string", "maxLength": n}, ["", "x" * n, "🙂" * n], ["x" * (n + 1)])
        for n in (1, 1999, 2000, 2001, 10000)
    },
    "deep maxLength": (
        {
            "type": "object",
            "properties": {
                "a": {
                    "type": "object",
                    "properties": {"b": {"type": "object", "properties": {"c": {"type": "string", "maxLength": 2000}}, "required": ["c"]}},
                    "required": ["b"],
                }
            },
            "required": ["a"],
        },
        [{"a": {"b": {"c": "y" * 2000}}}],
        [{"a": {"b": {"c": "y" * 2001}}}],
    ),
    "minLength": ({"type": "string", "minLength": 2, "maxLength": 3}, ["🙂🙂", "北京x", "\n\t"], ["🙂", "abcd"]),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_valid_instances_are_taken_and_invalid_ones_are_not(name: str) -> None:
    wanted, good, bad = SCHEMAS[name]
    guide, validator = compiled(schema(wanted)), Draft202012Validator(wanted, format_checker=Draft202012Validator.FORMAT_CHECKER)
    for value in good:
        assert validator.is_valid(value)
        text = json.dumps(value, ensure_ascii=False)
        # Long ones only in one spelling: the others cost seconds.
        assert (
            takes_text(guide, text) if len(text) < 300 else takes(guide, tokenizer().encode(text, add_special=False, parse_special=False))
        )
    for value in bad:
        assert not validator.is_valid(value)
        text = json.dumps(value, ensure_ascii=False)
        assert not takes(guide, tokenizer().encode(text, add_special=False, parse_special=False)), value


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_a_random_model_writes_validates(name: str) -> None:
    """200 samples of each schema; those that end must validate."""
    wanted, _, _ = SCHEMAS[name]
    guide, validator = compiled(schema(wanted)), Draft202012Validator(wanted)  # formats are lexical: 30 February is a date
    rng, ended = random.Random(name), 0
    for _ in range(200):
        ids, finish = draw(guide.start(), rng, limit=60, close=0.5)
        if finish == "stop":
            ended += 1
            value = loads(text_of(ids))
            assert validator.is_valid(value), (value, [e.message for e in validator.iter_errors(value)])
    assert ended or name in ("long list",)


def test_sixty_tools_of_one_schema() -> None:
    tools = [
        {
            "type": "object",
            "properties": {"name": {"const": f"tool{i}"}, "n": {"type": "integer", "minimum": i, "maximum": i}},
            "required": ["name", "n"],
            "additionalProperties": False,
        }
        for i in range(60)
    ]
    guide = compiled(schema({"anyOf": tools}))
    assert takes_text(guide, '{"name": "tool59", "n": 59}') and not takes_text(guide, '{"name": "tool59", "n": 58}')


@pytest.mark.parametrize(
    "spelled",
    [{"enum": CITIES}, json.dumps({"enum": CITIES}), json.dumps({"enum": CITIES}, ensure_ascii=False)],
    ids=["object", "ascii", "raw"],
)
def test_other_alphabets(spelled: Any) -> None:
    guide = compiled(schema(spelled))
    assert all(takes_text(guide, json.dumps(city, ensure_ascii=False)) for city in CITIES)
    wishes = ids_of(b"\x01", b"\\q", b"\\ud8", b"\xc0\x80", b"\xed\xa0\x80", b"\\u", b"\xf0\x9f", b"\xe5\x8c", b"\x01\x02")
    seen = set()
    for seed in range(40):
        ids, finish = draw(guide.start(), random.Random(seed), prefer=wishes if seed % 2 else ())
        assert finish == "stop"
        seen.add(loads(text_of(ids)))
    assert seen <= set(CITIES) and len(seen) >= 3


@pytest.mark.parametrize(
    "spec", [OBJECT, schema({"type": "string"}), schema({"type": "string", "pattern": "^.*$"}), schema({"type": "string", "maxLength": 50})]
)
def test_no_bad_bytes_and_no_bad_escapes(spec: GrammarSpec) -> None:
    """Control bytes, bad escapes, overlong forms, surrogates raw or escaped: the model wants them all and gets none."""
    bad = [bytes([b]) for b in range(32) if b not in b" \t\r\n"]
    wishes = ids_of(b"\\q", b"\\ud8", b"\\u", b"\xc0\x80", b"\xed\xa0\x80", b"\x01\x02", b"\xc0", b"\xed", b"\xff", b"\\", *bad)
    for seed in range(30):
        rng = random.Random(seed)
        ids, finish = draw(compiled(spec).start(), rng, prefer=rng.sample(wishes, len(wishes)) if seed % 3 else (), limit=120, close=0.4)
        if finish == "stop":
            loads(text_of(ids))
        else:
            raw = b"".join(tokenizer().token_bytes(i) for i in ids)
            assert re.search(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]|\\[^\"\\/bfnrtu]|\\u[dD][89a-fA-F]|\xc0|\xed[\xa0-\xbf]", raw) is None


def test_max_length_counts_characters() -> None:
    guide = compiled(schema({"type": "string", "maxLength": 2}))
    assert takes_text(guide, '"🙂🙂"') and takes_text(guide, '"\\n\\t"') and not takes_text(guide, '"🙂🙂🙂"')


def test_tokens_may_hold_parts_of_characters() -> None:
    guide = compiled(schema({"type": "string", "maxLength": 2}))
    assert takes(guide, ids_of(b'"', b"\xf0\x9f", b"\x99\x82", b'"'))
    assert takes(guide, ids_of(b'"', b"\xe5\x8c", b"\x97\xe4", b"\xba", b"\xac", b'"'))
    assert not takes(guide, ids_of(b'"', b"\xf0\x9f", b'"')) and not takes(guide, ids_of(b'"', b"\x99\x82", b'"'))


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"type": "strng"}, "strng"),
        ({"type": 5}, "type"),
        (False, "allows nothing"),
        ([1], "list"),
        ("{", "valid JSON"),
        ("3", "int"),
        (None, "NoneType"),
        ({"enum": []}, "empty"),
        ({"type": "string", "minLength": 5, "maxLength": 2}, "minLength"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "incompatible"),
        ({"$ref": "#/$defs/x"}, "/$defs/x"),
        ({"$ref": "file:///etc/passwd"}, "file"),
        ({"$ref": "http://localhost:1/x"}, "http"),
        ({"$ref": "#"}, "json_schema"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {"type": "string"}}, "not"),
        ({"if": {}, "then": {}}, "then"),
        ({"type": "string", "pattern": "^(?=a)b"}, "look"),
        ({"type": "string", "pattern": "("}, "regex"),
        ({"properties": {"a": {"type": "x"}}}, "x"),
        ({"oneOf": [{"type": "string", "minLength": 2}, {"type": "string", "maxLength": 5}]}, "oneOf"),
        ({"const": float("nan")}, "JSON"),
        ({"enum": ["\ud800"]}, "JSON"),
    ],
    ids=str,
)
def test_bad_schemas_are_refused_with_the_reason(bad: Any, reason: str) -> None:
    with pytest.raises(UserError, match=re.escape(reason)) as caught:
        compiled(schema(bad))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600 and caught.value.field == "json_schema"


def test_unknown_formats_are_remarks_and_other_keywords_can_be_ignored_on_request() -> None:
    grammar = compiled(schema({"type": "object", "properties": {"u": {"type": "string", "format": "iban"}}, "required": ["u"]}))
    assert any("iban" in remark for remark in getattr(grammar, "remarks", ()))
    assert takes_text(grammar, '{"u": "x"}')
    lenient = compiled(schema({"type": "array", "uniqueItems": True, "items": {"type": "integer"}}, lenient=True))
    assert takes_text(lenient, "[1, 1]") and not takes_text(lenient, '["x"]')


def test_a_schema_cannot_loosen_the_bounds() -> None:
    loose = {**TWO, "x-guidance": {"whitespace_flexible": True, "whitespace_pattern": "[ \\n]*", "lenient": True}, "uniqueItems": True}
    with pytest.raises(UserError, match="uniqueItems"):
        compiled(schema(loose))
    del loose["uniqueItems"]
    assert not takes_text(compiled(schema(loose)), '{"a":' + " " * 9 + '1,"b":""}')
