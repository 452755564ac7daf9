"""Tool calls and reasoning over HTTP with scripted text (cases TC-01, TC-02, CT-04): every protocol, streamed at any chunking."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.cli.tiny_gguf import TEMPLATE
from tests.server.fake_engine import FakeEngine, served
from tests.server.http_server import Running, events, running

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]
RUN = {"type": "function", "function": {"name": "run", "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}}}}
NOW = {"type": "function", "function": {"name": "now", "description": "The time."}}
TOOLS = [RUN, NOW]
# A template that presents tools in the way of Hermes, and thinks.
HERMES = "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}" + TEMPLATE
ARGUMENTS = {"cmd": "mkdir -p t/{a,b", "o": {"q": "x", "m": {"k": [1, {"z": "}"}]}}, "é": "\\ \n 🙂"}
ONE = '<tool_call>\n{"name": "run", "arguments": ' + json.dumps(ARGUMENTS) + "}\n</tool_call>"
TWO = ONE + '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def tool_server(said: str, chunk: int = 1, **changes: Any) -> Any:
    return running(FakeEngine(says=lambda *_: said, chunk=chunk, length=4096), served=served(HERMES, length=4096, **changes))


def streamed_calls(data: bytes) -> tuple[list[dict[str, Any]], str | None, str]:
    """(calls, finish reason, text) of a chat stream; checks that id, type and name come once, first."""
    calls: list[dict[str, Any]] = []
    finish, text = None, ""
    for chunk in events(data)[:-1]:
        choice = chunk["choices"][0]
        finish = choice["finish_reason"] or finish
        text += choice["delta"].get("content") or ""
        for part in choice["delta"].get("tool_calls", []):
            if part["index"] == len(calls):
                assert part["id"] and part["type"] == "function" and part["function"]["name"]
                calls.append({"id": part["id"], "name": part["function"]["name"], "arguments": ""})
            else:
                assert "id" not in part and "name" not in part["function"]
            calls[part["index"]]["arguments"] += part["function"]["arguments"]
    return calls, finish, text


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 40, 400])
def test_calls_stream_as_they_reply(chunk: int) -> None:
    with tool_server(TWO, chunk) as server:
        body = {"messages": HELLO, "tools": TOOLS}
        calls, finish, text = streamed_calls(server.post(CHAT, {**body, "stream": True})[2])
        whole = server.post(CHAT, body)[2]["choices"][0]
    assert [c["name"] for c in calls] == ["run", "now"] and text == ""
    assert json.loads(calls[0]["arguments"]) == ARGUMENTS and calls[1]["arguments"] == "{}"
    message = whole["message"]
    assert [c["function"]["arguments"] for c in message["tool_calls"]] == [c["arguments"] for c in calls]
    assert message["content"] is None and finish == whole["finish_reason"] == "tool_calls"


FINISHES: list[tuple[dict[str, Any], str, str, int]] = [
    ({}, ONE, "tool_calls", 1),
    ({"tool_choice": "auto"}, "plain text", "stop", 0),
    ({"tool_choice": "none"}, ONE, "stop", 0),
    ({"parallel_tool_calls": False}, TWO, "tool_calls", 1),
    ({"max_tokens": 60}, ONE, "length", 1),
    ({"tools": []}, "plain text", "stop", 0),
    ({"tools": None, "tool_choice": "auto"}, "plain text", "stop", 0),
    ({"tool_choice": "required"}, ONE, "tool_calls", 1),
    ({"tool_choice": {"type": "function", "function": {"name": "run"}}}, ONE, "stop", 1),
]


@pytest.mark.parametrize(("more", "said", "finish", "count"), FINISHES)
def test_finish_reasons(more: dict[str, Any], said: str, finish: str, count: int) -> None:
    with tool_server(said) as server:
        body = {"messages": HELLO, "tools": TOOLS, **more}
        whole = server.post(CHAT, body)[2]["choices"][0]
        calls, streamed, text = streamed_calls(server.post(CHAT, {**body, "stream": True})[2])
    assert whole["finish_reason"] == streamed == finish
    assert len(whole["message"].get("tool_calls", [])) == len(calls) == count
    assert whole["message"].get("tool_calls") != [] and (whole["message"]["content"] or "") == text


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tool_choice": {"type": "function", "function": {"name": "nope"}}}, "tool_choice"),
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"tool_choice": "required", "tools": []}, "tool_choice"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tools": [RUN, RUN]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": 5}}}], "tool_choice": "required"}, "tools"),
]


@pytest.mark.parametrize(("more", "param"), WRONG)
def test_what_cannot_be_asked(more: dict[str, Any], param: str) -> None:
    with tool_server("x") as server:
        code, _, got = server.post(CHAT, {"messages": HELLO, "tools": TOOLS, "stream": True, **more})
    assert code == 400 and got["error"]["param"].startswith(param), got


def prompt_of(server: Running) -> str:
    return server.state.served.words.tokenizer.decode(list(server.engine.seen[-1].prompt_ids), skip_special=False)


def test_history_with_calls_renders_the_same_however_it_is_spelled() -> None:
    """Case CT-04: null, missing, empty and part-list content; arguments as a string; tool_calls: []."""
    template = (
        "{% for m in messages %}[{{ m.role }}|{{ m.content }}|{% for c in m.tool_calls or [] %}{{ c.function.name }}:"
        "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}{% endfor %}]{% endfor %}{% if tools %}{% endif %}"
    )
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    prompts = set()
    with running(served=served(template)) as server:
        for content in ({"content": None}, {}, {"content": ""}, {"content": [{"type": "text", "text": ""}]}):
            messages = [
                *HELLO,
                {"role": "assistant", **content, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": "2"},
            ]
            assert server.post(CHAT, {"messages": messages})[0] == 200
            prompts.add(prompt_of(server))
        assert prompts == {"[user|hi|][assistant||f:a=1][tool|2|]"}
        server.post(CHAT, {"messages": [*HELLO, {"role": "assistant", "content": "x", "tool_calls": []}]})
        assert prompt_of(server) == "[user|hi|][assistant|x|]"
        bad = {**call, "function": {"name": "f", "arguments": "{bad"}}
        code, _, got = server.post(CHAT, {"messages": [*HELLO, {"role": "assistant", "content": None, "tool_calls": [bad]}]})
        assert code == 400 and "messages[1].tool_calls[0]" in got["error"]["param"]


def test_a_template_without_tools_is_told_by_us() -> None:
    with running(FakeEngine(says=lambda *_: ONE, length=4096), served=served(length=4096)) as server:
        got = server.post(CHAT, {"messages": HELLO, "tools": TOOLS})[2]
        assert '"name": "run"' in prompt_of(server)
        assert got["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "run"
        server.post(CHAT, {"messages": HELLO, "tools": TOOLS, "tool_choice": "none"})
        assert "run" not in prompt_of(server)


def test_anthropic_tools() -> None:
    tools = [
        {"name": "run", "input_schema": RUN["function"]["parameters"]},
        {"name": "now", "description": "d", "input_schema": {"type": "object"}},
    ]
    body = {"messages": HELLO, "max_tokens": 400, "tools": tools}
    with tool_server("First this. " + TWO) as server:
        whole = server.post("/v1/messages", body)[2]
        found = events(server.post("/v1/messages", {**body, "stream": True})[2])
        history = [*HELLO, {"role": "assistant", "content": whole["content"]},
                   {"role": "user", "content": [{"type": "tool_result", "tool_use_id": whole["content"][1]["id"], "content": "ok"},
                                                {"type": "text", "text": "go on"}]}]  # fmt: skip
        assert server.post("/v1/messages", {**body, "messages": history})[0] == 200
        assert "<|im_start|>tool\nok" in prompt_of(server)
        assert server.post("/v1/messages", {**body, "tool_choice": {"type": "tool", "name": "nope"}})[0] == 400
        assert server.post("/v1/messages", {**body, "tools": [{"type": "web_search_20250305", "name": "web_search"}]})[0] == 400
    assert whole["stop_reason"] == "tool_use" and [b["type"] for b in whole["content"]] == ["text", "tool_use", "tool_use"]
    assert whole["content"][1]["input"] == ARGUMENTS and whole["content"][2]["input"] == {}
    starts = [e["content_block"]["type"] for e in found if e["type"] == "content_block_start"]
    stops = [e["index"] for e in found if e["type"] == "content_block_stop"]
    assert starts == ["text", "tool_use", "tool_use"] and stops == [0, 1, 2]
    joined = "".join(e["delta"]["partial_json"] for e in found if e["type"] == "content_block_delta" and e["index"] == 1)
    assert json.loads(joined) == ARGUMENTS and found[-1]["type"] == "message_stop"


def test_responses_tools() -> None:
    tools = [{"type": "function", "name": "run", "parameters": RUN["function"]["parameters"]}]
    with tool_server(ONE) as server:
        whole = server.post("/v1/responses", {"input": "hi", "tools": tools})[2]
        found = events(server.post("/v1/responses", {"input": "hi", "tools": tools, "stream": True})[2])
        call = whole["output"][0]
        items = [{"role": "user", "content": "hi"}, call, {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}]
        assert server.post("/v1/responses", {"input": items, "tools": tools})[0] == 200
    assert call["type"] == "function_call" and json.loads(call["arguments"]) == ARGUMENTS
    done = [e for e in found if e["type"] == "response.function_call_arguments.done"]
    assert json.loads(done[0]["arguments"]) == ARGUMENTS and found[-1]["response"]["output"][0]["name"] == "run"
    assert [e["sequence_number"] for e in found] == list(range(len(found)))


THINKING = (
    "{% if enable_thinking is defined and enable_thinking %}{% endif %}"
    + TEMPLATE
    + "{# <think> </think> #}{{ '' if true else '</think>' }}"
)


@pytest.mark.parametrize("chunk", [1, 5, 100])
def test_reasoning_is_split_off(chunk: int) -> None:
    said = "<think>\nLet me see.\n</think>\n\nThe answer."
    with running(FakeEngine(says=lambda *_: said, chunk=chunk), served=served(THINKING)) as server:
        message = server.post(CHAT, {"messages": HELLO})[2]["choices"][0]["message"]
        assert message["content"] == "The answer." and message["reasoning_content"] == message["reasoning"] == "Let me see."
        found = events(server.post(CHAT, {"messages": HELLO, "stream": True})[2])[:-1]
        deltas = [c["choices"][0]["delta"] for c in found]
        assert "".join(d.get("content") or "" for d in deltas) == "The answer."
        assert "".join(d.get("reasoning_content") or "" for d in deltas) == message["reasoning_content"]
        hidden = server.post(CHAT, {"messages": HELLO, "include_reasoning": False})[2]["choices"][0]["message"]
        assert hidden["content"] == "The answer." and "reasoning" not in hidden
        claude = server.post("/v1/messages", {"messages": HELLO, "max_tokens": 99})[2]["content"]
        assert [b["type"] for b in claude] == ["thinking", "text"]
        response = server.post("/v1/responses", {"input": "hi"})[2]
        assert [i["type"] for i in response["output"]] == ["reasoning", "message"]
        assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_a_stop_string_counts_inside_reasoning_too(chunk: int) -> None:
    """ST-03: what stands before it is the reasoning, there is no answer, and a stream says the same."""
    said = "<think>\nFirst this, then that.\n</think>\n\nThe answer."
    with running(FakeEngine(says=lambda *_: said, chunk=chunk), served=served(THINKING)) as server:
        body = {"messages": HELLO, "stop": ["then"]}
        whole = server.post(CHAT, body)[2]["choices"][0]
        chunks = [c["choices"][0] for c in events(server.post(CHAT, {**body, "stream": True})[2])[:-1]]
    thought = "".join(c["delta"].get("reasoning_content") or "" for c in chunks)
    assert whole["message"]["reasoning_content"] == thought == "First this," and whole["message"]["content"] is None
    assert "".join(c["delta"].get("content") or "" for c in chunks) == ""
    assert whole["finish_reason"] == chunks[-1]["finish_reason"] == "stop" and whole["stop_reason"] == chunks[-1]["stop_reason"] == "then"
