"""The `batch` command and its help: a declaration, registered by `cli/app`."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Annotated

import typer

import ridgeline.cli.args as args
import ridgeline.planner.units as units

_AT_ONCE = "Requests at once. Default: twice --max-num-seqs; with --url 32."
_Price = Annotated[
    Decimal | None,
    typer.Option("--price", parser=lambda text: units.usd_per_hour(text, "--price"), metavar="USD/h", help="Of the machine: 2.69/h."),
]
_KEYS = ["RIDGELINE_API_KEY", "OPENAI_API_KEY"]


def batch(
    input: Annotated[Path, typer.Argument(metavar="IN.jsonl", help="One request a line: custom_id, method, url, body.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT.jsonl", help="Where the replies go, in the order of the input.")],
    model: Annotated[str | None, typer.Option("--model", metavar="MODEL", help="Load this one. Default: what the bodies name.")] = None,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="Ask a running OpenAI-compatible server instead.")] = None,
    api_key: Annotated[str | None, typer.Option("--api-key", envvar=_KEYS, metavar="KEY", help="With --url: the server's key.")] = None,
    served_model_name: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Name that bodies use for --model; several times. Default: MODEL.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(parser=args.count("--concurrency"), metavar="N", help=_AT_ONCE)] = None,
    timeout: Annotated[float, typer.Option(metavar="S", help="With --url: seconds of silence before a request is tried again.")] = 600.0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Begin anew, whatever OUT.jsonl and its .part hold.")] = False,
    retry_errors: Annotated[bool, typer.Option("--retry-errors", help="Ask lines again that ended with an error before.")] = False,
    keep_order: Annotated[bool, typer.Option("--keep-order", help="Ask in the file's order instead of sorting by shared prefix.")] = False,
    max_num_seqs: Annotated[int, typer.Option(parser=args.count("--max-num-seqs"), metavar="N", help="Sequences that run at once.")] = 64,
    price: _Price = None,
    json: args.Json = False,
    max_model_len: args.MaxModelLen = None,
    threads: args.Threads = None,
    kv_cache_dtype: args.KvCacheDtype = "auto",
    quality_gate: args.QualityGate = "auto",
    speculative_config: args.SpeculativeConfig = None,
    isa: args.Isa = "auto",
) -> None:
    """Answer a file of requests in OpenAI's batch format, through the engine in this process or a server.

    Every line gets its reply, an answer or an error. After a crash or a kill the same command goes on where it was: nothing is asked
    twice, nothing is lost. Requests with a common beginning are asked together, so that it is computed once.

    \b
    A line of the input, and of the output:
      {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "smollm2", "messages": [...]}}
      {"id": "...", "custom_id": "a", "response": {"status_code": 200, "request_id": "...", "body": {...}}, "error": null}

    \b
    Examples:
      ridgeline batch in.jsonl -o out.jsonl --model smollm2
      ridgeline batch in.jsonl -o out.jsonl --model ./m.gguf --served-model-name gpt-4o-mini
      ridgeline batch in.jsonl -o out.jsonl --url http://localhost:8000
      ridgeline batch in.jsonl -o out.jsonl --model smollm2 --retry-errors --json

    Exit codes: 0 every line was answered, 2 some lines are at fault, 1 the engine or the server failed on some.
    """
    from ridgeline.cli.batch import BatchArgs
    from ridgeline.cli.batch import batch as work
    from ridgeline.errors import UserError

    if concurrency is not None and concurrency < 1:
        raise UserError(f"--concurrency is {concurrency}, must be at least 1", field="--concurrency", value=concurrency, limit=1)
    if not timeout > 0:
        raise UserError(f"--timeout is {timeout:g}, must be above 0", field="--timeout", value=timeout, limit=0)
    load = {
        "max_model_len": max_model_len, "threads": threads, "kv_cache_dtype": kv_cache_dtype, "isa": isa, "max_num_seqs": max_num_seqs,
        "speculative_config": speculative_config,
    }  # fmt: skip
    asked = BatchArgs(
        input, output, model, url, load, tuple(served_model_name or ()), api_key, concurrency, timeout, overwrite, retry_errors,
        sort=not keep_order, quality_gate=quality_gate, price=price,
    )  # fmt: skip
    raise typer.Exit(work(asked, as_json=json))


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("batch")(batch)
