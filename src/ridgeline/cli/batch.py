"""`ridgeline batch`: lines to replies, through the server's own handlers in this process or through a server somewhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.bench.batch import Answerer, BatchOptions, Reply, Summary, run
from ridgeline.bench.batch_lines import Call, read_call, read_entries
from ridgeline.bench.batch_url import UrlAnswerer
from ridgeline.bench.quality_record import gate
from ridgeline.cli.output import note, print_json
from ridgeline.errors import UserError
from ridgeline.options import Options, make_options, speculative_config
from ridgeline.planner.price import MILLION, SECONDS_PER_HOUR, decimal, rounded

if TYPE_CHECKING:
    from ridgeline.server.state import State

Message = MutableMapping[str, Any]


@dataclass(frozen=True)
class BatchArgs:
    """What was typed. load: options of the engine, those that were given."""

    input: Path
    output: Path
    model: str | None
    url: str | None
    load: dict[str, Any]
    served_model_name: tuple[str, ...] = ()
    api_key: str | None = None
    concurrency: int | None = None
    timeout_s: float = 600.0
    overwrite: bool = False
    retry_errors: bool = False
    sort: bool = True
    quality_gate: str = "auto"
    price: Decimal | None = None  # USD per hour of the machine


def batch(args: BatchArgs, *, as_json: bool) -> int:
    """The exit code: 0 all answered, 2 some lines could not be asked, 1 the engine failed. Raises `UserError` before anything is asked."""
    if args.model is not None and args.url is not None:
        raise UserError("--model and --url exclude each other", field="--url", value=args.url, remedy="give one of them")
    if args.output.resolve() == args.input.resolve():
        raise UserError(f"-o {args.output} is the input itself", field="-o", value=str(args.output), remedy="choose another -o")
    if args.url is not None:
        asked: dict[str, Any] = {"url": args.url}
        at_once = args.concurrency or 32
        server = UrlAnswerer(args.url, connections=at_once, api_key=args.api_key, timeout_s=args.timeout_s)
        make: Callable[[], Answerer] = lambda: server  # noqa: E731
    else:
        model = args.model or model_of_input(args.input)
        options = make_options(model, args.load)
        asked = {"model": model, "kv_cache_dtype": options.kv_cache_dtype}
        config = speculative_config(options.speculative_config)
        if config is not None and config.accept == "rejection":  # the coupled rule changes no reply
            asked["accept"] = config.accept
        at_once = args.concurrency or 2 * options.max_num_seqs
        judged = gate(options, args.quality_gate, note)
        if judged is not None:
            note(f"quality   {judged}")
        make = lambda: Engine(options, args.served_model_name or (model,))  # noqa: E731
    wanted = BatchOptions(args.input, args.output, asked, at_once, overwrite=args.overwrite, retry_errors=args.retry_errors, sort=args.sort)
    summary = _run(wanted, make)
    usd = None if args.price is None else args.price * decimal(summary.seconds) / SECONDS_PER_HOUR
    document = summary.as_json() | {"input": str(args.input), "output": str(args.output), "usd": rounded(usd), **asked}
    if as_json:
        print_json(document)
    else:
        print(told(summary, args.output))
        if usd is not None:
            each = f", ${usd / summary.output_tokens * MILLION:.3f} per million output tokens" if summary.output_tokens else ""
            print(f"${usd:.4f} of this run's time at ${args.price}/h{each}")
    return summary.exit_code


def _run(wanted: BatchOptions, make: Callable[[], Answerer]) -> Summary:
    """What was made is closed, whatever happens."""
    made: list[Any] = []

    def keep() -> Answerer:
        made.append(make())
        return made[-1]  # type: ignore[no-any-return]

    try:
        return asyncio.run(run(wanted, keep, note))
    except KeyboardInterrupt:
        note(f"stopped; what was answered is in {wanted.output}.part, the same command goes on from there")
        raise
    finally:
        for answerer in made:
            answerer.close()


def model_of_input(path: Path) -> str:
    """The one model that the bodies name. Raises `UserError` when there is none, or several."""
    names: dict[str, int] = {}
    entries = read_entries(path)
    with path.open("rb") as file:
        for entry in entries:
            if entry.fault is None:
                name = json.loads(read_call(file, entry).body).get("model")
                if isinstance(name, str) and name:
                    names.setdefault(name, entry.number)
    if len(names) != 1:
        shown = ", ".join(f"{n!r} (line {line})" for n, line in list(names.items())[:5]) or "no model"
        raise UserError(f"{path} names {shown}", field="--model", value=shown, remedy="say which one to load: --model MODEL, or --url URL")
    return next(iter(names))


def told(s: Summary, output: Path) -> str:
    """The end, for people."""
    lines = [f"{s.answered} of {s.lines} lines answered in {output}" + (f" ({s.resumed} by an earlier run)" if s.resumed else "")]
    if s.errors:
        shown = ", ".join(f"{count} x {code}" for code, count in sorted(s.errors.items()))
        lines.append(f"{sum(s.errors.values())} lines with errors: {shown}")
    if s.output_tokens:
        cached = f", {s.cached_tokens / s.prompt_tokens:.0%} of them from the prefix cache" if s.prompt_tokens else ""
        speed = f"{s.output_tokens} tokens in {s.seconds:.1f} s, {s.output_tok_s or 0:.1f} tok/s"
        lines.append(f"{speed}; {s.prompt_tokens} prompt tokens{cached}")
    return "\n".join(lines)


class Engine:
    """The server's application without its sockets: the same validation, the same replies."""

    def __init__(self, options: Options, names: tuple[str, ...]) -> None:
        from ridgeline.engine.async_engine import AsyncEngine
        from ridgeline.engine.loader import load, make_core
        from ridgeline.server.app import build
        from ridgeline.server.bounds import Bounds
        from ridgeline.server.state import Served, State

        model = load(options)
        note(f"loaded {Path(model.plan.path).name} in {model.load_s:.2f} s, {model.plan.max_num_seqs} sequences at once")
        served = Served(names, model.text, model.limits, model.text.sampling)
        self._engine = AsyncEngine(model, make_core(model, paced=False))
        # The queue is as long as what we send; overload is not the input's fault.
        self.state: State = State(served, self._engine, Bounds(queue=1 << 30))
        self._app = build(self.state)

    async def ask(self, call: Call) -> Reply:
        sent: list[Message] = []
        gave, never = False, asyncio.Event()

        async def receive() -> Message:
            nonlocal gave
            if not gave:
                gave = True
                return {"type": "http.request", "body": call.body, "more_body": False}
            await never.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        await self._app(_scope(call), receive, send)
        start = next(m for m in sent if m["type"] == "http.response.start")
        raw = b"".join(m.get("body", b"") for m in sent if m["type"] == "http.response.body")
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in start.get("headers", [])}
        return Reply(start["status"], json.loads(raw), headers.get("x-request-id"))

    def fault(self) -> str | None:
        return self._engine.fault()

    def close(self) -> None:
        self._engine.stop()
        self.state.workers.shutdown(wait=False, cancel_futures=True)


def _scope(call: Call) -> dict[str, Any]:
    """A request as a server would hand it on (ASGI 3)."""
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(call.body))]
    return {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": call.url, "raw_path": call.url.encode(), "query_string": b"", "root_path": "", "headers": headers,
        "client": ("batch", 0), "server": ("localhost", 80),
    }  # fmt: skip
