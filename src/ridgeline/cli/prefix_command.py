"""`ridgeline bench prefix`: the declaration and its few lines of work."""

from __future__ import annotations

from typing import Annotated

import typer

import ridgeline.cli.args as args


def prefix(
    model: args.Model,
    requests: Annotated[int, args.number("--requests", "Requests, one after the other.")] = 10,
    shared: Annotated[int, args.number("--shared", "Tokens that all begin with.")] = 1000,
    own: Annotated[int, args.number("--own", "Tokens of each one's own, about.")] = 16,
    output: Annotated[int, args.number("--output", "Tokens of an answer.")] = 8,
    json: args.Json = False,
    threads: args.Threads = None,
    kv_cache_dtype: args.KvCacheDtype = "auto",
    block_size: args.BlockSize = 16,
) -> None:
    """The prefix cache on real requests: first tokens cold and warm, one letter changed, radix tree beside hashed blocks, same words.

    \b
    Examples:
      ridgeline bench prefix smollm2
      ridgeline bench prefix smollm2 --shared 200 --block-size 32 --json
    """
    from ridgeline.bench.prefix import PrefixOptions, render, run
    from ridgeline.cli.output import note, print_json

    options = args.load_options(
        model, max_model_len=None, threads=threads, kv_cache_dtype=kv_cache_dtype, block_size=block_size, backend="cpu", isa="auto",
        max_num_seqs=8,
    )  # fmt: skip
    report = run(PrefixOptions(options, requests, shared, own, output), note)
    if json:
        print_json(report.as_json())
    else:
        print(render(report))


def register(bench: typer.Typer) -> None:
    """Add the command to `ridgeline bench`."""
    bench.command("prefix")(prefix)
