"""The server on the real engine and a tiny random model: forms that hold, counts that add up, nothing left behind (SO, MT-01, ST-06)."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.cli.tiny_gguf import tiny_gguf
from tests.server.http_server import Running, events, running
from tests.server.raw import connect, request
from tests.server.test_fuzz import fuzz

from ridgeline.engine.async_engine import AsyncEngine
from ridgeline.engine.loader import load
from ridgeline.options import make_options
from ridgeline.server.state import Features, Served

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]
LENGTH = 2048


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = tiny_gguf(Path(tmp_path_factory.mktemp("model")) / "tiny.gguf", **{"llama.context_length": LENGTH})
    options = {"backend": "cpu", "threads": 1, "max_num_seqs": 8, "kv_cache_memory_bytes": 4 << 20, "max_num_batched_tokens": 64}
    model = load(make_options(str(path), options))
    made = Served(("tiny",), model.text, model.limits)
    with running(lambda: AsyncEngine(model), served=made, features=Features(show_cache=True)) as found:
        yield found


def metrics(server: Running) -> dict[str, float]:
    """Values by name, labels other than the model left in."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(server.get("/metrics")[2].decode()):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()) if k not in ("model_name", "engine"))
            found[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


def settled(server: Running) -> dict[str, float]:
    """Metrics once nothing runs."""
    for _ in range(250):
        found = metrics(server)
        if found["vllm:num_requests_running"] == found["vllm:num_requests_waiting"] == found["ridgeline:choices_pending"] == 0:
            return found
        time.sleep(0.02)
    raise AssertionError(found)


SCHEMA = {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string", "maxLength": 8}, "c": {"enum": ["北京", "Zürich"]}},
    "required": ["a", "b", "c"], "additionalProperties": False,
}  # fmt: skip
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_holds_whatever_the_model_would_say(server: Running, stream: bool) -> None:
    """Random weights at temperature 2, several choices, stop strings that JSON contains, a seed each."""
    body = {
        "messages": HELLO,
        "response_format": FORM,
        "temperature": 2,
        "n": 3,
        "max_tokens": 300,
        "stop": ["}"],
        "seed": 5,
        "stream": stream,
    }
    got = server.post(CHAT, body)[2]
    texts, finishes = ["", "", ""], [None, None, None]
    if stream:
        for chunk in events(got)[:-1]:
            choice = chunk["choices"][0]
            texts[choice["index"]] += choice["delta"].get("content") or ""
            finishes[choice["index"]] = choice["finish_reason"] or finishes[choice["index"]]
    else:
        texts = [c["message"]["content"] for c in got["choices"]]
        finishes = [c["finish_reason"] for c in got["choices"]]
    assert "stop" in finishes
    for text, finish in zip(texts, finishes, strict=True):
        if finish == "stop":
            value = json.loads(text)
            assert sorted(value) == ["a", "b", "c"] and isinstance(value["a"], int) and value["c"] in ("北京", "Zürich")


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_usage_splits_the_first_token_into_queue_and_prompt(server: Running, path: str) -> None:
    """Row 7: per request, in seconds, on a stream and in a document; not for several prompts, not before all is said."""
    ask: dict[str, Any] = {"messages": HELLO} if path == CHAT else {"prompt": "hi"}
    names = ("queue_time", "prompt_time", "completion_time")
    got = server.post(path, ask | {"max_tokens": 5, "ignore_eos": True})[2]["usage"]
    options = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    chunks = events(server.post(path, ask | {"max_tokens": 5, "ignore_eos": True} | options)[2])[:-1]
    running_totals = [c["usage"] for c in chunks if c.get("usage")]
    assert not any("prompt_time" in u for u in running_totals if u["completion_tokens"] < 5) and len(running_totals) > 1
    for found in (got, chunks[-1]["usage"]):
        assert all(found[name] >= 0 for name in names) and found["prompt_time"] > 0 and found["completion_time"] > 0
        assert found["total_time"] == pytest.approx(sum(found[name] for name in names), abs=1e-5)
    if path != CHAT:
        assert "prompt_time" not in server.post(path, {"prompt": ["a", "b"], "max_tokens": 2})[2]["usage"]


def test_the_other_forms(server: Running) -> None:
    ask = {"messages": HELLO, "max_tokens": 200, "seed": 1}

    def said(more: dict[str, Any]) -> str:
        code, _, got = server.post(CHAT, {**ask, **more})
        assert code == 200, got
        assert got["choices"][0]["finish_reason"] == "stop", got
        return str(got["choices"][0]["message"]["content"])

    assert said({"guided_choice": ["yes", "no"]}) in ("yes", "no")
    assert said({"structured_outputs": {"regex": "[a-c]{3}"}}) in {a + b + c for a in "abc" for b in "abc" for c in "abc"}
    assert said({"guided_grammar": 'start: "x" "y"'}) == "xy"
    before = metrics(server)
    assert isinstance(json.loads(said({"response_format": {"type": "json_object"}, "logit_bias": {"125": 100}})), dict)
    after = metrics(server)
    for name in ("grammars_compiled", "grammar_compile_seconds", "grammar_masks", "grammar_mask_seconds"):  # what it cost is told
        assert after[f"ridgeline:{name}_total"] >= before[f"ridgeline:{name}_total"] >= 0 < after[f"ridgeline:{name}_total"]
    assert after["ridgeline:grammar_masks_total"] > before["ridgeline:grammar_masks_total"]
    got = server.post("/v1/completions", {"prompt": "a", "guided_regex": "[0-9]{4}", "max_tokens": 20})[2]
    assert got["choices"][0]["text"].isdigit()
    got = server.post(
        "/v1/responses", {"input": "hi", "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}, "seed": 1}
    )[2]
    assert sorted(json.loads(got["output"][0]["content"][0]["text"])) == ["a", "b", "c"]


@pytest.mark.parametrize("field", ["output_config", "output_format"])
def test_anthropics_form(server: Running, field: str) -> None:
    form = {"type": "json_schema", "schema": NUMBER}
    body = {"messages": HELLO, "max_tokens": 60, "seed": 1, field: {"format": form} if field == "output_config" else form}
    got = server.post("/v1/messages", body)[2]
    assert got["stop_reason"] == "end_turn" and json.loads(got["content"][0]["text"])["x"] in (1, 2)
    for bad in ({"type": "json_schema"}, {"type": "text"}, {"type": "json_schema", "schema": {"type": 7}}):
        assert server.post("/v1/messages", {**body, field: {"format": bad} if field == "output_config" else bad})[0] == 400
    assert server.post("/v1/messages", {**body, "output_config": {"effort": "low"}, "output_format": None})[0] == 200


def test_a_forced_call_comes(server: Running) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"enum": [1, 2]}},
                                                                        "required": ["x"], "additionalProperties": False}}}  # fmt: skip
    for choice, finish in (("required", "tool_calls"), ({"type": "function", "function": {"name": "f"}}, "stop")):
        code, _, got = server.post(
            CHAT, {"messages": HELLO, "tools": [tool], "tool_choice": choice, "parallel_tool_calls": False, "seed": 2}
        )
        assert code == 200, got
        found = got["choices"][0]
        assert found["finish_reason"] == finish and json.loads(found["message"]["tool_calls"][0]["function"]["arguments"])["x"] in (1, 2)


