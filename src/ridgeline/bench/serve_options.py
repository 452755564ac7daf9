"""What was asked of `bench serve`, checked. Plain data; starts and sends nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from ridgeline.bench.client_metrics import Slo
from ridgeline.bench.load_workloads import MAX_LENGTH, PRESETS, Endpoint, Mix, Preset, fitted, preset
from ridgeline.errors import UserError, within

MAX_LOAD = 10_000


@dataclass(frozen=True, slots=True)
class Source:
    """Which server: a URL of one that runs, or a model and the engine that shall serve it. context: tokens of a sequence, None: enough."""

    url: str | None = None
    model: str | None = None
    engine: str = "ridgeline"
    engine_path: str | None = None
    engine_args: tuple[str, ...] = ()
    served_model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    context: int | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        if (self.url is None) == (self.model is None):
            what = "a server's --url or a MODEL to serve" + ("" if self.url is None else ", not both")
            raise UserError(f"give {what}", field="--url", remedy="like: ridgeline bench serve smollm2, or --url http://127.0.0.1:8000")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """concurrency: closed loads; rates: open loads in sessions/s; neither: the preset's. sweep: double the load until the knee is passed.

    limit_s: after it a cell begins no new session; repeats: more tries of a cell that others disturbed. slo: None takes the preset's;
    input_len, output_len: tokens of every prompt and answer, None the preset's mix; model_limit: tokens the model can hold, once known.
    """

    source: Source
    workload: str = "chat"
    trace: Path | None = None
    concurrency: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    burst: int = 1
    sweep: bool = False
    requests: int | None = None
    seed: int = 0
    salt: str | None = None
    keep_cache: bool = False
    scale: float = 1.0
    slo: Slo | None = None
    warmup: int = 2
    limit_s: float = 120.0
    timeout_s: float = 600.0
    repeats: int = 2
    endpoint: Endpoint | None = None
    ignore_eos: bool = True
    temperature: float = 0.0
    input_len: int | None = None
    output_len: int | None = None
    model_limit: int | None = None

    def __post_init__(self) -> None:
        within("--scale", self.scale, 0.001, 100)
        within("--seed", self.seed, 0, (1 << 63) - 1)
        within("--burst", self.burst, 1, MAX_LOAD)
        within("--warmup", self.warmup, 0, 1000)
        within("--max-seconds", self.limit_s, 0.1, 86400)
        within("--timeout", self.timeout_s, 0.1, 86400)
        within("--repeats", self.repeats, 0, 20)
        within("--temperature", self.temperature, 0, 100)
        for value in self.concurrency:
            within("--concurrency", value, 0, MAX_LOAD)
        for rate in self.rates:
            within("--rate", rate, 1e-6, 1e6)
        if self.requests is not None:
            within("--requests", self.requests, 1, 100_000)
        for name, length in (("--input-len", self.input_len), ("--output-len", self.output_len)):
            if length is not None:
                within(name, length, 1, MAX_LENGTH)
        if self.rates and (self.concurrency or self.sweep):
            raise UserError("--rate is an open loop, --concurrency and --sweep are closed ones", field="--rate", remedy="give one of them")
        if self.trace is not None and (self.rates or self.concurrency or self.sweep):
            raise UserError("--trace brings its own arrivals", field="--trace", remedy="leave --rate, --concurrency and --sweep out")
        preset(self.workload)

    @property
    def preset(self) -> Preset:
        found = PRESETS[self.workload]
        prompt = found.prompt if self.input_len is None else Mix(self.input_len)
        found = replace(found, prompt=prompt, output=found.output if self.output_len is None else Mix(self.output_len))
        # A trace brings its own lengths: the workload gives no prompts then.
        return found if self.model_limit is None or self.trace is not None else fitted(found, self.model_limit, self.scale)

    @property
    def promise(self) -> Slo:
        return self.preset.slo if self.slo is None else self.slo

    @property
    def count(self) -> int:
        return self.preset.requests if self.requests is None else self.requests

    @property
    def loads(self) -> tuple[int, ...]:
        """Concurrencies to measure; 0 becomes all sessions at once."""
        if self.sweep:
            return _doubling(self.concurrency[-1] if self.concurrency else 64)
        return tuple(dict.fromkeys(c or self.count for c in self.concurrency or self.preset.concurrency))


def _doubling(most: int) -> tuple[int, ...]:
    powers = [1 << i for i in range(max(1, most).bit_length())]
    return (*powers, most) if powers[-1] != most else tuple(powers)
