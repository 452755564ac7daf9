"""Forced tool calls (case TC-02): whatever a random model writes under a dialect's grammar, the dialect reads as calls that fit."""

from __future__ import annotations

import random
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.sampling.grammar_world import bits, compiler, draw, id_of, loads, takes, tokenizer
from tests.text.replies import parse_reply
from tests.text.text_samples import byte_level

from ridgeline.errors import UserError
from ridgeline.sampling.calls import check_tools, compile_calls
from ridgeline.sampling.grammar import GrammarCompiler
from ridgeline.text.from_gguf import tokenizer_from_gguf
from ridgeline.text.tools.base import StreamOptions, ToolSpec
from ridgeline.text.tools.choose import DIALECTS, choose_dialect

WEATHER = ToolSpec(
    "get_weather",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string", "enum": ["北京", "Rome"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "at": {"$ref": "#/$defs/at"},
        },
        "required": ["city", "at"],
        "additionalProperties": False,
        "$defs": {"at": {"type": "object", "properties": {"h": {"type": "integer"}}, "required": ["h"]}},
    },
)
NOW = ToolSpec("now")
FLAG = ToolSpec(
    "set-flag", parameters={"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": False}
)
FLAT = ToolSpec(
    "add",
    parameters={
        "type": "object",
        "properties": {"x": {"type": "number"}, "why": {"type": "string"}},
        "required": ["x"],
        "additionalProperties": False,
    },
)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("tools", [(FLAG,), (NOW, FLAG, FLAT), (WEATHER, FLAT)], ids=["named", "three", "references"])
@pytest.mark.parametrize("parallel", [True, False])
def test_a_forced_call_is_a_call(dialect: Any, tools: tuple[ToolSpec, ...], parallel: bool) -> None:
    """Whatever a random model writes under the grammar, the dialect's own stream reads as calls that fit the tools."""
    guide = compile_calls(compiler(), dialect, tools, parallel)
    rng, ended = random.Random(dialect.name), 0
    # Where a text ends only at a "<", the model wants that, and an end as soon as it may.
    prefer = [*tokenizer().eos_ids, id_of(b"<")] if dialect.name in ("functiongemma", "gemma4", "qwen_xml") else []
    for _ in range(25):
        ids, finish = draw(guide.start(), rng, limit=300, close=0.6, prefer=prefer)
        if finish == "length":
            continue
        ended += 1
        text = b"".join(tokenizer().token_bytes(i) for i in ids if i not in tokenizer().eos_ids).decode()
        reply = parse_reply(dialect.stream(StreamOptions(tools)), text)
        assert reply.content is None and reply.calls and (parallel or len(reply.calls) == 1), text
        for call in reply.calls:
            spec = next(tool for tool in tools if tool.name == call.name)
            value = loads(call.arguments)
            assert isinstance(value, dict)
            # The native forms of Gemma keep names, required keys and simple types; what lies deeper is any value.
            if dialect.name not in ("functiongemma", "gemma4") or "$defs" not in (spec.parameters or {}):
                assert Draft202012Validator(spec.parameters or {}).is_valid(value), (text, call)
    assert ended > 3


def test_forced_calls_use_control_tokens_where_the_tokenizer_has_them() -> None:
    plain = byte_level()
    kinds = [
        3 if token == "<tool_call>" else kind
        for token, kind in zip(plain["tokenizer.ggml.tokens"], plain["tokenizer.ggml.token_type"], strict=True)
    ]
    words = tokenizer_from_gguf(byte_level(**{"tokenizer.ggml.token_type": kinds}))
    control = words.control.ids["<tool_call>"]
    guide = compile_calls(GrammarCompiler(words, words.eos_ids), choose_dialect(None, "hermes"), (NOW,))
    assert bits(guide.start().allowed()).tolist() == [control]


def test_one_bad_tool_is_named_and_the_others_are_not_broken_by_keywords() -> None:
    odd = ToolSpec(
        "odd",
        parameters={
            "type": "object",
            "properties": {"s": {"type": "array", "uniqueItems": True}, "f": {"type": "string", "format": "iban"}},
        },
    )
    compile_calls(compiler(), choose_dialect(None, "hermes"), (odd, FLAG))
    with pytest.raises(UserError, match=r"odd.*uniqueItems"):
        check_tools(compiler(), (FLAG, ToolSpec("odd", parameters=odd.parameters, strict=True)), strict_only=True)
    with pytest.raises(UserError, match="broken"):
        compile_calls(
            compiler(),
            choose_dialect(None, "hermes"),
            (FLAG, ToolSpec("broken", parameters={"type": "object", "properties": {"a": {"type": "strng"}}})),
        )


def test_sixty_tools() -> None:
    tools = tuple(
        ToolSpec(
            f"tool{i}",
            parameters={
                "type": "object",
                "properties": {f"p{j}": {"type": "string", "description": "x" * 200} for j in range(8)},
                "$defs": {"unused": {}},
            },
        )
        for i in range(60)
    )
    guide = compile_calls(compiler(), choose_dialect(None, "hermes"), tools)
    assert takes(
        guide,
        tokenizer().encode(
            '<tool_call>\n{"name": "tool59", "arguments": {"p0": "x"}}\n</tool_call>', add_special=False, parse_special=False
        ),
    )