NUMBER = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": False}
F = {"type": "function", "function": {"name": "f", "parameters": NUMBER}}


def test_a_named_function_is_called_once(server: Running) -> None:
    """Whatever the model would like to go on with, and although calls may be parallel."""
    named = {"type": "function", "function": {"name": "f"}}
    more = {"ignore_eos": True, "temperature": 2, "max_tokens": 400}
    for seed in range(4):
        got = server.post(CHAT, {"messages": HELLO, "tools": [F], "tool_choice": named, "seed": seed, **more})[2]["choices"][0]
        assert got["finish_reason"] == "stop" and len(got["message"]["tool_calls"]) == 1, got


@pytest.mark.parametrize("form", [FORM, {"type": "json_object"}, None])
@pytest.mark.parametrize("stream", [False, True])
def test_a_form_binds_what_is_said_and_leaves_calls_free(server: Running, form: Any, stream: bool) -> None:
    """As OpenAI has it: under "auto" the model either calls a tool or answers in the form."""
    body = {"messages": HELLO, "tools": [F], "max_tokens": 400, "seed": 3, "stream": stream, "parallel_tool_calls": False}
    body |= {"response_format": form} if form is not None else {"guided_choice": ["yes", "no"]}
    for first, calls in (("<", True), ("y" if form is None else "{", False)):
        bias = {str(server.state.served.words.tokenizer.encode_plain(first)[0]): 100}
        code, headers, got = server.post(
            CHAT, {**body, "logit_bias": bias if calls or form != {"type": "json_object"} else {**bias, "125": 100}}
        )
        assert code == 200 and "x-ridgeline-warning" not in headers, got
        text, found, finish = read_chat(got, stream)
        if calls:
            assert finish == "tool_calls" and text == "" and [json.loads(c)["x"] in (1, 2) for c in found] == [True]
        else:
            assert finish in ("stop", "length") and not found
            assert text == "yes" if form is None else finish == "length" or isinstance(json.loads(text), dict)


