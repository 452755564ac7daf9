"""`bench engine`: the whole engine in process, workloads with medians and facts (`engine_facts`). Knows no terminal and no HTTP.

decode: N sequences at once; batching, ragged: unlike lengths (`engine_batching`); branch: agents that share a long prefix, with and
without its reuse, beside the predicted time; arrival: a long prompt among running answers; overhead: what is not spent in native calls.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any, Literal, get_args

import numpy as np

import ridgeline.bench.ablation as ablation
import ridgeline.bench.engine_batching as batching
from ridgeline.bench.ablation import Ablation, AblationResult
from ridgeline.bench.engine_batching import Batching, BatchingResult, RaggedResult
from ridgeline.bench.engine_facts import Facts, OverloadResult, ReuseResult, SamplesResult, SessionResult, lines
from ridgeline.bench.engine_run import Job, Runner, Step, prompts, ttft_s
from ridgeline.bench.machine_load import busy_warning
from ridgeline.bench.peer import batched_command, batched_tok_s, find_binary
from ridgeline.bench.rates import Rates, branch_seconds
from ridgeline.bench.runner import Ids
from ridgeline.bench.turns import Turns
from ridgeline.engine.loader import LoadedModel, isa_of, load
from ridgeline.errors import one_of, within
from ridgeline.kv.manager import CachePolicy, KvCache
from ridgeline.options import Options

Say = Callable[[str], None]
Scenario = Literal["decode", "batching", "ragged", "branch", "arrival", "overhead", "reuse", "samples", "overload", "session", "ablation"]
SCENARIOS: tuple[Scenario, ...] = get_args(Scenario)
ONCE = ("ragged", "reuse", "samples", "overload", "session")  # facts of one run; the others are repeated, for their medians


@dataclass(frozen=True, slots=True)
class EngineBenchOptions:
    """options: how to load. seqs, prompt, gen: of `decode`; repeat: runs whose medians are reported; against: a llama-batched-bench,
    measured in turns on the same file and on `against_models` (other formats of the model, say its fastest)."""

    options: Options
    scenarios: tuple[Scenario, ...] = SCENARIOS
    seqs: int = 32
    prompt: int = 128
    gen: int = 128
    repeat: int = 3
    against: str | None = None
    against_models: tuple[str, ...] = ()
    trace: str | None = None

    def __post_init__(self) -> None:
        for name in ("seqs", "prompt", "gen", "repeat"):
            within(f"--{name}", getattr(self, name), 1)
        for scenario in self.scenarios:
            one_of("--scenario", scenario, SCENARIOS)


@dataclass(frozen=True, slots=True)
class PeerRate:
    """A peer on one file. ratio: ours over its decode_tok_s."""

    file: str
    decode_tok_s: float
    ratio: float
    command: str


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """decode_tok_s: over steps in which all sequences decode and no prompt is read; total_tok_s: all output over the whole time."""

    seqs: int
    prompt: int
    gen: int
    decode_tok_s: float
    total_tok_s: float
    prompt_tok_s: float
    peers: tuple[PeerRate, ...] = ()


@dataclass(frozen=True, slots=True)
class BranchResult:
    """seconds: from the arrival of all branches to the last answer; off: without prefix cache and cascade; predicted_s: from measured
    kernel rates, with each shared token computed once. hit_tokens: prompt tokens that were not computed."""

    shared: int
    branches: int
    own: int
    gen: int
    seconds: float
    off_seconds: float
    speedup: float
    predicted_s: float
    measured_over_predicted: float
    hit_tokens: int
    shared_walks: int


@dataclass(frozen=True, slots=True)
class ArrivalResult:
    """itl_*: seconds between tokens of the running answers, just before and just after (steady, median) and while the prompt is read
    (p99); their own contexts grow meanwhile. whole_p99_itl_s: the same when the prompt is read in steps as large as fit."""

    prompt: int
    running: int
    steady_itl_s: float
    p99_itl_s: float
    itl_ratio: float
    whole_p99_itl_s: float
    ttft_s: float
    alone_ttft_s: float
    ttft_ratio: float


@dataclass(frozen=True, slots=True)
class OverheadResult:
    """Per decode step, outside native calls, seconds and share of the step; match_s: a prompt of `match_prompt` tokens in a tree."""

    batch1_glue_s: float
    batch1_share: float
    batch_n: int
    batch_n_glue_s: float
    batch_n_share: float
    match_prompt: int
    match_tree: int
    match_s: float


@dataclass(frozen=True)
class EngineReport:
    """Medians over the runs that count; `runs` are all, `speeds` the cores' beside each (`core_speed`). load_before: runnable tasks of the
    last minute when it began; much above 0 the figures are others' work."""

    model: str
    threads: int
    isa: str
    repeat: int
    load_before: float
    decode: DecodeResult | None = None
    batching: BatchingResult | None = None
    ragged: RaggedResult | None = None
    branch: BranchResult | None = None
    arrival: ArrivalResult | None = None
    overhead: OverheadResult | None = None
    reuse: ReuseResult | None = None
    samples: SamplesResult | None = None
    overload: OverloadResult | None = None
    session: SessionResult | None = None
    ablation: AblationResult | None = None
    runs: dict[str, list[float]] = field(default_factory=dict)
    speeds: dict[str, list[float]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def run(asked: EngineBenchOptions, say: Say = lambda line: None) -> EngineReport:
    """Load, then each scenario in turn. `say` gets a line when something slow begins. Raises `UserError` for what cannot be run."""
    peer = None if asked.against is None else find_binary(asked.against, "llama-batched-bench")
    busy = os.getloadavg()[0]
    warning = busy_warning(busy)
    if warning:
        say(warning)
    model = load(asked.options)
    turns = Turns(model, asked.repeat)
    bench, mixed, facts = _Bench(asked, model, peer, say, turns), Batching(model, turns), Facts(model)
    do: dict[Scenario, Callable[[], Any]] = {
        "decode": bench.decode, "batching": mixed.batching, "ragged": mixed.ragged, "branch": bench.branch,
        "arrival": bench.arrival, "overhead": bench.overhead, "reuse": facts.reuse, "samples": facts.samples,
        "overload": facts.overload, "session": facts.session, "ablation": Ablation(asked.options, turns).run,
    }  # fmt: skip
    found: dict[str, Any] = {}
    for scenario in asked.scenarios:
        say(f"{scenario}: {1 if scenario in ONCE else asked.repeat} runs")
        found[scenario] = do[scenario]()
    if asked.trace is not None:
        bench.write_trace(asked.trace)
    isa = isa_of(model.program, model.plan)
    head = (model.plan.model, model.plan.threads, isa, asked.repeat, busy)
    return EngineReport(*head, runs=turns.values(), speeds=turns.speeds(), **found)


class _Bench:
    def __init__(self, asked: EngineBenchOptions, model: LoadedModel, peer: str | None, say: Say, turns: Turns) -> None:
        self.asked, self.model, self.peer, self.say, self.turns = asked, model, peer, say, turns
        self.vocab = model.limits.vocab
        self._last: Runner | None = None

    def _runner(self, *, reuse: bool = True, paced: bool = False) -> Runner:
        cache: CachePolicy = "radix" if reuse else "off"
        self._last = Runner(self.model, prefix_cache=cache, paced=paced, traced=self.asked.trace is not None)
        return self._last

    def write_trace(self, path: str) -> None:
        if self._last is not None and self._last.core.trace is not None:
            self._last.core.trace.write(path, self.model.costs())

    def _decode_once(self, seqs: int, gen: int, seed: int) -> tuple[list[Step], float]:
        runner = self._runner()
        jobs = [Job(p, gen) for p in prompts(seqs, self.asked.prompt, self.vocab, seed)]
        start = perf_counter()
        steps = runner.run(jobs)
        return steps, perf_counter() - start

    def _decode_figures(self, seed: int) -> dict[str, float]:
        a = self.asked
        steps, seconds = self._decode_once(a.seqs, a.gen, seed)
        pure = [s for s in steps if s.decodes == a.seqs and s.chunk == 0]
        reading = [s for s in steps if s.chunk and not s.decodes] or steps
        return {
            "decode_tok_s": a.seqs * len(pure) / sum(s.seconds for s in pure) if pure else 0.0, "total_tok_s": a.seqs * a.gen / seconds,
            "prompt_tok_s": sum(s.chunk for s in reading) / sum(s.seconds for s in reading),
        }  # fmt: skip

    def _peer_figures(self, path: str) -> dict[str, float]:
        return {f"peer_tok_s {path}": batched_tok_s(self._peer_command(path), self.asked.seqs, self.asked.gen)}

    def decode(self) -> DecodeResult:
        a = self.asked
        self._decode_once(2, 4, 0)  # pages, scratch memory
        files = self._peer_files()
        for turn in self.turns.wanted("decode_tok_s", *(f"peer_tok_s {path}" for path in files)):
            self.turns.note(partial(self._decode_figures, turn))
            for path in files:
                self.turns.note(partial(self._peer_figures, path))
        m, peers = self.turns.median, list[PeerRate]()
        ours = m("decode_tok_s")
        for path in files:
            theirs = m(f"peer_tok_s {path}")
            peers.append(PeerRate(path, theirs, ours / theirs, shlex.join(self._peer_command(path))))
        return DecodeResult(a.seqs, a.prompt, a.gen, ours, m("total_tok_s"), m("prompt_tok_s"), tuple(peers))

    def _peer_files(self) -> list[str]:
        """The same file where the peer can read it, then the others."""
        own = self.model.plan.path
        mine = [own] if own.endswith(".gguf") or not self.asked.against_models else []
        return [] if self.peer is None else [*mine, *self.asked.against_models]

    def _peer_command(self, path: str) -> list[str]:
        assert self.peer is not None
        return batched_command(self.peer, path, self.asked.seqs, self.asked.prompt, self.asked.gen, self.model.plan.threads)

    def branch(self, shared: int = 1000, branches: int = 32, own: int = 64, gen: int = 96) -> BranchResult:
        branches = min(branches, self.model.plan.max_num_seqs)
        counts: dict[str, int] = {}

        def once(jobs: list[Job], reuse: bool) -> dict[str, float]:
            runner = self._runner(reuse=reuse)
            start = perf_counter()
            runner.run(jobs)
            if reuse:
                counts.update(runner.core.state.counts)
            return {"branch_s" if reuse else "branch_off_s": perf_counter() - start}

        for turn in self.turns.wanted("branch_s", "branch_off_s"):
            stem, tails = prompts(1, shared, self.vocab, 100 + turn)[0], prompts(branches, own, self.vocab, 200 + turn)
            jobs = [Job(np.concatenate((stem, tail)), gen) for tail in tails]
            for reuse in (True, False):
                self.turns.note(partial(once, jobs, reuse))
        rates = Rates.measure(self.model, self.say)
        predicted = branch_seconds(rates, self.model.plan.chunk, shared, branches, own, gen)
        on, off = self.turns.median("branch_s"), self.turns.median("branch_off_s")
        hits, walks = counts["prefix_tokens_hit"], counts["shared_walks"]
        return BranchResult(shared, branches, own, gen, on, off, off / on, predicted, on / predicted, hits, walks)

    def arrival(self, prompt: int = 4000, running: int = 8, steady: int = 24) -> ArrivalResult:
        prompt = min(prompt, self.model.plan.max_model_len - 2)

        def once(turn: int) -> dict[str, float]:
            long, others = prompts(1, prompt, self.vocab, 300 + turn)[0], prompts(running, 64, self.vocab, 400 + turn)
            alone = ttft_s(self._runner(paced=True).answer(Job(long, 2)))
            _, whole, _ = self._arrival_once(long, [Job(p, 2000) for p in others], 1, paced=False)
            steady_gaps, gaps, seconds = self._arrival_once(long, [Job(p, 2000) for p in others], steady, paced=True)
            steady_s, p99_s = median(steady_gaps), float(np.quantile(gaps, 0.99))
            return {
                "alone_ttft_s": alone, "whole_p99_itl_s": float(np.quantile(whole, 0.99)), "steady_itl_s": steady_s, "p99_itl_s": p99_s,
                "itl_ratio": p99_s / steady_s, "ttft_s": seconds, "ttft_ratio": seconds / alone,
            }  # fmt: skip

        for turn in self.turns.wanted("ttft_s"):
            self.turns.note(partial(once, turn))
        names = ("steady_itl_s", "p99_itl_s", "itl_ratio", "whole_p99_itl_s", "ttft_s", "alone_ttft_s", "ttft_ratio")
        return ArrivalResult(prompt, running, *(self.turns.median(name) for name in names))

    def _arrival_once(self, long: Ids, others: list[Job], steady: int, *, paced: bool) -> tuple[list[float], list[float], float]:
        """Seconds between tokens of the others around the arrival and while the prompt is read, and the prompt's TTFT."""
        runner = self._runner(paced=paced)
        for job in others:
            runner.submit(job)
        while runner.steps < 4 or runner.core.state.record.decodes < len(others):
            runner.step()
        quiet = [runner.step().seconds for _ in range(steady)]
        gaps: list[float] = []
        start = perf_counter()
        asked = runner.submit(Job(long, 2))
        while not asked.times.first_token:
            gaps.append(runner.step().seconds)
        seconds = perf_counter() - start
        while runner.core.state.record.chunk_tokens or runner.core.state.record.decodes > len(others):
            runner.step()
        quiet += [runner.step().seconds for _ in range(steady)]
        runner.core.close()
        return quiet, gaps, seconds

    def overhead(self) -> OverheadResult:
        n = self.asked.seqs

        def once(turn: int) -> dict[str, float]:
            found = {"match_s": match_seconds()}
            for batch, name in ((1, "batch1"), (n, "batch_n")):
                steps = [s for s in self._decode_once(batch, 48, 500 + turn)[0] if s.decodes == batch and s.chunk == 0]
                found[f"{name}_glue_s"] = median(s.seconds - s.native_s for s in steps)
                found[f"{name}_share"] = median((s.seconds - s.native_s) / s.seconds for s in steps)
            return found

        for turn in self.turns.wanted("match_s"):
            self.turns.note(partial(once, turn))
        m = {name: self.turns.median(name) for name in ("batch1_glue_s", "batch1_share", "batch_n_glue_s", "batch_n_share", "match_s")}
        return OverheadResult(
            m["batch1_glue_s"], m["batch1_share"], n, m["batch_n_glue_s"], m["batch_n_share"], MATCH_PROMPT, MATCH_TREE, m["match_s"]
        )


MATCH_PROMPT, MATCH_TREE = 4000, 100_000


def match_seconds(block_size: int = 16) -> float:
    """Finding the prefix of a prompt of MATCH_PROMPT tokens, all of it known, in a tree of MATCH_TREE tokens with many branches."""
    rng = np.random.default_rng(7)
    kv = KvCache((None,), (MATCH_TREE // block_size + 64,), block_size)
    stem = rng.integers(0, 50_000, MATCH_PROMPT).astype(np.int32)
    held, last = 0, stem
    while held + MATCH_PROMPT < MATCH_TREE:
        cut = int(rng.integers(0, len(stem)))
        last = np.concatenate((stem[:cut], rng.integers(0, 50_000, MATCH_PROMPT - cut).astype(np.int32)))
        table = kv.open(b"", kv.lookup(b"", last, len(last) - 1))
        past = table.ready if table.ready < len(last) else 0
        kv.grow(table, past, len(last) - past)
        kv.settle()
        kv.close(table, last, len(last))
        held = sum(used + cached for _, cached, used in kv.usage()) * block_size
    times = []
    for _ in range(20):
        start = perf_counter()
        hit = kv.lookup(b"", last, len(last) - 1)
        times.append(perf_counter() - start)
    if hit.tokens < MATCH_PROMPT // 2:
        raise AssertionError(f"the tree lost its prompt: {hit.tokens} tokens found")
    return median(times)


def render(report: EngineReport) -> str:
    """The report for people, one line a fact."""
    how = f"{report.threads} threads, {report.isa} kernels, medians of {report.repeat} runs, load before {report.load_before:.1f}"
    found = [f"{report.model}: {how}"]
    if (d := report.decode) is not None:
        found.append(
            f"  decode    {d.seqs} sequences, {d.prompt} in, {d.gen} out: {d.decode_tok_s:.1f} tok/s decoding, {d.total_tok_s:.1f} in all,"
            f" prompts {d.prompt_tok_s:.1f} tok/s"
        )
        found += [f"            peer {p.decode_tok_s:.1f} tok/s, ours is {p.ratio:.2f}x   {p.command}" for p in d.peers]
    if (b := report.branch) is not None:
        found.append(
            f"  branch    {b.shared} shared + {b.branches} x ({b.own} in, {b.gen} out): {b.seconds:.2f} s, without reuse"
            f" {b.off_seconds:.2f} s = {b.speedup:.2f}x; predicted {b.predicted_s:.2f} s, measured is {b.measured_over_predicted:.2f} of it"
        )
    if (r := report.arrival) is not None:
        found.append(
            f"  arrival   {r.prompt} tokens among {r.running} answers: ITL {r.steady_itl_s * 1e3:.1f} ms, p99 {r.p99_itl_s * 1e3:.1f} ms"
            f" = {r.itl_ratio:.2f}x (in whole steps {r.whole_p99_itl_s * 1e3:.0f} ms);"
            f" TTFT {r.ttft_s:.2f} s, alone {r.alone_ttft_s:.2f} s = {r.ttft_ratio:.2f}x"
        )
    if (o := report.overhead) is not None:
        found.append(
            f"  overhead  batch 1: {o.batch1_glue_s * 1e3:.3f} ms = {o.batch1_share:.1%} of a step; batch {o.batch_n}:"
            f" {o.batch_n_glue_s * 1e3:.3f} ms = {o.batch_n_share:.1%}; prefix match {o.match_s * 1e3:.3f} ms"
        )
    found += batching.lines(report.batching, report.ragged)
    found += lines(report.reuse, report.samples, report.overload, report.session)
    return "\n".join([*found, *ablation.lines(report.ablation)])
