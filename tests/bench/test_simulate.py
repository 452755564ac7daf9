"""Simulated fleets: definitions of the figures, batching, routing, limits. Rows 7-9, 12, 37, 47, 95-97, 115 of the acceptance table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from ridgeline.bench.client_metrics import Slo
from ridgeline.bench.outcome import outcome
from ridgeline.bench.simulate import Fleet, Run, simulate
from ridgeline.bench.timeline import write_trace
from ridgeline.bench.workloads import Agents, ClosedLoop, Job, Lengths, OpenLoop, Workload, bursts, poisson
from ridgeline.cli import main
from ridgeline.errors import UserError
from ridgeline.graph.step import SharedWalk, Span
from ridgeline.scheduler.budget import Budget


def flat(spans: Sequence[Span], shared: Sequence[SharedWalk]) -> float:
    """10 ms a step and 1 ms for every prompt token beyond the first of a span: easy to follow by hand."""
    return 0.010 + 0.001 * sum(s.new - 1 for s in spans)


def fleet(**more: object) -> Fleet:
    made: dict[str, object] = {"budget": Budget(tokens=512, sequences=8, itl_slack=None), "max_model_len": 4096, **more}
    return Fleet((None,), (2000,), flat, **made)  # type: ignore[arg-type]


def job(name: str, at: float, prompt: int, output: int) -> Job:
    ids = np.arange(prompt, dtype=np.int32) + (hash(name) & 0xFFFF) * 1000
    return Job(name, at, ids, output)


def test_times_by_hand() -> None:
    """One request of 11 tokens: its prompt takes 20 ms, each token after 10 ms. Another comes at 25 ms and waits for the step in flight."""
    run = simulate(fleet(), OpenLoop("x", [job("a", 0.0, 11, 4), job("b", 0.025, 6, 2)]))
    a, b = run.lives
    assert a.token_s == pytest.approx([0.020, 0.030, 0.045, 0.055]) and b.token_s == pytest.approx([0.045, 0.055])
    assert (a.admitted_s, b.admitted_s) == (0.0, pytest.approx(0.030))
    found = outcome(run, Slo(), Decimal("3.60"))
    assert found["ttft_ms"]["max"] == pytest.approx(20) and found["queue_ms"]["max"] == pytest.approx(5)
    assert found["prefill_ms"]["mean"] == pytest.approx((20 + 15) / 2)
    assert found["itl_ms"]["max"] == pytest.approx(15) and found["itl_ms"]["mean"] == pytest.approx(45 / 4)
    assert found["tpot_ms"]["max"] == pytest.approx(35 / 3) and found["e2e_ms"]["max"] == pytest.approx(55)
    assert (found["output_tokens"], found["prompt_tokens"], found["seconds"]) == (6, 17, pytest.approx(0.055))
    assert found["output_tok_s"] == pytest.approx(6 / 0.055) and found["total_tok_s"] == pytest.approx(23 / 0.055)
    assert found["requests_s"] == pytest.approx(2 / 0.055)
    assert found["usd_per_mtok"] == pytest.approx(3.60 / 3600 * 0.055 / 6 * 1e6, rel=1e-6)
    assert found["utilization"]["mean"] == pytest.approx(1.0)


def test_goodput_needs_both_promises() -> None:
    """Row 12."""
    run = simulate(fleet(), OpenLoop("x", [job("a", 0.0, 11, 4), job("b", 0.025, 6, 2)]))
    share = [
        outcome(run, p)["goodput_share"] for p in (Slo(), Slo(0.019), Slo(0.025), Slo(0.025, 0.011), Slo(None, 0.009))
    ]
    assert share == [1.0, 0.0, 1.0, 0.5, 0.0]


def test_the_same_seed_gives_the_same_run() -> None:
    def times() -> list[list[float]]:
        return [live.token_s for live in simulate(fleet(replicas=2), poisson(80, 20.0, Lengths(60, 20, 0.5), 9)).lives]

    assert times() == times()


def everything(run: Run, count: int) -> None:
    """All served, each with as many tokens as it asked for, in order of time."""
    assert len(run.lives) == count and not run.refused
    for live in run.lives:
        assert live.reason == "length" and len(live.token_s) == live.job.output
        assert live.job.arrival_s <= live.admitted_s <= live.token_s[0] and live.token_s == sorted(live.token_s)
    for replica in run.replicas:
        replica.state.kv.check()
        assert replica.tokens_ahead <= 0 or replica.load == 0


@pytest.mark.parametrize("route", ["round-robin", "least-loaded", "prefix"])
@pytest.mark.parametrize("replicas", [1, 3])
def test_every_request_is_served(route: str, replicas: int) -> None:
    for workload, count in (
        (poisson(60, 40.0, Lengths(50, 12, 0.9)), 60), (ClosedLoop(40, 9, Lengths(50, 12, 0.9)), 40),
        (bursts(40, 30.0, 10, Lengths(50, 12)), 40),
        (Agents(8, 3, 5.0, Lengths(30, 8)), 24),
    ):  # fmt: skip
        everything(simulate(fleet(route=route, replicas=replicas), workload), count)


def test_a_closed_loop_keeps_its_users() -> None:
    run = simulate(fleet(), ClosedLoop(60, 5, Lengths(30, 10, 0.5)))
    edges = sorted([(live.job.arrival_s, 1) for live in run.lives] + [(live.end_s, -1) for live in run.lives])
    inside, most = 0, 0
    for _, step in edges:
        inside += step
        most = max(most, inside)
    assert most == 5


def test_a_short_request_overtakes_a_long_one() -> None:
    """Row 97."""
    run = simulate(fleet(), OpenLoop("x", [job("long", 0.0, 20, 300), job("short", 0.5, 20, 5)]))
    long, short = run.lives
    assert short.end_s < long.end_s


def both_ways(workload: Workload, again: Workload) -> tuple[dict[str, object], dict[str, object]]:
    runs = simulate(fleet(), workload), simulate(fleet(batching="static"), again)
    for run in runs:
        everything(run, len(workload.start()))
    first, second = (outcome(run, Slo()) for run in runs)
    return first, second


def test_static_batching_wastes() -> None:
    """Row 96: from the same arrivals, static batching leaves more slots idle, makes fewer tokens a second and lets people wait."""
    lengths = Lengths(40, 60, 0.95)
    continuous, static = both_ways(poisson(100, 1000.0, lengths, 3), poisson(100, 1000.0, lengths, 3))
    assert static["slots_idle"] > continuous["slots_idle"] + 0.2  # type: ignore[operator]
    assert static["output_tok_s"] < 0.8 * continuous["output_tok_s"]  # type: ignore[operator]
    assert static["ttft_ms"]["p50"] > 1.3 * continuous["ttft_ms"]["p50"]  # type: ignore[index]


def test_a_static_batch_costs_its_width_to_the_end() -> None:
    """Finished sequences go on being computed; nobody joins before the last has ended."""
    seen: list[int] = []

    def counted(spans: Sequence[Span], shared: Sequence[SharedWalk]) -> float:
        seen.append(len(spans))
        return 0.01

    jobs = [job("a", 0.0, 4, 2), job("b", 0.0, 4, 6), job("c", 0.001, 4, 3)]
    run = simulate(Fleet((None,), (100,), counted, Budget(tokens=64, sequences=2, itl_slack=None), batching="static"), OpenLoop("x", jobs))
    assert seen == [2] * 6 + [1] * 3
    a, b, c = run.lives
    assert a.end_s < b.end_s <= c.admitted_s


def test_replicas_multiply_throughput() -> None:
    """Row 37: twice the machines at twice the rate: the same latency within noise."""
    lengths = Lengths(100, 40, 0.5)
    one = outcome(simulate(fleet(), poisson(300, 3.0, lengths, 1)), Slo())
    two = outcome(simulate(fleet(replicas=2), poisson(600, 6.0, lengths, 1)), Slo())
    assert two["output_tok_s"] == pytest.approx(2 * one["output_tok_s"], rel=0.1)
    assert two["ttft_ms"]["p50"] == pytest.approx(one["ttft_ms"]["p50"], rel=0.15)


def test_routing_by_prefix_beats_turns() -> None:
    """Row 115: more hits, earlier first tokens."""
    found = {
        route: outcome(simulate(fleet(replicas=4, route=route), Agents(40, 4, 1.0, Lengths(200, 20), 2, system=64)), Slo())
        for route in ("round-robin", "prefix")
    }
    assert found["prefix"]["prefix_hit_rate"] > found["round-robin"]["prefix_hit_rate"] + 0.1
    assert found["prefix"]["ttft_ms"]["mean"] < 0.8 * found["round-robin"]["ttft_ms"]["mean"]


def test_the_prefix_cache_can_be_off() -> None:
    on, off = (outcome(simulate(fleet(prefix_cache=c), poisson(50, 5.0, Lengths(50, 10), prefix=400)), Slo()) for c in ("radix", "off"))
    assert on["prefix_hit_rate"] > 0.7 and off["prefix_hit_rate"] == 0
    assert on["ttft_ms"]["mean"] < off["ttft_ms"]["mean"]


def test_little_memory_preempts_and_serves_all_the_same() -> None:
    run = simulate(Fleet((None,), (40,), flat, Budget(tokens=256, sequences=8, itl_slack=None)), poisson(60, 50.0, Lengths(60, 80, 0.5), 4))
    everything(run, 60)
    assert outcome(run, Slo())["kv_used"]["max"] > 0.8


@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_what_can_never_fit_is_refused_and_counted(batching: str) -> None:
    jobs = [job("huge", 0.0, 5000, 4), job("small", 0.0, 10, 4)]
    run = simulate(fleet(batching=batching, max_model_len=1024), OpenLoop("x", jobs))
    found = outcome(run, Slo())
    assert (found["completed"], found["refused"], found["requests"]) == (1, 1, 2)
    assert "huge" in found["refused_why"][0] and found["goodput_share"] == 0.5


def test_windows() -> None:
    """Two cache groups."""
    run = simulate(Fleet((None, 64), (500, 200), flat, Budget(tokens=256, sequences=8)), poisson(40, 20.0, Lengths(200, 30, 0.5)))
    everything(run, 40)


def test_nothing_at_all() -> None:
    found = outcome(simulate(fleet(), OpenLoop("x", [])), Slo(), Decimal(1))
    assert found["requests"] == 0 and found["ttft_ms"] is None and found["usd_per_mtok"] is None and found["output_tok_s"] is None
    with pytest.raises(UserError):
        simulate(fleet(replicas=0), OpenLoop("x", []))


def test_traces_and_charts(tmp_path: Path) -> None:
    run = simulate(fleet(replicas=2), OpenLoop("x", [job("<b>&", 0.0, 20, 5), job("y", 0.1, 20, 5)]))
    path = tmp_path / "t.json"
    write_trace(run, path)
    events = json.loads(path.read_text())["traceEvents"]
    steps = [e for e in events if e["name"] == "step"]
    assert len(steps) == sum(r.steps for r in run.replicas) and {e["ph"] for e in events} == {"M", "X", "C", "b", "e"}
    begun, ended = ([(e["id"], e["name"]) for e in events if e["ph"] == p] for p in "be")
    assert sorted(begun) == sorted(ended) and len(begun) == 6


def test_steps_are_thinned_evenly() -> None:
    run = simulate(fleet(), OpenLoop("x", [job("a", 0.0, 5, 1000)]), keep_steps=64)
    starts = [log.start_s for log in run.logs[0]]
    assert 32 <= len(starts) <= 64 and len(set(np.round(np.diff(starts), 6))) <= 2


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    chart, trace = tmp_path / "g.html", tmp_path / "t.json"
    arguments = [
        "simulate",
        "llama-3.1-8b",
        "--device",
        "h100 sxm",
        "--requests",
        "40",
        "--rate",
        "10/s",
        "--ttft",
        "500ms",
        "--itl",
        "30ms",
    ]
    assert main([*arguments, "--batching", "both", "--html", str(chart), "--trace", str(trace), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [r["batching"] for r in found["runs"]] == ["continuous", "static"] and found["labels"]["schedule"].startswith("exact")
    first = found["runs"][0]
    assert first["completed"] == 40 and first["ttft_ms"]["p99"] < 500 and first["goodput_share"] == 1.0 and first["usd_per_mtok"] > 0
    assert chart.read_text().count("<figcaption>static batching<small>") == 1 and json.loads(trace.read_text())["traceEvents"]
    assert main([*arguments[:4], "--workload", "closed", "--requests", "30", "--users", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["completed"] == 30
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "goodput" in shown and "ttft" in shown and "per million output tokens" in shown


def test_an_itl_target_is_kept_or_prompts_wait(capsys: pytest.CaptureFixture[str]) -> None:
    """As of a server: a wider target lets prompts in sooner, a narrower one keeps answers going."""
    load = ["simulate", "llama-3.1-8b", "--device", "h100 sxm", "--requests", "60", "--rate", "10/s", "--prompt", "4K", "--output", "64"]
    found = {}
    for target in ("20ms", "100ms"):
        assert main([*load, "--itl-target", target, "--json"]) == 0
        found[target] = json.loads(capsys.readouterr().out)
        assert found[target]["itl_ms"]["p99"] < 1.15 * float(target[:-2])
    assert found["20ms"]["itl_ms"]["p99"] < 0.5 * found["100ms"]["itl_ms"]["p99"]
    assert found["20ms"]["ttft_ms"]["p50"] > found["100ms"]["ttft_ms"]["p50"]


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("--itl-target", "0"), "--itl-target is '0'"),
        (("--workload", "x"), "--workload is 'x'"), (("--router", "x"), "--router is 'x'"), (("--batching", "x"), "--batching is 'x'"),
        (("--prefix-cache", "x"), "--prefix-cache is 'x'"), (("--requests", "0"), "--requests is 0"), (("--prompt", "0"), "--prompt is 0"),
        (("--replicas", "0"), "--replicas is 0"),
        (("--trace-in", "/nowhere.jsonl"), "/nowhere.jsonl"), (("--html", "/nowhere/x.html"), "no such folder"),
        (("--max-num-seqs", "0"), "--max-num-seqs is 0"), (("--spread", "2"), "--spread is 2"),
        (("--prompt", "100k", "--device", "t4 16"), "left for KV"),
    ],
)  # fmt: skip
def test_bad_input(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str) -> None:
    device = () if "--device" in arguments else ("--device", "h100 sxm")
    code = main(["simulate", "llama-3.1-8b", *device, *arguments])
    shown = capsys.readouterr()
    assert code == 2 and words in shown.err and shown.err.count("\n") == 1 and shown.out == ""
