"""What the engine writes down: metrics that add up, times in order, a trace that decides the same steps again and opens in Perfetto."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.engine.fakes import FakeProgram, hashed_logits
from tests.engine.running import make_core, run, submit
from tests.models.tiny import tiny

from ridgeline.engine.core import EngineCore
from ridgeline.engine.metrics import Histogram, gauges
from ridgeline.engine.trace import Trace, replay
from ridgeline.graph.step import Span
from ridgeline.planner.cost import GraphCost
from ridgeline.scheduler.state import Faults
from ridgeline.types import SamplingParams


def busy_core() -> EngineCore:
    """A core that has seen arrivals, aborts, preemptions, evictions, forks and hits, with a trace of it all."""
    core = make_core(FakeProgram(hashed_logits(), windows=(None, 6), blocks=(60, 40)), chunk=12, seqs=4)
    core.trace = Trace()
    core.dial(Faults(preempt_every=9, evict_every=14))
    rng = np.random.default_rng(3)
    stem = [int(t) for t in rng.integers(0, 250, 20)]
    for i in range(30):
        head = stem[: int(rng.integers(0, 21))]
        prompt = [*head, *[int(t) for t in rng.integers(0, 250, int(rng.integers(1, 12)))]]
        submit(core, prompt, SamplingParams(max_tokens=int(rng.integers(1, 12)), n=1 + i % 3, seed=i), f"q{i}")
        if i % 7 == 6:
            core.abort(str(rng.choice(list(core.requests))))
        for _ in range(int(rng.integers(0, 6))):
            core.step()
    run(core)
    return core


def test_a_trace_decides_the_same_steps_again() -> None:
    core = busy_core()
    assert core.trace is not None and core.trace.lost == 0
    fresh = make_core(FakeProgram(hashed_logits(), windows=(None, 6), blocks=(60, 40)), chunk=12, seqs=4).state
    fresh.faults = Faults(preempt_every=9, evict_every=14)
    pairs = list(replay(core.trace, fresh, core.budget))
    assert len(pairs) == core.metrics.counts["steps"] > 50 and all(a == b for a, b in pairs)
    assert fresh.counts == core.state.counts and core.state.counts["preemptions"] > 3 and core.state.counts["ended_abort"] > 0


def test_a_trace_with_costs_says_what_each_phase_of_a_request_did(tmp_path: Path) -> None:
    """Row 26: a prompt's chunk and its single tokens, each with FLOPs, bytes and wall time; parts of a step add up to it."""
    book = GraphCost(tiny("llama")[0])
    core = busy_core()
    assert core.trace is not None
    core.trace.write(tmp_path / "trace.json", book)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    steps = {e["ts"]: e["args"] for e in events if e["name"] == "forward" and e["args"]["spans"]}
    parts: dict[float, list[dict[str, int]]] = {}
    for e in events:
        if e["name"] in ("chunk", "decode"):
            assert e["dur"] >= 0
            parts.setdefault(e["ts"], []).append(e["args"])
            a = e["args"]
            assert a["flops"] == book.total(book.work([Span(0, a["past"], a["new"], a["want"])])).flops
    assert parts.keys() == steps.keys()
    for ts, step in steps.items():
        assert step["flops"] == sum(p["flops"] for p in parts[ts])
        assert step["kv_bytes"] == sum(p["kv_bytes"] for p in parts[ts]) or step["shared_walks"]
        assert max(p["weight_bytes"] for p in parts[ts]) <= step["weight_bytes"] < sum(p["weight_bytes"] for p in parts[ts]) + 1


def test_a_request_has_a_prefill_and_a_generation(tmp_path: Path) -> None:
    """Row 26: both phases of each request as a whole, with FLOPs, bytes and wall time, in the trace and as text."""
    book = GraphCost(tiny("llama")[0])
    core = make_core(FakeProgram(hashed_logits()), chunk=4)
    core.trace = Trace()
    for name, prompt in (("a", list(range(10))), ("b", list(range(50, 57)))):
        submit(core, prompt, SamplingParams(max_tokens=6, temperature=0, ignore_eos=True), name)
    run(core)
    found = core.trace.phases(book)
    assert [(p.name, p.tokens) for p in found] == [("prefill", 10), ("generation", 5), ("prefill", 7), ("generation", 5)]
    for p, past in zip(found, (0, 10, 0, 7), strict=True):
        spans = [Span(0, past + i, 1, int(p.name == "generation" or i == p.tokens - 1)) for i in range(p.tokens)]
        assert p.flops == sum(book.total(book.work([span])).flops for span in spans)
        assert p.weight_bytes > 0 and p.kv_bytes > 0 and 0 <= p.forward_s <= p.end_s - p.start_s
    assert all(a.end_s <= b.start_s for a, b in zip(found[::2], found[1::2], strict=True))
    assert str(found[1]).startswith(f"sequence {found[1].seq} generation: 5 tokens in 5 steps, ") and str(found[1]).endswith(" ms")
    core.trace.write(tmp_path / "t.json", book)
    events = [e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if e["pid"] == 3]
    assert [(e["name"], e["args"]["flops"]) for e in events] == [(p.name, p.flops) for p in found]


