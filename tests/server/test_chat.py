"""/v1/chat/completions with a scripted engine: framing, usage, errors, extra fields."""

from __future__ import annotations

from tests.server.fake_engine import FakeEngine
from tests.server.http_server import events, running

HELLO = [{"role": "user", "content": "hi"}]


def test_whole_answer() -> None:
    with running() as server:
        status, headers, got = server.post("/v1/chat/completions", {"model": "tiny", "messages": HELLO})
    assert status == 200 and headers["x-request-id"]
    assert got["object"] == "chat.completion" and got["model"] == "tiny" and got["id"].startswith("chatcmpl-")
    choice = got["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "hello world", "refusal": None}
    assert choice["finish_reason"] == "stop" and choice["logprobs"] is None
    assert got["usage"]["completion_tokens"] == 12 and got["usage"]["total_tokens"] == got["usage"]["prompt_tokens"] + 12


def test_stream_joins_to_the_whole_answer() -> None:
    with running() as server:
        status, headers, data = server.post("/v1/chat/completions", {"messages": HELLO, "stream": True})
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    found = events(data)
    assert found[-1] == "[DONE]"
    chunks = found[:-1]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == "hello world"
    assert [c["choices"][0]["finish_reason"] for c in chunks][:-1] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert all("usage" not in c for c in chunks) and len({c["id"] for c in chunks}) == 1
    assert len(data.split(b"\n\n")) == len(found) + 1


def test_bad_requests_are_400_before_any_event() -> None:
    with running(FakeEngine()) as server:
        for body, param in (
            ({"messages": HELLO, "stream": True, "temperature": "hot"}, "temperature"),
            ({"messages": [{"role": "user", "content": "x" * 6000}], "stream": True}, "messages"),
        ):
            status, headers, got = server.post("/v1/chat/completions", body)
            assert status == 400 and headers["content-type"] == "application/json"
            assert got["error"]["param"] == param and got["error"]["type"] == "invalid_request_error", got
        status, _, got = server.post("/v1/chat/completions", {"model": "gpt-9", "messages": HELLO})
        assert status == 404 and got["error"]["code"] == "model_not_found"
