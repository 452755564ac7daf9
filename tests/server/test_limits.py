"""What one request may cost, and values that are out of range (cases SE-04, SP-04, LP-01, CX-01)."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError
from tests.server.fake_engine import FakeEngine
from tests.server.http_server import Running, running
from tests.server.raw import connect, request, status, until_closed

from ridgeline.server.app import ROUTES
from ridgeline.server.body import Body, shown
from ridgeline.server.bounds import Bounds

HELLO = [{"role": "user", "content": "hi"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(FakeEngine(), bounds=Bounds(body=1 << 20, head_s=0.4, body_s=0.4, queue=64)) as made:
        yield made


@pytest.fixture(autouse=True)
def healthy(server: Running) -> Iterator[None]:
    """Whatever a test sent, the server serves on and nothing is left."""
    yield
    code, _, got = server.post(CHAT, {"messages": HELLO})
    assert code == 200 and got["choices"][0]["message"]["content"] == "hello world"
    assert server.settled()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("top_p", -1), ("top_p", 0), ("top_p", 1.5), ("min_p", 2), ("temperature", -1), ("temperature", 1e308), ("temperature", "hot"),
        ("temperature", True), ("repetition_penalty", 0), ("top_k", -2), ("top_k", 1.5), ("logit_bias", {"999999": 1}),
        ("logit_bias", {"-1": 1}), ("logit_bias", {"abc": 1}), ("logit_bias", {"5": 1e9}), ("logit_bias", {"259": 1, "260": 1}), ("n", 0),
        ("n", 10**6), ("n", "2"), ("max_tokens", -5), ("max_tokens", 0), ("max_tokens", 10**12), ("stop", ["x"] * 1000), ("stop", [""]),
        ("stop", ""), ("stop", 5), ("stop_token_ids", [10**9]), ("stop_token_ids", [-1]), ("seed", 2**70), ("seed", 1.5),
        ("presence_penalty", 3), ("frequency_penalty", -3), ("min_tokens", -1), ("min_tokens", 10**12), ("prompt_logprobs", -1),
        ("prompt_logprobs", 10**6), ("allowed_token_ids", []), ("allowed_token_ids", [10**6]), ("bad_words", [""]), ("stream", "yes"),
        ("priority", "high"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_out_of_range_is_400_and_names_the_field(server: Running, path: str, field: str, value: Any) -> None:
    code, _, got = server.post(path, {"messages": HELLO, "prompt": "hi", field: value})
    assert code == 400, got
    assert (got["error"]["param"] or "").split("[")[0].split(".")[0] == field and got["error"]["type"] == "invalid_request_error", got


@pytest.mark.parametrize("literal", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999"])
@pytest.mark.parametrize("field", [b"temperature", b"top_p", b"min_p", b"presence_penalty", b"repetition_penalty"])
def test_numbers_that_are_none(server: Running, field: bytes, literal: bytes) -> None:
    body = b'{"messages": [{"role": "user", "content": "hi"}], "%s": %s}' % (field, literal)
    assert server.post(CHAT, body)[0] == 400


@pytest.mark.parametrize("value", [0, -1, 1, 10**9])
def test_top_k_off_and_large(server: Running, value: int) -> None:
    assert server.post(CHAT, {"messages": HELLO, "top_k": value})[0] == 200


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**64 - 1])
def test_seeds(server: Running, seed: int) -> None:
    assert server.post(CHAT, {"messages": HELLO, "seed": seed})[0] == 200


def test_chat_logprobs(server: Running) -> None:
    for asked, length in (({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 0}, 0), ({"logprobs": True, "top_logprobs": 2}, 2)):
        choice = server.post(CHAT, {"messages": HELLO, **asked})[2]["choices"][0]
        entries = choice["logprobs"]["content"]
        assert "".join(e["token"] for e in entries[:-1]) == "hello world"
        assert all(len(e["top_logprobs"]) == length and e["logprob"] == -0.5 and isinstance(e["bytes"], list) for e in entries)
    for wrong in ({"top_logprobs": 2}, {"logprobs": False, "top_logprobs": 2}, {"logprobs": True, "top_logprobs": 21}, {"logprobs": 1}):
        code, _, got = server.post(CHAT, {"messages": HELLO, **wrong})
        assert code == 400 and "logprobs" in got["error"]["param"], wrong
    assert server.post(CHAT, {"messages": HELLO})[2]["choices"][0]["logprobs"] is None


def test_completion_logprobs(server: Running) -> None:
    shown = server.post(TEXT, {"prompt": "hi", "logprobs": 0, "max_tokens": 2})[2]["choices"][0]["logprobs"]
    assert shown["tokens"] == ["h", "e"] and shown["token_logprobs"] == [-0.5, -0.5] and shown["text_offset"] == [0, 1]
    shown = server.post(TEXT, {"prompt": "hi", "logprobs": 3, "max_tokens": 2})[2]["choices"][0]["logprobs"]
    assert all(row["h" if i == 0 else "e"] == -0.5 and "" not in row for i, row in enumerate(shown["top_logprobs"]))
    assert server.post(TEXT, {"prompt": "hi", "logprobs": 21})[0] == 400


def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers(server: Running) -> None:
    long = "CODE=ZEBRA. " + "x " * 2000 + "What is CODE?"
    messages = [{"role": "user", "content": long}]
    for path, body in (
        (CHAT, {"messages": messages}), (TEXT, {"prompt": long}), ("/v1/responses", {"input": long}), (TEXT, {"prompt": [65] * 600}),
    ):  # fmt: skip
        code, _, got = server.post(path, body)
        assert code == 400 and got["error"]["code"] == "context_length_exceeded" and "512" in got["error"]["message"]
    code, _, got = server.post("/v1/messages", {"messages": messages, "max_tokens": 5})
    assert code == 400 and got["error"]["type"] == "invalid_request_error" and "512" in got["error"]["message"]


def test_max_tokens_above_what_is_left_is_capped(server: Running) -> None:
    server.engine.says = lambda *_: "x" * 600
    try:
        got = server.post(TEXT, {"prompt": [65] * 500, "max_tokens": 512})[2]
    finally:
        server.engine.says = lambda *_: "hello world"
    assert got["choices"][0]["finish_reason"] == "length" and got["usage"]["total_tokens"] == 512


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b'"x"', b"null", b"{} {}", b"\xff\xfe", b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"messages": 5}', b'{"messages": [5]}', b'{"messages": []}', b'{"messages": [{}]}', b'{"messages": [{"role": 5}]}', b"{}",
        b'{"messages": [{"role": "user", "content": {"a": 1}}]}', json.dumps({"messages": [{"role": "user", "content": 1}]}).encode(),
        json.dumps({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]}).encode(),
        json.dumps({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}).encode(),
        json.dumps({"messages": HELLO * 20_000}).encode(), json.dumps({"messages": HELLO, "tools": [{"type": "web"}]}).encode(),
        json.dumps({"messages": HELLO, "tools": [{"type": "function", "function": {"name": "f"}}] * 600}).encode(),
    ],
)  # fmt: skip
def test_bodies_that_are_no_request(server: Running, body: bytes) -> None:
    for path in (CHAT, "/v1/messages", "/v1/responses", TEXT, "/tokenize", "/detokenize"):
        code, headers, got = server.post(path, body)
        assert 400 <= code < 500 and headers["content-type"] == "application/json" and got["error"]["message"], (path, code)


@pytest.mark.parametrize(
    "more",
    [{"n": 10**6}, {"stop_token_ids": [1] * 10**5}, {"allowed_token_ids": [1] * 10**6},
     {"bad_words": ["x" * 2000]}, {"stop": ["x" * 2000]},
     {"best_of": 10**6}, {"prompt": ["x"] * 10**5}, {"prompt": ["x"] * 1000, "n": 100}, {"prompt": []}, {"prompt": [[]]},
     {"prompt": "x" * 1_000_000}, {"suffix": "x"}, {"prompt": [1, "a"]}, {"prompt": [10**9]}],
)  # fmt: skip
def test_one_small_request_cannot_eat_the_machine(server: Running, more: dict[str, Any]) -> None:
    began = time.perf_counter()
    code, _, got = server.post(TEXT, {"prompt": "hi", **more})
    assert code in (400, 413, 429), got
    assert time.perf_counter() - began < 10


def test_the_queue_has_an_end_and_says_when_to_come_back(server: Running) -> None:
    code, headers, got = server.post(CHAT, {"messages": HELLO, "n": 65})
    assert code == 429 and int(headers["retry-after"]) >= 1 and got["error"]["code"] == "queue_full"
    assert server.state.meters.refused["queue_full"] >= 1


def test_headers_over_the_limit_are_431(server: Running) -> None:
    for size in (70_000, 3_000_000):
        with connect(server.url) as sock:
            sock.sendall(request(CHAT, {"messages": HELLO}, headers=f"x-big: {'a' * size}\r\n"))
            assert status(until_closed(sock)) == 431
    with connect(server.url) as sock:
        sock.sendall(b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert status(until_closed(sock)) == 431


def test_bodies_over_the_limit_are_413_and_the_answer_arrives(server: Running) -> None:
    assert server.post(CHAT, b'{"a": "' + b"x" * (3 << 20) + b'"}')[0] == 413
    with connect(server.url) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999\r\n\r\n")
        assert status(until_closed(sock)) == 413
    with connect(server.url) as sock:  # no length given: counted on the way
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(40):
            sock.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        assert status(until_closed(sock)) == 413


def test_an_endless_list_of_ids_is_not_spelled_out(server: Running) -> None:
    code, _, got = server.post("/detokenize", {"tokens": [6] * 200_000})
    assert code == 400 and got["error"]["param"] == "tokens" and server.post("/detokenize", {"tokens": [65] * 10**5})[0] == 200


UPGRADES = [
    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAA\r\n",
    "upgrade: websocket\r\nconnection: upgrade\r\n",
]


@pytest.mark.parametrize("headers", UPGRADES)
def test_an_offer_of_another_protocol_is_passed_over(server: Running, headers: str) -> None:
    """Java's HTTP client makes one with every request; the body counts, even where it speaks of upgrades itself."""
    body = {"prompt": "a\r\nUpgrade: h2c", "max_tokens": 2, "echo": True}
    with connect(server.url) as sock:
        sock.sendall(request(TEXT, body, headers=headers + "connection: close\r\n"))
        reply = until_closed(sock)
    assert status(reply) == 200 and b"a\\r\\nUpgrade: h2c" in reply, reply


