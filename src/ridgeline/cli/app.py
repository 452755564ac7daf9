"""The commands and their help. Declarations only: each command imports its work when it runs, so that `--help` is instant."""

from __future__ import annotations

from typing import Annotated

import typer

import ridgeline.cli.answers_command as answers_command
import ridgeline.cli.args as args
import ridgeline.cli.batch_command as batch_command
import ridgeline.cli.planning as planning
from ridgeline.cli.bench_command import bench
from ridgeline.cli.blocks_command import blocks
from ridgeline.cli.serve_command import serve
from ridgeline.cli.start import starting

app = typer.Typer(
    name="ridgeline", rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)  # fmt: skip


def _version(asked: bool) -> None:
    if asked:
        from ridgeline import __version__

        typer.echo(f"ridgeline {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")] = False,
) -> None:
    """Serve open-weight language models, with a roofline beside every figure.

    \b
    First steps:
      ridgeline run smollm2 "Why is the sky blue?"   one answer, and how fast it came
      ridgeline chat smollm2                         a conversation
      ridgeline serve smollm2                        an OpenAI- and Anthropic-compatible server
      ridgeline inspect smollm2                      what is in the model, what it needs
      ridgeline bench micro smollm2                  this machine's ceilings and how close we get

    \b
    MODEL is an alias (smollm2, gemma3-270m), the path of a .gguf file or of a folder
    with safetensors and config.json, or org/repo[:file] on the Hugging Face hub.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def run(
    model: args.Model,
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="What to ask. Read from stdin when left out or '-'.")] = None,
    max_tokens: args.MaxTokens = 256,
    temperature: args.Temperature = 0.0,
    top_p: args.TopP = 1.0,
    top_k: args.TopK = 0,
    min_p: args.MinP = 0.0,
    seed: args.Seed = None,
    stop: args.Stop = None,
    system: args.System = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is: no chat template, nothing stripped.")] = False,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on to --max-tokens whatever the model says.")] = False,
    json: args.Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No closing report on stderr.")] = False,
    trace: Annotated[str | None, typer.Option(metavar="FILE", help="Write every step as Perfetto/Chrome JSON.")] = None,
    max_model_len: args.MaxModelLen = None,
    threads: args.Threads = None,
    kv_cache_dtype: args.KvCacheDtype = "auto",
    kv_cache_dtype_v: args.KvCacheDtypeV = None,
    block_size: args.BlockSize = 16,
    speculative_config: args.SpeculativeConfig = None,
    backend: args.Backend = "cpu",
    isa: args.Isa = "auto",
) -> None:
    """Answer one prompt, then report tokens per second, bytes per second and the roofline's prediction.

    \b
    Examples:
      ridgeline run smollm2 "Name three rivers."
      git diff | ridgeline run smollm2 --system "Describe this change in one line."
      ridgeline run gemma3-270m --raw "The capital of France is" --max-tokens 8
      ridgeline run smollm2 "Tell a story." --temperature 0.8 --top-p 0.95 --seed 7
      ridgeline run smollm2 "Say yes." --json | jq .text
    """
    from ridgeline.types import SamplingParams

    # What is typed wrong is told before the engine is imported.
    params = SamplingParams(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed,
        stop=tuple(stop or ()), ignore_eos=ignore_eos,
    )  # fmt: skip
    options = args.load_options(
        model, max_model_len=max_model_len, threads=threads, kv_cache_dtype=kv_cache_dtype, block_size=block_size, backend=backend, isa=isa,
        speculative_config=speculative_config, kv_cache_dtype_v=kv_cache_dtype_v,
    )  # fmt: skip
    with starting():
        from ridgeline.cli.run import answer

    code = answer(options, prompt, params, system=system, raw=raw, as_json=json, quiet=quiet, trace=trace)
    raise typer.Exit(code)


@app.command()
def chat(
    model: args.Model,
    system: args.System = None,
    max_tokens: args.MaxTokens = None,
    temperature: args.Temperature = 0.7,
    top_p: args.TopP = 0.95,
    top_k: args.TopK = 0,
    min_p: args.MinP = 0.0,
    seed: args.Seed = None,
    stop: args.Stop = None,
    max_model_len: args.MaxModelLen = None,
    threads: args.Threads = None,
    kv_cache_dtype: args.KvCacheDtype = "auto",
    kv_cache_dtype_v: args.KvCacheDtypeV = None,
    block_size: args.BlockSize = 16,
    speculative_config: args.SpeculativeConfig = None,
    show_spec: Annotated[bool, typer.Option("--show-spec", help="Colour what was guessed; guesses by ngram unless told how.")] = False,
    backend: args.Backend = "cpu",
    isa: args.Isa = "auto",
) -> None:
    """Talk with a model. Ctrl-C stops an answer, Ctrl-D or /exit ends the conversation, /clear starts it anew.

    \b
    Examples:
      ridgeline chat smollm2
      ridgeline chat smollm2 --system "You answer in one sentence." --temperature 0
      ridgeline chat smollm2 --show-spec --temperature 0        see which words were guessed ahead
    """
    from ridgeline.types import SamplingParams

    params = SamplingParams(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed, stop=tuple(stop or ())
    )
    options = args.load_options(
        model, max_model_len=max_model_len, threads=threads, kv_cache_dtype=kv_cache_dtype, block_size=block_size, backend=backend, isa=isa,
        speculative_config=speculative_config or ('{"method": "ngram"}' if show_spec else None), kv_cache_dtype_v=kv_cache_dtype_v,
    )  # fmt: skip
    with starting():
        from ridgeline.cli.chat import converse

    raise typer.Exit(converse(options, params, system=system, show_spec=show_spec))


@app.command()
def inspect(
    model: args.Model,
    ops: Annotated[bool, typer.Option("--ops", help="FLOPs, bytes, intensity and this host's times of every op for one step.")] = False,
    new: Annotated[int, typer.Option(parser=args.count("--new"), metavar="N", help="With --ops: new tokens per sequence in the step.")] = 1,
    past: Annotated[int, typer.Option(parser=args.count("--past"), metavar="N", help="With --ops: tokens already in the cache.")] = 512,
    batch: Annotated[int, typer.Option(parser=args.count("--batch"), metavar="N", help="With --ops: sequences in the step.")] = 1,
    kernels: Annotated[bool, typer.Option("--kernels", help="Which kernel serves which tensor, and why.")] = False,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor of the file.")] = False,
    json: args.Json = False,
    max_model_len: args.MaxModelLen = None,
    kv_cache_dtype: args.KvCacheDtype = "auto",
    block_size: args.BlockSize = 16,
    isa: args.Isa = "auto",
) -> None:
    """Show what a model is made of and what it needs: metadata, formats, parameters, KV bytes per token, memory.

    \b
    Examples:
      ridgeline inspect smollm2
      ridgeline inspect smollm2 --ops --new 512 --past 0     a prompt of 512 tokens
      ridgeline inspect smollm2 --ops --batch 8 --past 1k    eight sequences that decode
      ridgeline inspect ./model.gguf --kernels --json
    """
    options = args.load_options(
        model, max_model_len=max_model_len, threads=None, kv_cache_dtype=kv_cache_dtype, block_size=block_size, backend="cpu", isa=isa
    )
    with starting():
        from ridgeline.cli.inspect import Asked, show

    show(options, Asked(ops, new, past, batch, kernels, tensors), as_json=json)


@app.command()
def pull(model: args.Model, json: args.Json = False) -> None:
    """Fetch a model into the cache, check it, and print where it lies. An interrupted download is resumed.

    \b
    Examples:
      ridgeline pull smollm2
      ridgeline pull ggml-org/some-model-GGUF:model-Q4_K_M.gguf
    """
    from ridgeline.cli.pull import fetch

    fetch(model, as_json=json)


planning.register(app)
answers_command.register(app)
batch_command.register(app)
app.command()(blocks)

app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})(serve)


app.add_typer(bench, name="bench")
