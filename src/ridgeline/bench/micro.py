"""`bench micro`: prompt and generation speed of one sequence, beside this machine's ceilings and the roofline's prediction.

GOPS counts two operations for each multiply-add really done in linear layers, over the whole time; GB/s counts the weight and KV bytes
that the graph needs. Knows no terminal.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median
from typing import Any

from ridgeline.backends.base import Program
from ridgeline.bench.components import Part, added, flops_of, parts
from ridgeline.bench.components import render as render_parts
from ridgeline.bench.core_speed import SLOW, CoreSpeed, Taken, counted, enough
from ridgeline.bench.machine_load import busy_warning
from ridgeline.bench.peer import Kind, Peer, find_binary
from ridgeline.bench.probe import FULL_SECONDS, probe
from ridgeline.bench.runner import OneSequence, random_tokens, timed_ops
from ridgeline.engine.loader import OpenModel, isa_of, load_program, open_model
from ridgeline.errors import within
from ridgeline.graph.ops import Linear, LinearGroup
from ridgeline.graph.step import Span
from ridgeline.options import Options
from ridgeline.planner.cost import GraphCost, Work
from ridgeline.planner.hardware import Machine
from ridgeline.planner.roofline import Prediction, predict_generation, predict_prompt

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class MicroOptions:
    """options: how to load. prompt, gen: tokens; repeat: runs whose medians are reported; against: a llama-bench binary."""

    options: Options
    prompt: int = 512
    gen: int = 128
    repeat: int = 5
    ops: bool = False
    against: str | None = None

    def __post_init__(self) -> None:
        for name in ("prompt", "gen", "repeat"):
            within(f"--{name}", getattr(self, name), 1)


@dataclass(frozen=True, slots=True)
class OpRow:
    """All ops of one kind and shape in one phase. calls: per run; share: of the time of all ops, flop_share: of their arithmetic."""

    phase: Kind
    label: str
    calls: int
    seconds: float
    gb_s: float
    gflop_s: float
    share: float
    flop_share: float


@dataclass(frozen=True, slots=True)
class Against:
    """The peer's medians, its chosen settings and commands, what every setting gave in one run, ours over theirs, and every run with
    the cores' speed beside it."""

    prompt_tok_s: float
    gen_tok_s: float
    prompt_ratio: float
    gen_ratio: float
    prompt_command: str
    gen_command: str
    tried: dict[str, dict[str, float]]
    runs: dict[Kind, list[float]]
    speeds: dict[Kind, list[float]]


