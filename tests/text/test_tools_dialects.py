"""Tool calls out of model text (case TC-01): every dialect, cut at every place; what is no call stays text, a call is never changed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.text.replies import gather, parse_reply

from ridgeline.text.tools.base import CallDelta, Delta, Dialect, StreamOptions, TextDelta, ToolSpec
from ridgeline.text.tools.choose import DIALECTS, choose_dialect

NAMES = ("run", "now", "get_weather", "f", "g")
TOOLS = tuple(ToolSpec(name, parameters={"type": "object", "properties": {"cmd": {"type": "string"}}}) for name in NAMES)
CODER = ToolSpec(
    "edit",
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "line": {"type": "integer"},
            "flags": {"type": "array"},
            "text": {"type": ["string", "null"]},
        },
    },
)
OFFERED = StreamOptions((*TOOLS, CODER))
NASTY = r'{"cmd":"mkdir -p t/{a,b","o":{"q":"x","m":{"k":[1,{"z":"}"}]}}}'
ESCAPED = r'{"a": "caf\u00e9 \\ \n \" </tool_call> 🫠 北京", "b": [1.5e-3, true, null, "]}"]}'


@dataclass(frozen=True)
class Case:
    """text by dialect; the content and the (name, arguments) that must come of it; the arguments by value where they are rewritten."""

    dialect: str
    text: str
    content: str | None
    calls: list[tuple[str, str]] = field(default_factory=list)


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


CASES = [
    Case("hermes", '<tool_call>\n{"name":"run","arguments":' + NASTY + "}\n</tool_call>", None, [("run", NASTY)]),
    Case("hermes", '<tool_call>\n{"name":"now","arguments":{}}\n</tool_call>', None, [("now", "{}")]),
    Case("hermes", '<tool_call>{"name":"now"}</tool_call>', None, [("now", "{}")]),
    Case("hermes", '<tool_call>{"name":"now","arguments":null}</tool_call>', None, [("now", "{}")]),
    Case("hermes", '<tool_call>{"arguments":' + NASTY + ' ,"name" : "run" }</tool_call>', None, [("run", NASTY)]),
    Case("hermes", hermes("run", ESCAPED), None, [("run", ESCAPED)]),
    Case("hermes", "Let me look.\n\n" + hermes("f", '{"a":1}') + "\n" + hermes("g", "{}"), "Let me look.", [("f", '{"a":1}'), ("g", "{}")]),
    Case("hermes", "A" + hermes("f", "{}") + "\nB \n", "A\nB \n", [("f", "{}")]),
    Case("hermes", hermes("f", "{}") + "\n\nDone.", "Done.", [("f", "{}")]),
    Case(
        "hermes",
        '<tool_call>\n[{"name":"f","arguments":{}}, {"name":"g","arguments":{"b":2}}]\n</tool_call>',
        None,
        [("f", "{}"), ("g", '{"b":2}')],
    ),
    Case("hermes", '<tool_call>{"name":"f","arguments":{}}\n{"name":"g","arguments":{}}</tool_call>', None, [("f", "{}"), ("g", "{}")]),
    Case("hermes", '<tool_call>{"name":"f","arguments":{"a":1}\n</tool_call>', None, [("f", '{"a":1}')]),  # a brace is missing
    Case(
        "hermes",
        '<tool_call>{"name":"f","arguments":"{\\"a\\": \\"x\\\\n\\ud83e\\udee0\\"}"}</tool_call>',
        None,
        [("f", '{"a": "x\\n🫠"}')],
    ),
    Case("hermes", '<tool_call>{"name":"f","arguments":{"a":"two\nlines\tx"}}</tool_call>', None, [("f", '{"a":"two\\nlines\\tx"}')]),
    Case("hermes", '<tool_call>{"type":"function","function":{"name":"f","arguments":{"a":1}}}</tool_call>', None, [("f", '{"a":1}')]),
    Case("hermes", '<tool_call>{"name":"unknown_tool","arguments":{}}</tool_call>', None, [("unknown_tool", "{}")]),
    Case("hermes", "no call: a < b, <tool, <tool_ca <b>", "no call: a < b, <tool, <tool_ca <b>"),
    Case("hermes", "The tag <tool_call> starts one.", "The tag <tool_call> starts one."),
    Case("hermes", "x <tool_call>oops " + hermes("f", "{}"), "x <tool_call>oops", [("f", "{}")]),
    Case("hermes", "\n\n  Hello \n", "\n\n  Hello \n"),
    Case("hermes", "", ""),
    Case("hermes", '{"name":"f","arguments":{}}', '{"name":"f","arguments":{}}'),
    # cut short by max_tokens
    Case("hermes", 'Hi <tool_call>{"name":"ru', 'Hi <tool_call>{"name":"ru'),
    Case("hermes", 'Hi <tool_call>{"name":"run","arguments":{"cmd":"ls -', "Hi", [("run", '{"cmd":"ls -')]),
    Case("hermes", hermes("f", "{}") + "\n</tool_ca", None, [("f", "{}")]),
    Case("hermes", "Hi <tool_ca", "Hi <tool_ca"),
    Case(
        "llama3",
        '{"name": "get_weather", "parameters": {"city": "Paris, {France}"}}',
        None,
        [("get_weather", '{"city": "Paris, {France}"}')],
    ),
    Case("llama3", '\n{"name": "f", "arguments": {"a": 1}}', None, [("f", '{"a": 1}')]),
    Case(
        "llama3",
        '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"x": [1, 2]}}',
        None,
        [("f", "{}"), ("g", '{"x": [1, 2]}')],
    ),
    Case("llama3", '[{"name": "f", "parameters": {}}]', None, [("f", "{}")]),
    Case("llama3", '<function=get_weather>{"city": "Rome"}</function>', None, [("get_weather", '{"city": "Rome"}')]),
    Case("llama3", '{"title": "a JSON answer", "name": "f"}', '{"title": "a JSON answer", "name": "f"}'),
    Case("llama3", '{"name": "Paris", "parameters": {}}', '{"name": "Paris", "parameters": {}}'),
    Case("llama3", 'I would say {"name": "f", "parameters": {}}', 'I would say {"name": "f", "parameters": {}}'),
    Case("llama3", "[1, 2]", "[1, 2]"),
    Case("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "]"}, "id": "abc123def"}]', None, [("f", '{"a": "]"}')]),
    Case(
        "mistral",
        '[TOOL_CALLS][{"name":"f","arguments":{}},{"name":"g","arguments":{"b":[[]]}}]</s>',
        None,
        [("f", "{}"), ("g", '{"b":[[]]}')],
    ),
    Case("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]xyz987abc[ARGS]{}', None, [("f", '{"a": 1}'), ("g", "{}")]),
    Case("mistral", 'Sure [TOOL_CALLS]f{"a": {"b": "}"}}', "Sure", [("f", '{"a": {"b": "}"}}')]),
    Case("mistral", "a list [1] and [TOOL", "a list [1] and [TOOL"),
    Case("gemma", '```json\n{"name": "f", "parameters": {"a": "`"}}\n```', None, [("f", '{"a": "`"}')]),
    Case("gemma", 'I call it:\n```tool_code\n{"name": "f", "parameters": {}}\n```\n', "I call it:", [("f", "{}")]),
    Case("gemma", '{"name": "f", "parameters": {"a": 1}}', None, [("f", '{"a": 1}')]),
    Case("gemma", 'Code:\n```json\n{"a": 1}\n```\nend', 'Code:\n```json\n{"a": 1}\n```\nend'),
    Case(
        "functiongemma",
        "<start_function_call>call:get_weather{city:<escape>Köln, {x}<escape>,"
        "days:3,o:{on:true,l:[<escape>a\nb<escape>,null]}}<end_function_call>",
        None,
        [("get_weather", '{"city": "Köln, {x}", "days": 3, "o": {"on": true, "l": ["a\\nb", null]}}')],
    ),
    Case("functiongemma", "Ok <start_function_call>call:now{}<end_function_call><start_function_response>", "Ok", [("now", "{}")]),
    Case(
        "gemma4",
        '<|tool_call>call:f{a:<|"|>say "hi"<|"|>}<tool_call|><|tool_call>call:g{<|"|>key one<|"|>:-1.5}<tool_call|>',
        None,
        [("f", '{"a": "say \\"hi\\""}'), ("g", '{"key one": -1.5}')],
    ),
    Case("generic", "Sure.\n" + hermes("f", '{"a":1}'), "Sure.", [("f", '{"a":1}')]),
    Case("generic", '{"name": "f", "arguments": {"a": 1}}', None, [("f", '{"a": 1}')]),
    Case("generic", '```json\n[{"name": "f", "arguments": {}}]\n```', None, [("f", "{}")]),
    Case("generic", '{"answer": 42}', '{"answer": 42}'),
    Case("generic", '{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}'),
    Case(
        "qwen_xml",
        "I edit.\n<tool_call>\n<function=edit>\n<parameter=path>\na/<b>.py\n</parameter>\n<parameter=line>\n12\n</parameter>\n"
        '<parameter=flags>\n[1, "x"]\n</parameter>\n<parameter=text>\n  if a < b:\n    "quoted"\n\n</parameter>\n</function>\n</tool_call>',
        "I edit.",
        [("edit", '{"path": "a/<b>.py", "line": 12, "flags": [1, "x"], "text": "  if a < b:\\n    \\"quoted\\"\\n"}')],
    ),
    Case("qwen_xml", "<function=now>\n</function>", None, [("now", "{}")]),
    Case(
        "qwen_xml",
        "<tool_call>\n<function=edit>\n<parameter=line>\nnone of it\n</parameter>\n</function>\n</tool_call>",
        None,
        [("edit", '{"line": "none of it"}')],
    ),
]


def shown(deltas: Iterable[Delta]) -> tuple[str | None, list[tuple[str, str]]]:
    reply = gather(deltas)
    return reply.content, [(call.name, call.arguments) for call in reply.calls]


def pieces(text: str, sizes: Iterator[int]) -> Iterator[str]:
    at = 0
    while at < len(text):
        size = next(sizes)
        yield text[at : at + size]
        at += size


def streamed(dialect: Dialect, parts: Iterable[str], options: StreamOptions = OFFERED) -> list[Delta]:
    stream = dialect.stream(options)
    deltas = [delta for part in parts for delta in stream.push(part)]
    return [*deltas, *stream.finish()]


def forever(size: int) -> Iterator[int]:
    while True:
        yield size


def check_order(deltas: list[Delta]) -> None:
    """Indices rise by one; id and name come once, in the first delta of an index; nothing is empty."""
    seen = -1
    for delta in deltas:
        if isinstance(delta, TextDelta):
            assert delta.text
            continue
        if delta.id is not None:
            assert delta.index == seen + 1 and delta.name
            seen += 1
        else:
            assert delta.index == seen and delta.name is None and delta.arguments


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.dialect}: {case.text[:40]!r}")
def test_a_text_gives_its_calls_however_it_is_cut(case: Case) -> None:
    dialect = choose_dialect(None, case.dialect)
    reply = parse_reply(dialect.stream(OFFERED), case.text)
    wanted = (case.content, case.calls)
    assert (reply.content, [(call.name, call.arguments) for call in reply.calls]) == wanted
    for size in range(1, 41):
        deltas = streamed(dialect, pieces(case.text, forever(size)))
        check_order(deltas)
        assert shown(deltas) == wanted, size
    for at in range(len(case.text)):
        assert shown(streamed(dialect, (case.text[:at], case.text[at:]))) == wanted, at


@pytest.mark.parametrize("case", [case for case in CASES if case.calls], ids=lambda case: f"{case.dialect}: {case.text[:40]!r}")
def test_whole_arguments_are_json(case: Case) -> None:
    for _, arguments in case.calls:
        if not arguments.endswith("ls -"):
            assert isinstance(json.loads(arguments), dict)


def test_arguments_are_streamed_as_they_come() -> None:
    stream = choose_dialect(None, "hermes").stream(OFFERED)
    (first,) = stream.push('<tool_call>{"name":"run","arg')
    assert isinstance(first, CallDelta) and (first.index, first.arguments, first.name) == (0, "", "run") and first.id
    assert stream.push('uments":{"cmd":"ls') == [CallDelta(0, '{"cmd":"ls')]
    assert stream.push(" -l") == [CallDelta(0, " -l")]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_plain_text_streams_unchanged_and_at_once(dialect: Dialect) -> None:
    text = "Hello! Here is a table:\n\n| a | b |\n|---|---|\n\tx = {1: [2, 3]}  # <b>bold</b> ``code``\n 🫠 北京\n"
    stream = dialect.stream(OFFERED)
    out = ""
    for char in text:
        out += "".join(delta.text for delta in stream.push(char) if isinstance(delta, TextDelta))
        held = text[len(out) :]
        assert text.startswith(out)
    assert len(held) <= 20
    out += "".join(delta.text for delta in stream.finish() if isinstance(delta, TextDelta))
    assert out == text


def test_one_call_where_calls_may_not_be_parallel() -> None:
    text = "x\n" + hermes("f", '{"a":1}') + "\n" + hermes("g", "{}") + "\n"
    for size in range(1, 30):
        options = StreamOptions(TOOLS, parallel=False)
        assert shown(streamed(choose_dialect(None, "hermes"), pieces(text, forever(size)), options)) == ("x", [("f", '{"a":1}')])


def test_ids() -> None:
    text = hermes("f", "{}") + hermes("g", "{}")
    calls = parse_reply(choose_dialect(None, "hermes").stream(OFFERED), text).calls
    assert len({call.id for call in calls}) == 2 and all(call.id.startswith("call_") for call in calls)
    mistral = parse_reply(
        choose_dialect(None, "mistral").stream(OFFERED), "[TOOL_CALLS]f[CALL_ID]xyz987abc[ARGS]{}[TOOL_CALLS]g[ARGS]{}"
    ).calls
    assert mistral[0].id == "xyz987abc" and len(mistral[1].id) == 9 and mistral[1].id.isalnum()


def test_bare_json_is_a_call_only_of_tools_that_were_offered() -> None:
    text = '{"name": "f", "parameters": {}}'
    assert shown(streamed(choose_dialect(None, "llama3"), [text], StreamOptions())) == (text, [])


PIECES = [
    "<tool_call>",
    "</tool_call>",
    '{"name": "f", "arguments": {"a": "x"}}',
    '{"name":"',
    "f",
    '"',
    ",",
    ":",
    "{",
    "}",
    "[",
    "]",
    "\\",
    " ",
    "\n",
    "text",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<start_function_call>",
    "call:f{",
    "<escape>",
    "<end_function_call>",
    '<|"|>',
    "<|tool_call>",
    "<tool_call|>",
    "```json\n",
    "```",
    "<function=f>",
    "</function>",
    "<parameter=cmd>",
    "</parameter>",
    "🫠",
    "1",
    "null",
    "arguments",
    ";",
    "<",
    "\\u00e9",
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join), st.sampled_from(DIALECTS), st.integers(0, 2**32))
def test_no_text_breaks_a_stream_and_cutting_changes_nothing(text: str, dialect: Dialect, seed: int) -> None:
    whole = shown(streamed(dialect, [text]))
    rng = random.Random(seed)
    parts = list(pieces(text, iter(lambda: rng.randint(1, 7), 0)))
    deltas = streamed(dialect, parts)
    check_order(deltas)
    assert shown(deltas) == whole
    if not whole[1]:
        assert whole[0] == text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.text(), json_values, max_size=4),
    st.sampled_from(["hermes", "llama3", "mistral", "generic"]),
    st.booleans(),
    st.integers(1, 9),
)
def test_any_arguments_come_through(arguments: dict[str, object], name: str, escaped: bool, size: int) -> None:
    written = json.dumps(arguments, ensure_ascii=escaped)
    frames = {
        "hermes": hermes("f", written),
        "generic": hermes("f", written),
        "llama3": f'{{"name": "f", "parameters": {written}}}',
        "mistral": f"[TOOL_CALLS]f[ARGS]{written}",
    }
    assert shown(streamed(choose_dialect(None, name), pieces(frames[name], forever(size)))) == (None, [("f", written)])


def test_a_hostile_reply_costs_little() -> None:
    """Deep nesting and endless openers neither recurse nor take quadratic time."""
    deep = "[" * 50_000
    assert shown(streamed(choose_dialect(None, "hermes"), [hermes("f", '{"a":' + deep)]))[1][0][0] == "f"
    for name, text in (
        ("gemma4", "<|tool_call>call:f{a:" + "{a:" * 20_000),
        ("hermes", "<tool_call>{" * 20_000),
        ("hermes", '<tool_call>{"function":' * 20_000),
        ("generic", "```json" * 20_000),
        ("qwen_xml", "<function=f><parameter=a>" + "<" * 50_000),
    ):
        streamed(choose_dialect(None, name), pieces(text, forever(997)))
