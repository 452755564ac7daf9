"""Measure this host once: read bandwidth, products by format and rows, attention, the rest, and the engine itself.

Runs synthetic layers of sizes of its own, never a model that is to be predicted. What was found is kept per host, instruction set and
thread count in the cache folder; a format that did not get its turn in time is left out, and said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline.backends import cpu
from ridgeline.backends.base import LoadPlan
from ridgeline.backends.cpu import CpuProgram, default_threads
from ridgeline.backends.cpu.program import OpTime
from ridgeline.bench.overhead import engine_overhead, sample_overhead, settled, sweeper
from ridgeline.bench.probe import probe, read_speeds
from ridgeline.bench.random_gguf import random_rows
from ridgeline.bench.record import host_key, machine_name, now
from ridgeline.bench.runner import timed_ops
from ridgeline.encodings import BY_NAME, F32, Encoding
from ridgeline.errors import InternalError
from ridgeline.formats.kept import keep, read_kept
from ridgeline.formats.tensors import Tensor, Tensors
from ridgeline.graph.graph import Graph
from ridgeline.graph.manifest import manifest
from ridgeline.graph.ops import Attend, Embed, Linear, LinearGroup, Op, SelectRows
from ridgeline.graph.step import Int32Array, Span, Step
from ridgeline.models.decoder import Layer, Sizes
from ridgeline.models.llama import LlamaConfig, build
from ridgeline.models.rope import Rotary
from ridgeline.planner.calibration import Calibration, ChunkAttention, DecodeAttention, kept_bytes

Say = Callable[[str], None]
FILE = "calibration.json"
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
FORMATS = ("Q4_0", "Q8_0", "Q4_1", "Q4_K", "Q6_K", "Q5_0", "F16", "Q5_K", "Q5_1", "BF16", "IQ4_NL", "F32")
MOST_SECONDS = 60.0
MOST_ROUNDS, TOGETHER = 12, 3
DIM, FFN, SMALL, TABLE = 1024, 4096, 512, 64  # of the synthetic products: large ones, and small ones to tell what any costs
BYTES_READ = 192 << 20  # enough weights that no cache keeps a good part of them
HEADS, LAYERS, WIDTH = 8, 2, 128  # of the synthetic attention; width of key and value of a head together
CONTEXTS = (64, 1024)  # of decode attention
CHUNKS = ((0, 128), (768, 256), (1008, 16))  # (past, new) that weigh pairs, rows and keys differently
KV_DTYPES = ("bf16", "f16")  # that attention reads; the second where it is multiplied in another way than the first
REST_HEADS = 8  # of the layers whose other ops are timed
HEAVY = (Linear, LinearGroup, Attend)  # all but "the rest"
SETS_MB = (8, 64, 512)  # working sets whose reading speed is told


def calibrate(threads: int | None = None, formats: Sequence[str] = FORMATS, seconds: float = 45.0, say: Say | None = None) -> Calibration:
    """Measure and keep. formats: encodings in order of need; they share what time the rest leaves.

    seconds: about so long in all, 60 at most; longer where others have the CPUs, for what was begun is finished.
    """
    begun, say = perf_counter(), say or (lambda line: None)
    budget = min(seconds, MOST_SECONDS)
    count = threads or default_threads()
    say("reading memory")
    ceilings = probe(count, seconds=max(0.1, 0.05 * budget))
    read = {str(n): read_speeds(n, SETS_MB, 0.01 * budget) for n in sorted({1, count})}
    say("attention, the other ops, the engine")
    parts = Parts(count, KV_DTYPES if ceilings.pairs else KV_DTYPES[:1])
    parts.again()
    linear: dict[str, tuple[float, ...]] = {}
    linear_op: dict[str, tuple[float, ...]] = {}
    cached, known = 0.0, [f for f in formats if f in BY_NAME]
    groups = [known[i : i + TOGETHER] for i in range(0, len(known), TOGETHER)]
    took = 0.0
    for i, group in enumerate(groups):
        started = perf_counter()
        left = budget - (started - begun) - 2 * parts.seconds
        if linear and left < max(0.1 * budget, took):
            say(f"no time left for {', '.join(f for g in groups[i:] for f in g)}")
            break
        say(f"products in {', '.join(group)}")
        chains = [Products(BY_NAME[form], count, BYTES_READ) for form in group]
        few = Products(BY_NAME[group[0]], count, BYTES_READ // 3) if i == 0 else None
        _rounds(chains, few, perf_counter() + left / (len(groups) - i))
        for chain in chains:
            linear[chain.encoding.name], linear_op[chain.encoding.name] = chain.costs()
        if few is not None:
            cached = kept_bytes(few.bytes, few.byte_s(), chains[0].bytes, chains[0].byte_s())
        took = perf_counter() - started
        parts.again()
    found = Calibration(
        machine_name(), ceilings.isa, count, now(), ROWS, linear, linear_op, BYTES_READ, cached, seconds=perf_counter() - begun,
        read_gb_s=read, **parts.costs(),
    )  # fmt: skip
    _keep(found)
    return found


def load_calibration(threads: int, isa: str) -> Calibration | None:
    """What was kept for this host, or None."""
    try:
        facts = read_kept(FILE)[host_key(threads, isa)]
        facts["rows"] = tuple(facts["rows"])
        for field in ("linear_s", "linear_op_s"):
            facts[field] = {name: tuple(values) for name, values in facts[field].items()}
        facts["value_s"] = tuple(facts["value_s"])
        for field, kind in (("decode", DecodeAttention), ("chunk", ChunkAttention)):
            facts[field] = kind(**facts[field])
            if facts.get(f"float_{field}"):
                facts[f"float_{field}"] = kind(**facts[f"float_{field}"])
        found = Calibration(**facts)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if found.host == machine_name() else None


def _keep(found: Calibration) -> None:
    """A later run adds its formats to those that are known."""
    key, document = host_key(found.threads, found.isa), asdict(found)
    before = read_kept(FILE).get(key)
    if isinstance(before, dict) and before.get("rows") == list(found.rows) and before.get("linear_bytes") == found.linear_bytes:
        for field in ("linear_s", "linear_op_s"):
            document[field] = {**before.get(field, {}), **document[field]}
    keep(FILE, key, document)


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


def _chain(widths: Sequence[int]) -> Graph:
    """Up to each width and down again: nothing but products."""
    ops: list[Op] = [Embed("x0", "embed", TABLE, DIM)]
    for i, width in enumerate(widths):
        ops += [Linear(f"h{i}", f"x{i}", f"up{i}", DIM, width), Linear(f"x{i + 1}", f"h{i}", f"down{i}", width, DIM)]
    return Graph("products", (*ops, SelectRows("logits", f"x{len(widths)}")), (), {"logits": "logits"})


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


def _runs(
    program: CpuProgram, step: Step, kind: tuple[type, ...] | None, repeats: int, before: Callable[[], object] = lambda: None
) -> list[float]:
    """Seconds of the instructions that hold an op of `kind`; None: those that hold no product and no attention. before: each forward."""
    runs = []
    for _ in range(repeats):
        before()
        times = _timed(program, step)
        chosen = [t for t in times if (any(isinstance(o, kind) for o in t.ops) if kind else not any(isinstance(o, HEAVY) for o in t.ops))]
        runs.append(sum(t.seconds for t in chosen))
    return runs


def _timed(program: CpuProgram, step: Step) -> list[OpTime]:
    return timed_ops(program, lambda: program.forward(step))


# --- measurements -------------------------------------------------------------------------------------------------------------------


class Products:
    """Mutable: a chain of products in one encoding, and the seconds of a large and of a small one, by rows, of every time it ran.

    Half of the bytes are large matrices, half small ones, so that weights and what any product costs can be told apart."""

    def __init__(self, encoding: Encoding, threads: int, nbytes: int) -> None:
        self.encoding = encoding
        self.large, small = (max(1, round(nbytes / (4 * DIM * width * encoding.bits_per_value / 8))) for width in (FFN, SMALL))
        self.bytes = 2 * DIM * (self.large * FFN + small * SMALL) * encoding.bits_per_value / 8
        graph = _chain([FFN] * self.large + [SMALL] * small)
        self._program = cpu.load(graph, _tensors(graph, encoding), LoadPlan((), threads=threads))
        self._runs: dict[int, list[tuple[float, float]]] = {}
        self.run(1, 1)  # touches every page
        self._runs = {}

    def run(self, rows: int, times: int) -> None:
        step = Step((Span(0, 0, rows, 1),), np.arange(rows, dtype=np.int32) % TABLE, ())
        for _ in range(times):
            took = [t.seconds for t in _timed(self._program, step) if any(isinstance(o, Linear) for o in t.ops)]
            first, second = took[: 2 * self.large], took[2 * self.large :]
            self._runs.setdefault(rows, []).append((sum(first) / len(first), sum(second) / len(second)))

    def byte_s(self) -> float:
        """Seconds of a byte with one row."""
        large = settled([one for one, _ in self._runs[ROWS[0]]])
        return large / (DIM * FFN * self.encoding.bits_per_value / 8)

    def costs(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """(seconds per weight, seconds per product beside its weights) at each of ROWS."""
        weight, op = [], []
        for rows in ROWS:
            one, other = (settled([run[i] for run in self._runs[rows]]) for i in (0, 1))
            op.append(max(0.0, other - DIM * SMALL * (one - other) / (DIM * (FFN - SMALL))))
            weight.append((one - op[-1]) / (DIM * FFN))
        return tuple(weight), tuple(op)


def _rounds(chains: Sequence[Products], few: Products | None, until: float) -> None:
    """All chains at all rows again and again, so that a disturbance does not hit all runs of one."""
    for _ in range(MOST_ROUNDS):
        begun = perf_counter()
        for rows in ROWS:
            for chain in chains:
                chain.run(rows, 3 if rows <= 16 else 1)
        if few is not None:
            few.run(ROWS[0], 6)
        if 2 * perf_counter() - begun > until:
            break


class Parts:
    """Mutable: everything but products, measured again and again; of each time the least counts, for only disturbances make it longer.
    Attention over caches of `kv_dtypes`."""

    def __init__(self, threads: int, kv_dtypes: Sequence[str]) -> None:
        self.threads, self.seconds, self._kv_dtypes = threads, 0.0, kv_dtypes
        self._times: dict[Any, float] = {}

    def again(self) -> None:
        begun = perf_counter()
        attention = [measure(self.threads, kv_dtype) for measure in (_decodes, _chunks) for kv_dtype in self._kv_dtypes]
        for found in (_rest(self.threads), *attention):
            for key, seconds in found.items():
                self._times[key] = min(seconds, self._times.get(key, seconds))
        step_s, sequence_s = engine_overhead()
        row_s, value_s = sample_overhead(self.threads)
        for key, seconds in (("step", step_s), ("sequence", sequence_s), ("draw", row_s), ("draw value", value_s)):
            self._times[key] = min(seconds, self._times.get(key, seconds))
        self.seconds = perf_counter() - begun

    def costs(self) -> dict[str, Any]:
        """Fields of `Calibration`."""
        t = self._times
        op_s, value_s = _rest_costs(t)
        found = {
            "op_s": op_s, "value_s": value_s, "sample_row_s": t["draw"],
            "sample_value_s": t["draw value"], "step_s": t["step"], "sequence_s": t["sequence"],
        }  # fmt: skip
        for prefix, kv_dtype in zip(("", "float_"), self._kv_dtypes, strict=False):
            found |= {f"{prefix}decode": _decode_costs(t, kv_dtype), f"{prefix}chunk": _chunk_costs(t, kv_dtype)}
        return found


def _rest(threads: int) -> dict[Any, float]:
    """Seconds of all ops but products and attention, by rows."""
    graph = _layers(REST_HEADS, REST_HEADS // 4)
    program = cpu.load(graph, _tensors(graph, BY_NAME["Q8_0"]), LoadPlan((64,), 16, "bf16", threads))
    found: dict[Any, float] = {}
    for rows in ROWS:
        step = _step([(0, rows)], 64)
        program.forward(step)
        found["rest", rows] = settled(_runs(program, step, None, 9))
    times = _timed(program, _step([(0, 1)], 64))
    found["rest", "ops"] = float(sum(len(t.ops) for t in times if not any(isinstance(o, HEAVY) for o in t.ops)))
    return found


def _rest_costs(times: Mapping[Any, float]) -> tuple[float, tuple[float, ...]]:
    """(seconds of an op of next to no size, seconds per value at each of ROWS, beyond that)."""
    dim = 64 * REST_HEADS
    # Per layer: two norms and sums, rotated queries and keys, gate, and what is written to the cache.
    values = LAYERS * (4 * dim + dim + dim // 4 + 2 * dim + dim // 2) + dim
    whole = times["rest", ROWS[0]]
    rates = [max(1e-12, (times["rest", rows] - whole) / ((rows - 1) * values)) for rows in ROWS[1:]]
    return max(1e-8, (whole - values * rates[-1]) / times["rest", "ops"]), (rates[0], *rates)


def _attention_program(threads: int, kv_heads: int, blocks: int, kv_dtype: str) -> CpuProgram:
    graph = _layers(HEADS, kv_heads)
    return cpu.load(graph, _tensors(graph, BY_NAME["Q8_0"]), LoadPlan((blocks,), 16, kv_dtype, threads))


def _decodes(threads: int, kv_dtype: str, sequences: int = 4) -> dict[Any, float]:
    """Seconds of a layer and sequence, at two contexts and two numbers of KV heads. Between two steps of a model its weights pass through
    the caches, and all keys and values come from memory."""
    sweep = sweeper()
    per, last = -(-(CONTEXTS[1] + 1) // 16), CONTEXTS[1]
    found: dict[Any, float] = {}
    for kv_heads in (HEADS, 2):
        program = _attention_program(threads, kv_heads, sequences * per, kv_dtype)
        for first in range(0, last, 512):
            program.forward(_step([(first, min(512, last - first))] * sequences, per))
        for context in CONTEXTS:
            step = _step([(context, 1)] * sequences, per)
            program.forward(step)
            found[kv_dtype, "decode", kv_heads, context] = settled(_runs(program, step, (Attend,), 9, sweep)) / (LAYERS * sequences)
    return found


def _decode_costs(times: Mapping[Any, float], kv_dtype: str) -> DecodeAttention:
    """What a key and what a sequence costs, by head and by KV head."""
    near, far = CONTEXTS
    took = {(k, c): times[kv_dtype, "decode", k, c] for k in (HEADS, 2) for c in CONTEXTS}
    slope = {k: max(0.0, took[k, far] - took[k, near]) / (far - near) for k in (HEADS, 2)}
    start = {k: max(0.0, took[k, near] - slope[k] * (near + 1)) for k in (HEADS, 2)}
    key_kv, kv = (max(0.0, (v[HEADS] - v[2]) / (HEADS - 2)) for v in (slope, start))
    key_head, head = (max(1e-13, (v[2] - 2 * a) / HEADS) for v, a in ((slope, key_kv), (start, kv)))
    return DecodeAttention(key_kv / WIDTH, key_head / WIDTH, kv, head)


def _chunks(threads: int, kv_dtype: str) -> dict[Any, float]:
    """Seconds of a layer, for chunks of (past, new) tokens."""
    most = max(past + new for past, new in CHUNKS)
    program, found = _attention_program(threads, 2, -(-most // 16), kv_dtype), dict[Any, float]()
    for first in range(0, most, 512):
        program.forward(_step([(first, min(512, most - first))], -(-most // 16)))
    for past, new in CHUNKS:
        step = _step([(past, new)], -(-most // 16))
        program.forward(step)
        found[kv_dtype, "chunk", past, new] = settled(_runs(program, step, (Attend,), 7)) / LAYERS
    return found


def _chunk_costs(times: Mapping[Any, float], kv_dtype: str) -> ChunkAttention:
    """Solved for the cost of pairs, rows and keys."""
    pairs = {(past, new): new * past + new * (new + 1) // 2 for past, new in CHUNKS}
    work = [(p * HEADS * WIDTH, new * HEADS * WIDTH, (past + new) * 2 * WIDTH) for (past, new), p in pairs.items()]
    took = np.array([times[kv_dtype, "chunk", past, new] for past, new in CHUNKS])
    return ChunkAttention(*_positive(np.array(work, float), took))


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