def read_chat(got: Any, stream: bool) -> tuple[str, list[str], str]:
    """(text, arguments of each call, finish reason) of a reply."""
    if not stream:
        choice = got["choices"][0]
        calls = [c["function"]["arguments"] for c in choice["message"].get("tool_calls", [])]
        return choice["message"]["content"] or "", calls, choice["finish_reason"]
    text, found, finish = "", [], ""
    for chunk in events(got)[:-1]:
        choice = chunk["choices"][0]
        text, finish = text + (choice["delta"].get("content") or ""), choice["finish_reason"] or finish
        for part in choice["delta"].get("tool_calls", []):
            found += [""] if part["index"] == len(found) else []
            found[part["index"]] += part["function"]["arguments"]
    return text, found, finish


def test_a_strict_tool_whose_schema_cannot_be_kept_is_400(server: Running) -> None:
    bad = {"type": "object", "properties": {"x": {"type": "string", "not": {"const": "a"}}}}
    for strict, code in ((True, 400), (False, 200)):
        tool = {"type": "function", "function": {"name": "f", "parameters": bad, "strict": strict}}
        got = server.post(CHAT, {"messages": HELLO, "tools": [tool], "max_tokens": 2})
        assert got[0] == code, got
    code, _, got = server.post(
        CHAT, {"messages": HELLO, "tools": [F], "tool_choice": "required", "response_format": {"type": "json_schema"}}
    )
    assert code == 400


@pytest.mark.parametrize(
    "more",
    [
        {"response_format": {"type": "json_schema"}}, {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 7}}}},
        {"response_format": {"type": "yaml"}}, {"guided_regex": "("}, {"guided_choice": []},
        {"guided_grammar": "start: " + "(" * 60_000}, {"guided_grammar": "x"},
        {"structured_outputs": {}}, {"structured_outputs": {"json": 5}},
        {"guided_json": "{", "stream": True}, {"guided_choice": ["a"], "guided_regex": "a"},
        {"structured_outputs": {"structural_tag": "x"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"properties": {f"p{i}": {} for i in range(20_000)}}}}},
    ],
)  # fmt: skip
def test_forms_that_cannot_be_are_400_while_health_answers(server: Running, more: dict[str, Any]) -> None:
    code, _, got = server.post(CHAT, {"messages": HELLO, **more})
    assert code == 400, got
    assert server.get("/health")[0] == 200


@pytest.mark.parametrize("regex", ["(a{1,1000}){1,1000}", "(a+)+$", "((((((((((a|b)*)*)*)*)*)*)*)*)*)*"])
def test_costly_expressions_cost_nothing(server: Running, regex: str) -> None:
    began = time.perf_counter()
    assert server.post(CHAT, {"messages": HELLO, "guided_regex": regex, "max_tokens": 4})[0] in (200, 400)
    assert time.perf_counter() - began < 10


def test_counts_add_up(server: Running) -> None:
    before = settled(server)
    usages = []
    for number in range(6):
        usages.append(server.post("/v1/completions", {"prompt": f"request {number}", "max_tokens": 7, "ignore_eos": True})[2]["usage"])
    usages.append(server.post(CHAT, {"messages": HELLO, "n": 2, "max_tokens": 5, "ignore_eos": True})[2]["usage"])
    usages.append(server.post("/v1/completions", {"prompt": "request 0", "max_tokens": 3, "ignore_eos": True})[2]["usage"])
    assert server.post(CHAT, {"messages": HELLO, "top_p": 7})[0] == 400
    for _ in range(4):
        sock = connect(server.url)
        sock.sendall(request("/v1/completions", {"prompt": "long one", "max_tokens": 400, "ignore_eos": True, "stream": True}))
        assert sock.recv(100)
        sock.close()
    after = settled(server)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown("ridgeline:requests_total") == 12
    ended = {reason: grown(f"vllm:request_success_total{{finished_reason={reason}}}") for reason in ("stop", "length", "abort", "error")}
    assert sum(ended.values()) == 13 and ended["abort"] == grown("ridgeline:clients_gone_total") == 4 and ended["length"] == 9
    # Tokens of aborted requests count as computed, so the totals are at least what was replied.
    assert grown("vllm:generation_tokens_total") >= sum(u["completion_tokens"] for u in usages)
    assert grown("vllm:prompt_tokens_total") == sum(u["prompt_tokens"] for u in usages) + 4 * len("long one")
    assert usages[-1]["prompt_tokens_details"]["cached_tokens"] > 0
    assert 8 <= grown("vllm:time_to_first_token_seconds_count") <= 12
    assert after["vllm:kv_cache_usage_perc"] == 0
    assert grown("vllm:prefix_cache_hits_total") >= usages[-1]["prompt_tokens_details"]["cached_tokens"]
    assert all(after[name] >= value for name, value in before.items() if name.endswith("_total"))
    assert grown("vllm:request_params_max_tokens_sum") == 6 * 7 + 5 + 3 + 4 * 400
    computed = grown("vllm:request_prefill_kv_computed_tokens_sum")
    assert computed == grown("vllm:prompt_tokens_total") - grown("vllm:prompt_tokens_cached_total")
    assert grown("vllm:request_inference_time_seconds_count") >= 8
    # One pass over the weights per step: the layers' always, the head's where a token is drawn.
    assert grown("ridgeline:memory_bytes_total{kind=weights}") > grown("ridgeline:steps_total") * 1000
    assert grown("ridgeline:memory_bytes_total{kind=kv_written}") > 0 and grown("ridgeline:flops_total{kind=float}") > 0
    buckets = [v for k, v in after.items() if k.startswith("vllm:e2e_request_latency_seconds_bucket")]
    assert buckets == sorted(buckets) and buckets[-1] == after["vllm:e2e_request_latency_seconds_count"]


