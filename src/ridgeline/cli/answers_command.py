"""`ridgeline cost`, `numbers`, `scorecard`, `templates` and `engines`: declarations only, as in `cli/app`, which registers them."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer

import ridgeline.cli.args as args
import ridgeline.planner.units as units
from ridgeline.planner.ledger import offer


def _usd(name: str, help_: str) -> Any:
    return typer.Option(name, parser=lambda text: units.usd(text, name), metavar="USD", help=help_)


def _offer(name: str, help_: str) -> Any:
    return typer.Option(name, parser=lambda text: offer(text, name), metavar="NAME=IN/CACHED/OUT", help=help_)


def cost(
    training_tokens: Annotated[int | None, args.number("--training-tokens", "Tokens that training took: 32000g.")] = None,
    training_usd: Annotated[Decimal | None, _usd("--training-usd", "What training cost: 4.6M.")] = None,
    tokens_per_day: Annotated[int | None, args.number("--tokens-per-day", "Tokens served: 8600g.")] = None,
    usd_per_mtok: Annotated[Decimal | None, _usd("--usd-per-mtok", "Price of a million tokens.")] = None,
    queries_per_day: Annotated[int | None, args.number("--queries-per-day", "Queries of a search engine, say.")] = None,
    tokens_per_query: Annotated[int | None, args.number("--tokens-per-query", "Tokens of one query, prompt and answer.")] = None,
    ceiling: Annotated[Decimal | None, _usd("--ceiling", "The most a query may cost.")] = None,
    provider: Annotated[list[Any] | None, _offer("--provider", "A provider's USD per million tokens; several times.")] = None,
    own: Annotated[Any, _offer("--own", "Ours, as `plan --rate` prints them by kind.")] = None,
    prompt: Annotated[int, args.number("--prompt", "With --provider: tokens of a prompt.")] = 2048,
    cached: Annotated[int, args.number("--cached", "Of them found in the prefix cache.")] = 0,
    output: Annotated[int, args.number("--output", "Tokens of an answer.")] = 256,
    requests_per_day: Annotated[int, args.number("--requests-per-day", "For the month's bill.")] = 100_000,
    json: args.Json = False,
) -> None:
    """Training against serving, a query against a ceiling, our price beside those of providers. Each sum whose inputs are given.

    \b
    Examples:
      ridgeline cost --training-tokens 32000g --tokens-per-day 8600g
      ridgeline cost --training-usd 4.6M --tokens-per-day 20g --usd-per-mtok 0.60
      ridgeline cost --queries-per-day 8.5g --tokens-per-query 4000 --usd-per-mtok 0.5 --ceiling 0.005
      ridgeline cost --prompt 2006 --cached 1920 --output 300 --own ours=0.02/0.001/0.7 --provider a=2.50/1.25/10
    """
    from ridgeline.cli.answers import CostArgs
    from ridgeline.cli.answers import cost as run

    run(
        CostArgs(
            training_tokens, training_usd, tokens_per_day, usd_per_mtok, queries_per_day, tokens_per_query, ceiling, tuple(provider or ()),
            own, prompt, cached, output, requests_per_day,
        ),
        as_json=json,
    )  # fmt: skip


def numbers(json: args.Json = False) -> None:
    """The round numbers of talks (14.5 GB, 131 KB, 80x, 4x, 15x, 2-3x, 24x), each computed again, with pass or fail."""
    from ridgeline.cli.answers import numbers as run

    run(as_json=json)


def scorecard(
    device: Annotated[str, typer.Option(metavar="NAME", help="A device of `ridgeline hardware`.")] = "H100 SXM 80GB",
    context: Annotated[int, args.number("--context", "Tokens held per sequence.")] = 32768,
    weight_dtype: Annotated[str, typer.Option("--weight-dtype", metavar="DTYPE", help="bf16, fp8, int4 ...")] = "bf16",
    kv_dtype: Annotated[str, typer.Option("--kv-dtype", metavar="DTYPE", help="bf16, fp8, int8 ...")] = "bf16",
    explain: Annotated[bool, typer.Option("--explain", help="What each cell was computed from, with the numbers.")] = False,
    html_out: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="A page whose cells open their sources.")] = None,
    json: args.Json = False,
) -> None:
    """MHA, GQA, MQA, MLA, windows, shared layers, linear attention, Mamba: memory and throughput computed, quality cited.

    \b
    Examples:
      ridgeline scorecard
      ridgeline scorecard --explain
      ridgeline scorecard --html scorecard.html
      ridgeline scorecard --context 128K --device "MI300X" --kv-dtype fp8
    """
    from ridgeline.cli.answers import score

    score(device, context, weight_dtype, kv_dtype, as_json=json, explain=explain, html_out=html_out)


def templates(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="chatbot, copilot, rag or gateway. Left out: a list.")] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="A device of `ridgeline hardware`.")] = "H100 SXM 80GB",
    users: Annotated[int | None, args.number("--users", "Users a day, instead of the template's.")] = None,
    price: Annotated[
        Decimal | None,
        typer.Option("--price", parser=lambda text: units.usd_per_hour(text, "--price"), metavar="USD/h", help="Of one device."),
    ] = None,
    json: args.Json = False,
) -> None:
    """System designs sized: traffic in people's terms to devices, dollars and p99 by the simulator.

    \b
    Examples:
      ridgeline templates
      ridgeline templates chatbot --users 2M --device "H200"
    """
    from ridgeline.cli.answers import templates as run

    run(name, device, users, price, as_json=json)


def engines(
    cpu: Annotated[bool, typer.Option("--cpu", help="CPUs only.")] = False,
    multimodal: Annotated[bool, typer.Option("--multimodal", help="Several models work on one request.")] = False,
    fleet: Annotated[bool, typer.Option("--fleet", help="Many servers, sessions to be routed.")] = False,
    simple: Annotated[bool, typer.Option("--simple", help="One request at a time, to try things out.")] = False,
    agents: Annotated[bool, typer.Option("--agents", help="Branches that share long beginnings.")] = False,
    peak: Annotated[bool, typer.Option("--peak", help="NVIDIA only, latency of one request above all.")] = False,
    json: args.Json = False,
) -> None:
    """Which engine to look at first: answer a few questions, or name what holds; every answer says what it rests on.

    \b
    Examples:
      ridgeline engines                 asks, on a terminal; else prints the whole tree
      ridgeline engines --agents
    """
    from ridgeline.cli.answers import which_engine

    given = {"cpu": cpu, "multimodal": multimodal, "fleet": fleet, "simple": simple, "agents": agents, "peak": peak}
    which_engine(given, as_json=json)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for command in (cost, numbers, scorecard, templates, engines):
        app.command()(command)
