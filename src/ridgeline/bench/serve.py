"""`bench serve`: one server under a workload, load by load, to the knee. Orchestration only: options in, a result of plain facts out."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from ridgeline.bench.engines import engine, program
from ridgeline.bench.load_workloads import longest_session
from ridgeline.bench.record import command_line
from ridgeline.bench.serve_cells import Bench, Cell, WarmUp
from ridgeline.bench.serve_options import ServeOptions
from ridgeline.bench.serve_predict import Forecaster
from ridgeline.bench.serve_server import Server, model_limit, serving
from ridgeline.bench.serve_tokens import TokenCheck, check_tokens, tokenizer_of
from ridgeline.bench.workloads import trace_file
from ridgeline.errors import UserError

Say = Callable[[str], None]
KNEE = 0.90
_GAIN = 1.05


@dataclass(frozen=True, slots=True)
class ServeResult:
    """server: what was measured; saturated: the load at which a sweep was stopped, None where it was not; command: ours.
    tokens: the server's counts beside the tokenizer's, None where the model's file is not at hand."""

    asked: ServeOptions
    server: Server
    warm: WarmUp
    cells: tuple[Cell, ...]
    knee: float | None
    saturated: float | None
    salt: str
    command: str
    tokens: TokenCheck | None = None


def run(asked: ServeOptions, say: Say = lambda line: None) -> ServeResult:
    """Starts or finds the server, warms up, measures every load. Raises `UserError` for what cannot be measured; `say` gets progress."""
    with served(asked, say) as (asked, server):
        bench = Bench(asked, server, say, _forecaster(asked, say))
        say(f"warming up {server.name} with {server.model}")
        warm = bench.warm_up()
        cells, saturated = _cells(asked, bench, warm, say)
    tokenizer = tokenizer_of(asked.source.model or server.model)
    tokens = None if tokenizer is None else check_tokens(tokenizer, [o for c in cells for o in c.outcomes])
    return ServeResult(asked, server, warm, tuple(cells), knee(cells), saturated, bench.run_salt, command_line(), tokens)


@contextmanager
def served(asked: ServeOptions, say: Say) -> Iterator[tuple[ServeOptions, Server]]:
    """The server while the block runs, and `asked` with the tokens that model and server can hold, so that no prompt is longer."""
    _many_connections()
    asked = known(asked)
    with serving(asked.source, seqs_of(asked), context_of(asked), say) as server:
        yield replace(asked, model_limit=least(asked.model_limit, server.limit)), server


def _cells(asked: ServeOptions, bench: Bench, warm: WarmUp, say: Say) -> tuple[list[Cell], float | None]:
    """All loads; a sweep and rising rates end at the first that the server cannot keep up with."""
    cells: list[Cell] = []
    if asked.trace is not None:
        return [bench.cell(warm, None, None)], None
    for load in asked.rates or asked.loads:
        rate = load if asked.rates else None
        users = None if asked.rates else int(load)
        say(f"measuring {f'{rate:g} sessions/s' if rate is not None else f'{users} at once'}")
        cells.append(bench.cell(warm, users, rate))
        say(line_of(cells[-1]))
        if stop(cells, asked.sweep):
            return cells, cells[-1].load
    return cells, None


def stop(cells: Sequence[Cell], sweep: bool) -> bool:
    """Over-saturated. Open loop: the wait grew all along. Sweep: under 5% more tokens/s than at the load before."""
    last = cells[-1]
    if last.kind == "rate":
        return last.growing
    if not sweep or len(cells) < 2:
        return False
    return (last.figures.output_tok_s or 0.0) < _GAIN * (cells[-2].figures.output_tok_s or 0.0)


def knee(cells: Sequence[Cell]) -> float | None:
    """The smallest load with 90% of the best tokens/s: beyond it, waiting is all that grows. None for fewer than three loads, and where
    only the largest load reaches that: there tokens/s still grow, and the knee has not been seen."""
    if len(cells) < 3:
        return None
    ordered = sorted(cells, key=lambda c: c.load)
    best = max(c.figures.output_tok_s or 0.0 for c in cells)
    found = next((c.load for c in ordered if (c.figures.output_tok_s or 0.0) >= KNEE * best), None)
    return None if found == ordered[-1].load else found


def line_of(cell: Cell) -> str:
    """Progress for people."""
    f = cell.figures
    ttft = "-" if f.ttft_ms is None else f"{f.ttft_ms.p50:.0f} ms"
    failed = f", {f.failed} FAILED" if f.failed else ""
    return f"  {f.completed} requests in {f.seconds:.1f} s: {f.output_tok_s or 0:.1f} output tok/s, TTFT p50 {ttft}{failed}"


def seqs_of(asked: ServeOptions) -> int:
    """Sequences that an engine of ours should hold at once."""
    open_loop = 32 if asked.rates or asked.trace is not None else 1
    return max(open_loop, *(asked.loads or (1,))) * asked.preset.n if asked.trace is None else open_loop


def context_of(asked: ServeOptions) -> int:
    """Tokens that the longest session can come to, with room for the template."""
    if asked.trace is not None:
        longest = max(len(j.prompt) + j.output for j in trace_file(asked.trace).start())
        return _rounded(2 * longest + 256)
    needed = _rounded(round(longest_session(asked.preset, asked.scale)))
    return needed if asked.model_limit is None else min(needed, asked.model_limit)


def known(asked: ServeOptions) -> ServeOptions:
    """With what the model's file can hold. Raises `UserError` for an engine that is not here."""
    source = asked.source
    limit = None
    if source.model is not None:
        program(engine(source.engine), source.engine_path)  # an engine that is not here needs no model
        limit = model_limit(source.model)
    return replace(asked, model_limit=least(limit, source.context))


def least(*limits: int | None) -> int | None:
    """Of those that are known."""
    return min((n for n in limits if n is not None), default=None)


def _forecaster(asked: ServeOptions, say: Say) -> Forecaster | None:
    """Predictions where they can be had: our engine with its own defaults, on a calibrated host."""
    source, limit = asked.source, asked.model_limit
    if source.model is None or limit is None or source.engine != "ridgeline" or source.engine_args:
        return None
    try:
        return Forecaster(source.model, limit, seqs_of(asked), source.threads)
    except UserError as error:
        say(f"no predictions: {error}")
        return None


def _many_connections() -> None:
    """As many open sockets as the system lets us have: the usual 1,024 are fewer than a large load needs."""
    with suppress(ValueError, OSError):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _rounded(tokens: int) -> int:
    return -(-tokens // 256) * 256
