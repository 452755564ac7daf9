"""`ridgeline simulate`: a fleet from the hardware table, or of this host as calibrated, driven by the real scheduler on virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, get_args

from ridgeline import __version__
from ridgeline.bench.client_metrics import Slo
from ridgeline.bench.outcome import outcome
from ridgeline.bench.record import command_line, now
from ridgeline.bench.replica import Batching
from ridgeline.bench.report import report
from ridgeline.bench.report_json import to_json
from ridgeline.bench.report_schema import Ceiling, ReportDocument
from ridgeline.bench.report_schema import Setup as Facts
from ridgeline.bench.routing import ROUTERS
from ridgeline.bench.simulate import Fleet, Run, fleet_of, simulate
from ridgeline.bench.simulate_report import document as report_document
from ridgeline.bench.timeline import write_trace
from ridgeline.bench.workloads import Agents, ClosedLoop, Lengths, Workload, bursts, poisson, trace_file
from ridgeline.cli.output import note, print_json, table, writable
from ridgeline.cli.plan import setup_of
from ridgeline.engine.pace import paced_budget
from ridgeline.errors import UserError, one_of, within
from ridgeline.kv.manager import CachePolicy
from ridgeline.planner.question import Question, check
from ridgeline.planner.setup import Setup

LENGTHS = Lengths()
MAX_COUNT = 1 << 30
WORKLOADS = ("poisson", "closed", "bursts", "agents")


@dataclass(frozen=True)
class SimulateArgs:
    """What was typed. requests: sessions for agents; prefix: shared tokens; batching both: one run of each. max_num_batched_tokens None: as
    the plan has it. itl_target: seconds between tokens that running answers keep while prompts are read, None: a server's default."""

    workload: str = "poisson"
    trace_in: Path | None = None
    requests: int = 200
    rate: float = 5.0
    users: int = 16
    burst: int = 8
    turns: int = 4
    think_s: float = 1.0
    lengths: Lengths = LENGTHS
    prefix: int = 0
    seed: int = 0
    max_num_seqs: int = 64
    max_num_batched_tokens: int | None = None
    itl_target: float | None = None
    router: str = "round-robin"
    prefix_cache: str = "radix"
    batching: str = "continuous"
    kv_blocks: int | None = None
    trace_out: Path | None = None
    html_out: Path | None = None


def run(plan: Question, args: SimulateArgs, *, as_json: bool) -> None:
    """Raises `UserError` for what cannot be simulated. Writes the files that were asked for, then prints."""
    if plan.device is None and not plan.this_host:
        raise UserError("nothing to simulate on", field="--device", remedy="name a device of `ridgeline hardware`, or give --this-host")
    check(plan)
    _check(args)
    setup = setup_of(plan)
    if setup.facts.partial:
        note(f"warning: {setup.facts.partial}")
    args = replace(args, max_num_batched_tokens=args.max_num_batched_tokens or setup.chunk)
    promise = Slo(plan.ttft, plan.itl)
    each = plan.price if plan.price is not None else setup.device.usd_low
    usd = None if each is None else each * setup.layout.devices
    fleet, found = _fleet(args, setup), list[tuple[str, Run, dict[str, Any]]]()
    for batching in [b for b in get_args(Batching) if args.batching in (b, "both")]:
        started = perf_counter()
        done = simulate(replace(fleet, batching=batching), workload_of(args))
        result = outcome(done, promise, usd) | {"batching": batching, "simulated_in_s": perf_counter() - started}
        found.append((f"{batching} batching", done, result))
    if args.trace_out is not None:
        write_trace(found[-1][1], args.trace_out)
    made = _report(setup, args, found)
    if args.html_out is not None:
        args.html_out.write_text(report([made], reported=False).html, "utf8")
    document = _document(setup, args, found) | {"report": to_json(made)}
    if as_json:
        print_json(document)
    else:
        _print(document)


def _check(args: SimulateArgs) -> None:
    for option, value, allowed in (
        ("--workload", args.workload, WORKLOADS), ("--router", args.router, ROUTERS),
        ("--prefix-cache", args.prefix_cache, get_args(CachePolicy)),
        ("--batching", args.batching, (*get_args(Batching), "both")),
    ):  # fmt: skip
        one_of(option, value, allowed)
    least = {"--max-num-seqs": (args.max_num_seqs, 1), "--kv-blocks": (args.kv_blocks, 1), "--prefix": (args.prefix, 0),
             "--seed": (args.seed, 0), "--max-num-batched-tokens": (args.max_num_batched_tokens, 1)}  # fmt: skip
    for option, (count, low) in least.items():
        if count is not None:
            within(option, count, low, MAX_COUNT)
    for path in (args.trace_out, args.html_out):
        if path is not None:
            writable(path)


def workload_of(args: SimulateArgs) -> Workload:
    """The workload that was asked for, from its beginning."""
    if args.trace_in is not None:
        return trace_file(args.trace_in)
    match args.workload:
        case "closed":
            return ClosedLoop(args.requests, args.users, args.lengths, args.seed, args.prefix)
        case "bursts":
            return bursts(args.requests, args.rate, args.burst, args.lengths, args.seed, args.prefix)
        case "agents":
            return Agents(args.requests, args.turns, args.rate, args.lengths, args.seed, system=args.prefix or 1024, think_s=args.think_s)
        case _:
            return poisson(args.requests, args.rate, args.lengths, args.seed, args.prefix)


