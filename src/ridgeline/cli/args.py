"""The options that several commands share, with the words that explain them. Knows typer; knows no engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

import ridgeline.planner.units as units
from ridgeline.options import Options, make_options, parse_count, parse_size


def count(name: str) -> Callable[[str], int]:
    return lambda text: parse_count(text, name=name)


def counts(name: str, text: str) -> tuple[int, ...]:
    """1,4,16 or 512,2k"""
    return tuple(parse_count(part, name=name) for part in text.split(","))


def number(name: str, help_: str) -> Any:
    """The option of a whole number: 4096 or 4k."""
    return typer.Option(name, parser=count(name), metavar="N", help=help_)


def duration(name: str, help_: str) -> Any:
    """The option of a time: 500ms, 0.5s, 2min."""
    return typer.Option(name, parser=lambda text: units.seconds(text, name), metavar="TIME", help=help_)


def size(name: str) -> Callable[[str], int]:
    return lambda text: parse_size(text, name=name)


MODEL_HELP = "Alias (smollm2, gemma3-270m), path of a .gguf file or model folder, or org/repo[:file]."

Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
_LENGTH_HELP = "Longest prompt and answer together, e.g. 4096, 8k. Default: the model's own."
_THREADS_HELP = "Worker threads. Default: CPUs this process may use."
MaxModelLen = Annotated[int | None, typer.Option(parser=count("--max-model-len"), metavar="N", help=_LENGTH_HELP)]
Threads = Annotated[int | None, typer.Option(parser=count("--threads"), metavar="N", help=_THREADS_HELP)]
_KV_HELP = "How keys and values are kept: auto, f32, bf16, f16, int8, int4; two of them (int8/int4) for keys and values apart."
KvCacheDtype = Annotated[str, typer.Option(metavar="DTYPE", help=_KV_HELP)]
KvCacheDtypeV = Annotated[str | None, typer.Option(metavar="DTYPE", help="How values are kept, where not as the keys are.")]
_GATE_HELP = "A KV cache in 8 or 4 bits is judged once per file: auto tells what it costs, enforce refuses what breaks a limit, off."
QualityGate = Annotated[str, typer.Option(metavar="MODE", help=_GATE_HELP)]
BlockSize = Annotated[int, typer.Option(parser=count("--block-size"), metavar="N", help="Tokens per KV block.")]
Backend = Annotated[str, typer.Option(metavar="NAME", help="cpu, or reference (numpy: slow, the definition).")]
Isa = Annotated[str, typer.Option(metavar="NAME", help="Kernels: auto, portable, avx2, avx512, avx512_bf16.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]

MaxTokens = Annotated[int | None, typer.Option(parser=count("--max-tokens"), metavar="N", help="Most tokens to generate.")]
Temperature = Annotated[float, typer.Option(metavar="T", help="0 always takes the likeliest token; higher is more varied.")]
TopP = Annotated[float, typer.Option(metavar="P", help="Keep the likeliest tokens that together have probability P.")]
TopK = Annotated[int, typer.Option(parser=count("--top-k"), metavar="K", help="Keep the K likeliest tokens; 0 keeps all.")]
MinP = Annotated[float, typer.Option(metavar="P", help="Drop tokens below P times the likeliest one's probability.")]
Seed = Annotated[int | None, typer.Option(parser=count("--seed"), metavar="N", help="Same seed, same words. Default: drawn anew.")]
Stop = Annotated[list[str] | None, typer.Option(metavar="TEXT", help="End before this text; may be given several times.")]
System = Annotated[str | None, typer.Option(metavar="TEXT", help="System message put before the conversation.")]


_SPECULATIVE_HELP = (
    "Guess tokens ahead and verify them, as JSON with vLLM's keys: method (ngram, draft_model, self), num_speculative_tokens, model, "
    "prompt_lookup_min, prompt_lookup_max. Changes no word (but for rejection_sample_method probabilistic)."
)
SpeculativeConfig = Annotated[str | None, typer.Option(metavar="JSON", help=_SPECULATIVE_HELP)]


def load_options(
    model: str, *, max_model_len: int | None, threads: int | None, kv_cache_dtype: str, block_size: int, backend: str, isa: str,
    max_num_seqs: int = 1, speculative_config: str | None = None, kv_cache_dtype_v: str | None = None,
) -> Options:  # fmt: skip
    """`Options` of a command that serves one person: one sequence at a time, unless it says otherwise."""
    return make_options(
        model,
        {
            "max_model_len": max_model_len, "threads": threads, "kv_cache_dtype": kv_cache_dtype,
            "kv_cache_dtype_v": kv_cache_dtype_v, "block_size": block_size,
            "backend": backend, "isa": isa, "max_num_seqs": max_num_seqs, "speculative_config": speculative_config,
        },
    )  # fmt: skip
