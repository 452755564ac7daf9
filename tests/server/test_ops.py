"""Endpoints for operators and for tools: health, version, metrics, cache, tokenize."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.fake_engine import FakeEngine
from tests.server.http_server import running

from ridgeline.errors import UserError
from ridgeline.server.gate import GateRules
from ridgeline.server.state import Ceilings, Features
from ridgeline.server.tracing import span_recorder

HELLO = [{"role": "user", "content": "hi"}]
DASHBOARD = Path(__file__).resolve().parents[2] / "docs" / "grafana_dashboard.json"


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_health_version_ping() -> None:
    with running(features=Features(version="1.2.3")) as server:
        assert server.get("/health")[0] == server.get("/ping")[0] == server.post("/ping", {})[0] == 200
        assert server.get("/version")[2] == {"version": "1.2.3"}
        for path in ("/health", "/v1/models", "/metrics"):
            assert server.send("HEAD", path, None)[0] == 200
        server.engine.broken = "NaN everywhere"
        status, _, got = server.get("/health")
        assert status == 503 and "NaN everywhere" in got["error"]["message"]


def test_metrics_have_vllm_names_and_add_up() -> None:
    with running(FakeEngine()) as server:
        server.post("/v1/chat/completions", {"messages": HELLO})
        server.post("/v1/chat/completions", {"messages": HELLO, "model": "no"})
        status, headers, data = server.get("/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    found = samples(data.decode())
    assert found["ridgeline:http_replies_total", (("path", "/v1/chat/completions"), ("status", "200"))] == 1
    assert found["ridgeline:http_replies_total", (("path", "/v1/chat/completions"), ("status", "404"))] == 1
    names = {name for name, _ in found}
    for name in (
        "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total", "vllm:time_to_first_token_seconds_bucket", "vllm:inter_token_latency_seconds_count",
        "vllm:e2e_request_latency_seconds_sum", "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:cache_config_info",
        "vllm:request_success_total", "vllm:num_preemptions_total", "vllm:iteration_tokens_total_bucket",
        "vllm:request_inference_time_seconds_count", "vllm:request_max_num_generation_tokens_sum", "vllm:request_params_max_tokens_sum",
        "vllm:request_prefill_kv_computed_tokens_sum",
    ):  # fmt: skip
        assert name in names
    pending = (("engine", "0"), ("model_name", "tiny"))
    assert found["ridgeline:choices_pending", pending] == 0


def test_shares_of_the_ceilings_where_those_were_measured() -> None:
    class Busy(FakeEngine):
        def stats(self) -> dict[str, float]:
            done = {"flops_integer": 600, "flops_float": 50, "flops_bfloat16": 30}
            moved = {"bytes_weights": 5, "bytes_kv_read": 3, "bytes_kv_written": 2}
            rates = {"recent_flops_integer_per_s": 1e11, "recent_flops_float_per_s": 1e10, "recent_flops_bfloat16_per_s": 6e10}
            return {**done, **moved, "recent_memory_bytes_per_s": 6e9, **rates}

    ours = (("engine", "0"), ("model_name", "tiny"))
    with running(Busy(), features=Features(ceilings=Ceilings(30e9, 1e12, 1e11, 2e11))) as server:
        found = samples(server.get("/metrics")[2].decode())
    assert found["ridgeline:memory_bandwidth_share", ours] == 0.2 and found["ridgeline:compute_share", ours] == pytest.approx(0.5)
    assert found["vllm:estimated_read_bytes_per_gpu_total", ours] == 8 and found["vllm:estimated_write_bytes_per_gpu_total", ours] == 2
    assert found["vllm:estimated_flops_per_gpu_total", ours] == 680
    assert found["ridgeline:flops_total", (*ours[:1], ("kind", "bfloat16"), *ours[1:])] == 30
    assert found["ridgeline:memory_bytes_total", (*ours[:1], ("kind", "weights"), *ours[1:])] == 5
    with running(Busy()) as server:
        assert "bandwidth_share" not in server.get("/metrics")[2].decode()


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    with running(features=Features(ceilings=Ceilings(1, 1, 1, 1))) as server:
        text = server.get("/metrics")[2].decode()
    names = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    board: Any = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"(?:vllm|ridgeline):\w+", query)}
    assert len(board["panels"]) >= 8 and asked and asked - names - {"ridgeline:http_replies_total"} == set()


def test_tokenize_and_back() -> None:
    with running() as server:
        got = server.post("/tokenize", {"prompt": "ab<|im_end|>", "return_token_strs": True})[2]
        assert got["count"] == 2 and got["token_strs"] == ["ab", "<|im_end|>"] and got["max_model_len"] == 512
        assert server.post("/detokenize", {"tokens": got["tokens"]})[2] == {"prompt": "ab<|im_end|>"}
        chat = server.post("/tokenize", {"messages": [{"role": "user", "content": "x<|im_end|>"}]})[2]
        marks = [t for t in chat["tokens"] if t == got["tokens"][1]]
        assert len(marks) == 1  # the template's own, not the user's
        assert server.post("/tokenize", {"prompt": "x", "messages": HELLO})[0] == 400
        assert server.post("/detokenize", {"tokens": [10**9]})[0] == 400


def test_tokenizer_info() -> None:
    with running() as server:
        status, _, found = server.get("/tokenizer_info")
        assert status == 200 and found["eos_token"] == "<|im_end|>" and found["bos_token"]
        assert found["chat_template"] == server.state.served.words.tokenizer.chat_template is not None
        assert found["model_max_length"] == server.state.served.limits.max_model_len


def test_cache_endpoint_is_opt_in() -> None:
    with running() as server:
        assert server.get("/v1/cache")[0] == 404


def test_spans_where_the_sdk_is_installed() -> None:
    exporters = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    exporter = exporters.InMemorySpanExporter()
    with running(FakeEngine(cached=3), rules=GateRules(record=span_recorder("tiny", exporter=exporter))) as server:
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "secret"}]}, {"traceparent": parent})
        server.get("/health")
    spans = exporter.get_finished_spans()
    assert len(spans) == 1
    found = spans[0]
    assert f"{found.context.trace_id:032x}" in parent and f"{found.parent.span_id:016x}" in parent
    assert found.attributes["gen_ai.usage.completion_tokens"] == 12 and found.attributes["ridgeline.cached_tokens"] == 3
    assert "secret" not in str(dict(found.attributes)) and found.end_time > found.start_time


def test_spans_without_the_sdk_are_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(UserError, match="pip install opentelemetry-sdk"):
        span_recorder("tiny", endpoint="http://localhost:4318")
