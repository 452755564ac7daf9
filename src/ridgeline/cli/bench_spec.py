"""`ridgeline bench spec`: its options and its help; `bench/spec` does the work."""

from __future__ import annotations

from typing import Annotated

import typer

import ridgeline.cli.args as args

_DRAFTS_HELP = "Numbers of guesses to try beside none and the adaptive number."
_DRAFT_HELP = "A draft: a model of the same vocabulary, ngram or self; several times for a table by pair and kind of text."
_CONFIG_HELP = "How to guess, as for serve: method ngram (default), draft_model with its model, or self."


def spec(
    model: args.Model,
    draft: Annotated[list[str] | None, typer.Option("--draft", metavar="MODEL", help=_DRAFT_HELP)] = None,
    speculative_config: Annotated[str | None, typer.Option(metavar="JSON", help=_CONFIG_HELP)] = None,
    drafts: Annotated[str, typer.Option(metavar="K,K,...", help=_DRAFTS_HELP)] = "1,2,3,4,6,8",
    domain: Annotated[list[str] | None, typer.Option(metavar="NAME", help="code, extraction, chat, creative. Default: all.")] = None,
    gen: Annotated[int, typer.Option(parser=args.count("--gen"), metavar="N", help="Most tokens of an answer.")] = 128,
    repeat: Annotated[int, typer.Option(parser=args.count("--repeat"), metavar="N", help="Rounds; medians are reported.")] = 1,
    temperature: Annotated[float, typer.Option(metavar="T", help="Of the answers; 0 is greedy.")] = 0.0,
    json: args.Json = False,
    threads: args.Threads = None,
    kv_cache_dtype: args.KvCacheDtype = "auto",
    block_size: args.BlockSize = 16,
    isa: args.Isa = "auto",
) -> None:
    """How much guessing ahead gains, per kind of text and number of guesses: speed, acceptance, time of a step beside its prediction.

    \b
    Examples:
      ridgeline bench spec smollm2
      ridgeline bench spec smollm2 --domain extraction --drafts 2,4,8 --json > spec.json
      ridgeline bench report spec.json -o spec.html                                        the sweep as figures
      ridgeline bench spec ./big.gguf --speculative-config '{"method": "draft_model", "model": "./small.gguf"}'
      ridgeline bench spec smollm2 --speculative-config '{"method": "self"}'
      ridgeline bench spec ./m-Q8_0.gguf --draft ./m-Q4_0.gguf --draft self --draft ngram --drafts 2,4    acceptance per pair
    """
    import ridgeline.bench.spec_pairs as pairs
    from ridgeline.bench.spec import DOMAINS, SpecBenchOptions, render, run
    from ridgeline.bench.spec_report import document
    from ridgeline.cli.output import note, print_report

    options = args.load_options(
        model, max_model_len=None, threads=threads, kv_cache_dtype=kv_cache_dtype, block_size=block_size, backend="cpu", isa=isa,
        speculative_config=speculative_config,
    )  # fmt: skip
    asked = SpecBenchOptions(options, args.counts("--drafts", drafts), tuple(domain or DOMAINS), gen, repeat, temperature)
    if draft:
        print_report(pairs.run_pairs(asked, draft, note), pairs.document, pairs.render, as_json=json)
    else:
        print_report(run(asked, note), document, render, as_json=json)
