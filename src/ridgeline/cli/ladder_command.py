"""`ridgeline bench ladder`: the declaration and its few lines of work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

import ridgeline.cli.args as args


def _load(preset: str, given: dict[str, int | None]) -> Any:
    """The preset with what was given in its place."""
    from ridgeline.bench.ladder_plan import PRESETS
    from ridgeline.errors import one_of

    one_of("--preset", preset, PRESETS)
    changes: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
    return replace(PRESETS[preset], **changes)


def ladder(
    model: args.Model,
    preset: Annotated[str, typer.Option(metavar="NAME", help="workshop, workshop-quarter, mixed, code or tiny.")] = "workshop",
    folder: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="State, raw times, logs. Default: ladder-MODEL-PRESET.")
    ] = None,
    rung: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only these: transformers, one, static, continuous, prefix, kv_int8, ngram; several times."),
    ] = None,
    rounds: Annotated[int, args.number("--rounds", "Every rung so often, in turns; medians count.")] = 1,
    requests: Annotated[int | None, args.number("--requests", "Prompts.")] = None,
    shared: Annotated[int | None, args.number("--shared", "Tokens that all prompts begin with.")] = None,
    own: Annotated[int | None, args.number("--own", "Tokens of each prompt's own.")] = None,
    output: Annotated[int | None, args.number("--output", "Tokens of each answer.")] = None,
    slots: Annotated[int | None, args.number("--slots", "Sequences at once.")] = None,
    transformers_python: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A Python that has torch and transformers, for the first rung.")
    ] = None,
    transformers_dtype: Annotated[str, typer.Option(metavar="DTYPE", help="float32, bfloat16 or float16.")] = "float32",
    transformers_requests: Annotated[int, args.number("--transformers-requests", "It answers the first N prompts only; 0: all.")] = 0,
    seconds: Annotated[float | None, args.duration("--seconds", "Begin no cell after that; the same command goes on.")] = None,
    retries: Annotated[int, args.number("--retries", "Measure a cell again, so often, while others had over 5% of the CPUs.")] = 2,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Begin anew, whatever --dir holds.")] = False,
    json: args.Json = False,
    threads: args.Threads = None,
) -> None:
    """One optimization at a time on the same prompts: what each brings, beside what was predicted, and what it costs in words.

    Every rung runs in a fresh process and adds one thing to the rung below: transformers one at a time, this engine one at a time, static
    batches, continuous batching, prefix cache, KV int8, speculation. Rungs that do not exist here are listed as such; losses are shown.
    After a crash or a kill the same command goes on: cells that were measured are kept, with their raw times and logs.

    \b
    Examples:
      ridgeline calibrate smollm2                      so that predictions are fitted to this host
      ridgeline bench ladder smollm2
      ridgeline bench ladder smollm2 --rounds 3 --transformers-python ~/venv/bin/python
      ridgeline bench ladder smollm2 --preset mixed --rung one --rung static --rung continuous
      ridgeline bench ladder smollm2 --seconds 3m      in pieces: repeat until nothing is left
    """
    from ridgeline import __version__
    from ridgeline.bench.ladder import LadderOptions, run
    from ridgeline.bench.ladder_show import as_json, document, render
    from ridgeline.bench.report_json import to_json
    from ridgeline.cli.output import note, print_json

    load = _load(preset, {"requests": requests, "shared": shared, "own": own, "output": output, "slots": slots})
    where = folder or Path(f"ladder-{Path(model).stem}-{preset}")
    asked = LadderOptions(
        model, load, where, rounds, threads, transformers_python, transformers_dtype,
        transformers_requests, tuple(rung or ()),
        86400.0 if seconds is None else seconds, overwrite=overwrite, retries=retries,
    )  # fmt: skip
    result = run(asked, note)
    if json:
        print_json(as_json(result) | {"report": [to_json(d) for d in document(result, __version__)]})
    else:
        print(render(result))
    raise typer.Exit(1 if any(r.status == "failed" for r in result.rungs) else 0)


def register(bench: typer.Typer) -> None:
    """Add the command to `ridgeline bench`."""
    bench.command("ladder")(ladder)
