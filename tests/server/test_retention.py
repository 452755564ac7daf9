"""How long a prefix stays cached, as each protocol asks for it, and that a session outlives a full cache by it. Row 123."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.cli.tiny_gguf import tiny_gguf
from tests.server.http_server import Running, running

from ridgeline.engine.async_engine import AsyncEngine
from ridgeline.engine.loader import load
from ridgeline.options import make_options
from ridgeline.server.state import Features, Served

SYSTEM = [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}]
HELLO = [{"role": "user", "content": "hi"}]
MARK = {"type": "ephemeral"}


@pytest.mark.parametrize(
    ("path", "body", "kept"),
    [
        ("/v1/chat/completions", {"messages": HELLO}, (0.0, 0)),
        ("/v1/chat/completions", {"messages": HELLO, "cache_ttl_s": 90, "cache_rank": 2}, (90.0, 2)),
        ("/v1/chat/completions", {"messages": HELLO, "prompt_cache_retention": "24h"}, (86400.0, 0)),
        ("/v1/chat/completions", {"messages": HELLO, "prompt_cache_retention": "24h", "cache_ttl_s": 0}, (0.0, 0)),
        ("/v1/completions", {"prompt": "x", "cache_ttl_s": 0.5, "cache_rank": -1}, (0.5, -1)),
        ("/v1/responses", {"input": "x", "prompt_cache_retention": "in_memory", "cache_rank": 1}, (0.0, 1)),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 3}, (0.0, 0)),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 3, "cache_control": MARK}, (300.0, 0)),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 3, "cache_control": {**MARK, "ttl": "1h"}, "cache_ttl_s": 7}, (7.0, 0)),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 3, "system": SYSTEM}, (300.0, 0)),
        (
            "/v1/messages",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "t", "cache_control": {**MARK, "ttl": "1h"}}]}],
             "max_tokens": 3, "system": SYSTEM},
            (3600.0, 0),
        ),
    ],
)  # fmt: skip
def test_what_is_asked_reaches_the_engine(path: str, body: dict[str, Any], kept: tuple[float, int]) -> None:
    with running() as server:
        code, headers, got = server.post(path, body)
        asked = server.engine.seen[0]
    assert code == 200, got
    assert (asked.cache_ttl_s, asked.cache_rank) == kept and "x-ridgeline-warning" not in headers


@pytest.mark.parametrize(
    ("path", "more", "field"),
    [
        ("/v1/chat/completions", {"cache_ttl_s": -1}, "cache_ttl_s"),
        ("/v1/chat/completions", {"cache_ttl_s": 86401}, "cache_ttl_s"),
        ("/v1/chat/completions", {"cache_rank": 101}, "cache_rank"),
        ("/v1/chat/completions", {"cache_rank": 1.5}, "cache_rank"),
        ("/v1/chat/completions", {"prompt_cache_retention": "1h"}, "prompt_cache_retention"),
        ("/v1/messages", {"max_tokens": 3, "cache_control": {**MARK, "ttl": "2h"}}, "cache_control.ttl"),
        ("/v1/messages", {"max_tokens": 3, "cache_control": {**MARK, "ttl": [5]}}, "cache_control.ttl"),
    ],
)
def test_what_cannot_be_kept_is_named(path: str, more: dict[str, Any], field: str) -> None:
    with running() as server:
        code, _, got = server.post(path, {"messages": HELLO, **more})
    assert code == 400 and field in got["error"]["message"]


def _evictions(server: Running) -> float:
    families = text_string_to_metric_families(server.get("/metrics")[2].decode())
    return next(s.value for f in families for s in f.samples if s.name == "ridgeline:kv_evictions_total")


def test_a_session_outlives_a_tool_call(tmp_path: Path) -> None:
    """While its tool runs, others fill the cache three times over: what was asked to stay is found again, what was not is gone."""
    path = tiny_gguf(tmp_path / "tiny.gguf", **{"llama.context_length": 512})
    model = load(make_options(str(path), {"threads": 1, "max_num_seqs": 2, "kv_cache_memory_bytes": 1 << 19}))
    made = Served(("tiny",), model.text, model.limits)
    room = model.plan.blocks[0] * model.plan.block_size
    with running(lambda: AsyncEngine(model), served=made, features=Features(show_cache=True)) as server:

        def cached(prompt: str, **more: Any) -> int:
            code, _, got = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 4, "ignore_eos": True, **more})
            assert code == 200, got
            return int(got["usage"]["prompt_tokens_details"]["cached_tokens"])

        kept, plain = ("k" * 200, {"cache_ttl_s": 600}), ("p" * 200, {})
        for prompt, more in (kept, plain):
            assert cached(prompt, **more) == 0
        assert any(590 < (node["ttl_s"] or 0) <= 600 for node in server.get("/v1/cache")[2]["nodes"])
        for other in range(3 * room // 400 + 1):
            cached(f"{other:04}" * 100)
        assert _evictions(server) > 0
        assert cached(kept[0]) == 199 and cached(plain[0]) == 0