def _fleet(args: SimulateArgs, setup: Setup) -> Fleet:
    most = max((len(j.prompt) + j.output for j in workload_of(args).start()), default=1)
    longest = most * (args.turns if args.workload == "agents" and args.trace_in is None else 1)
    limit = setup.facts.max_context or 1 << 24
    budget = paced_budget(args.max_num_batched_tokens or setup.chunk, args.max_num_seqs, args.itl_target)
    return fleet_of(
        setup, budget, min(longest, limit), args.kv_blocks, replicas=setup.layout.replicas, route=args.router,
        prefix_cache=args.prefix_cache, max_model_len=limit,
    )  # fmt: skip


def _report(setup: Setup, args: SimulateArgs, found: list[tuple[str, Run, dict[str, Any]]]) -> ReportDocument:
    """The same run for `bench report`, with what it takes to run it again."""
    device, layout = setup.device, setup.layout
    kind = "measured" if setup.host else "assumed"
    facts = Facts(
        machine={
            "device": device.name, "devices": layout.devices, "memory GB": setup.memory_bytes / 1e9,
            "bandwidth GB/s": device.bandwidth_gb_s, "tensor parallel": layout.tp, "replicas": layout.replicas,
        },
        versions={"ridgeline": __version__}, seeds={"workload": args.seed},
        settings={
            "model": setup.facts.name, "weights": setup.form.name if setup.form else "as stored", "KV": setup.kv.name,
            "router": args.router, "prefix cache": args.prefix_cache, "sequences a step": args.max_num_seqs,
            "tokens a step": args.max_num_batched_tokens, "ITL target, s": args.itl_target,
        },
        date=now(), commands=(command_line(),),
        ceilings=tuple(Ceiling(f"{math} peak", peak, "TFLOP/s", f"{kind}: {device.spec_source}") for math, peak in device.tflops.items()),
    )  # fmt: skip
    title = f"{setup.facts.name} on {layout.devices} x {device.name}, simulated: {found[0][1].workload}"
    ordered = sorted(found, key=lambda one: one[0], reverse=True)  # static before what improves on it
    return report_document(title, ordered, facts, (f"Times: {setup.labels()['step_time_ms']}. The schedule is the engine's own.",))


def _document(setup: Setup, args: SimulateArgs, found: list[tuple[str, Run, dict[str, Any]]]) -> dict[str, Any]:
    head = {
        "model": setup.facts.name, "device": setup.device.name, "devices": setup.layout.devices, "tp": setup.layout.tp,
        "router": args.router, "seed": args.seed, "kv_blocks": list(found[0][1].fleet.blocks),
        "labels": {"times": setup.labels()["step_time_ms"], "schedule": "exact: the engine's own scheduler, KV cache and prefix index"},
    }  # fmt: skip
    results = [result for _, _, result in found]
    return head | (results[0] if len(results) == 1 else {"runs": results})


def _print(document: Mapping[str, Any]) -> None:
    print(f"{document['model']} on {document['devices']} x {document['device']}, router {document['router']}")
    for result in document.get("runs", [document]):
        print(
            f"\n{result['workload']}, {result['batching']} batching: {result['completed']} of {result['requests']} requests, "
            f"{result['output_tokens']:,} tokens in {result['seconds']:.2f} s (simulated in {result['simulated_in_s']:.1f} s)"
        )
        header = ["ms", "mean", "p50", "p90", "p95", "p99", "max"]
        names = ("ttft_ms", "queue_ms", "prefill_ms", "itl_ms", "tpot_ms", "e2e_ms")
        rows = [[name[:-3], *(f"{result[name][h]:.1f}" for h in header[1:])] for name in names if result[name] is not None]
        print(table(rows, header))
        for line in _lines(result):
            print(line)
    note(f"times: {document['labels']['times']}")


def _lines(r: Mapping[str, Any]) -> list[str]:
    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.1%}"

    found = [
        f"output {r['output_tok_s'] or 0:,.1f} tok/s, total {r['total_tok_s'] or 0:,.1f} tok/s, {r['requests_s'] or 0:.2f} requests/s",
        f"goodput {r['goodput_s'] or 0:.2f} requests/s ({share(r['goodput_share'])})",
        f"prefix hits {share(r['prefix_hit_rate'])} of prompt tokens, {r['preemptions']} preemptions, {r['refused']} refused",
        f"devices busy {share(r['utilization']['mean'])}, slots idle {share(r['slots_idle'])}"
        + (f", KV in use {share(r['kv_used']['mean'])} (at most {share(r['kv_used']['max'])})" if r["kv_used"] else ""),
    ]
    if r["usd_per_mtok"] is not None:
        found.append(f"${r['usd_per_mtok']:.3f} per million output tokens at ${r['usd_per_hour']:.2f}/h")
    return found + [f"refused {why}" for why in r["refused_why"]]
