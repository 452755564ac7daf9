"""Who may call and from where, and what a request may make the server do (cases SE-01, SE-03, SE-05)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.server.fake_engine import FakeEngine, served
from tests.server.http_server import running

from ridgeline.errors import UserError
from ridgeline.server.gate import GateRules, loopback_names
from ridgeline.server.keys import Keys, load_keys
from ridgeline.server.state import Features

HELLO = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
ASK = {"messages": HELLO}


def keys_of(*given: str, file: str | None = None) -> Keys:
    found = load_keys(given, file)
    assert found is not None
    return found


def test_keys_are_asked_for_everywhere_but_health_and_metrics() -> None:
    with running(rules=GateRules(keys=keys_of("secret-1", "secret-2"))) as server:
        for path in ("/health", "/ping", "/version", "/metrics"):
            assert server.get(path)[0] == 200
        for path in ("/v1/models", "/v1/cache", "/v1/usage", "/openapi.json"):
            assert server.get(path)[0] == 401
        for path in (CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/tokenize", "/detokenize", "/nothing"):
            code, headers, got = server.post(path, ASK, {"authorization": "Bearer wrong"})
            assert code == 401 and headers["www-authenticate"] == "Bearer" and "secret" not in json.dumps(got)
        for headers in ({"authorization": "Bearer secret-1"}, {"authorization": "bearer secret-2"}, {"x-api-key": "secret-2"}):
            assert server.post(CHAT, ASK, headers)[0] == 200
        for wrong in ("", "Bearer", "Bearer ", "Basic secret-1", "Bearer secret-12", "Bearer é"):
            assert server.post(CHAT, ASK, {"authorization": wrong})[0] == 401
        assert server.post("/v1/messages", ASK)[2]["error"]["type"] == "authentication_error"


def test_a_key_file_with_names_and_budgets(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# people\nk-alice alice 100\nk-bob\n\n")
    with running(FakeEngine(), rules=GateRules(keys=keys_of(file=str(file)))) as server:
        alice, bob = {"authorization": "Bearer k-alice"}, {"authorization": "Bearer k-bob"}
        used = server.post(CHAT, {**ASK, "max_tokens": 20}, alice)[2]["usage"]["total_tokens"]
        report = server.get("/v1/usage", alice)[2]
        assert report == {"name": "alice", "requests": 1, "used_tokens": used, "budget_tokens": 100, "left_tokens": 100 - used}
        code, headers, got = server.post(CHAT, {**ASK, "max_tokens": 90}, alice)
        assert code == 429 and got["error"]["code"] == "insufficient_quota" and headers["x-should-retry"] == "false"
        assert "100" in got["error"]["message"] and "alice" in got["error"]["message"]
        # Without max_tokens what is left is the limit, and the last token of the budget is the last one.
        server.engine.says = lambda *_: "x" * 400
        left = report["left_tokens"]
        code, _, got = server.post(CHAT, ASK, alice)
        assert code == 200 and got["usage"]["total_tokens"] == left and got["choices"][0]["finish_reason"] == "length"
        assert server.post(CHAT, ASK, alice)[0] == 429
        assert server.get("/v1/usage", alice)[2]["left_tokens"] == 0
        assert server.post(CHAT, ASK, bob)[0] == 200 and server.get("/v1/usage", bob)[2]["budget_tokens"] is None


def test_bad_key_files_are_one_clear_line(tmp_path: Path) -> None:
    for text, word in (("", "no key"), ("a b c d\n", "4 words"), ("a n x\n", "whole number"), ("a n\nb n\n", "named 'n'")):
        file = tmp_path / "keys"
        file.write_text(text)
        with pytest.raises(UserError, match=word):
            load_keys((), str(file))
    with pytest.raises(UserError, match="No such file"):
        load_keys((), str(tmp_path / "none"))


PREFLIGHT = {"origin": "http://localhost:3000", "access-control-request-method": "POST",
             "access-control-request-headers": "authorization,content-type,x-stainless-os"}  # fmt: skip


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000"])
def test_by_default_no_web_origin_may_call(origin: str) -> None:
    with running(rules=GateRules(keys=keys_of("k"))) as server:
        for method, headers in (("OPTIONS", {**PREFLIGHT, "origin": origin}), ("POST", {"origin": origin, "authorization": "Bearer k"})):
            code, got, _ = server.send(method, CHAT, b"{}" if method == "POST" else None, headers)
            assert code == 403 and not any(name.lower().startswith("access-control") for name in got)
        assert not server.engine.seen


def test_allowed_origins_work_with_keys_errors_and_streams() -> None:
    rules = GateRules(keys=keys_of("k"), origins=("http://localhost:3000",))
    mine = {"origin": "http://localhost:3000"}
    with running(rules=rules) as server:
        code, got, _ = server.send("OPTIONS", CHAT, None, PREFLIGHT)
        assert code == 200 and got["access-control-allow-origin"] == "http://localhost:3000"
        assert "x-stainless-os" in got["access-control-allow-headers"] and "POST" in got["access-control-allow-methods"]
        for body, headers, want in (
            ({**ASK, "stream": True}, {"authorization": "Bearer k"}, 200),
            (ASK, {}, 401),
            ({}, {"x-api-key": "k"}, 400),
        ):
            code, got, _ = server.post(CHAT, body, {**mine, **headers})
            assert code == want and got["access-control-allow-origin"] == "http://localhost:3000"
            assert "access-control-allow-credentials" not in got
        assert server.post(CHAT, ASK, {"origin": "https://evil.example", "x-api-key": "k"})[0] == 403


def test_any_origin_is_never_reflected() -> None:
    with running(rules=GateRules(origins=("*",))) as server:
        code, got, _ = server.post(CHAT, ASK, {"origin": "https://evil.example"})
    assert code == 200 and got["access-control-allow-origin"] == "*" and "access-control-allow-credentials" not in got


def test_the_page_of_the_server_itself_may_call() -> None:
    with running() as server:
        assert server.post(CHAT, ASK, {"origin": server.url})[0] == 200


HOSTS = [
    ("localhost", 200), ("127.0.0.1:8000", 200), ("[::1]:80", 200), ("LOCALHOST", 200), ("evil.example", 403), ("", 403),
    ("localhost.evil.example", 403),
]  # fmt: skip


@pytest.mark.parametrize(("host", "code"), HOSTS)
def test_a_loopback_server_answers_to_its_own_names_only(host: str, code: int) -> None:
    with running(rules=GateRules(hosts=loopback_names("127.0.0.1"))) as server:
        assert server.get("/health", {"host": host})[0] == code


def test_a_public_server_answers_to_any_name() -> None:
    assert loopback_names("0.0.0.0") is None and loopback_names("10.0.0.7") is None
    assert "localhost" in (loopback_names("::1") or ())


ATTACKS = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ lipsum.__globals__['os'].popen('id').read() }}", "{{ messages.append(1) }}",
    "{{ cycler.__init__.__globals__ }}", "{{ messages[0].clear() }}", "{% for i in range(10**9) %}x{% endfor %}", "{{ 'a'*10**10 }}",
    "{% include '/etc/passwd' %}",
    "{% for a in range(999) %}{% for b in range(999) %}{% for c in range(999) %}x{% endfor %}{% endfor %}{% endfor %}",
    "{{ raise_exception('no system role') }}", "{% if %}", "{{ undefined_thing.x.y }}",
]  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_templates_are_bounded_and_in_the_sandbox(attack: str) -> None:
    """The model's own template, and one that a request brings: what fails is 400 with the reason, never 500."""
    for place in ("model", "request"):
        features = Features(allow_template=place == "request")
        with running(served=served(attack if place == "model" else "{{ messages }}"), features=features) as server:
            more = {"chat_template": attack} if place == "request" else {}
            code, _, got = server.post(CHAT, {**ASK, **more})
            text = json.dumps(got)
            assert code in (200, 400) and "uid=" not in text and "root:" not in text
            if code == 200:
                assert got["usage"]["prompt_tokens"] < 20
            assert server.get("/health")[0] == 200


