"""/v1/chat/completions with a scripted engine: framing, usage, errors, extra fields."""

from __future__ import annotations

from pathlib import Path

from tests.cli.tiny_gguf import tiny_gguf
from tests.server.fake_engine import FakeEngine, served
from tests.server.http_server import events, running

from ridgeline.engine.words import open_words
from ridgeline.formats.checkpoint import open_checkpoint

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


def test_the_models_own_sampling_is_the_default_and_requests_win(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf", **{"general.sampling.temp": 0.5, "general.sampling.top_k": 7, "general.sampling.top_p": 3.0})
    words = open_words(open_checkpoint(path))
    assert words.sampling == {"temperature": 0.5, "top_k": 7}  # a top_p of 3 is none
    with running(served=served(defaults=words.sampling)) as server:
        server.post("/v1/chat/completions", {"messages": HELLO})
        server.post("/v1/completions", {"prompt": "x", "temperature": 0, "top_k": None})
        server.post("/v1/messages", {"messages": HELLO, "max_tokens": 5, "top_k": 3})
        seen = [(r.params.temperature, r.params.top_k, r.params.top_p) for r in server.engine.seen]
    assert seen == [(0.5, 7, 1.0), (0.0, 7, 1.0), (0.5, 3, 1.0)]


def test_vllms_extra_parameters_reach_the_engine() -> None:
    more = {
        "top_k": 4, "min_p": 0.1, "repetition_penalty": 1.1, "ignore_eos": True, "min_tokens": 2, "max_tokens": 4, "stop_token_ids": [9],
        "cache_salt": "s", "priority": -3, "skip_special_tokens": False, "include_stop_str_in_output": True, "bad_words": ["q"],
        "allowed_token_ids": [104, 101, 108, 111], "seed": 7, "logit_bias": {"5": -1}, "return_token_ids": True, "stop": "zz",
    }  # fmt: skip
    with running() as server:
        code, headers, got = server.post("/v1/chat/completions", {"messages": HELLO, **more})
        asked = server.engine.seen[0]
    p = asked.params
    assert code == 200 and "x-ridgeline-warning" not in headers
    assert (p.top_k, p.min_p, p.repetition_penalty, p.ignore_eos, p.min_tokens, p.stop_token_ids) == (4, 0.1, 1.1, True, 2, (9,))
    assert (asked.cache_salt, asked.priority, p.skip_special_tokens, p.include_stop_str_in_output) == ("s", -3, False, True)
    assert (p.bad_words, p.allowed_token_ids, p.seed, p.logit_bias, p.stop) == (("q",), (104, 101, 108, 111), 7, ((5, -1.0),), ("zz",))
    assert got["choices"][0]["token_ids"] == list(b"hell") and got["prompt_token_ids"] == list(asked.prompt_ids)


def test_continue_final_message() -> None:
    messages = [*HELLO, {"role": "assistant", "content": "The answer is "}]
    with running() as server:
        server.post("/v1/chat/completions", {"messages": messages, "continue_final_message": True})
        server.post("/v1/messages", {"messages": messages, "max_tokens": 5})
        server.post("/v1/chat/completions", {"messages": HELLO, "add_generation_prompt": False})
        decode = server.state.served.words.tokenizer.decode
        texts = [decode(list(r.prompt_ids), skip_special=False) for r in server.engine.seen]
        both = {"messages": messages, "continue_final_message": True, "add_generation_prompt": True}
        assert server.post("/v1/chat/completions", both)[0] == 400
    assert texts[0] == texts[1] and texts[0].endswith("<|im_start|>assistant\nThe answer is ")
    assert texts[2].endswith("hi<|im_end|>\n")


def test_developers_are_the_system_where_the_template_knows_none() -> None:
    with running() as server:
        code, _, _ = server.post("/v1/chat/completions", {"messages": [{"role": "developer", "content": "Be kind."}, *HELLO]})
        prompt = server.state.served.words.tokenizer.decode(list(server.engine.seen[0].prompt_ids), skip_special=False)
    assert code == 200 and prompt.startswith("<|im_start|>system\nBe kind.<|im_end|>")
