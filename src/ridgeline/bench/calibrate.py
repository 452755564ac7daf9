"""Measure this host once, in at most a minute: read bandwidth, products by format and rows, attention, the rest, and the engine itself.

Runs synthetic layers of sizes of its own, never a model that is to be predicted. What was found is kept per host, instruction set and
thread count in the cache folder; a format that did not get its turn in time is left out, and said.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline.backends import cpu
from ridgeline.backends.base import LoadPlan
from ridgeline.backends.cpu import CpuProgram, default_threads
from ridgeline.bench.overhead import engine_overhead, sample_overhead
from ridgeline.bench.probe import machine_name, probe, read_speeds
from ridgeline.bench.random_gguf import random_rows
from ridgeline.encodings import BY_NAME, F32, Encoding
from ridgeline.errors import InternalError
from ridgeline.formats.progress import cache_dir
from ridgeline.formats.tensors import Tensor, Tensors
from ridgeline.graph.graph import Graph
from ridgeline.graph.manifest import manifest
from ridgeline.graph.ops import Attend, Embed, Linear, LinearGroup, Op, SelectRows
from ridgeline.graph.step import Int32Array, Span, Step
from ridgeline.models.decoder import Layer, Sizes
from ridgeline.models.llama import LlamaConfig, build
from ridgeline.models.rope import Rotary
from ridgeline.planner.calibration import Calibration, ChunkAttention, DecodeAttention

Say = Callable[[str], None]
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
FORMATS = ("Q4_0", "Q8_0", "Q4_1", "Q4_K", "Q6_K", "Q5_0", "F16", "Q5_K", "Q5_1", "BF16", "IQ4_NL", "F32")
MOST_SECONDS = 60.0
MOST_ROUNDS = 6
DIM, FFN, TABLE = 1024, 4096, 64  # of the synthetic products
BYTES_READ = 192 << 20  # enough weights that no cache keeps a good part of them
HEADS, LAYERS, WIDTH = 8, 2, 128  # of the synthetic attention; width of key and value of a head together
SETS_MB = (8, 64, 512)  # working sets whose reading speed is told


def calibrate(threads: int | None = None, formats: Sequence[str] = FORMATS, seconds: float = 45.0, say: Say | None = None) -> Calibration:
    """Measure and keep. formats: encodings in order of need; they share what time the rest leaves. At most `seconds` (60) in all."""
    begun, say = perf_counter(), say or (lambda line: None)
    budget = min(seconds, MOST_SECONDS)
    count = threads or default_threads()
    say("reading memory")
    ceilings = probe(count, seconds=max(0.1, 0.1 * budget))
    read = {str(n): read_speeds(n, SETS_MB, 0.01 * budget) for n in sorted({1, count})}
    say("attention and the other ops")
    op_s, value_s = _rest(count)
    decode, chunk = _decodes(count), _chunks(count)
    say("the engine and sampling")
    step_s, sequence_s = engine_overhead()
    sample_row_s, sample_value_s = sample_overhead(count)
    linear: dict[str, tuple[float, ...]] = {}
    for form in formats:
        if form not in BY_NAME:
            continue
        left = budget - (perf_counter() - begun)
        if linear and left < max(2.0, 0.1 * budget):
            say(f"no time left for {form}")
            continue
        say(f"products in {form}")
        linear[form] = _products(BY_NAME[form], count, left / max(1, len(formats) - len(linear)))
    now = datetime.now(UTC).isoformat(timespec="seconds")
    found = Calibration(
        machine_name(), ceilings.isa, count, now, ROWS, linear, op_s, value_s, decode, chunk, sample_row_s, sample_value_s, step_s,
        sequence_s, perf_counter() - begun, read,
    )  # fmt: skip
    _write(found)
    return found


def load_calibration(threads: int, isa: str) -> Calibration | None:
    """What was kept for this host, or None."""
    try:
        kept = json.loads(_file().read_text("utf8"))[_key(threads, isa)]
        kept["rows"] = tuple(kept["rows"])
        kept["linear_s"] = {name: tuple(values) for name, values in kept["linear_s"].items()}
        kept["decode"], kept["chunk"] = DecodeAttention(**kept["decode"]), ChunkAttention(**kept["chunk"])
        found = Calibration(**kept)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if found.host == machine_name() else None


def _file() -> Path:
    return cache_dir() / "calibration.json"


def _key(threads: int, isa: str) -> str:
    return f"{machine_name()} / {isa} / {threads} threads"


def _write(found: Calibration) -> None:
    """A later run adds its formats to those that are known; a file that cannot be written is only a convenience lost."""
    path = _file()
    known: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        read = json.loads(path.read_text("utf8"))
        known = read if isinstance(read, dict) else {}
    document = asdict(found)
    before = known.get(_key(found.threads, found.isa))
    if isinstance(before, dict) and before.get("rows") == list(found.rows) and isinstance(before.get("linear_s"), dict):
        document["linear_s"] = {**before["linear_s"], **document["linear_s"]}
    known[_key(found.threads, found.isa)] = document
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps(known, indent=1), "utf8")
        draft.replace(path)


# --- synthetic graphs ---------------------------------------------------------------------------------------------------------------


def _tensors(graph: Graph, encoding: Encoding) -> Tensors:
    """Random weights: matrices in `encoding`, vectors and the embedding in f32."""
    rng = np.random.default_rng(0)
    made = {}
    for name, shape in manifest(graph).items():
        form = F32 if len(shape) == 1 or name == "embed" else encoding
        rows = 1 if len(shape) == 1 else shape[0]
        data = random_rows(rng, rows, shape[-1], form).reshape(rows, -1)
        made[name] = Tensor(name, shape, form, np.ascontiguousarray(data))
    return made


def _chain(pairs: int) -> Graph:
    """Up and down, `pairs` times: nothing but products."""
    ops: list[Op] = [Embed("x0", "embed", TABLE, DIM)]
    for i in range(pairs):
        ops += [Linear(f"h{i}", f"x{i}", f"up{i}", DIM, FFN), Linear(f"x{i + 1}", f"h{i}", f"down{i}", FFN, DIM)]
    return Graph("products", (*ops, SelectRows("logits", f"x{pairs}")), (), {"logits": "logits"})


def _layers(heads: int, kv_heads: int, layers: int = LAYERS) -> Graph:
    dim = 64 * heads
    rotary = Rotary(tuple(10000.0 ** (-i / 32) for i in range(32)))
    sizes = Sizes(TABLE, dim, 64, 64, 1e-5, 1 << 15, 1 << 15)
    return build(LlamaConfig("synthetic", sizes, (Layer(heads, kv_heads, 2 * dim, rotary),) * layers, True))


def _step(lengths: Iterable[tuple[int, int]], per_sequence: int) -> Step:
    """Spans of (past, new), each with `per_sequence` blocks of 16 of its own."""
    spans = tuple(Span(i, past, new, 1) for i, (past, new) in enumerate(lengths))
    tokens: Int32Array = np.arange(sum(s.new for s in spans), dtype=np.int32) % TABLE
    tables = tuple(np.arange(i * per_sequence, (i + 1) * per_sequence, dtype=np.int32) for i in range(len(spans)))
    return Step(spans, tokens, (tables,))


def _seconds(program: CpuProgram, step: Step, kind: tuple[type, ...] | None, repeats: int) -> tuple[float, int]:
    """`_runs` after one to warm up, settled."""
    program.forward(step)
    runs, count = _runs(program, step, kind, repeats)
    return settled(runs), count


def _runs(program: CpuProgram, step: Step, kind: tuple[type, ...] | None, repeats: int) -> tuple[list[float], int]:
    """(seconds of the instructions that hold an op of `kind`, their number); kind None: those that hold no product and no attention."""
    runs, count = [], 0
    for _ in range(repeats):
        program.timing(True)
        program.forward(step)
        times = program.op_times()
        heavy = (Linear, LinearGroup, Attend)
        chosen = [t for t in times if (any(isinstance(o, kind) for o in t.ops) if kind else not any(isinstance(o, heavy) for o in t.ops))]
        runs.append(sum(t.seconds for t in chosen))
        count = len(chosen)
    program.timing(False)
    return runs, count


# --- measurements -------------------------------------------------------------------------------------------------------------------


def settled(runs: Sequence[float]) -> float:
    """The lower quartile: what a run takes when nobody else has the processor, without trusting a single lucky one."""
    return sorted(runs)[len(runs) // 4]


def _products(encoding: Encoding, threads: int, budget_s: float) -> tuple[float, ...]:
    """Seconds per weight at each of ROWS, in several rounds so that a disturbance does not hit all runs of one row count."""
    begun, runs = perf_counter(), {rows: list[float]() for rows in ROWS}
    pairs = max(2, round(BYTES_READ / (2 * DIM * FFN * encoding.bits_per_value / 8)))
    program = cpu.load(_chain(pairs), _tensors(_chain(pairs), encoding), LoadPlan((), threads=threads))
    for rounds in range(MOST_ROUNDS):
        started = perf_counter()
        for rows in ROWS:
            step = Step((Span(0, 0, rows, 1),), np.arange(rows, dtype=np.int32) % TABLE, ())
            runs[rows] += _runs(program, step, (Linear, LinearGroup), 3 if rows <= 32 else 1)[0]
        if rounds and perf_counter() - begun + (perf_counter() - started) > budget_s:
            break
    return tuple(settled(runs[rows][1:]) / (pairs * 2 * DIM * FFN) for rows in ROWS)


def _rest(threads: int, heads: int = 16, rows: int = 256) -> tuple[float, float]:
    """(seconds of an op of next to no size, seconds per value of ops that are neither products nor attention)."""
    graph = _layers(heads, heads // 4)
    program = cpu.load(graph, _tensors(graph, BY_NAME["Q8_0"]), LoadPlan((64,), 16, "bf16", threads))
    small, many = _step([(0, 1)], 64), _step([(0, rows)], 64)
    one, count = _seconds(program, small, None, 15)
    all_, _ = _seconds(program, many, None, 9)
    dim = 64 * heads
    # Per layer: two norms and sums, rotated queries and keys, gate, and what is written to the cache.
    values = 2 * (4 * dim + dim + dim // 4 + 2 * dim + dim // 2) + dim
    return max(1e-8, one / max(1, count)), max(1e-12, (all_ - one) / ((rows - 1) * values))


def _attention_program(threads: int, kv_heads: int, blocks: int) -> CpuProgram:
    graph = _layers(HEADS, kv_heads)
    return cpu.load(graph, _tensors(graph, BY_NAME["Q8_0"]), LoadPlan((blocks,), 16, "bf16", threads))


def _decodes(threads: int, contexts: tuple[int, int] = (64, 1024), sequences: int = 4) -> DecodeAttention:
    """Two contexts and two numbers of KV heads: what a key and what a sequence costs, by head and by KV head."""
    per = -(-(contexts[1] + 1) // 16)
    took: dict[tuple[int, int], float] = {}
    for kv_heads in (HEADS, 2):
        program = _attention_program(threads, kv_heads, sequences * per)
        for first in range(0, contexts[1], 512):
            program.forward(_step([(first, min(512, contexts[1] - first))] * sequences, per))
        for context in contexts:
            seconds, _ = _seconds(program, _step([(context, 1)] * sequences, per), (Attend,), 11)
            took[kv_heads, context] = seconds / (LAYERS * sequences)
    slope = {k: (took[k, contexts[1]] - took[k, contexts[0]]) / (contexts[1] - contexts[0]) for k in (HEADS, 2)}
    start = {k: max(0.0, took[k, contexts[0]] - slope[k] * (contexts[0] + 1)) for k in (HEADS, 2)}
    key_kv, kv = (max(0.0, (v[HEADS] - v[2]) / (HEADS - 2)) for v in (slope, start))
    key_head, head = (max(1e-13, (v[2] - 2 * a) / HEADS) for v, a in ((slope, key_kv), (start, kv)))
    return DecodeAttention(key_kv / WIDTH, key_head / WIDTH, kv, head)


def _chunks(threads: int, points: Sequence[tuple[int, int]] = ((0, 128), (768, 256), (1008, 16))) -> ChunkAttention:
    """Chunks of (past, new) tokens that weigh pairs, rows and keys differently, solved for the cost of each."""
    program = _attention_program(threads, 2, 64)
    for first in (0, 512):
        program.forward(_step([(first, 512)], 64))
    work, took = [], []
    for past, new in points:
        seconds, _ = _seconds(program, _step([(past, new)], 64), (Attend,), 7)
        pairs = new * past + new * (new + 1) // 2
        work.append((pairs * HEADS * WIDTH, new * HEADS * WIDTH, (past + new) * 2 * WIDTH))
        took.append(seconds / LAYERS)
    return ChunkAttention(*_positive(np.array(work, float), np.array(took)))


def _positive(work: npt.NDArray[np.float64], seconds: npt.NDArray[np.float64]) -> list[float]:
    """Costs that explain the seconds best in proportion; one that comes out negative is nothing, and the others are fitted without it."""
    kept = list(range(work.shape[1]))
    while kept:
        scaled = work[:, kept] / seconds[:, None]
        found = np.linalg.lstsq(scaled, np.ones(len(seconds)), rcond=None)[0]
        if (found > 0).all():
            return [float(found[kept.index(i)]) if i in kept else 0.0 for i in range(work.shape[1])]
        kept.remove(kept[int(found.argmin())])
    raise InternalError("no cost explains the measured attention")
