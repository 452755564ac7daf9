"""The options of `ridgeline serve`, named as vLLM names them. Declarations only; `serve` does the work."""

from __future__ import annotations

from typing import Annotated

import typer

import ridgeline.cli.args as args
from ridgeline.cli.start import starting

_SEQS_HELP = "Most sequences computed at once."
_BATCHED_HELP = "Most tokens of one step: the size of a prompt's chunks."
_KV_HELP = "Memory for the KV cache, e.g. 2GiB. Default: half of what the machine or container has left."
_QUEUE_HELP = "Most choices waiting beside the --max-num-seqs that run; more get 429 with Retry-After."
_ITL_HELP = (
    "Seconds between tokens that running answers keep while prompts are read, e.g. 0.05. "
    "Default: 2.3 times what they take alone, or 0.02 if that is more."
)
_NAMES_HELP = "Names the API answers to; may be given several times. Default: MODEL."
_KEY_HELP = "Key that callers must send; may be given several times. Default: none."
_KEY_FILE_HELP = "File of keys, one per line: KEY [NAME [TOKENS]]; TOKENS is a budget."
_TEMPLATE_HELP = "Chat template to use instead of the model's: a file, or the template itself."
_ORIGIN_HELP = "Web origin that may call (CORS), e.g. http://localhost:3000, or '*'. Default: none."
_HOSTS_HELP = "Name accepted in the Host header beside this machine's own. Default: any, unless bound to loopback."
_OTLP_HELP = "Send OpenTelemetry spans to this OTLP/HTTP collector; needs the SDK installed."
_SAMPLING_HELP = "Where sampling defaults come from: auto (the model's generation config) or openai."

_KvMemory = Annotated[
    int | None,
    typer.Option(
        "--kv-cache-memory-bytes", "--kv-cache-memory", parser=args.size("--kv-cache-memory-bytes"), metavar="BYTES", help=_KV_HELP
    ),
]


def serve(
    context: typer.Context,
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help=args.MODEL_HELP)] = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen; 0.0.0.0 for every interface.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", help="TCP port.")] = 8000,
    served_model_name: Annotated[list[str] | None, typer.Option(metavar="NAME", help=_NAMES_HELP)] = None,
    max_model_len: args.MaxModelLen = None,
    max_num_seqs: Annotated[int, typer.Option(parser=args.count("--max-num-seqs"), metavar="N", help=_SEQS_HELP)] = 64,
    max_num_batched_tokens: Annotated[
        int, typer.Option(parser=args.count("--max-num-batched-tokens"), metavar="N", help=_BATCHED_HELP)
    ] = 512,
    kv_cache_memory_bytes: _KvMemory = None,
    kv_cache_dtype: args.KvCacheDtype = "auto",
    kv_cache_dtype_v: args.KvCacheDtypeV = None,
    quality_gate: args.QualityGate = "auto",
    block_size: args.BlockSize = 16,
    speculative_config: args.SpeculativeConfig = None,
    enable_prefix_caching: Annotated[bool, typer.Option(help="Reuse the KV of prompts that begin alike.")] = True,
    scheduling_policy: Annotated[str, typer.Option(metavar="NAME", help="Who goes first: fcfs, priority, lpm (longest prefix).")] = "fcfs",
    itl_target: Annotated[float | None, typer.Option(metavar="S", help=_ITL_HELP)] = None,
    max_num_queued_reqs: Annotated[int, typer.Option(parser=args.count("--max-num-queued-reqs"), metavar="N", help=_QUEUE_HELP)] = 1024,
    threads: args.Threads = None,
    mlock: Annotated[bool, typer.Option("--mlock", help="Keep weights and KV cache out of swap; a warning where that is refused.")] = False,
    api_key: Annotated[list[str] | None, typer.Option(metavar="KEY", help=_KEY_HELP, envvar="RIDGELINE_API_KEY")] = None,
    api_key_file: Annotated[str | None, typer.Option(metavar="FILE", help=_KEY_FILE_HELP)] = None,
    allowed_origin: Annotated[list[str] | None, typer.Option("--allowed-origin", metavar="ORIGIN", help=_ORIGIN_HELP)] = None,
    allowed_host: Annotated[list[str] | None, typer.Option("--allowed-host", metavar="NAME", help=_HOSTS_HELP)] = None,
    chat_template: Annotated[str | None, typer.Option(metavar="FILE", help=_TEMPLATE_HELP)] = None,
    tool_call_parser: Annotated[str | None, typer.Option(metavar="NAME", help="Tool-call dialect; default: from the template.")] = None,
    enable_auto_tool_choice: Annotated[bool, typer.Option(help="On anyway; accepted for vLLM's sake.")] = True,
    reasoning_parser: Annotated[str | None, typer.Option(metavar="NAME", help="Reasoning tags; default: from the template.")] = None,
    generation_config: Annotated[str, typer.Option(metavar="NAME", help=_SAMPLING_HELP)] = "auto",
    trust_request_chat_template: Annotated[
        bool, typer.Option("--trust-request-chat-template", help="Let requests bring a template (sandboxed).")
    ] = False,
    enable_cache_endpoint: Annotated[bool, typer.Option("--enable-cache-endpoint", help="Show the prefix tree at /v1/cache.")] = False,
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Write prompts into the log.")] = False,
    log_format: Annotated[str, typer.Option(metavar="NAME", help="text, or json (one object per line).")] = "text",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No line per request.")] = False,
    drain_timeout: Annotated[float, typer.Option(metavar="S", help="Seconds that running requests get after SIGTERM.")] = 30.0,
    otlp_traces_endpoint: Annotated[str | None, typer.Option(metavar="URL", help=_OTLP_HELP)] = None,
    config: Annotated[str | None, typer.Option(metavar="FILE", help="Options from a YAML or JSON file; those given here win.")] = None,
    backend: args.Backend = "cpu",
    isa: args.Isa = "auto",
) -> None:
    """Serve a model over HTTP: OpenAI chat, completions and responses, Anthropic messages, Prometheus metrics.

    \b
    Examples:
      ridgeline serve smollm2
      ridgeline serve ./model.gguf --host 0.0.0.0 --port 8080 --api-key "$KEY" --max-model-len 8k
      ridgeline serve smollm2 --config serve.yaml
      curl localhost:8000/v1/chat/completions -d '{"messages": [{"role": "user", "content": "Hello!"}]}'
    """
    with starting():
        from ridgeline.cli.serve import run

    given = {k: v for k, v in context.params.items() if k not in ("config",)}
    raise typer.Exit(run(given, config, set(_typed(context)), list(context.args)))


def _typed(context: typer.Context) -> list[str]:
    """Options that stood on the command line: they win over those of a file."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
