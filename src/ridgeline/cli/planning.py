"""The planning commands and their help: declarations only, as in `cli/app`, which registers them."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer

import ridgeline.cli.args as args
import ridgeline.planner.units as units


def _option(parser: Callable[[str, str], Any], name: str, metavar: str, help_: str) -> Any:
    return typer.Option(name, parser=lambda text: parser(text, name), metavar=metavar, help=help_)


PlanModel = Annotated[str, typer.Argument(metavar="MODEL", help="A model of `ridgeline models`, a .gguf file, a folder or a config.json.")]
Device = Annotated[str | None, typer.Option(metavar="NAME", help="A device of `ridgeline hardware`. Left out: all are tried.")]
ThisHost = Annotated[bool, typer.Option("--this-host", help="This machine, with its measured ceilings.")]
Search = Annotated[bool, typer.Option("--search", help="Try counts and formats on --device too.")]
Workshop = Annotated[bool, typer.Option("--workshop", help="Use the eight devices of the workshop's calculator.")]
HardwareFile = Annotated[
    Path | None,
    typer.Option("--hardware-file", envvar="RIDGELINE_HARDWARE", metavar="CSV", help="Rows that replace or extend the table."),
]
PresetName = Annotated[str | None, typer.Option("--preset", metavar="NAME", help="premium-chat, async-agent or batch.")]
Context = Annotated[int | None, args.number("--context", "Tokens held per sequence; the prompt, for TTFT and --rate. Default 4096.")]
Output = Annotated[int | None, args.number("--output", "Tokens generated per request. Default 256.")]
Users = Annotated[int | None, args.number("--users", "Sequences at once over all replicas.")]
Batch = Annotated[int | None, args.number("--batch", "Sequences at once on a replica; numbers are given whether they fit or not.")]
Rate = Annotated[float | None, _option(units.per_second, "--rate", "N/s", "Requests that arrive: 5/s, 300/min.")]
Cached = Annotated[int, args.number("--cached", "With --rate: prompt tokens found in the prefix cache.")]
Ttft = Annotated[float | None, _option(units.seconds, "--ttft", "TIME", "Promise: time to first token, e.g. 500ms.")]
Itl = Annotated[float | None, _option(units.seconds, "--itl", "TIME", "Promise: time between tokens, e.g. 30ms.")]
Price = Annotated[Decimal | None, _option(units.usd_per_hour, "--price", "USD/h", "Of one device: 2.69/h. Default: the table's.")]
Utilization = Annotated[Decimal | None, _option(units.fraction, "--utilization", "SHARE", "Of the hours paid for: 40% or 0.4.")]
WeightDtype = Annotated[str | None, typer.Option("--weight-dtype", metavar="DTYPE", help="bf16, fp8, int8, int4, nf4, mxfp4, q4_k ...")]
_KV_HELP = "bf16, f32, f16, fp8, int8, int4, q8_0, q4_0; int8/int4: of keys, of values."
KvDtype = Annotated[str | None, typer.Option("--kv-dtype", metavar="DTYPE", help=_KV_HELP)]
KvHeads = Annotated[int | None, args.number("--kv-heads", "Replace the model's number of KV heads.")]
WeightsBytes = Annotated[float | None, _option(units.byte_count, "--weights-bytes", "SIZE", "All weights: 14.0e9, 14GB.")]
Bandwidth = Annotated[float | None, _option(units.bandwidth, "--bandwidth", "RATE", "Of memory, per device: 2.0TB/s.")]
Memory = Annotated[float | None, _option(units.byte_count, "--memory", "SIZE", "Of one device: 192e9, 80GB.")]
Overhead = Annotated[Any, _option(units.share_or_bytes, "--overhead-bytes", "SIZE", "Kept free per device: 8GB or 10%.")]
Math = Annotated[str | None, typer.Option("--math", metavar="TYPE", help="Linear layers compute in bf16, fp8, int8 or fp4.")]
Tp = Annotated[int, args.number("--tp", "Tensor-parallel devices.")]
Pp = Annotated[int, args.number("--pp", "Pipeline stages.")]
Ep = Annotated[int, args.number("--ep", "Groups that share the experts of a mixture; the rest of the model is in each.")]
Replicas = Annotated[int, args.number("--replicas", "Copies that serve side by side.")]
Ideal = Annotated[bool, typer.Option("--ideal", help="The lecture's arithmetic: every parameter once, efficiency one, no rest.")]
IgnoreWindow = Annotated[bool, typer.Option("--ignore-window", help="As an engine that keeps every token in every layer.")]
Draft = Annotated[str | None, typer.Option(metavar="MODEL", help="A draft model, or self, for speculation: its bytes are counted too.")]
Explain = Annotated[bool, typer.Option("--explain", help="Show each formula with these numbers in it.")]
MaybeModel = Annotated[str | None, typer.Argument(metavar="MODEL", help="As in `ridgeline models`, or a .gguf, a folder, a config.json.")]
Page = Annotated[bool, typer.Option("--page", help="Serve the planner page on this machine and print its address.")]
Port = Annotated[int, args.number("--port", "Of --page; 0 takes a free one.")]
Open = Annotated[bool, typer.Option("--open", help="Of --page: open it in the browser.")]


def plan(
    model: MaybeModel = None,
    device: Device = None,
    this_host: ThisHost = False,
    search: Search = False,
    workshop: Workshop = False,
    hardware_file: HardwareFile = None,
    preset: PresetName = None,
    context: Context = None,
    output: Output = None,
    users: Users = None,
    batch: Batch = None,
    rate: Rate = None,
    cached: Cached = 0,
    ttft: Ttft = None,
    itl: Itl = None,
    price: Price = None,
    utilization: Utilization = None,
    weight_dtype: WeightDtype = None,
    kv_dtype: KvDtype = None,
    kv_heads: KvHeads = None,
    weights_bytes: WeightsBytes = None,
    bandwidth: Bandwidth = None,
    memory: Memory = None,
    overhead: Overhead = None,
    math: Math = None,
    tp: Tp = 1, pp: Pp = 1, ep: Ep = 1, replicas: Replicas = 1,
    threads: args.Threads = None,
    ideal: Ideal = False,
    ignore_window: IgnoreWindow = False,
    explain: Explain = False,
    draft: Draft = None,
    page: Page = False, port: Port = 0, open_: Open = False,
    json: args.Json = False,
) -> None:
    """How many users fit, how fast they are served, and at what price, before anything is bought.

    \b
    Examples:
      ridgeline plan Llama-3.1-8B --device "H100 SXM" --context 8K --users 64
      ridgeline plan Llama-2-13B --device "H100 SXM" --context 1024 --batch 64 --ideal --explain
      ridgeline plan Mistral-7B-v0.3 --context 4K --itl 10ms          which devices keep 10 ms, cheapest first
      ridgeline plan smollm2 --this-host --context 1K
      ridgeline plan Qwen3-32B --device "H100 SXM" --tp 2 --rate 5/s --cached 2K --price 2.69/h
      ridgeline plan --page                                           the same with sliders and plots, in a browser
    """
    from ridgeline.cli.plan import plan as run
    from ridgeline.planner.question import Question

    asked = Question(
        model or "", device, this_host, search, workshop, hardware_file, preset, context, output, users, batch, rate, cached, ttft, itl,
        price, utilization if utilization is not None else Decimal(1), weight_dtype, kv_dtype, kv_heads, weights_bytes, bandwidth,
        memory, overhead, math, tp, pp, replicas, threads, ideal, ignore_window, explain, draft, ep,
    )  # fmt: skip
    if not page:
        return run(asked, as_json=json)
    from ridgeline.cli.plan_page import open_page

    open_page(asked, port=port, show=open_)


def simulate(
    model: PlanModel,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="A device of `ridgeline hardware`.")] = None,
    this_host: Annotated[bool, typer.Option("--this-host", help="This machine, as calibrated.")] = False,
    workload: Annotated[str, typer.Option("--workload", metavar="NAME", help="poisson, closed, bursts or agents.")] = "poisson",
    trace_in: Annotated[Path | None, typer.Option("--trace-in", metavar="FILE", help="Arrivals: one JSON object a line.")] = None,
    requests: Annotated[int, args.number("--requests", "Requests in all (sessions, for agents).")] = 200,
    rate: Annotated[float | None, _option(units.per_second, "--rate", "N/s", "Arrivals: 5/s, 300/min. Default 5/s.")] = None,
    users: Annotated[int, args.number("--users", "Of a closed loop.")] = 16,
    burst: Annotated[int, args.number("--burst", "Requests of a burst.")] = 8,
    turns: Annotated[int, args.number("--turns", "Turns of an agent's session.")] = 4,
    think: Annotated[float | None, _option(units.seconds, "--think", "TIME", "Between turns. Default 1s.")] = None,
    prompt: Annotated[int, args.number("--prompt", "Tokens of a prompt.")] = 512,
    output: Annotated[int, args.number("--output", "Tokens generated.")] = 128,
    spread: Annotated[float, typer.Option("--spread", metavar="SHARE", help="Lengths vary by this share, up and down.")] = 0.5,
    prefix: Annotated[int, args.number("--prefix", "Tokens that all prompts share (an agent's system prompt).")] = 0,
    seed: Annotated[int, args.number("--seed", "Same seed, same run.")] = 0,
    max_num_seqs: Annotated[int, args.number("--max-num-seqs", "Sequences in a step.")] = 64,
    max_num_batched_tokens: Annotated[
        int | None, args.number("--max-num-batched-tokens", "Tokens in a step. Default 2048; 512 on --this-host.")
    ] = None,
    itl_target: Annotated[float | None, _option(units.seconds, "--itl-target", "TIME", "As of serve: what running answers keep.")] = None,
    router: Annotated[str, typer.Option("--router", metavar="NAME", help="round-robin, least-loaded or prefix.")] = "round-robin",
    prefix_cache: Annotated[str, typer.Option("--prefix-cache", metavar="NAME", help="radix, hash or off.")] = "radix",
    batching: Annotated[str, typer.Option("--batching", metavar="NAME", help="continuous, static or both.")] = "continuous",
    kv_blocks: Annotated[int | None, args.number("--kv-blocks", "Blocks of 16 tokens. Default: what memory leaves.")] = None,
    trace_out: Annotated[Path | None, typer.Option("--trace", metavar="FILE", help="Write a Perfetto trace.")] = None,
    html_out: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a report: Gantt, KV usage, CDFs, tables.")] = None,
    tp: Tp = 1, replicas: Replicas = 1, ttft: Ttft = None, itl: Itl = None, price: Price = None,
    weight_dtype: WeightDtype = None,
    kv_dtype: KvDtype = None,
    hardware_file: HardwareFile = None,
    threads: args.Threads = None,
    ideal: Ideal = False,
    json: args.Json = False,
) -> None:
    """The real scheduler on a simulated clock: percentiles, goodput, cache hits and price of a fleet that need not exist.

    \b
    Examples:
      ridgeline simulate Llama-3.1-8B --device "H100 SXM" --rate 20/s --requests 1000
      ridgeline simulate Llama-3.1-8B --device "H100 SXM" --replicas 8 --workload agents --router prefix --ttft 500ms --itl 30ms
      ridgeline simulate Llama-3.1-8B --device "A100 SXM" --batching both --html gantt.html
      ridgeline simulate Qwen3-32B --device "H100 SXM" --tp 2 --trace-in arrivals.jsonl
      ridgeline simulate smollm2 --this-host --workload closed --users 16 --prompt 128 --output 64
    """
    from ridgeline.bench.workloads import Lengths
    from ridgeline.cli.simulate import SimulateArgs, run
    from ridgeline.planner.question import Question

    fleet = Question(
        model, device, this_host, hardware_file=hardware_file, ttft=ttft, itl=itl, price=price, weight_dtype=weight_dtype,
        kv_dtype=kv_dtype, tp=tp, replicas=replicas, threads=threads, ideal=ideal,
    )  # fmt: skip
    load = SimulateArgs(
        workload, trace_in, requests, 5.0 if rate is None else rate, users, burst, turns, 1.0 if think is None else think,
        Lengths(prompt, output, spread), prefix, seed, max_num_seqs, max_num_batched_tokens, itl_target, router, prefix_cache, batching,
        kv_blocks, trace_out, html_out,
    )  # fmt: skip
    run(fleet, load, as_json=json)


def calibrate(
    model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="Measure the formats of this model's tensors.")] = None,
    seconds: Annotated[float | None, _option(units.seconds, "--seconds", "TIME", "At most 60. Default 45.")] = None,
    threads: args.Threads = None,
    json: args.Json = False,
) -> None:
    """Measure this host, so that `plan --this-host` is fitted: products per format, attention, ops, the engine. Runs no model.

    \b
    Examples:
      ridgeline calibrate
      ridgeline calibrate smollm2 --seconds 20
    """
    from ridgeline.cli.calibrate import run

    run(model, threads, seconds if seconds is not None else 45.0, as_json=json)


def hardware(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One device, with its sources.")] = None,
    hardware_file: HardwareFile = None,
    workshop: Workshop = False,
    json: args.Json = False,
) -> None:
    """The table of devices: memory, bandwidth, dense peaks per number format, links, price bands with dates.

    \b
    Examples:
      ridgeline hardware
      ridgeline hardware "h100 sxm"
      ridgeline hardware --hardware-file mine.csv --json
    """
    from ridgeline.cli.facts import hardware as run

    run(name, hardware_file, workshop=workshop, as_json=json)


def models(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One model, file or config.json.")] = None, json: args.Json = False
) -> None:
    """The table of models: parameters, caches, where each number comes from.

    \b
    Examples:
      ridgeline models
      ridgeline models "deepseek-v3 /"
      ridgeline models ./config.json --json
    """
    from ridgeline.cli.facts import list_models

    list_models(name, as_json=json)


def register(app: typer.Typer) -> None:
    """Add the planning commands to the application."""
    for command in (plan, simulate, calibrate, hardware, models):
        app.command()(command)
