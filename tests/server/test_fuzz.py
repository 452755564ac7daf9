"""Mutated bodies: whatever is sent, the reply is no 5xx, and nothing is left afterwards. FUZZ_BODIES sets how many."""

from __future__ import annotations

import http.client
import json
import os
import random
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.server.fake_engine import FakeEngine
from tests.server.http_server import Running, running

HELLO = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}}
PARTS = [{"type": "input_text", "text": "x"}]
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TURNS = [
    {"role": "system", "content": "s"}, *HELLO, {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "2"},
]  # fmt: skip
ITEMS = [
    {"role": "user", "content": PARTS}, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "1"},
]  # fmt: skip
BLOCKS = [{"type": "text", "text": "x"}, {"type": "tool_result", "tool_use_id": "t", "content": "r"}]
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"a": {"enum": [1, "b"]}}}}}
SEEDS: list[tuple[str, Any]] = [
    ("/v1/chat/completions", {
        "model": "tiny", "messages": TURNS, "n": 2, "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "logprobs": True, "top_logprobs": 2,
        "stop": ["x"], "tools": [TOOL], "tool_choice": "auto", "stream": True, "stream_options": {"include_usage": True},
        "logit_bias": {"5": 1}, "seed": 1,
    }),
    ("/v1/chat/completions", {
        "messages": HELLO, "response_format": FORM, "max_completion_tokens": 9, "chat_template_kwargs": {"a": [1]},
    }),
    ("/v1/completions", {"prompt": ["a", "b"], "echo": True, "logprobs": 1, "best_of": 2, "max_tokens": 3, "stop_token_ids": [7]}),
    ("/v1/completions", {"prompt": [[65, 66], [67]], "stream": True, "guided_regex": "[a-z]+", "bad_words": ["q"], "min_tokens": 1}),
    ("/v1/responses", {
        "input": ITEMS, "instructions": "i", "stream": True, "tools": [{"type": "function", "name": "f", "parameters": {}}],
        "text": {"format": {"type": "json_object"}}, "include": [],
    }),
    ("/v1/messages", {
        "max_tokens": 4, "system": [{"type": "text", "text": "s"}], "messages": [{"role": "user", "content": BLOCKS}],
        "thinking": {"type": "enabled", "budget_tokens": 3}, "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "any"}, "diagnostics": {},
    }),
    ("/v1/messages/count_tokens", {"messages": HELLO, "system": "s"}),
    ("/tokenize", {"messages": HELLO, "return_token_strs": True}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
]  # fmt: skip
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, -0.0, 0.5, 1e308, "", "x", "\x00", "\ud800", "🙂" * 50, "{{ 1 }}", "<|im_end|>", [],
    [[]], {}, [None], {"": None}, {"type": "text"}, {"$ref": "#"}, "9" * 400, ["a"] * 200, {"a": {"b": {"c": [{}]}}}, "file:///etc/passwd",
]  # fmt: skip


def mutated(value: Any, chance: random.Random) -> Any:
    """A copy with one thing changed somewhere: replaced, dropped, doubled, renamed."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        key = chance.choice(list(value))
        fresh = dict(value)
        what = chance.random()
        if what < 0.1:
            del fresh[key]
        elif what < 0.2:
            fresh[chance.choice(["type", "x", "", key + "s", "content", "schema"])] = chance.choice(ODD)
        else:
            fresh[key] = mutated(value[key], chance)
        return fresh
    if isinstance(value, list) and value and chance.random() < 0.7:
        at = chance.randrange(len(value))
        what = chance.random()
        fresh_list = list(value)
        if what < 0.15:
            return fresh_list[:at]
        if what < 0.3:
            return fresh_list + fresh_list
        fresh_list[at] = mutated(value[at], chance)
        return fresh_list
    return chance.choice(ODD)


def raw(document: Any, chance: random.Random) -> bytes:
    data = json.dumps(document).encode()
    if chance.random() < 0.1:
        at = chance.randrange(len(data) or 1)
        data = data[:at] + bytes([chance.randrange(256)]) + data[at + chance.randrange(3) :]
    return data


def fuzz(server: Running, count: int, seed: int) -> None:
    chance = random.Random(seed)
    parts = urlsplit(server.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    seen = {200: 0, 400: 0}
    for number in range(count):
        path, document = chance.choice(SEEDS)
        for _ in range(chance.randrange(1, 4)):
            document = mutated(document, chance)
        body = raw(document, chance)
        connection.request("POST", path, body, {"content-type": "application/json"})
        reply = connection.getresponse()
        data = reply.read()
        assert reply.status < 500, (seed, number, path, body, data)
        if reply.getheader("content-type", "").startswith("text/event-stream"):
            assert b"server_error" not in data and b"api_error" not in data and b"response.failed" not in data, (
                seed,
                number,
                path,
                body,
                data,
            )
        seen[reply.status] = seen.get(reply.status, 0) + 1
    connection.close()
    assert seen[200] > count // 20 and seen[400] > count // 20  # both sides of the checks were met
    assert server.settled()
    assert server.get("/health")[0] == 200


def test_mutated_bodies() -> None:
    with running(FakeEngine()) as server:
        fuzz(server, int(os.environ.get("FUZZ_BODIES", "400")), int(os.environ.get("FUZZ_SEED", "1")))


@pytest.mark.long
def test_many_mutated_bodies() -> None:
    with running(FakeEngine()) as server:
        fuzz(server, int(os.environ.get("FUZZ_BODIES", "20000")), 2)