def test_gauges_fall_after_a_mass_of_aborts(server: Running) -> None:
    socks = []
    for number in range(20):
        sock = connect(server.url)
        stream = number % 2 == 0
        sock.sendall(request("/v1/completions", {"prompt": f"{number} x", "max_tokens": 400, "ignore_eos": True, "stream": stream, "n": 2}))
        socks.append(sock)
    for sock in socks:
        sock.close()
    found = settled(server)
    assert found["vllm:kv_cache_usage_perc"] == 0
    assert server.get("/health")[0] == 200


def test_the_cache_tree_shows_prefixes(server: Running) -> None:
    prompt = "a prefix that is long enough to be seen in the tree"
    server.post("/v1/completions", {"prompt": prompt, "max_tokens": 2})
    tree = server.get("/v1/cache?limit=5000")[2]
    assert tree["policy"] == "radix" and tree["nodes_total"] == len(tree["nodes"]) and tree["tokens_total"] >= len(prompt)
    assert all(n["tokens"] > 0 and n["references"] == 0 and n["idle_s"] >= 0 for n in tree["nodes"] if n["blocks"])
    assert len(server.get("/v1/cache?limit=1")[2]["nodes"]) == 1


def test_parallel_clients_get_what_they_get_alone(server: Running) -> None:
    """Greedy text is the same alone and among others, over HTTP too."""
    bodies = [{"prompt": f"number {i} says", "max_tokens": 20, "temperature": 0, "ignore_eos": True} for i in range(12)]
    alone = [server.post("/v1/completions", b)[2]["choices"][0]["text"] for b in bodies]
    together: list[str | None] = [None] * len(bodies)

    def ask(i: int) -> None:
        together[i] = server.post("/v1/completions", bodies[i])[2]["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_mutated_bodies_on_the_real_engine(server: Running) -> None:
    fuzz(server, int(os.environ.get("FUZZ_BODIES", "250")), 11)
    found = settled(server)
    assert (
        found["vllm:kv_cache_usage_perc"] == 0 and found["ridgeline:backend_faults_total"] == found["ridgeline:engine_restarts_total"] == 0
    )
    free_of_users(server)


@pytest.mark.long
def test_many_mutated_bodies_on_the_real_engine(server: Running) -> None:
    fuzz(server, 20_000, 12)
    free_of_users(server)


def free_of_users(server: Running) -> None:
    """No block is in use, and every invariant of the cache holds."""
    for _ in range(250):
        future = asyncio.run_coroutine_threadsafe(
            server.engine.call(lambda core: (core.state.kv.check(), core.state.kv.usage())[1]), server.loop
        )
        if all(used == 0 for _, _, used in future.result(30)):
            return
        time.sleep(0.02)
    raise AssertionError("blocks are still in use")


def test_clients_that_vanish_at_every_point(server: Running) -> None:
    """300 of them: before the headers are through, in the queue, in the prompt, between tokens, at the end."""
    for number in range(300):
        stream = number % 2 == 0
        body = {"prompt": f"{number % 7} " * 40, "max_tokens": 1 + number % 60, "ignore_eos": True, "stream": stream, "n": 1 + number % 2}
        whole = request("/v1/completions", body)
        sock = connect(server.url)
        sock.sendall(whole if number % 5 else whole[: number % len(whole)])
        if number % 3 == 0:
            time.sleep(number % 11 / 1000)
        sock.close()
    found = settled(server)
    assert found["vllm:kv_cache_usage_perc"] == 0
    free_of_users(server)
    assert server.post(CHAT, {"messages": HELLO, "max_tokens": 3})[0] == 200