def test_packed_bodies_are_415_and_a_byte_order_mark_is_no_matter(server: Running) -> None:
    raw = b'{"prompt": "a", "max_tokens": 2}'
    code, _, got = server.post(TEXT, gzip.compress(raw), {"content-encoding": "gzip"})
    assert code == 415 and "gzip" in got["error"]["message"]
    assert server.post(TEXT, raw, {"content-encoding": "identity"})[0] == server.post(TEXT, b"\xef\xbb\xbf" + raw)[0] == 200


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/v1/chat/completions", "//v1/chat/completions", "/v1/chat/completions/"])
def test_a_slip_in_the_base_url_is_told(server: Running, path: str) -> None:
    code, _, got = server.post(path, {"messages": HELLO})
    assert code == 404 and got["error"]["message"].endswith("did you mean /v1/chat/completions?")
    assert "did you mean" not in server.post("/v1/embeddings", {})[2]["error"]["message"]


def test_what_is_no_http_is_400(server: Running) -> None:
    with connect(server.url) as sock:
        sock.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert status(until_closed(sock)) == 400


@pytest.mark.parametrize("sent", [b"POST /v1/completions HT", request(TEXT, {"prompt": "hi"})[:-5]])
def test_a_request_that_never_ends_is_closed(server: Running, sent: bytes) -> None:
    with connect(server.url) as sock:
        sock.sendall(sent)
        assert until_closed(sock) == b""


