"""`ridgeline bench serve`, `bench ab`, `bench peers`: their options and their help. Declarations; the work is in `bench/`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import ridgeline.cli.args as args
from ridgeline.errors import UserError, one_of, within

if TYPE_CHECKING:
    from ridgeline.bench.serve_options import ServeOptions, Source

_URL_HELP = "A server that runs already, e.g. http://127.0.0.1:8000."
_ENGINE_HELP = "What shall serve MODEL: ridgeline, llama.cpp, vllm, sglang, openvino, ovms, transformers."
_PATH_HELP = "The engine's program, where it is not on PATH; for openvino a Python that has openvino_genai."
_ARGS_HELP = "More options for the engine, as one text, e.g. '-fa on'."
_WORKLOAD_HELP = "chat, rag, agents, long, code, batch, eval, rl: each says what it optimises."
_TRACE_HELP = "JSONL of arrival, prompt_len, output_len (prefix_id, prefix_len): replayed as it is."
_LOADS_HELP = "Closed loop: so many sessions at once, e.g. 1,4,16; 0 is all. Default: the workload's."
_RATE_HELP = "Open loop: sessions begin at so many a second (Poisson), answered or not, e.g. 0.5,1,2."
_SWEEP_HELP = "Double the concurrency until the knee is passed."
_SALT_HELP = "Begins every prompt, so that no run finds another's cache. Default: drawn anew and told."
_INPUT_HELP = "Tokens of every prompt (beside what sessions share). Default: the workload's mix."
_OUTPUT_HELP = "Tokens of every answer. Default: the workload's mix."
_REQUESTS_HELP = "Sessions per cell, at least as many as are at once. Default: the workload's."
_SCALE_HELP = "Multiplies all lengths."
_LIMIT_HELP = "A cell begins no new session after so many seconds."
_DIR_HELP = "Where llama-bench, llama-server and others lie (or a Python with openvino_genai); several times."
_RESULTS_HELP = "Keeps rows of parts that were measured, and adds to them."
_SIDE_HELP = "A URL, or ENGINE[=PROGRAM] with options for it, e.g. 'ridgeline --block-size 32'."
_WARMUP_HELP = "Requests before the first cell, beside two that tell characters per token."
_REPEATS_HELP = "More tries of a cell in which others took over 5% of the CPUs."


# Typed -> its name in `ServeOptions`. What a command does not offer is as it is there.
_NAMES: Mapping[str, str] = {"max_seconds": "limit_s", "timeout": "timeout_s", **{name: name for name in (
    "workload", "burst", "sweep", "requests", "seed", "salt", "keep_cache", "scale", "warmup", "repeats", "ignore_eos", "temperature",
    "input_len", "output_len",
)}}  # fmt: skip


def register(bench: typer.Typer) -> None:
    """Adds the commands of this module."""
    bench.command("serve")(serve)
    bench.command("ab")(ab)
    bench.command("peers")(peers)
    bench.command("client")(client)
    bench.command("workloads")(workloads)


def serve(
    model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help=args.MODEL_HELP)] = None,
    url: Annotated[str | None, typer.Option(metavar="URL", help=_URL_HELP)] = None,
    engine: Annotated[str, typer.Option(metavar="NAME", help=_ENGINE_HELP)] = "ridgeline",
    engine_path: Annotated[str | None, typer.Option(metavar="FILE", help=_PATH_HELP)] = None,
    engine_args: Annotated[str, typer.Option(metavar="TEXT", help=_ARGS_HELP)] = "",
    workload: Annotated[str, typer.Option(metavar="NAME", help=_WORKLOAD_HELP)] = "chat",
    trace: Annotated[str | None, typer.Option(metavar="FILE", help=_TRACE_HELP)] = None,
    concurrency: Annotated[str, typer.Option(metavar="N,N", help=_LOADS_HELP)] = "",
    rate: Annotated[str, typer.Option(metavar="R,R", help=_RATE_HELP)] = "",
    burst: Annotated[int, typer.Option(parser=args.count("--burst"), metavar="N", help="With --rate: so many sessions at a time.")] = 1,
    sweep: Annotated[bool, typer.Option("--sweep", help=_SWEEP_HELP)] = False,
    requests: Annotated[int | None, typer.Option(parser=args.count("--requests"), metavar="N", help=_REQUESTS_HELP)] = None,
    seed: Annotated[int, typer.Option(parser=args.count("--seed"), metavar="N", help="Same seed, same prompts.")] = 0,
    salt: Annotated[str | None, typer.Option(metavar="TEXT", help=_SALT_HELP)] = None,
    keep_cache: Annotated[bool, typer.Option("--keep-cache", help="One salt for all cells: later ones find the cache.")] = False,
    scale: Annotated[float, typer.Option(metavar="X", help=_SCALE_HELP)] = 1.0,
    input_len: Annotated[int | None, typer.Option(parser=args.count("--input-len"), metavar="N", help=_INPUT_HELP)] = None,
    output_len: Annotated[int | None, typer.Option(parser=args.count("--output-len"), metavar="N", help=_OUTPUT_HELP)] = None,
    slo_ttft: Annotated[float | None, typer.Option(metavar="MS", help="Promise for TTFT. Default: the workload's.")] = None,
    slo_tpot: Annotated[float | None, typer.Option(metavar="MS", help="Promise for TPOT. Default: the workload's.")] = None,
    max_seconds: Annotated[float, typer.Option(metavar="S", help=_LIMIT_HELP)] = 120.0,
    timeout: Annotated[float, typer.Option(metavar="S", help="A request that takes longer has failed.")] = 600.0,
    warmup: Annotated[int, typer.Option(parser=args.count("--warmup"), metavar="N", help=_WARMUP_HELP)] = 2,
    repeats: Annotated[int, typer.Option(parser=args.count("--repeats"), metavar="N", help=_REPEATS_HELP)] = 2,
    endpoint: Annotated[str | None, typer.Option(metavar="NAME", help="chat or completions. Default: the workload's.")] = None,
    ignore_eos: Annotated[bool, typer.Option(help="Answers run to the workload's length, where the server can.")] = True,
    temperature: args.Temperature = 0.0,
    served_model_name: Annotated[str | None, typer.Option(metavar="NAME", help="What requests call the model.")] = None,
    api_key: Annotated[str | None, typer.Option(metavar="KEY", envvar="RIDGELINE_BENCH_API_KEY", help="Sent as bearer token.")] = None,
    max_model_len: args.MaxModelLen = None,
    threads: args.Threads = None,
    out: Annotated[str | None, typer.Option("--records", metavar="FILE", help="Write one JSON line per request.")] = None,
    json: args.Json = False,
) -> None:
    """Any OpenAI-compatible server under a workload: latency, throughput and goodput, with every definition beside them.

    \b
    Examples:
      ridgeline bench serve smollm2                                 starts our server, people who talk with it, ends it
      ridgeline bench serve --url http://127.0.0.1:8080 --sweep     a server that runs: double the load to the knee
      ridgeline bench serve ./model.gguf --engine llama.cpp --engine-path ~/llama-server --workload agents
      ridgeline bench serve smollm2 --rate 0.5,1,2 --slo-ttft 500   open loop: Poisson arrivals, goodput under a promise
      ridgeline bench serve smollm2 --workload rl --json > rl.json  then: ridgeline bench report rl.json

    \b
    Workloads: chat, rag (few documents that all share), agents (branches of one role prompt that then rate
    their own answers), long, code, batch, eval (a benchmark's questions), rl (n samples of each prompt);
    --trace replays a file.
    """
    given = dict(locals())
    from ridgeline.bench.serve_options import Source
    from ridgeline.cli.bench_run import measure_serve

    try:
        extra = tuple(shlex.split(engine_args))
    except ValueError as error:
        raise UserError(f"--engine-args: {error}", field="--engine-args", value=engine_args) from None
    source = Source(url, model, engine, engine_path, extra, served_model_name, api_key, max_model_len, threads)
    measure_serve(serve_options(source, given), None if out is None else Path(out), as_json=json)


def ab(
    model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help=args.MODEL_HELP)] = None,
    a: Annotated[str, typer.Option("--a", metavar="SIDE", help=_SIDE_HELP)] = "ridgeline",
    b: Annotated[str, typer.Option("--b", metavar="SIDE", help="The other side.")] = "llama.cpp",
    model_b: Annotated[str | None, typer.Option(metavar="MODEL", help="What B serves. Default: the same.")] = None,
    name_a: Annotated[str | None, typer.Option(metavar="NAME", help="What sentences call A.")] = None,
    name_b: Annotated[str | None, typer.Option(metavar="NAME", help="What sentences call B.")] = None,
    rounds: Annotated[int, typer.Option(parser=args.count("--rounds"), metavar="N", help="Turns of both; 5 or more say something.")] = 5,
    workload: Annotated[str, typer.Option(metavar="NAME", help=_WORKLOAD_HELP)] = "chat",
    concurrency: Annotated[str, typer.Option(metavar="N,N", help=_LOADS_HELP)] = "8",
    rate: Annotated[str, typer.Option(metavar="R,R", help=_RATE_HELP)] = "",
    requests: Annotated[int | None, typer.Option(parser=args.count("--requests"), metavar="N", help=_REQUESTS_HELP)] = None,
    seed: Annotated[int, typer.Option(parser=args.count("--seed"), metavar="N", help="Of the first round's prompts.")] = 0,
    scale: Annotated[float, typer.Option(metavar="X", help=_SCALE_HELP)] = 1.0,
    input_len: Annotated[int | None, typer.Option(parser=args.count("--input-len"), metavar="N", help=_INPUT_HELP)] = None,
    output_len: Annotated[int | None, typer.Option(parser=args.count("--output-len"), metavar="N", help=_OUTPUT_HELP)] = None,
    max_seconds: Annotated[float, typer.Option(metavar="S", help=_LIMIT_HELP)] = 120.0,
    repeats: Annotated[int, typer.Option(parser=args.count("--repeats"), metavar="N", help=_REPEATS_HELP)] = 2,
    endpoint: Annotated[str | None, typer.Option(metavar="NAME", help="chat or completions. Default: the workload's.")] = None,
    ignore_eos: Annotated[bool, typer.Option(help="Answers run to the workload's length, where the server can.")] = True,
    max_model_len: args.MaxModelLen = None,
    threads: args.Threads = None,
    json: args.Json = False,
) -> None:
    """Two servers in turns under the same load, and what may be said: A is 2.1x B, 95% 1.9-2.3, or no significant difference.

    \b
    Examples:
      ridgeline bench ab smollm2 --b llama.cpp=$HOME/llama.cpp/build/bin/llama-server
      ridgeline bench ab smollm2 --a ridgeline --b "ridgeline --no-enable-prefix-caching" --workload agents --concurrency 0
      ridgeline bench ab --a http://127.0.0.1:8000 --b http://127.0.0.1:8080 --name-a old --name-b new --rounds 10
    """
    given = dict(locals())
    from ridgeline.bench.ab import AbOptions, side
    from ridgeline.cli.bench_run import measure_ab

    source_a, called_a = side(a, model, max_model_len, threads)
    source_b, called_b = side(b, model_b or model, max_model_len, threads)
    asked = AbOptions(serve_options(source_a, given), source_a, source_b, name_a or called_a, name_b or called_b, rounds)
    measure_ab(asked, as_json=json)


def peers(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Files that this engine and the peers all read.")],
    peer_dir: Annotated[list[str] | None, typer.Option(metavar="DIR", help=_DIR_HELP)] = None,
    part: Annotated[list[str] | None, typer.Option(metavar="NAME", help="micro, batch, chat, agents; several times. Default: all.")] = None,
    repeat: Annotated[int, typer.Option(parser=args.count("--repeat"), metavar="N", help="Runs of micro and batch.")] = 3,
    rounds: Annotated[int, typer.Option(parser=args.count("--rounds"), metavar="N", help="Turns of the servers.")] = 3,
    requests: Annotated[int, typer.Option(parser=args.count("--requests"), metavar="N", help="Sessions of a chat cell.")] = 16,
    concurrency: Annotated[int, typer.Option(parser=args.count("--concurrency"), metavar="N", help="Chat sessions at once.")] = 8,
    branches: Annotated[int, typer.Option(parser=args.count("--branches"), metavar="N", help="Branches of agents.")] = 8,
    seqs: Annotated[int, typer.Option(parser=args.count("--seqs"), metavar="N", help="Sequences of batch.")] = 32,
    scale: Annotated[float, typer.Option(metavar="X", help="Multiplies the lengths of chat and agents.")] = 1.0,
    repeats: Annotated[int, typer.Option(parser=args.count("--repeats"), metavar="N", help=_REPEATS_HELP)] = 1,
    threads: args.Threads = None,
    results: Annotated[str | None, typer.Option(metavar="FILE", help=_RESULTS_HELP)] = None,
    into: Annotated[str | None, typer.Option(metavar="FILE", help="Put the table between the markers of this Markdown file.")] = None,
    json: args.Json = False,
) -> None:
    """This engine beside each installed peer: same files, this machine, in turns. Prints the table for a README.

    llama-bench and llama-server run with the fastest of their own settings, everything else as it is by default.

    \b
    Examples:
      ridgeline bench peers ./model.gguf --peer-dir ~/llama.cpp/build/bin
      ridgeline bench peers a.gguf b.gguf --part micro --results peers.json     then the next part into the same file
      ridgeline bench peers a.gguf --results peers.json --into README.md
    """
    from ridgeline.bench.peers import PARTS, PeersOptions
    from ridgeline.cli.bench_run import measure_peers

    asked = PeersOptions(
        tuple(models), tuple(peer_dir or ()), tuple(part or PARTS), repeat, rounds, requests, concurrency, branches, seqs, threads,  # type: ignore[arg-type]
        None if results is None else Path(results), scale, repeats,
    )  # fmt: skip
    measure_peers(asked, None if into is None else Path(into), as_json=json)


def client(
    streams: Annotated[str, typer.Option(metavar="N,N", help="So many streams at once.")] = "1,200",
    rate: Annotated[float, typer.Option(metavar="R", help="Tokens per second of all streams together, at most 50 of each.")] = 1000.0,
    seconds: Annotated[float, typer.Option(metavar="S", help="Length of each check.")] = 5.0,
    json: args.Json = False,
) -> None:
    """How exact this client is on this machine: scripted times of a fake server beside those reported, and the CPU it takes.

    \b
    Examples:
      ridgeline bench client
      ridgeline bench client --streams 200 --rate 5000
    """
    from ridgeline.bench.client_check import check, render
    from ridgeline.cli.output import print_json

    wanted = [int(n) for n in _numbers("--streams", streams, whole=True)]
    for n in wanted or [0]:
        within("--streams", n, 1, 5000)
    within("--rate", rate, 0.1, 1e6)
    within("--seconds", seconds, 0.1, 600)
    found = [check(n, min(rate, 50.0 * n), seconds) for n in wanted]
    if json:
        print_json({"checks": [c.as_json() for c in found]})
    else:
        print(render(found))


def workloads(json: args.Json = False) -> None:
    """The workloads of `bench serve`, one a use of a model: what each optimises and promises, its lengths, how it arrives.

    \b
    Examples:
      ridgeline bench workloads
      ridgeline bench serve smollm2 --workload eval
    """
    from ridgeline.bench.load_workloads import overview
    from ridgeline.cli.output import print_json, table

    rows = overview()
    if json:
        print_json({"workloads": rows})
    else:
        print(table([["-" if v is None else v for v in row.values()] for row in rows], list(rows[0])))


def serve_options(source: Source, given: Mapping[str, Any]) -> ServeOptions:
    """The load as it was typed, checked. Raises `UserError` naming the option."""
    from ridgeline.bench.client_metrics import Slo
    from ridgeline.bench.load_workloads import preset
    from ridgeline.bench.serve_options import ServeOptions

    if given["endpoint"] is not None:
        one_of("--endpoint", given["endpoint"], ("chat", "completions"))
    own, trace = preset(given["workload"]).slo, given.get("trace")
    ttft, tpot = given.get("slo_ttft"), given.get("slo_tpot")
    return ServeOptions(
        source, trace=None if trace is None else Path(trace), endpoint=given["endpoint"], rates=_numbers("--rate", given["rate"]),
        concurrency=tuple(int(v) for v in _numbers("--concurrency", given["concurrency"], whole=True)),
        slo=Slo(own.ttft_s if ttft is None else ttft / 1e3, own.tpot_s if tpot is None else tpot / 1e3),
        **{name: given[typed] for typed, name in _NAMES.items() if typed in given},
    )  # fmt: skip


def _numbers(name: str, text: str, *, whole: bool = False) -> tuple[float, ...]:
    try:
        return tuple(int(part) if whole else float(part) for part in text.split(",") if part.strip())
    except ValueError:
        kind = "whole numbers" if whole else "numbers"
        raise UserError(f"{name} is {text!r}, must be {kind} with commas between", field=name, value=text, remedy="like 1,4,16") from None
