"""`ridgeline bench quality`: the declaration and its few lines of work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import ridgeline.cli.args as args

_RTN = "Judge the base with weights rounded to nearest: int4:tensor, int4:channel, int4:32; several times."

_LM_EVAL = "Only write the questions to DIR as tasks of lm-evaluation-harness, and tell the commands that ask a server of ours."


def _limit(name: str, help_: str) -> Any:
    return typer.Option(name, metavar="X", help=help_)


def quality(
    model: args.Model,
    against: Annotated[
        str | None, typer.Option("--against", metavar="BASE", help="Judge by this model, of the same vocabulary. Default: MODEL itself.")
    ] = None,
    kv_cache_dtype: Annotated[
        list[str] | None, typer.Option(metavar="DTYPE", help="KV cache of MODEL that is judged; several times. Default: auto.")
    ] = None,
    base_kv_cache_dtype: Annotated[str, typer.Option(metavar="DTYPE", help="KV cache of the base.")] = "f32",
    positions: Annotated[int, typer.Option(parser=args.count("--positions"), metavar="N", help="Positions of each text.")] = 1500,
    window: Annotated[int, typer.Option(parser=args.count("--window"), metavar="N", help="Tokens per fresh context.")] = 512,
    needle: Annotated[
        list[int] | None, typer.Option(parser=args.count("--needle"), metavar="N", help="Tokens of a haystack; several times.")
    ] = None,
    text: Annotated[Path | None, typer.Option(metavar="FILE", help="A UTF-8 text beside the shipped prose and code.")] = None,
    rtn: Annotated[list[str] | None, typer.Option(metavar="HOW", help=_RTN)] = None,
    no_tasks: Annotated[bool, typer.Option("--no-tasks", help="Only the divergence: no questions, no needles.")] = False,
    lm_eval: Annotated[Path | None, typer.Option("--lm-eval", metavar="DIR", help=_LM_EVAL)] = None,
    max_kl: Annotated[float, _limit("--max-kl", "Mean KL divergence, nats.")] = 0.05,
    max_kl_p999: Annotated[float, _limit("--max-kl-p999", "99.9th percentile of the KL divergence.")] = 3.0,
    min_top1: Annotated[float, _limit("--min-top1", "Least share of positions with the same likeliest token.")] = 0.9,
    max_ppl: Annotated[float, _limit("--max-ppl", "Rise of perplexity, as a share.")] = 0.03,
    max_tasks: Annotated[float, _limit("--max-tasks", "Right answers lost, as a share of all.")] = 0.05,
    max_needles: Annotated[float, _limit("--max-needles", "Needles lost, as a share of all.")] = 0.1,
    json: args.Json = False,
    threads: args.Threads = None,
    isa: args.Isa = "auto",
) -> None:
    """What a lossy switch costs: perplexity, KL divergence and top-1 agreement on shipped prose and code, questions, needles. With a gate.

    The base is MODEL with an f32 KV cache, or another file of the same vocabulary (--against). Every limit that is broken is named, and
    the exit code is then 1: put it in front of a deployment. What was found of a KV cache in 8 or 4 bits is kept,
    and shown by `serve`, `batch`, `run` and `chat` where they use it.

    \b
    Examples:
      ridgeline bench quality smollm2 --kv-cache-dtype int8 --kv-cache-dtype int4
      ridgeline bench quality ./m-Q4_0.gguf --against ./m-Q8_0.gguf --max-kl 0.1 --min-top1 0.85
      ridgeline bench quality ./m-Q8_0.gguf --rtn int4:tensor --rtn int4:channel --rtn int4:32 --no-tasks --json
      ridgeline bench quality smollm2 --lm-eval lmtask              the same questions through lm-evaluation-harness
    """
    if lm_eval is not None:
        raise _write_tasks(model, lm_eval)
    from ridgeline.bench.quality import Gate, QualityOptions, run
    from ridgeline.bench.quality_record import keep_verdicts
    from ridgeline.bench.quality_rtn import parse
    from ridgeline.bench.quality_show import document, render
    from ridgeline.cli.output import note, print_report

    def load(name: str, dtype: str) -> Any:
        return args.load_options(name, max_model_len=None, threads=threads, kv_cache_dtype=dtype, block_size=16, backend="cpu", isa=isa)

    lengths, rounded = () if no_tasks else tuple(needle or (512, 1024)), tuple(parse(how) for how in rtn or ())
    gate = Gate(max_kl, max_kl_p999, min_top1, max_ppl, max_tasks, max_needles)
    candidates, base = [load(model, d) for d in kv_cache_dtype or ([] if rtn else ["auto"])], load(against or model, base_kv_cache_dtype)
    asked = QualityOptions(tuple(candidates), base, positions, window, not no_tasks, lengths, gate, text, rounded)
    report = run(asked, note)
    keep_verdicts(asked, report)
    print_report(report, document, render, as_json=json)
    raise typer.Exit(0 if report.passed else 1)


def _write_tasks(model: str, folder: Path) -> typer.Exit:
    from ridgeline.bench.quality_lm_eval import commands, write_tasks
    from ridgeline.bench.quality_tasks import shipped_tasks

    names = write_tasks(folder, shipped_tasks())
    typer.echo("\n".join(commands(model, folder, names)))
    return typer.Exit(0)


def register(bench: typer.Typer) -> None:
    """Add the command to `ridgeline bench`."""
    bench.command("quality")(quality)
