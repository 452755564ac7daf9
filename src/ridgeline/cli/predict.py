"""`ridgeline bench predict`, `batches` and `feel`: what this host was predicted to do beside what it did, and where serving hurts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import ridgeline.cli.args as args


def predict(
    model: args.Model,
    file: Annotated[Path, typer.Option("--file", metavar="FILE", help="Predictions and measurements, kept as JSON.")] = Path(
        "predicted.json"
    ),
    prompt: Annotated[list[int] | None, args.number("--prompt", "Tokens of a prompt; several times. Default: 128, 1024.")] = None,
    users: Annotated[list[int] | None, args.number("--users", "Requests at once; several times. Default: 1, 4, 16, 32.")] = None,
    output: Annotated[int, args.number("--output", "Tokens of an answer.")] = 64,
    repeat: Annotated[int, args.number("--repeat", "Measurements of a cell; medians count.")] = 1,
    cell: Annotated[float | None, args.duration("--cell", "Predicted time of a cell, at least one wave. Default 10s.")] = None,
    seconds: Annotated[float | None, args.duration("--seconds", "Stop measuring then; go on by the same command.")] = None,
    predict_only: Annotated[bool, typer.Option("--predict-only", help="Write the predictions down and measure nothing.")] = False,
    json: args.Json = False,
    threads: args.Threads = None,
    kv_cache_dtype: args.KvCacheDtype = "auto",
) -> None:
    """Predict TPOT, throughput and TTFT of loads on this host from its calibration, write that down, then measure them.

    The predictions come from `ridgeline calibrate`, which never runs the model. Closed loops of --users, then Poisson arrivals at half of
    the throughput that was predicted for the most users. A second run of the same command measures what is left; a
    --file of other loads is refused.

    \b
    Examples:
      ridgeline calibrate smollm2
      ridgeline bench predict smollm2 --file predicted.json
      ridgeline bench predict smollm2 --users 1 --users 8 --prompt 512 --predict-only
    """
    from ridgeline.bench.predict import HEADER, PredictOptions, rows, run, summary
    from ridgeline.cli.output import note, print_json, table

    prompts, loads = tuple(prompt or (128, 1024)), tuple(users or (1, 4, 16, 32))
    options = args.load_options(
        model, max_model_len=max(1, max(prompts) + output), threads=threads, kv_cache_dtype=kv_cache_dtype, block_size=16, backend="cpu",
        isa="auto", max_num_seqs=max(1, *loads),
    )  # fmt: skip
    measure_s = 0.0 if predict_only else 3600.0 if seconds is None else seconds
    asked = PredictOptions(options, file, prompts, loads, output, repeat, cell or 10.0, measure_s)
    document = run(asked, note)
    if json:
        print_json(document | {"summary": summary(document)})
        return
    for name, of in document["models"].items():
        print(f"{name}: predicted {of['written']} from the calibration of {of['calibrated']} ({of['calibration_s']:.0f} s)")
    print(f"\n{table(rows(document), list(HEADER))}\n")
    for metric, found in summary(document).items():
        if found:
            print(f"{metric}: error {found['median']:.1%} in the median, {found['worst']:.1%} at worst, over {found['cells']:.0f} cells")


def feel(
    model: args.Model,
    lengths: Annotated[str, typer.Option("--lengths", metavar="N,N,...", help="Tokens of the prompts, rising.")] = "128,512,1024,2048",
    users: Annotated[int, args.number("--users", "People who ask at the same moment.")] = 5,
    prompt: Annotated[int, args.number("--prompt", "Tokens of each one's prompt.")] = 256,
    output: Annotated[int, args.number("--output", "Tokens of each one's answer.")] = 64,
    json: args.Json = False,
    threads: args.Threads = None,
    kv_cache_dtype: args.KvCacheDtype = "auto",
) -> None:
    """Where serving hurts, here: memory before and after loading and by input, TTFT by length with a fit, a queue of five people.

    \b
    Examples:
      ridgeline bench feel smollm2
      ridgeline bench feel smollm2 --lengths 128,256,512 --users 8
      ridgeline bench feel smollm2 --json > f.json; ridgeline bench report f.json -o f.html    the same as charts
    """
    from ridgeline.bench.feel import FeelOptions, render, run
    from ridgeline.bench.feel_report import document
    from ridgeline.cli.output import note, print_report

    sizes = args.counts("--lengths", lengths)
    options = args.load_options(
        model, max_model_len=max(2, *(n + 1 for n in sizes), prompt + output), threads=threads, kv_cache_dtype=kv_cache_dtype,
        block_size=16, backend="cpu", isa="auto", max_num_seqs=max(1, users),
    )  # fmt: skip
    report = run(FeelOptions(options, sizes, users, prompt, output), note)
    print_report(report, document, render, as_json=json)


def batches(
    model: args.Model,
    batch: Annotated[str, typer.Option("--batch", metavar="N,N,...", help="Sequences at once, rising.")] = "1,2,4,8,16,32",
    context: Annotated[int, args.number("--context", "Tokens that each sequence holds.")] = 128,
    itl: Annotated[float | None, args.duration("--itl", "Promise: time between tokens, e.g. 30ms.")] = None,
    repeat: Annotated[int, args.number("--repeat", "Runs of a batch; medians count.")] = 3,
    json: args.Json = False,
    threads: args.Threads = None,
    kv_cache_dtype: args.KvCacheDtype = "auto",
) -> None:
    """Time of a step against the batch, measured and by the planner's formula, with the best batch of each under a promise.

    \b
    Examples:
      ridgeline bench batches smollm2
      ridgeline bench batches smollm2 --itl 20ms --context 512 --json > b.json; ridgeline bench report b.json -o b.html
    """
    from ridgeline.bench.batches import MOST, STEPS, BatchesOptions, late, render, run
    from ridgeline.bench.batches_report import document
    from ridgeline.cli.output import note, print_report
    from ridgeline.options import Options

    sizes = args.counts("--batch", batch)
    most, held = min(MOST, max(1, *sizes)), max(1, context)
    longest = held + STEPS + late(most, held, Options("").max_num_batched_tokens)
    options = args.load_options(
        model, max_model_len=longest, threads=threads, kv_cache_dtype=kv_cache_dtype, block_size=16, backend="cpu", isa="auto",
        max_num_seqs=most,
    )  # fmt: skip
    report = run(BatchesOptions(options, sizes, context, itl, repeat), note)
    print_report(report, document, render, as_json=json)


def register(bench: typer.Typer) -> None:
    """Add the commands to `ridgeline bench`."""
    bench.command("predict")(predict)
    bench.command("feel")(feel)
    bench.command("batches")(batches)
