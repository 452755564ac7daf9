"""Streams: framing, usage, stop strings, errors on the way, clients that vanish (cases ST-01 to ST-06, SP-06)."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.server.fake_engine import FakeEngine
from tests.server.http_server import Running, events, running
from tests.server.raw import connect, request

HELLO = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"


ASKS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO}, "/v1/completions": {"prompt": "hi", "max_tokens": 300}, "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 300},
}  # fmt: skip


def chat(server: Running, **more: Any) -> list[Any]:
    status, _, data = server.post(CHAT, {"messages": HELLO, "stream": True, **more})
    assert status == 200, data
    return events(data)


def text_of(chunks: list[Any]) -> str:
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c != "[DONE]" and c["choices"])


@pytest.mark.parametrize(
    ("options", "last", "each"),
    [
        ({}, False, False),
        ({"stream_options": {}}, False, False),
        ({"stream_options": {"include_usage": False}}, False, False),
        ({"stream_options": {"include_usage": True}}, True, False),
        ({"stream_options": {"include_usage": True, "continuous_usage_stats": True}}, True, True),
    ],
)
@pytest.mark.parametrize("n", [1, 2])
def test_usage_comes_once_and_only_when_asked(options: dict[str, Any], last: bool, each: bool, n: int) -> None:
    with running() as server:
        found = chat(server, n=n, max_tokens=3, **options)
    assert found[-1] == "[DONE]"
    totals = [c for c in found[:-1] if c["choices"] == []]
    assert len(totals) == last
    if last:
        assert totals == [found[-2]] and totals[0]["usage"]["completion_tokens"] == 3 * n
    rest = [c for c in found[:-1] if c["choices"]]
    assert all((c.get("usage") is not None) == each for c in rest[n:]) and ("usage" in rest[0]) == last


def test_stream_options_need_a_stream() -> None:
    with running() as server:
        for path, body in ((CHAT, {"messages": HELLO}), ("/v1/completions", {"prompt": "x"})):
            status, _, got = server.post(path, {**body, "stream_options": {"include_usage": True}})
            assert status == 400 and got["error"]["param"] == "stream_options"


def test_usage_without_a_visible_character() -> None:
    with running(FakeEngine(says=lambda *_: "\n")) as server:
        found = chat(server, max_tokens=1, stop=["\n"], stream_options={"include_usage": True})
    assert text_of(found) == "" and found[-2]["usage"]["completion_tokens"] == 1
    assert found[-3]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("said", "stops", "visible"),
    [
        ("The quick brown fox jumps", ["own fox"], "The quick br"),
        ("aaab", ["aab"], "a"),
        ("xxabcd", ["abc", "ab"], "xx"),
        ("The quick brown fo", ["own fox"], "The quick brown fo"),
        ("smile 🙂 end", ["🙂"], "smile "),
    ],
)
@pytest.mark.parametrize("chunk", [1, 3, 50])
def test_stop_strings_stream_as_they_reply(said: str, stops: list[str], visible: str, chunk: int) -> None:
    with running(FakeEngine(says=lambda *_: said, chunk=chunk)) as server:
        found = chat(server, stop=stops)
        whole = server.post(CHAT, {"messages": HELLO, "stop": stops})[2]
    assert text_of(found) == whole["choices"][0]["message"]["content"] == visible
    assert found[-2]["choices"][0]["finish_reason"] == "stop"


def test_no_broken_characters_on_the_wire() -> None:
    said = "ok 🫠 龜 \u2028line\x85 e\u0301 \ufffd"
    with running(FakeEngine(says=lambda *_: said)) as server:
        _, _, data = server.post(CHAT, {"messages": HELLO, "stream": True})
        cut = chat(server, max_tokens=4)
    data.decode("utf-8")
    assert text_of(events(data)) == said
    assert b"\xe2\x80\xa8" not in data and b"\xc2\x85" not in data  # some clients end lines there
    assert text_of(cut) == "ok \ufffd"  # the character really has no end


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_a_fault_on_the_way_is_one_error_event_and_no_done(raises: bool, path: str) -> None:
    with running(FakeEngine(fault_after=3, raises=raises)) as server:
        body = {**ASKS[path], "stream": True}
        status, _, data = server.post(path, body)
        found = events(data)
        assert status == 200 and found[-1]["error"]["type"] == "server_error" and "[DONE]" not in found
        assert sum("error" in c for c in found) == 1
        status, _, got = server.post(path, {**body, "stream": False})
        assert status == 500 and got["error"]["type"] == "server_error"
        assert server.state.pending == 0


def test_faults_in_the_other_protocols() -> None:
    with running(FakeEngine(fault_after=2)) as server:
        _, _, data = server.post("/v1/messages", {"messages": HELLO, "max_tokens": 9, "stream": True})
        assert events(data)[-1]["type"] == "error" and events(data)[-1]["error"]["type"] == "api_error"
        _, _, data = server.post("/v1/responses", {"input": "hi", "stream": True})
        assert events(data)[-1]["type"] == "response.failed"
        assert server.post("/v1/messages", {"messages": HELLO, "max_tokens": 9})[2]["type"] == "error"


def test_what_is_wrong_from_the_start_is_400_and_json() -> None:
    with running() as server:
        for more in ({"temperature": "hot"}, {"messages": [{"role": "user", "content": "x" * 6000}]}, {"top_p": 2}):
            status, headers, got = server.post(CHAT, {"messages": HELLO, "stream": True, **more})
            assert status == 400 and headers["content-type"] == "application/json" and got["error"]["param"] in more


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses", "/v1/messages"])
def test_a_client_that_vanishes_is_aborted(stream: bool, path: str) -> None:
    engine = FakeEngine(says=lambda *_: "x" * 400, hold=asyncio.Event())
    with running(engine) as server:
        body = {**ASKS[path], "stream": stream}
        sock = connect(server.url)
        sock.sendall(request(path, body))
        for _ in range(200):
            if server.engine.live:
                break
            time.sleep(0.02)
        assert server.engine.live
        sock.close()
        assert server.settled()
        assert len(engine.aborted) == 1 and server.state.meters.gone == 1


def test_many_clients_that_vanish_at_every_point() -> None:
    engine = FakeEngine(says=lambda *_: "x" * 50)
    with running(engine) as server:
        whole = request(CHAT, {"messages": HELLO, "stream": True, "n": 2})
        for number in range(120):
            sock = connect(server.url)
            sock.sendall(whole[: len(whole) * (number % 12) // 8])
            if number % 3 == 0:
                sock.recv(200) if number % 12 >= 8 else None
            sock.close()
        assert server.settled()
        assert chat(server)[-1] == "[DONE]"


def test_n_choices_each_with_its_own_end() -> None:
    def says(_: Any, choice: int) -> str:
        return "" if choice == 1 else "word " * (choice + 1)

    with running(FakeEngine(says=says)) as server:
        whole = server.post(CHAT, {"messages": HELLO, "n": 4, "max_tokens": 12})[2]
        found = chat(server, n=4, max_tokens=12)
        assert server.post("/v1/completions", {"prompt": "a", "n": 5, "best_of": 3})[0] == 400
        best = server.post("/v1/completions", {"prompt": "a", "n": 1, "best_of": 3, "max_tokens": 12})[2]
    assert [c["index"] for c in whole["choices"]] == [0, 1, 2, 3] and len(best["choices"]) == 1
    assert [c["finish_reason"] for c in whole["choices"]] == ["stop", "stop", "length", "length"]
    finishes = {}
    for c in found[:-1]:
        if c["choices"][0]["finish_reason"]:
            finishes[c["choices"][0]["index"]] = c["choices"][0]["finish_reason"]
    assert finishes == {0: "stop", 1: "stop", 2: "length", 3: "length"}


def test_a_reply_shows_only_the_log_probabilities_that_were_asked_for() -> None:
    """best_of and echo need some of their own."""
    with running(FakeEngine()) as server:
        best = server.post("/v1/completions", {"prompt": "a", "n": 2, "best_of": 3, "max_tokens": 4})[2]["choices"]
        assert [c["logprobs"] for c in best] == [None, None]
        echo = server.post("/v1/completions", {"prompt": "ab", "echo": True, "logprobs": 1, "max_tokens": 4})[2]["choices"][0]
        assert len(echo["logprobs"]["tokens"]) > 4 and "prompt_logprobs" not in echo
        asked = {"prompt": "ab", "echo": True, "logprobs": 1, "prompt_logprobs": 0, "max_tokens": 4}
        assert "prompt_logprobs" in server.post("/v1/completions", asked)[2]["choices"][0]
