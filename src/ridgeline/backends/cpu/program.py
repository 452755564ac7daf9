"""A graph loaded on the CPU: weights packed once, one native `forward` and one native `sample` per step, and an account of both.

Knows how to drive the native program; the arithmetic is in csrc/.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ridgeline.backends.base import LoadPlan
from ridgeline.backends.cpu.lower import Lowering, Packed, Progress, check_weights, lower
from ridgeline.backends.cpu.native import _native
from ridgeline.backends.table import KernelChoice, why_kernel
from ridgeline.errors import InternalError, UserError
from ridgeline.formats.tensors import Tensors
from ridgeline.graph.graph import Graph
from ridgeline.graph.ops import Op
from ridgeline.graph.rewrite import fuse
from ridgeline.graph.step import Step
from ridgeline.graph.verify import verify
from ridgeline.kv.layout import split_kv_dtype
from ridgeline.sampling.plan import Sampled, SamplePlan, TopLogprobs
from ridgeline.types import Isa

ISAS: tuple[Isa, ...] = ("portable", "avx2", "avx512", "avx512_bf16")
KV_DTYPES = {"f32": 0, "bf16": 1, "f16": 2, "int8": 3, "int4": 4}
Fault = Literal["split_k", "block_segments", "no_copy", "stale_kv", "block_scales"]
FAULTS: dict[Fault, int] = {"split_k": 1, "block_segments": 2, "no_copy": 4, "stale_kv": 8, "block_scales": 16}


@dataclass(frozen=True, slots=True)
class OpTime:
    """What one native instruction did since timing was switched on. `ops` are the graph ops in it; bytes are weights and KV cache
    read and written, flops two per multiply-add."""

    label: str
    ops: tuple[Op, ...]
    calls: int
    seconds: float
    bytes: int
    flops: int

    @property
    def gb_s(self) -> float:
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def gflop_s(self) -> float:
        return self.flops / self.seconds / 1e9 if self.seconds else 0.0


class CpuProgram:
    """A loaded model on the CPU (`backends.base.Program`). Not thread-safe: one step at a time."""

    def __init__(
        self,
        graph: Graph,
        tensors: Tensors,
        plan: LoadPlan,
        isa: Isa | None = None,
        progress: Progress | None = None,
        faults: Collection[Fault] = (),
        shared: Packed | None = None,
        fused: bool = True,
    ) -> None:
        unknown = [tap for tap in plan.taps if tap not in graph.outputs]
        if unknown:
            raise InternalError(f"graph {graph.name} has no tap {unknown[0]}; it has {', '.join(graph.outputs)}")
        self.isa, self._forced = choose_isa(isa), isa is not None
        self.graph, self.plan = fuse(graph) if fused else graph, plan
        verify(self.graph)
        check_weights(self.graph, tensors)
        keys, values = (KV_DTYPES[dtype] for dtype in split_kv_dtype(plan.kv_dtype))
        self.native = _native.Program(
            ISAS.index(self.isa), plan.threads, plan.block_size, keys, values, sum(FAULTS[fault] for fault in faults)
        )
        low = lower(self.graph, tensors, self.native, plan.blocks, plan.taps, progress, shared)
        self.packed = Packed(self.native, low.weights, tensors)
        self._rows = {tap: _rows(low, value) for tap, value in graph.outputs.items() if tap in (*plan.taps, "logits")}
        self._weights = {name: (number, tensors[name].encoding.name) for name, number in low.weights.items()}

    def forward(self, step: Step) -> None:
        """Run the step; rows of `logits` and taps are replaced. Raises `InternalError` for a step that does not fit the program."""
        try:
            self.native.forward(step)
        except (ValueError, TypeError, RuntimeError, MemoryError) as error:
            raise InternalError(f"step of {step.rows} rows: {error or 'out of memory'}") from error

    def logits(self) -> npt.NDArray[np.float32]:
        """float32 [step.wanted, vocab]; the numbers are those of the last forward only."""
        return self.native.rows(*self._rows["logits"])

    def tap(self, name: str) -> npt.NDArray[np.float32]:
        """float32 [rows, width] of a tap asked for at load; the numbers are those of the last forward only."""
        if name not in self.plan.taps:
            raise InternalError(f"tap {name} was not asked for at load")
        return self.native.rows(*self._rows[name])

    def sample(self, plan: SamplePlan) -> Sampled:
        """Draw one token per row of the plan from the logits of the last forward."""
        try:
            tokens, failed, logprobs, top = self.native.sample(*self._rows["logits"], plan)
        except (ValueError, TypeError, RuntimeError) as error:
            raise InternalError(f"sample plan of {len(plan.rows)} rows: {error}") from error
        return Sampled(tokens, failed.astype(np.bool_), logprobs, tuple(None if t is None else TopLogprobs(*t) for t in top))

    def kernels(self) -> list[KernelChoice]:
        """The kernel of every weight, then those of the other ops, with reasons."""
        rows = []
        for name, (number, encoding) in self._weights.items():
            kernel = self.native.weight_kernel(number)
            rows.append(KernelChoice(name, encoding, kernel, why_kernel(self.isa, self._forced, kernel)))
        for kernel in self.native.kernel_names().split("; "):
            rows.append(KernelChoice(kernel.split()[0], "-", kernel, why_kernel(self.isa, self._forced, kernel)))
        return rows

    def timing(self, on: bool) -> None:
        """Start counting anew, or stop. Costs two clock reads per instruction."""
        self.native.reset_stats()
        self.native.set_timing(on)

    def op_times(self) -> list[OpTime]:
        """Every instruction's account since `timing(True)`, in program order."""
        times = []
        for i in range(self.native.instructions()):
            label, ops, calls, nanoseconds, nbytes, flops = self.native.stats(i)
            times.append(OpTime(label, tuple(self.graph.ops[op] for op in ops), calls, nanoseconds * 1e-9, nbytes, flops))
        return times

    @property
    def weight_bytes(self) -> int:
        """Bytes of packed weights, norms and biases that it reads, its own and shared ones."""
        return self.native.weight_bytes()

    @property
    def kv_bytes(self) -> int:
        return self.native.kv_bytes()

    @property
    def arena_bytes(self) -> int:
        """Bytes of activations, attention scratch and RoPE tables, as far as steps have needed them."""
        return self.native.arena_bytes()