def test_many_idle_connections_do_not_hinder(server: Running) -> None:
    idle = [connect(server.url) for _ in range(200)]
    code, _, _ = server.post(CHAT, {"messages": HELLO})
    for sock in idle:
        sock.close()
    assert code == 200


def test_unknown_fields_are_named(server: Running) -> None:
    code, headers, _ = server.post(CHAT, {"messages": HELLO, "temprature": 1, "frobnicate": [1]})
    assert code == 200
    assert "did you mean 'temperature'" in headers["x-ridgeline-warning"] and "frobnicate" in headers["x-ridgeline-warning"]
    assert server.post(CHAT, {"messages": HELLO, "é\r\nset-cookie: x": 1})[0] == 200


def test_known_fields_without_a_meaning_are_silent(server: Running) -> None:
    more = {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "prompt_cache_key": "k", "modalities": ["text"]}
    code, headers, _ = server.post(CHAT, {"messages": HELLO, **more})
    assert code == 200 and "x-ridgeline-warning" not in headers
    assert server.post(CHAT, {"messages": HELLO, "modalities": ["audio"]})[0] == 400
    assert server.post(CHAT, {"messages": HELLO, "functions": [{"name": "f"}]})[0] == 400


# What is made under the interpreter's lock holds up the event loop and the engine, on whatever thread it runs (case SE-04).


