"""What every backend offers: `load(graph, tensors, plan) -> Program`, then one `forward` and one `sample` per step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ridgeline.graph.graph import Graph
from ridgeline.graph.step import Step
from ridgeline.sampling.plan import Sampled, SamplePlan

# Keys are walked in fixed segments counted from position 0, each giving (max, sum, output), merged left to right.
KEY_SEGMENT = 256


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Resolved choices of a load. `blocks[g]` is the number of KV blocks of cache group g (`graph.caches.cache_groups`).

    `kv_dtype` is a `types.KvDtype`, or two of them for keys and values apart ("int8/int4").
    """

    blocks: tuple[int, ...]
    block_size: int = 16
    kv_dtype: str = "bf16"
    threads: int = 1
    taps: tuple[str, ...] = ()


class Program(Protocol):
    """A loaded model. It keeps its weights and KV pool; the caller decides every block."""

    graph: Graph
    plan: LoadPlan

    def forward(self, step: Step) -> None:
        """Run the step. Raises `InternalError` on our own faults; never checks block ownership, which is the scheduler's."""

    def logits(self) -> npt.NDArray[np.float32]:
        """[step.wanted, vocab] of the last forward, spans in order; valid until the next forward."""

    def tap(self, name: str) -> npt.NDArray[np.float32]:
        """A value of the last forward that `LoadPlan.taps` asked for (an output's name of the graph)."""

    def sample(self, plan: SamplePlan) -> Sampled:
        """Draw one token for each row of the plan from the logits of the last forward."""
