"""`ridgeline bench ...`: the commands and their help. Declarations only: each imports its work when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

import ridgeline.cli.args as args
import ridgeline.cli.bench_serve as bench_serve
import ridgeline.cli.ladder_command as ladder_command
import ridgeline.cli.predict as predict
import ridgeline.cli.prefix_command as prefix_command
import ridgeline.cli.quality_command as quality_command
from ridgeline.cli.bench_spec import spec
from ridgeline.cli.report_command import report

_ANSWERS_HELP = "Tokens of whole answers, with the cache and without. Default: 16, 32, 64 ... for some seconds."
# Written out: the benchmark is not imported for --help.
_SCENARIO_HELP = "decode, batching, ragged, branch, arrival, overhead, reuse, samples, overload, session, ablation; several. Default: all."

bench = typer.Typer(rich_markup_mode=None, help="Measure this machine and this engine.", no_args_is_help=False)


@bench.callback(invoke_without_command=True)
def bench_top(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@bench.command("micro")
def bench_micro(
    model: args.Model,
    prompt: Annotated[int, typer.Option(parser=args.count("--prompt"), metavar="N", help="Tokens of the prompt.")] = 512,
    gen: Annotated[int, typer.Option(parser=args.count("--gen"), metavar="N", help="Tokens to generate.")] = 128,
    repeat: Annotated[int, typer.Option(parser=args.count("--repeat"), metavar="N", help="Runs; medians are reported.")] = 5,
    ops: Annotated[bool, typer.Option("--ops", help="Time, bytes and FLOPs of every kind of op.")] = False,
    against: Annotated[str | None, typer.Option(metavar="BINARY", help="A llama-bench to run in turns; ratios are printed.")] = None,
    json: args.Json = False,
    threads: args.Threads = None,
    kv_cache_dtype: args.KvCacheDtype = "auto",
    block_size: args.BlockSize = 16,
    isa: args.Isa = "auto",
) -> None:
    """Prompt and generation speed of one sequence beside the machine's measured ceilings and the roofline's prediction.

    \b
    Examples:
      ridgeline bench micro smollm2
      ridgeline bench micro smollm2 --prompt 512 --gen 128 --threads 2 --repeat 5 --json
      ridgeline bench micro ./model.gguf --against ~/llama.cpp/build/bin/llama-bench
    """
    from ridgeline.bench.micro import MicroOptions, render, run
    from ridgeline.bench.micro_report import document
    from ridgeline.cli.output import note, print_report

    options = args.load_options(
        model, max_model_len=max(1, prompt + gen), threads=threads, kv_cache_dtype=kv_cache_dtype, block_size=block_size,
        backend="cpu", isa=isa,
    )  # fmt: skip
    report = run(MicroOptions(options, prompt, gen, repeat, ops, against), note)
    print_report(report, document, render, as_json=json)


@bench.command("engine")
def bench_engine(
    model: args.Model,
    scenario: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=_SCENARIO_HELP),
    ] = None,
    seqs: Annotated[int, typer.Option(parser=args.count("--seqs"), metavar="N", help="Sequences at once.")] = 32,
    prompt: Annotated[int, typer.Option(parser=args.count("--prompt"), metavar="N", help="Tokens of each prompt.")] = 128,
    gen: Annotated[int, typer.Option(parser=args.count("--gen"), metavar="N", help="Tokens of each answer.")] = 128,
    repeat: Annotated[int, typer.Option(parser=args.count("--repeat"), metavar="N", help="Runs; medians are reported.")] = 3,
    against: Annotated[str | None, typer.Option(metavar="BINARY", help="A llama-batched-bench to run in turns; ratio is printed.")] = None,
    against_model: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="What the peer runs beside the same file, say another format; several times.")
    ] = None,
    trace: Annotated[str | None, typer.Option(metavar="FILE", help="Write the last run's steps as Perfetto/Chrome JSON.")] = None,
    json: args.Json = False,
    threads: args.Threads = None,
    kv_cache_dtype: args.KvCacheDtype = "auto",
    block_size: args.BlockSize = 16,
    isa: args.Isa = "auto",
) -> None:
    """Many sequences in one process: decoding, agents with a shared prefix, a long prompt among answers, overhead per step.

    And what the engine does, with the words compared: static batches beside continuous ones, a step of unlike lengths, a prefix met again,
    samples that share a prompt, fewer blocks than requests need, a session that comes back, techniques left out one by one.

    \b
    Examples:
      ridgeline bench engine smollm2
      ridgeline bench engine smollm2 --scenario decode --against ~/llama.cpp/build/bin/llama-batched-bench
      ridgeline bench engine smollm2 --scenario batching --scenario ragged      continuous batching: gain, order, bits
      ridgeline bench engine smollm2 --scenario branch --trace branch.json --json
    """
    from pathlib import Path

    from ridgeline.bench.engine import SCENARIOS, EngineBenchOptions, render, run
    from ridgeline.cli.output import note, print_json, writable

    if trace is not None:
        writable(Path(trace))
    options = args.load_options(
        model, max_model_len=None, threads=threads, kv_cache_dtype=kv_cache_dtype, block_size=block_size, backend="cpu", isa=isa,
        max_num_seqs=max(seqs, 32),
    )  # fmt: skip
    asked = EngineBenchOptions(
        options, tuple(scenario or SCENARIOS), seqs, prompt, gen, repeat, against, tuple(against_model or ()), trace  # type: ignore[arg-type]
    )  # fmt: skip
    report = run(asked, note)
    if json:
        print_json(report.as_json())
    else:
        print(render(report))


@bench.command("accuracy")
def bench_accuracy(
    model: args.Model,
    text: Annotated[str | None, typer.Option(metavar="FILE", help="UTF-8 text to walk. Default: this program's own sources.")] = None,
    positions: Annotated[int, typer.Option(parser=args.count("--positions"), metavar="N", help="Positions compared.")] = 2000,
    window: Annotated[int, typer.Option(parser=args.count("--window"), metavar="N", help="Tokens per fresh context.")] = 2048,
    json: args.Json = False,
    threads: args.Threads = None,
    block_size: args.BlockSize = 16,
    isa: args.Isa = "auto",
) -> None:
    """How far the CPU backend's next-token distributions lie from the reference's: KL divergence, top-1, perplexity, per KV dtype.

    \b
    Examples:
      ridgeline bench accuracy smollm2
      ridgeline bench accuracy gemma3-270m --text /usr/share/common-licenses/GPL-3 --positions 2k --json
    """
    from pathlib import Path

    from ridgeline.bench.accuracy import AccuracyOptions, render, run
    from ridgeline.cli.output import note, print_json

    options = args.load_options(
        model, max_model_len=max(1, window), threads=threads, kv_cache_dtype="auto", block_size=block_size, backend="cpu", isa=isa
    )
    report = run(AccuracyOptions(options, None if text is None else Path(text), positions, window), note)
    if json:
        print_json(report.as_json())
    else:
        print(render(report))


@bench.command("lengths")
def bench_lengths(
    model: args.Model,
    lengths: Annotated[str, typer.Option(metavar="N,N,...", help="Tokens of context, rising.")] = "64,128,256,512,1024",
    answers: Annotated[str, typer.Option(metavar="N,N,...", help=_ANSWERS_HELP)] = "",
    repeat: Annotated[int, typer.Option(parser=args.count("--repeat"), metavar="N", help="Runs; medians are reported.")] = 3,
    json: args.Json = False,
    threads: args.Threads = None,
    kv_cache_dtype: args.KvCacheDtype = "auto",
    block_size: args.BlockSize = 16,
    isa: args.Isa = "auto",
) -> None:
    """What a longer context costs: first token with the fitted MFU, one more token and whole answers with the KV cache and without it.

    \b
    Examples:
      ridgeline bench lengths smollm2
      ridgeline bench lengths smollm2 --lengths 128,512,2k,8k --json
      ridgeline bench lengths smollm2 --answers 64,128,256       without the cache the last takes half a minute
    """
    from ridgeline.bench.lengths import LengthOptions, render, run
    from ridgeline.bench.lengths_report import document
    from ridgeline.cli.output import note, print_report

    tokens, whole = args.counts("--lengths", lengths), args.counts("--answers", answers) if answers else ()
    options = args.load_options(
        model, max_model_len=max(64, *tokens, *whole) + 1, threads=threads, kv_cache_dtype=kv_cache_dtype, block_size=block_size,
        backend="cpu", isa=isa,
    )  # fmt: skip
    report = run(LengthOptions(options, tokens, repeat, whole), note)
    print_report(report, document, render, as_json=json)


bench.command("report")(report)
bench.command("spec")(spec)
for part in (bench_serve, ladder_command, predict, prefix_command, quality_command):
    part.register(bench)