def test_a_template_refusal_is_told() -> None:
    with running(served=served("{{ raise_exception('no system role') }}")) as server:
        code, _, got = server.post(CHAT, ASK)
    assert code == 400 and "no system role" in got["error"]["message"]


def test_a_request_may_bring_no_template_unless_allowed() -> None:
    with running() as server:
        code, _, got = server.post(CHAT, {**ASK, "chat_template": "{{ 1 }}"})
        assert code == 400 and got["error"]["param"] == "chat_template"
        for name in ("messages", "bos_token", "tools", "a b"):
            assert server.post(CHAT, {**ASK, "chat_template_kwargs": {name: "x"}})[0] == 400


@pytest.mark.parametrize("model", ["../../x", "/etc/passwd", "tiny/../tiny", "a" * 100_000, "http://evil.example/m"])
def test_a_model_name_is_only_a_name(model: str) -> None:
    with running() as server:
        code, _, got = server.post(CHAT, {**ASK, "model": model})
        assert code == 404 and len(got["error"]["message"]) < 1200


def test_nothing_is_fetched_for_a_schema() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}}
    with running() as server:
        for ref in ("file:///etc/passwd", "http://evil.example/s.json"):
            schema["properties"]["a"]["$ref"] = ref
            code, _, got = server.post(
                CHAT, {**ASK, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
            )
            assert code == 400, got


def test_a_request_id_is_kept_when_it_is_one() -> None:
    with running() as server:
        assert server.get("/health", {"x-request-id": "abc-1"})[1]["x-request-id"] == "abc-1"
        assert server.get("/health", {"x-request-id": "a b"})[1]["x-request-id"] != "a b"
        assert len(server.get("/health")[1]["x-request-id"]) == 32