@pytest.mark.parametrize("schema", sorted({body for _, _, _, body in ROUTES if body is not None}, key=lambda body: body.__name__))
def test_a_list_of_wrong_entries_is_one_fault(schema: type[Body]) -> None:
    """Six megabytes of nulls once were three million faults: 16 seconds in which nothing else ran."""
    for name in schema.model_fields:
        with pytest.raises(ValidationError) as caught:
            schema.model_validate({name: [object()] * 1000})
        assert caught.value.error_count() < 12, name


def test_the_first_wrong_entry_is_named(server: Running) -> None:
    for prompt in ([None] * 50_000, ["a"] * 20_000 + [1], [[1], [2], ["x"]]):
        code, _, got = server.post(TEXT, {"prompt": prompt})
        assert code == 400 and got["error"]["param"] == "prompt" and len(got["error"]["message"]) < 250, got
    code, _, got = server.post(CHAT, {"messages": [*HELLO, "hi"]})
    assert code == 400 and got["error"]["param"] == "messages[1]", got
    for bias in ({"5": "x"}, {"5": True}, {"5": None}, {"5": 10**400}, {"5": [1]}, {"5": 1e300}):
        code, _, got = server.post(TEXT, {"prompt": "a", "logit_bias": bias})
        assert code == 400 and got["error"]["param"] == "logit_bias", (bias, got)


def test_lone_surrogates_are_mended_in_a_body_of_usual_size_only() -> None:
    half = b"\\ud83d"
    with running(FakeEngine()) as large:
        assert large.post(TEXT, b'{"prompt": "a%s"}' % half)[0] == 200
        code, _, got = large.post(TEXT, b'{"prompt": "a%s", "user": "%s"}' % (half, b"x" * (2 << 20)))
        assert code == 400 and "is not valid JSON" in got["error"]["message"]


def test_a_value_is_shown_by_its_beginning() -> None:
    assert shown({"a": [1, "x"]}) == '{"a": [1, "x"]}' and shown("y" * 10**6) == '"' + "y" * 79 + "..."
    assert shown([[None] * 10**6]).startswith("[[null, null") and len(shown([[None] * 10**6])) == 83
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    assert len(shown(nested)) <= 83
