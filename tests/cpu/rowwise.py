"""Runs a row-wise op of the CPU backend on given numbers: they are the embedding's rows, the result is the logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from ridgeline.backends import cpu
from ridgeline.backends.base import LoadPlan
from ridgeline.encodings import F32
from ridgeline.formats.tensors import Tensor
from ridgeline.graph.graph import Graph
from ridgeline.graph.ops import Embed, Op, SelectRows
from ridgeline.graph.step import Span, Step
from ridgeline.types import Isa

Floats = npt.NDArray[np.float32]


def matrix(name: str, values: Floats) -> Tensor:
    data = np.ascontiguousarray(values, np.float32).reshape(-1, values.shape[-1])
    return Tensor(name, values.shape, F32, data.view(np.uint8))


def run(values: Floats, op: Callable[[str, str], Op], isa: Isa, weights: Mapping[str, Floats] | None = None, threads: int = 1) -> Floats:
    """values [T, width] -> op(out, x) of them, [T, width]"""
    rows, width = values.shape
    graph = Graph("rowwise", (Embed("x", "table", rows, width), op("y", "x"), SelectRows("logits", "y")), (), {"logits": "logits"})
    tensors = {"table": matrix("table", values)} | {name: matrix(name, v) for name, v in (weights or {}).items()}
    program = cpu.load(graph, tensors, LoadPlan((), threads=threads), isa)
    program.forward(Step((Span(0, 0, rows, rows),), np.arange(rows, dtype=np.int32), ()))
    return program.logits().copy()