def test_a_trace_opens_in_perfetto(tmp_path: Path) -> None:
    core = busy_core()
    assert core.trace is not None
    core.trace.write(tmp_path / "trace.json")
    document = json.loads((tmp_path / "trace.json").read_text())
    events = document["traceEvents"]
    assert all({"name", "ph", "ts", "pid"} <= e.keys() and e["ts"] >= -1e6 for e in events)
    assert all(e["dur"] >= 0 for e in events if e["ph"] == "X")
    forwards = [e for e in events if e["name"] == "forward"]
    assert [e["args"]["step"] for e in forwards] == list(range(1, core.state.steps + 1))
    assert sum(e["args"]["chunk_tokens"] for e in forwards) == core.metrics.counts["computed_prompt_tokens"]
    assert sum(e["name"].startswith("arrive") for e in events) == 30 and any(e["name"].startswith("abort") for e in events)
    drawn = [e["args"]["token"] for e in events if e["pid"] == 2 and e["args"]["token"] is not None]
    assert 0 < len(drawn) <= core.metrics.counts["generation_tokens"]


def test_a_ring_forgets_the_oldest_and_says_how_many() -> None:
    trace = Trace(keep=10)
    core = make_core(FakeProgram(hashed_logits()))
    core.trace = trace
    run(core, submit(core, [1, 2], SamplingParams(max_tokens=25, temperature=0, ignore_eos=True)))
    assert len(trace.steps()) == 10 and trace.lost == core.metrics.counts["steps"] - 10
    assert [step.record.number for step, _ in trace.steps()] == list(range(trace.lost + 1, trace.lost + 11))


def test_counts_add_up() -> None:
    core = busy_core()
    counts, histograms, recent = core.metrics.counts, core.metrics.histograms, core.metrics.recent
    assert counts["requests"] == counts["finished"] == len(recent) == 30
    assert counts["prompt_tokens"] == sum(r.prompt_tokens for r in recent)
    assert counts["prompt_tokens_cached"] == sum(r.cached_tokens for r in recent) == core.state.counts["prefix_tokens_hit"] > 0
    assert counts["generation_tokens"] == sum(sum(r.generated) for r in recent)
    choices = sum(len(r.generated) for r in recent)
    assert sum(n for name, n in counts.items() if name.startswith("finished_")) == choices == histograms["request_params_n"].total
    started = sum(m > 0 for r in recent for m in r.generated)
    assert histograms["time_to_first_token_seconds"].count == sum(any(r.generated) for r in recent)  # once a request, whatever its n
    assert histograms["inter_token_latency_seconds"].count == counts["generation_tokens"] - started
    assert histograms["iteration_tokens_total"].count == counts["steps"]


def test_times_are_in_order() -> None:
    for r in busy_core().metrics.recent:
        if r.ttft_s is not None:
            assert r.queue_s is not None and r.prefill_s is not None and r.decode_s is not None
            assert 0 <= r.queue_s <= r.ttft_s <= r.e2e_s and r.prefill_s >= 0 and r.decode_s >= 0
            assert abs(r.queue_s + r.prefill_s - r.ttft_s) < 1e-9


def test_gauges_say_what_is_the_case() -> None:
    core = make_core(FakeProgram(hashed_logits(), blocks=(20,)), seqs=2)
    for i in range(5):
        submit(core, [1, 2, 3, 4, 5, i], SamplingParams(max_tokens=20, ignore_eos=True, temperature=0))
    core.step()
    core.step()  # the second one waits a step for the prefix that the first one computes
    now = gauges(core.state)
    assert (now["num_requests_running"], now["num_requests_waiting"]) == (2, 3)
    assert 0 < now["kv_cache_usage_perc"] <= now["kv_cache_held_perc"] <= 1
    run(core)
    idle = gauges(core.state)
    assert idle["kv_cache_usage_perc"] == 0 < idle["kv_cache_held_perc"]


@pytest.mark.parametrize(("value", "bucket"), [(0, 0), (1, 0), (1.5, 1), (2, 1), (3, 2)])
def test_buckets_include_their_upper_bound(value: float, bucket: int) -> None:
    histogram = Histogram((1, 2))
    histogram.observe(value)
    assert histogram.counts[bucket] == histogram.count == 1 and histogram.total == value
