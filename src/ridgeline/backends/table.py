"""Which kernel serves which op, as rows chosen once at load and shown by `inspect --kernels`, and which techniques a program uses.

Knows no kernel's inside.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ridgeline.backends.base import KEY_SEGMENT
from ridgeline.graph.caches import Paged
from ridgeline.graph.graph import Graph
from ridgeline.graph.ops import AddNorm, Attend, LinearGroup
from ridgeline.kv.layout import bf16_pairs
from ridgeline.types import PAIRS_ISA


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """One row: `subject` is a weight's name or an op kind, `encoding` the stored format ("-" for ops without weights),
    `kernel` the native kernel's name, `why` the reason in a few words."""

    subject: str
    encoding: str
    kernel: str
    why: str


def why_kernel(isa: str, forced: bool, kernel: str) -> str:
    """The reason for a row: `isa` is what the program was loaded for, `forced` whether somebody asked for it."""
    if isa == PAIRS_ISA and isa not in kernel and "avx512" in kernel:
        return f"{isa} is avx512 in all but attention"
    if isa not in kernel:
        return f"no {isa} kernel for this format, so the best one below it"
    return "asked for" if forced else f"{isa} is the best that this CPU supports"


@dataclass(frozen=True, slots=True)
class Technique:
    """A way to be fast under the name that people know: how often or whether it is `active`, `how`, and what shows the `difference`."""

    name: str
    active: str
    how: str
    difference: str


def techniques(graph: Graph, threads: int, instructions: int, isa: str, kv_dtype: str) -> list[Technique]:
    """Of a fused graph on the CPU; `instructions`: of its native program, which was loaded for `isa`."""
    groups, norms, attends = (sum(isinstance(op, kind) for op in graph.ops) for kind in (LinearGroup, AddNorm, Attend))
    several = f"on {threads} threads" if threads > 1 else "off: one thread"
    segments, ablation = f"of {KEY_SEGMENT} keys", "bench engine --scenario ablation"
    return [
        Technique("fused projections", f"{groups} times", "linears of one value (q, k, v; gate, up) read and quantize it once", ablation),
        Technique("fused add and norm", f"{norms} times", "a residual sum is normed where it is made", ablation),
        Technique("FlashAttention", f"{attends} times", "online softmax (max, sum, output) over tiles; no T x S scores", "--isa"),
        Technique("FlashDecoding", several, f"segments {segments} of one sequence on several threads, merged in order", "--threads 1"),
        Technique("bfloat16 pairs", _pairs(graph, isa, kv_dtype), "attention multiplies a bf16 or int8 KV cache by twos", "--isa avx512"),
        Technique("cascade", "when shared", "a prefix is walked once, by decodes to its last block", "bench engine --scenario branch"),
        Technique("CUDA graphs", "no: no GPU", f"a step is one native call of {instructions} instructions anyway", "-"),
    ]  # fmt: skip


def _pairs(graph: Graph, isa: str, kv_dtype: str) -> str:
    """How often attention multiplies in pairs, and what of it, or why not."""
    if isa != PAIRS_ISA:
        return f"no: isa {isa}"
    caches = {c.name: c for c in graph.caches if isinstance(c, Paged)}
    found = Counter(bf16_pairs(caches[op.cache], kv_dtype) for op in graph.ops if isinstance(op, Attend))
    parts = {(True, True): "", (True, False): ", keys only", (False, True): ", values only"}
    said = [f"{found[both]} times{what}" for both, what in parts.items() if found[both]]
    return "; ".join(said) or f"no: the KV cache is {kv_dtype}"
