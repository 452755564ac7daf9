"""Case MT-01 to the letter over HTTP: what was sent, what was answered and what /metrics says are one account."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.tiny_gguf import tiny_gguf
from tests.server.http_server import Running, running
from tests.server.raw import connect, request
from tests.server.test_real_engine import metrics, settled

from ridgeline.engine.async_engine import AsyncEngine
from ridgeline.engine.loader import load
from ridgeline.options import make_options
from ridgeline.server.state import Served

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
POOL = 512  # tokens that the KV cache holds


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    path = tiny_gguf(tmp_path / "tiny.gguf", **{"llama.context_length": POOL})
    options = {"backend": "cpu", "threads": 1, "max_num_seqs": 8, "max_num_batched_tokens": 64, "kv_cache_dtype": "f32"}
    per_token = 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, numbers, bytes
    model = load(make_options(str(path), {**options, "kv_cache_memory_bytes": POOL * per_token}))
    assert model.plan.blocks == (POOL // model.plan.block_size,)
    with running(lambda: AsyncEngine(model), served=Served(("tiny",), model.text, model.limits)) as found:
        yield found


def until(true: Callable[[], bool]) -> None:
    for _ in range(500):
        if true():
            return
        time.sleep(0.02)
    raise AssertionError(true)


@contextlib.contextmanager
def between_steps(server: Running) -> Iterator[None]:
    """The engine stands still: what is sent meanwhile waits."""
    stands, go = threading.Event(), threading.Event()

    def stand(_: Any) -> None:
        stands.set()
        go.wait(30)

    asyncio.run_coroutine_threadsafe(server.engine.call(stand), server.loop)
    assert stands.wait(10)
    try:
        yield
    finally:
        go.set()


def stand_after_a_token(server: Running, patch: pytest.MonkeyPatch) -> threading.Event:
    """The engine stands still behind the next step that drew something, until the event is set."""
    step, go, drew = server.engine.core.step, threading.Event(), threading.Event()

    def once() -> Any:
        if drew.is_set():
            go.wait(30)
        touched = step()
        if touched:
            drew.set()
        return touched

    patch.setattr(server.engine.core, "step", once)
    return go


def leave_in_decode(server: Running, prompt: str, patch: pytest.MonkeyPatch) -> None:
    """A client that goes away after its first token."""
    gone = server.state.meters.gone
    with patch.context() as here:
        go = stand_after_a_token(server, here)
        with connect(server.url) as sock:
            sock.sendall(request(TEXT, {"prompt": prompt, "max_tokens": 400, "ignore_eos": True, "stream": True}))
            data = b""
            while b"data: " not in data:
                data += sock.recv(1000)
        until(lambda: server.state.meters.gone == gone + 1)
        go.set()
        settled(server)


def leave_in_queue(server: Running, prompts: list[str]) -> None:
    gone = server.state.meters.gone
    with between_steps(server):
        socks = [connect(server.url) for _ in prompts]
        for sock, prompt in zip(socks, prompts, strict=True):
            sock.sendall(request(TEXT, {"prompt": prompt, "max_tokens": 400}))
        until(lambda: server.state.pending == len(prompts))
        for sock in socks:
            sock.close()
        until(lambda: server.state.meters.gone == gone + len(prompts))
    settled(server)


def never_falls(before: dict[str, float], after: dict[str, float]) -> None:
    """Counters and buckets only grow, and a bucket holds what those below it hold."""
    counted = ("_total", "_count", "_sum")
    assert all(after[name] >= value for name, value in before.items() if name.partition("{")[0].endswith(counted) or "_bucket{" in name)
    rows: dict[str, list[float]] = {}
    for name, value in after.items():
        if "_bucket{" in name:
            rows.setdefault(name.partition("{")[0], []).append(value)
    assert len(rows) > 10
    for name, row in rows.items():
        assert row == sorted(row) and row[-1] == after[name.removesuffix("_bucket") + "_count"]


def test_every_fate_of_a_request_is_counted_once(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """10 ok, 3 aborted in decode, 2 in the queue, 1 refused, 1 failed, 2 of 3 preempted, n = 2 once, 1 cache hit.

    Prompts count when their request ends, however it ends; tokens when they are drawn, an aborted request's too."""
    before = settled(server)
    exact = {"ignore_eos": True}
    usages = [server.post(TEXT, {"prompt": f"{c} is a letter", "max_tokens": 5, **exact})[2]["usage"] for c in "abcdefghij"]
    for prompt in ("1 decodes", "2 decodes", "3 decodes"):
        leave_in_decode(server, prompt, monkeypatch)
    leave_in_queue(server, ["4 waits", "5 waits"])
    assert server.post(TEXT, {"prompt": "k", "top_p": 7})[0] == 400
    code, _, got = server.post(TEXT, {"prompt": "l fails", "guided_choice": ["yes"], "allowed_token_ids": [ord("n")]})
    assert code == 500 and "no token is allowed" in got["error"]["message"]
    long = POOL * 3 // 4  # three such answers grow beyond the pool
    usages.append(server.post(TEXT, {"prompt": ["m", "n", "o"], "max_tokens": long, **exact})[2]["usage"])
    usages.append(server.post(TEXT, {"prompt": "p twice", "n": 2, "max_tokens": 5, **exact})[2]["usage"])
    again = server.post(TEXT, {"prompt": "p twice", "max_tokens": 5, **exact})[2]["usage"]
    usages.append(again)
    after = settled(server)
    never_falls(before, after)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    ended = {reason: grown(f"vllm:request_success_total{{finished_reason={reason}}}") for reason in ("stop", "length", "abort", "error")}
    assert ended == {"stop": 0, "length": 10 + 3 + 2 + 1, "abort": 3 + 2, "error": 1}
    assert grown("ridgeline:requests_total") == sum(ended.values()) - 1  # the one with two choices
    assert grown("ridgeline:clients_gone_total") == 5 and grown("vllm:corrupted_requests_total") == 1
    replies = {code: grown(f"ridgeline:http_replies_total{{path={TEXT},status={code}}}") for code in (200, 400, 499, 500)}
    assert replies == {200: 10 + 3 + 3, 400: 1, 499: 2, 500: 1}  # a stream had its 200 before its client left
    # One first token a request that came to one, preempted or not; none for the queue's and the failed one.
    assert grown("vllm:time_to_first_token_seconds_count") == 10 + 3 + 3 + 1 + 1
    assert grown("vllm:e2e_request_latency_seconds_count") == grown("ridgeline:requests_total")
    preempted = grown("vllm:request_num_preemptions_count") - grown("vllm:request_num_preemptions_bucket{le=0.0}")
    assert preempted == 2 and grown("vllm:num_preemptions_total") == grown("vllm:request_num_preemptions_sum") >= 2
    check_tokens(grown, usages, again)
    assert_idle(after)