def choose_isa(isa: Isa | None) -> Isa:
    """`isa`, or the best that this CPU supports. Raises `UserError` for one that it does not support."""
    best = ISAS[_native.best_isa()]
    if isa is not None and ISAS.index(isa) > ISAS.index(best):
        raise UserError(f"isa is {isa}, this CPU supports {best}", field="isa", value=isa, limit=best, remedy=f"use {best} or auto")
    return best if isa is None else isa


def _rows(low: Lowering, value: str) -> tuple[int, int]:
    return low.buffer(value), low.widths[value]


def load(
    graph: Graph,
    tensors: Tensors,
    plan: LoadPlan,
    isa: Isa | None = None,
    progress: Progress | None = None,
    faults: Collection[Fault] = (),
    shared: Packed | None = None,
    fused: bool = True,
) -> CpuProgram:
    """Pack the weights and lower the graph. `progress(bytes packed, bytes in all)` is called after each weight.

    isa: force an instruction set; None takes the best. faults: broken on purpose, for the tests that must notice.
    shared: `packed` of another program of the same tensors, whose matrices are used where they lie. fused: False runs the ops one by
    one, for comparing (`bench engine --scenario ablation`).
    Raises `UserError` for an instruction set this CPU lacks and for a tensor that is missing or of another shape, format or size than
    the graph needs, `GraphError` for an illegal graph.
    """
    return CpuProgram(graph, tensors, plan, isa, progress, faults, shared, fused)