@dataclass(frozen=True)
class MicroReport:
    """Medians over the runs that count; with `load_before` above half the CPUs they say more of others' work than of ours. `runs` are
    all, in seconds, `speeds` the cores' beside each (`core_speed`), `peer_runs` in tokens/s.

    fractions are of the measured ceilings; predicted_* are the roofline's fastest, from those ceilings.
    """

    model: str
    prompt: int
    gen: int
    threads: int
    isa: str
    prompt_tok_s: float
    gen_tok_s: float
    prompt_gops: float
    gen_gb_s: float
    peak_gb_s: float
    peak_int8_gops: float
    peak_f32_gflops: float
    peak_bf16_gflops: float
    prompt_fraction_of_int8: float
    gen_fraction_of_read: float
    predicted_prompt_tok_s: float
    predicted_gen_tok_s: float
    prompt_bound: str
    gen_bound: str
    machine: Machine
    load_before: float  # runnable tasks of the last minute, when the run began: others' work, if much above 0
    runs: dict[Kind, list[float]] = field(default_factory=dict)
    speeds: dict[Kind, list[float]] = field(default_factory=dict)
    ops: list[OpRow] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    against: Against | None = None
    prompt_gb_s: float = 0.0
    gen_gops: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and texts; provenance of the ceilings in `machine`."""
        return asdict(self)


class _Bench:
    """A loaded model and how to time it."""

    def __init__(self, asked: MicroOptions, model: OpenModel) -> None:
        self.asked, self.plan = asked, model.plan
        self.program: Program = load_program(model)
        self._sequence = OneSequence(self.program)
        self.tokens = random_tokens(asked.prompt, self._sequence.vocab)
        self.book = model.costs()

    @property
    def isa(self) -> str:
        return isa_of(self.program, self.plan)

    def seconds(self, kind: Kind) -> float:
        if kind == "prompt":
            return self._sequence.prompt_seconds(self.tokens, self.plan.chunk)
        return self._sequence.generate_seconds(int(self.tokens[0]), self.asked.gen)

    def count(self, kind: Kind) -> int:
        return self.asked.prompt if kind == "prompt" else self.asked.gen

    def work(self, kind: Kind) -> Work:
        """What the steps of a run ask for, all together."""
        if kind == "gen":
            return added(self.book.work([Span(0, past, 1, 1)]) for past in range(self.asked.gen))
        tokens, chunk = self.asked.prompt, self.plan.chunk
        starts = range(0, tokens, chunk)
        return added(self.book.work([Span(0, at, min(chunk, tokens - at), int(at + chunk >= tokens))]) for at in starts)

    def predictions(self, machine: Machine) -> tuple[Prediction, Prediction]:
        prompt = predict_prompt(self.book, self.asked.prompt, machine, chunk=self.plan.chunk)
        return prompt, predict_generation(self.book, 0, self.asked.gen, machine)


def run(asked: MicroOptions, say: Say = lambda line: None) -> MicroReport:
    """Load, probe, measure. `say` gets a line when something slow begins. Raises `UserError` for what cannot be loaded or run."""
    binary = None if asked.against is None else find_binary(asked.against, "llama-bench")
    load = os.getloadavg()[0]
    bench = _Bench(asked, open_model(asked.options))
    warning = busy_warning(load)
    if warning:
        say(warning)
    say(f"measuring this machine's ceilings ({FULL_SECONDS:.0f} s)")
    machine = probe(bench.plan.threads, bench.isa, FULL_SECONDS)
    kinds: tuple[Kind, Kind] = ("prompt", "gen")
    for kind in kinds:
        bench.seconds(kind)  # warm-up: pages, caches, scratch memory
    speed = CoreSpeed(machine)
    turns = None if binary is None else _Turns(Peer(binary, bench.plan.path, asked.prompt, asked.gen, bench.plan.threads), speed, say)
    runs: dict[Kind, list[Taken[float]]] = {kind: [] for kind in kinds}
    for kind in kinds:
        say(f"measuring {kind}, {asked.repeat} times")
        while not (enough(runs[kind], asked.repeat) and (turns is None or enough(turns.taken[kind], asked.repeat))):
            runs[kind].append(speed.beside(partial(bench.seconds, kind)))
            if turns is not None:
                turns.take(kind)
    rates = {kind: bench.count(kind) / median(counted(runs[kind])) for kind in kinds}
    against = None if turns is None else turns.result(rates)
    return _report(bench, machine, load, runs, _accounts(bench) if asked.ops else ([], []), against)


class _Turns:
    """The peer's side of the turns."""

    def __init__(self, peer: Peer, speed: CoreSpeed, say: Say) -> None:
        self._peer, self._speed = peer, speed
        self._best, self._tried = dict[Kind, tuple[str, ...]](), dict[str, dict[str, float]]()
        self.taken: dict[Kind, list[Taken[float]]] = {"prompt": [], "gen": []}
        for kind in self.taken:
            say(f"finding the peer's best settings for {kind}")
            self._best[kind], self._tried[kind] = peer.best_settings(kind)

    def take(self, kind: Kind) -> None:
        self.taken[kind].append(self._speed.beside(lambda: self._peer.measure(kind, self._best[kind])))

    def result(self, ours: dict[Kind, float]) -> Against:
        prompt, gen = (median(counted(self.taken[kind])) for kind in ("prompt", "gen"))
        commands = {kind: shlex.join(self._peer.command(kind, self._best[kind])) for kind in self.taken}
        return Against(
            prompt, gen, ours["prompt"] / prompt, ours["gen"] / gen, commands["prompt"], commands["gen"], self._tried,
            *_columns(self.taken),
        )  # fmt: skip


def _columns(taken: dict[Kind, list[Taken[float]]]) -> tuple[dict[Kind, list[float]], dict[Kind, list[float]]]:
    """Values and speeds of all."""
    return {kind: [t.value for t in all_] for kind, all_ in taken.items()}, {kind: [t.speed for t in all_] for kind, all_ in taken.items()}


def _accounts(bench: _Bench) -> tuple[list[OpRow], list[Part]]:
    """One more run of each phase with timing on: by instruction, and by component."""
    rows, found = list[OpRow](), list[Part]()
    # FLOPs do not depend on what weights take, so the graph alone tells them.
    book = GraphCost(bench.program.graph)
    kinds: tuple[Kind, Kind] = ("prompt", "gen")
    for kind in kinds:
        took: list[float] = []
        times = timed_ops(bench.program, lambda kind=kind, took=took: took.append(bench.seconds(kind)))
        work = bench.work(kind)
        rows += _op_rows(kind, times, book, work)
        found += parts(kind, times, book, work, took[0]) if times else []
    return rows, found


def _op_rows(kind: Kind, times: Sequence[Any], book: GraphCost, work: Work) -> list[OpRow]:
    """Instructions of the same label are added up."""
    rows, sums = list[OpRow](), dict[str, list[float]]()
    for op in times:
        total = sums.setdefault(_label(op), [0, 0.0, 0, 0])
        for i, value in enumerate((op.calls, op.seconds, op.bytes, flops_of(book, op.ops, work))):
            total[i] += value
    whole, all_flops = (sum(s[i] for s in sums.values()) or 1.0 for i in (1, 3))
    for label, (calls, seconds, nbytes, flops) in sorted(sums.items(), key=lambda item: -item[1][1]):
        pace = 1e9 * seconds or 1.0
        rows.append(OpRow(kind, label, int(calls), seconds, nbytes / pace, flops / pace, seconds / whole, flops / all_flops))
    return rows


