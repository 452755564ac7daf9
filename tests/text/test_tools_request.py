"""tools and tool_choice as clients send them (case TC-02), the dialect of a template, and tools for templates that know none (CT-04)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.text.replies import parse_reply, render_chat
from tests.text.text_samples import CHATML, byte_level

from ridgeline.errors import UserError
from ridgeline.text.from_gguf import tokenizer_from_gguf
from ridgeline.text.tools.base import StreamOptions
from ridgeline.text.tools.choose import DIALECTS, choose_dialect, keeps_special, presents_tools
from ridgeline.text.tools.generic import GENERIC
from ridgeline.text.tools.prompt import with_tools
from ridgeline.text.tools.request import ToolChoice, finish_reason, read_choice, read_tools

DATA = Path(__file__).parent / "data"
F = {"type": "function", "function": {"name": "f", "description": "does f", "parameters": {"type": "object", "properties": {}}}}
G = {"type": "function", "function": {"name": "g", "strict": True}}
TOOLS = read_tools([F, G])


def test_tools_of_three_protocols() -> None:
    chat = read_tools(
        [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}}]
    )
    responses = read_tools([{"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}])
    anthropic = read_tools([{"name": "f", "description": "d", "input_schema": {"type": "object"}}])
    assert chat == responses and chat[0].strict and chat[0].parameters == {"type": "object"}
    assert (anthropic[0].name, anthropic[0].description, anthropic[0].parameters) == ("f", "d", {"type": "object"})
    assert read_tools(None) == read_tools([]) == ()


@pytest.mark.parametrize(
    "tools",
    [
        "x",
        {"a": 1},
        [1],
        [{"type": "retrieval"}],
        [{"type": "function"}],
        [{"type": "function", "function": {"name": ""}}],
        [{"type": "function", "function": {"name": 'a"b'}}],
        [{"type": "function", "function": {"name": "a b"}}],
        [{"type": "function", "function": {"name": "x" * 129}}],
        [{"type": "function", "function": {"name": "f", "parameters": []}}],
        [F, F],
        [{"type": "function", "function": []}],
        [{"type": "function", "function": {"name": f"f{i}"}} for i in range(600)],
    ],
)
def test_bad_tools_are_refused_by_place(tools: Any) -> None:
    with pytest.raises(UserError, match="tools") as caught:
        read_tools(tools)
    assert caught.value.field is not None and caught.value.field.startswith("tools") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("choice", "mode", "names"),
    [
        (None, "auto", ["f", "g"]),
        ("auto", "auto", ["f", "g"]),
        ("none", "none", []),
        ("required", "required", ["f", "g"]),
        ({"type": "function", "function": {"name": "g"}}, "named", ["g"]),
        ({"type": "function", "name": "g"}, "named", ["g"]),
        ({"type": "any"}, "required", ["f", "g"]),
        ({"type": "auto"}, "auto", ["f", "g"]),
        ({"type": "tool", "name": "f"}, "named", ["f"]),
        ({"type": "none"}, "none", []),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "g"}}]}},
            "required",
            ["g"],
        ),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}, "auto", ["f"]),
    ],
)
def test_choices(choice: Any, mode: str, names: list[str]) -> None:
    read = read_choice(TOOLS, choice)
    assert (read.mode, [tool.name for tool in read.tools], read.forced) == (mode, names, mode in ("required", "named"))


@pytest.mark.parametrize("choice", ["maybe", {"type": "function", "function": {"name": "h"}}, {"type": "function"}, 3, {"type": "x"}, []])
def test_bad_choices_are_refused(choice: Any) -> None:
    with pytest.raises(UserError, match="tool_choice"):
        read_choice(TOOLS, choice)


def test_choices_without_tools() -> None:
    for harmless in (None, "auto", "none"):
        assert read_choice((), harmless) == ToolChoice("none", ())
    for forced in ("required", {"type": "function", "function": {"name": "f"}}):
        with pytest.raises(UserError, match="tool_choice"):
            read_choice((), forced)


def test_finish_reasons() -> None:
    auto, required, named = (read_choice(TOOLS, c) for c in ("auto", "required", {"type": "function", "function": {"name": "f"}}))
    assert finish_reason(auto, "stop", 1) == finish_reason(required, "stop", 2) == "tool_calls"
    assert finish_reason(named, "stop", 1) == "stop"
    assert finish_reason(auto, "stop", 0) == "stop"
    assert finish_reason(auto, "length", 1) == finish_reason(named, "length", 1) == "length"
    assert finish_reason(auto, None, 1) is None


@pytest.mark.parametrize(
    ("file", "name", "presents"),
    [
        ("hermes_tools", "hermes", True),
        ("qwen25_tools", "hermes", True),
        ("qwen3_thinking", "hermes", False),
        ("llama3_tools", "llama3", True),
        ("mistral_tools", "mistral", True),
        ("xml_tools", "qwen_xml", True),
        ("gemma", "gemma", False),
        ("chatml", "generic", False),
        ("phi3", "generic", False),
        ("llama2", "generic", False),
    ],
)
def test_the_template_tells_the_dialect(file: str, name: str, presents: bool) -> None:
    template = (DATA / f"{file}.jinja").read_text("utf8")
    assert choose_dialect(template).name == choose_dialect(template, "auto").name == name
    assert presents_tools(template) is presents


def test_the_dialect_can_be_named() -> None:
    assert choose_dialect("<tool_call>", "llama3_json").name == "llama3"
    assert choose_dialect(None).name == "generic"
    names = [name for dialect in DIALECTS for name in (dialect.name, *dialect.aliases)]
    assert len(names) == len(set(names))
    with pytest.raises(UserError, match="hermes"):
        choose_dialect(None, "klingon")


def test_markers_that_are_control_tokens_must_be_kept() -> None:
    tokenizer = tokenizer_from_gguf(byte_level())
    assert not keeps_special(choose_dialect(None, "hermes"), tokenizer)  # <tool_call> is an ordinary added token there
    kinds = byte_level()["tokenizer.ggml.token_type"]
    controlled = tokenizer_from_gguf(byte_level(**{"tokenizer.ggml.token_type": [3 if kind == 4 else kind for kind in kinds]}))
    assert keeps_special(choose_dialect(None, "hermes"), controlled)


def conversation(**assistant: Any) -> list[dict[str, Any]]:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": "ü"}'}}
    return [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": None, "tool_calls": [call], **assistant},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "tool", "tool_call_id": "c2", "content": "3"},
        {"role": "user", "content": "And?"},
    ]


@pytest.mark.parametrize("template", [CHATML, (DATA / "gemma.jinja").read_text("utf8")], ids=["chatml", "gemma"])
@pytest.mark.parametrize("arguments", ['{"a": "ü"}', {"a": "ü"}])
def test_tools_for_a_template_that_knows_none(template: str, arguments: Any) -> None:
    messages = conversation(tool_calls=[{"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}])
    dialect = choose_dialect(template)
    adapted = with_tools(messages, TOOLS, dialect)
    assert [turn["role"] for turn in adapted] == ["system", "user", "assistant", "user"]
    assert all(set(turn) == {"role", "content"} for turn in adapted)
    text = render_chat(tokenizer_from_gguf(byte_level()), adapted, template=template)
    assert (
        "does f" in text and '"name": "g"' in text and text.count("<tool_response>") == 2 and text.index("And?") > text.index("3\n</tool")
    )
    # What the history shows is what the dialect's own stream reads.
    reply = parse_reply(dialect.stream(StreamOptions(TOOLS)), adapted[2]["content"])
    assert reply.content is None and [(call.name, call.arguments) for call in reply.calls] == [("f", '{"a": "ü"}')]


def test_no_tools_no_instructions() -> None:
    assert with_tools([{"role": "user", "content": "hi"}], (), GENERIC) == [{"role": "user", "content": "hi"}]
    system = with_tools([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}], TOOLS, GENERIC)
    assert [turn["role"] for turn in system] == ["system", "user"] and system[0]["content"].startswith("Be brief.\n\n")
    mixed = with_tools(conversation(content="I look."), (), GENERIC)
    assert mixed[1]["content"].startswith("I look.\n<tool_call>\n")