def check_tokens(grown: Callable[[str], float], usages: list[dict[str, Any]], again: dict[str, Any]) -> None:
    """Prompts and answers of the whole run beside the summed usage of what was answered."""
    decoded, waited, failed = 3 * len("1 decodes"), 2 * len("4 waits"), len("l fails")
    prompts = sum(u["prompt_tokens"] for u in usages)
    assert grown("vllm:prompt_tokens_total") == grown("vllm:request_prompt_tokens_sum") == prompts + decoded + waited + failed
    unread = grown("vllm:generation_tokens_total") - sum(u["completion_tokens"] for u in usages)
    assert 3 <= unread < 3 * 400  # what the three that left had been told, and a step or so
    assert grown("vllm:request_generation_tokens_sum") == grown("vllm:generation_tokens_total")
    cached = again["prompt_tokens_details"]["cached_tokens"]
    assert 0 < cached < again["prompt_tokens"]
    # What a preempted request finds of itself is no hit.
    assert grown("vllm:prefix_cache_hits_total") == grown("vllm:prompt_tokens_cached_total") == cached
    assert grown("vllm:prefix_cache_queries_total") == grown("vllm:prompt_tokens_total") - waited
    recomputed = grown("ridgeline:computed_prompt_tokens_total") - (grown("vllm:prompt_tokens_total") - waited - cached)
    assert recomputed > 0


def assert_idle(found: dict[str, float]) -> None:
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "ridgeline:choices_pending")
    assert [found[name] for name in names] == [0] * len(names)


def test_twenty_aborted_at_once_leave_the_gauges_at_nothing(server: Running) -> None:
    """And nobody sends anything afterwards that could refresh them."""
    before = settled(server)
    socks = [connect(server.url) for _ in range(20)]
    with between_steps(server):
        for number, sock in enumerate(socks):
            more = {"max_tokens": 400, "ignore_eos": True, "stream": number % 4 < 2}
            chat = {"messages": [{"role": "user", "content": f"{number}"}]}
            sock.sendall(request(CHAT, chat | more) if number % 2 else request(TEXT, {"prompt": f"{number} x", **more}))
        until(lambda: server.state.pending == 20)
    for sock in socks:
        sock.close()
    after = settled(server)
    assert_idle(after)
    never_falls(before, after)
    ends = sum(v for k, v in after.items() if k.startswith("vllm:request_success_total{"))
    assert ends == after["ridgeline:requests_total"] and metrics(server)["vllm:num_requests_running"] == 0