def _label(op: Any) -> str:
    """The instruction's label and, for linear layers, which weights it multiplies, layer numbers left out."""
    weights = [w for o in op.ops if isinstance(o, Linear | LinearGroup) for w in (o.weights if isinstance(o, LinearGroup) else (o.weight,))]
    return " ".join([op.label, "+".join(w.rpartition(".")[2] for w in weights)]).strip()


def _report(
    bench: _Bench, machine: Machine, load: float, taken: dict[Kind, list[Taken[float]]], accounts: tuple[list[OpRow], list[Part]],
    against: Against | None,
) -> MicroReport:
    prompt, gen = bench.predictions(machine)
    prompt_s, gen_s = median(counted(taken["prompt"])), median(counted(taken["gen"]))
    runs, speeds = _columns(taken)
    gops, gb_s = prompt.cost.linear_flops / prompt_s / 1e9, gen.cost.memory_bytes / gen_s / 1e9
    return MicroReport(
        model=bench.plan.model, prompt=bench.asked.prompt, gen=bench.asked.gen, threads=bench.plan.threads, isa=bench.isa,
        prompt_tok_s=bench.asked.prompt / prompt_s, gen_tok_s=bench.asked.gen / gen_s, prompt_gops=gops, gen_gb_s=gb_s,
        peak_gb_s=machine.read_gb_s, peak_int8_gops=machine.int8_gops, peak_f32_gflops=machine.f32_gflops,
        peak_bf16_gflops=machine.bf16_gflops,
        prompt_fraction_of_int8=gops / machine.int8_gops, gen_fraction_of_read=gb_s / machine.read_gb_s,
        predicted_prompt_tok_s=bench.asked.prompt / prompt.lower_s, predicted_gen_tok_s=bench.asked.gen / gen.lower_s,
        prompt_bound=prompt.bound, gen_bound=gen.bound, machine=machine, load_before=load, runs=runs, speeds=speeds, ops=accounts[0],
        parts=accounts[1], against=against, prompt_gb_s=prompt.cost.memory_bytes / prompt_s / 1e9,
        gen_gops=gen.cost.linear_flops / gen_s / 1e9,
    )  # fmt: skip


def _counting(speeds: list[float]) -> str:
    count = sum(s >= SLOW for s in speeds)
    if count == len(speeds):
        return str(count)
    return f"{count} of {len(speeds)} (the cores were slow beside the others)" if count else f"{len(speeds)} (all beside slow cores)"


def render(report: MicroReport) -> str:
    """The report for people, one line a fact."""
    m, r = report.machine, report
    lines = [
        f"{r.model}: {r.threads} threads, {r.isa} kernels,"
        f" medians of {_counting(r.speeds['prompt'])} and {_counting(r.speeds['gen'])} runs",
        f"  prompt {r.prompt:>5}  {r.prompt_tok_s:9.1f} tok/s  {r.prompt_gops:7.1f} GOPS in linear layers"
        f" = {r.prompt_fraction_of_int8:4.0%} of int8 peak   roofline {r.predicted_prompt_tok_s:9.1f} tok/s ({r.prompt_bound})",
        f"  gen    {r.gen:>5}  {r.gen_tok_s:9.1f} tok/s  {r.gen_gb_s:7.1f} GB/s of weights and KV"
        f" = {r.gen_fraction_of_read:4.0%} of read peak   roofline {r.predicted_gen_tok_s:9.1f} tok/s ({r.gen_bound})",
        f"  ceilings ({m.provenance} {m.date}): read {m.read_gb_s:.1f} GB/s, int8 {m.int8_gops:.0f} GOPS, f32 {m.f32_gflops:.0f} GFLOP/s"
        + (f", bf16 pairs (attention) {m.bf16_gflops:.0f} GFLOP/s" if m.pairs else ""),
    ]
    warning = busy_warning(r.load_before)
    if warning:
        lines.append(f"  {warning}")
    if report.against is not None:
        a = report.against
        lines += [
            f"  against  prompt {a.prompt_tok_s:9.1f} tok/s, ours is {a.prompt_ratio:.2f}x   {a.prompt_command}",
            f"           gen    {a.gen_tok_s:9.1f} tok/s, ours is {a.gen_ratio:.2f}x   {a.gen_command}",
        ]
    if report.ops:
        lines.append(f"  {'phase':<7}{'op':<40}{'calls':>7}{'ms':>10}{'time':>7}{'FLOPs':>7}{'GB/s':>9}{'GFLOP/s':>10}")
    for row in report.ops:
        numbers = f"{row.calls:>7}{row.seconds * 1e3:>10.2f}{row.share:>7.1%}{row.flop_share:>7.1%}{row.gb_s:>9.1f}{row.gflop_s:>10.1f}"
        lines.append(f"  {row.phase:<7}{row.label[:39]:<40}{numbers}")
    lines += render_parts(report.parts)
    return "\n".join(lines)
