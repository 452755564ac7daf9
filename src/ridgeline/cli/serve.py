"""`ridgeline serve`: options to a running server. Says what it does on stderr; the model loads while the server's modules are imported."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.cli.foreign import sort_out
from ridgeline.cli.output import note, size
from ridgeline.cli.serve_options import ServeOptions, serve_options
from ridgeline.cli.start import starting
from ridgeline.options import lossy_kv

_WARM_AFTER_S = 3.0

if TYPE_CHECKING:
    from ridgeline.engine.loader import LoadedModel
    from ridgeline.planner.hardware import Machine
    from ridgeline.server.state import State


def run(given: Mapping[str, Any], config: str | None, typed: set[str], extra: list[str]) -> int:
    """The exit code: 0 when every request had its end, 1 when some were cut short. Raises `UserError` before the port opens."""
    for line in sort_out(extra, given):
        note(f"note: {line}")
    options = serve_options(given, config, typed)
    _gate(options)
    with starting(), ThreadPoolExecutor(1) as loader:
        loading = loader.submit(_load, options)
        from ridgeline.server.keys import load_keys
        from ridgeline.server.run import bind, raise_file_limit

        keys = load_keys(options.api_key, options.api_key_file)
        template = options.template()
        raise_file_limit()
        sock = bind(options.host, options.port)
        import ridgeline.server.app  # noqa: F401  (half a second, beside the loading)

        model = loading.result()
    if options.mlock:
        from ridgeline.engine.pinned import lock_memory

        refused = lock_memory()
        note("note: memory is locked" if refused is None else f"warning: memory is not locked: {refused}")
    try:
        return asyncio.run(_serve(options, model, sock, template, keys))
    finally:
        sock.close()


def _gate(options: ServeOptions) -> None:
    """Before the weights are here: what a lossy KV cache costs in words is known or found out. Raises `UserError` under "enforce"."""
    asked = options.load_options()
    if not lossy_kv(asked):
        return
    from ridgeline.bench.quality_record import gate

    found = gate(asked, options.quality_gate, note)
    if found is not None:
        note(f"quality   {found}")


def _load(options: ServeOptions) -> LoadedModel:
    from ridgeline.engine.loader import load

    return load(options.load_options())


async def _serve(options: ServeOptions, model: LoadedModel, sock: socket.socket, template: str | None, keys: Any) -> int:
    from ridgeline.server.app import build
    from ridgeline.server.gate import GateRules, loopback_names
    from ridgeline.server.logs import start_logging
    from ridgeline.server.run import serve_forever

    start_logging(options.log_format, quiet=options.quiet)
    state = _state(options, model, template)
    hosts = loopback_names(options.host)
    if options.allowed_host:
        hosts = (hosts or frozenset()) | {h.lower() for h in options.allowed_host}
    record = None
    if options.otlp_traces_endpoint is not None:
        from ridgeline.server.tracing import span_recorder

        record = span_recorder(state.served.name, endpoint=options.otlp_traces_endpoint)
    rules = GateRules(hosts, options.allowed_origin, keys, record)
    stop, force = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, _told, stop, force)
    port = sock.getsockname()[1]
    ended = await serve_forever(
        build(state, rules, _desk(state, model)), [sock], state, stop=stop, force=force, ready=lambda: _ready(options, model, state, port)
    )
    return 0 if ended else 1


def _desk(state: State, model: LoadedModel) -> Any:
    """What the planner page at /plan answers from: the tables, the served model by its name, and this host if it was measured."""
    from ridgeline.cli.plan_page import this_host
    from ridgeline.planner.local import local_facts
    from ridgeline.server.plan_desk import Desk

    path = Path(model.plan.path)
    return Desk({state.served.name: lambda: local_facts(path)}, this_host, home=True)


def _told(stop: asyncio.Event, force: asyncio.Event) -> None:
    """The first signal drains, the second one ends."""
    if stop.is_set():
        force.set()
    else:
        note("shutting down: running requests are ended first, a second signal cuts them short")
    stop.set()


def _state(options: ServeOptions, model: LoadedModel, template: str | None) -> State:
    from ridgeline import __version__
    from ridgeline.engine.async_engine import AsyncEngine
    from ridgeline.server.bounds import Bounds
    from ridgeline.server.state import Ceilings, Features, Served, State

    names = options.served_model_name or (options.model,)
    defaults = model.text.sampling if options.generation_config == "auto" else {}
    served = Served(
        names,
        model.text,
        model.limits,
        defaults,
        template=template,
        tool_parser=options.tool_call_parser,
        reasoning_parser=options.reasoning_parser,
    )
    _ = served.manner  # a parser that nobody knows is told now
    plan = model.plan
    info = {
        "block_size": str(plan.block_size), "num_gpu_blocks": str(plan.blocks[0] if plan.blocks else 0), "cache_dtype": plan.kv_dtype,
        "enable_prefix_caching": str(plan.prefix_caching), "kv_cache_memory_bytes": str(plan.kv_bytes),
    }  # fmt: skip
    machine = _measured(model)
    peaks = () if machine is None else (machine.read_gb_s, machine.int8_gops, machine.f32_gflops, machine.bf16_gflops)
    ceilings = Ceilings(*(1e9 * peak for peak in peaks)) if peaks else None
    features = Features(
        version=__version__, ceilings=ceilings, cache_info=info, show_cache=options.enable_cache_endpoint, log_prompts=options.log_prompts,
        allow_template=options.trust_request_chat_template,
    )  # fmt: skip
    bounds = Bounds(queue=options.max_num_queued_reqs + options.max_num_seqs, drain_s=options.drain_timeout)
    return State(served, AsyncEngine(model), bounds, features)


def _ready(options: ServeOptions, model: LoadedModel, state: State, port: int) -> None:
    _announce(options, model, state, port)
    asyncio.get_running_loop().call_later(_WARM_AFTER_S, _warm, state)


def _warm(state: State) -> None:
    """What the first schema would wait for, done in a quiet moment."""
    if state.draining:
        return
    if state.pending:
        asyncio.get_running_loop().call_later(_WARM_AFTER_S, _warm, state)
    else:
        state.workers.submit(state.served.manner.grammars.warm)


def _announce(options: ServeOptions, model: LoadedModel, state: State, port: int) -> None:
    """The plan, then the address."""
    from ridgeline.engine.loader import isa_of

    plan = model.plan
    for line in plan.notes:
        note(f"note: {line}")
    tokens = plan.blocks[0] * plan.block_size if plan.blocks else 0
    users = f"{tokens / plan.max_model_len:.1f} users at the model length of {plan.max_model_len}"
    note(f"model     {Path(plan.path).name}, answers to {', '.join(state.served.names)}")
    kernels = isa_of(model.program, plan)
    shape = f"{plan.max_num_seqs} sequences, {plan.chunk} tokens a step"
    note(f"compute   {plan.threads} threads, {plan.backend}, kernels {kernels}, {shape}")
    note(f"KV cache  {size(plan.kv_bytes)} ({plan.kv_dtype}): {tokens} tokens, {users}")
    if plan.speculative is not None:
        spec = plan.speculative
        most = f"{'up to ' if spec.adaptive else ''}{spec.num_speculative_tokens} a step"
        note(f"guesses   {spec.method}, {most}, {'never changes a word' if spec.accept == 'coupled' else 'by the rejection rule'}")
    manner = state.served.manner
    if state.served.defaults:
        shown = ", ".join(f"{name} {value:g}" for name, value in state.served.defaults.items())
        note(f"sampling  by default {shown} (the model's own; --generation-config openai for OpenAI's)")
    note(f"speed     {_expected(model) or 'not known before `ridgeline calibrate` has measured this machine'}")
    note(f"protocol  tools as {manner.dialect.name}, reasoning {manner.tags.name if manner.tags else 'none'}")
    host = "localhost" if options.host in ("127.0.0.1", "0.0.0.0", "::", "::1") else options.host
    note(f"ready after {model.load_s:.2f} s of loading: http://{host}:{port} (Ctrl-C ends)")


def _measured(model: LoadedModel) -> Machine | None:
    """This machine's ceilings when they were measured before; nothing is measured here."""
    from ridgeline.bench.probe import kept

    return kept(model.plan.threads, model.plan.isa) if model.plan.backend == "cpu" else None


def _expected(model: LoadedModel) -> str | None:
    """What the roofline says one and many users will see, where this machine's ceilings are known."""
    from ridgeline.graph.step import Span
    from ridgeline.planner.roofline import predict

    plan, machine = model.plan, _measured(model)
    if machine is None:
        return None
    book = model.costs()
    past = min(512, plan.max_model_len - 1)
    one, many = (n / predict(book, [Span(i, past, 1, 1) for i in range(n)], machine).lower_s for n in (1, plan.max_num_seqs))
    rest = (
        f"{plan.max_num_seqs} at once {many:.0f} in all (the roofline's most, after {past} tokens; ceilings measured {machine.date[:10]})"
    )
    return f"{one:.0f} tokens/s for one user, {rest}"
