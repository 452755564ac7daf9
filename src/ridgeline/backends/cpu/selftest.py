"""A test at every load: the chosen kernel of each weight format of a model against that format's definition. Knows no model.

A few rows of the model's own weights meet activations that 8 bits hold exactly (whole numbers up to 127, one of 127 in each group), so
that only the rounding of float32 sums may differ: a kernel that is wrong on this CPU is found before it answers anybody.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from ridgeline.backends.base import LoadPlan
from ridgeline.backends.cpu.program import CpuProgram
from ridgeline.encodings import F32
from ridgeline.errors import InternalError
from ridgeline.formats.tensors import Tensor
from ridgeline.graph.graph import Graph
from ridgeline.graph.ops import Embed, Linear, SelectRows
from ridgeline.graph.step import Span, Step
from ridgeline.quant.decode import decode_tensor
from ridgeline.types import Isa

ROWS, TOKENS, GROUP = 8, (1, 9), 16  # of the weight; of the steps: one as in decoding, some as in a prompt; with a 127 in each group
ROOM = 1e-3  # of the sum of sizes: float32 sums stay far below, a wrong code or scale far above
TINY, HUGE = 1e-20, 1e30  # what kernels may round to nothing, and what may overflow in them: not compared

Floats = npt.NDArray[np.float32]


def check_kernels(tensors: Iterable[Tensor], isa: Isa | None) -> tuple[str, ...]:
    """The formats that were checked, each on its first matrix. Raises `InternalError` naming format and tensor where numbers differ."""
    first: dict[str, Tensor] = {}
    for tensor in tensors:
        if len(tensor.shape) == 2:
            first.setdefault(tensor.encoding.name, tensor)
    for tensor in first.values():
        _check(tensor.take_rows(slice(0, ROWS)), isa)
    return tuple(first)


def _check(weight: Tensor, isa: Isa | None) -> None:
    decoded = decode_tensor(weight).astype(np.float64)
    if not np.isfinite(decoded).all() or np.abs(decoded).max(initial=0) > HUGE:
        return  # numbers that the file spoils are told when a request meets them
    x = _activations(max(TOKENS), weight.columns)
    want, room = x @ decoded.T, ROOM * (np.abs(x) @ np.abs(decoded).T) + TINY
    for count, got in zip(TOKENS, _products(weight, x, isa), strict=True):
        wrong = ~(np.abs(got - want[:count]) <= room[:count])
        if wrong.any():
            token, row = (int(i) for i in np.argwhere(wrong)[0])
            raise InternalError(
                f"{weight.origin or weight.name}: the {weight.encoding.name} kernel gives {got[token, row]:g} where its definition is"
                f" {want[token, row]:g}; --isa portable uses the plain kernels"
            )


def _activations(tokens: int, width: int) -> Floats:
    mixed = np.arange(tokens * width, dtype=np.uint64) * np.uint64(2654435761) >> np.uint64(16)  # without what importing a generator takes
    x = (mixed % np.uint64(255)).astype(np.float32).reshape(tokens, width) - 127
    x[:, ::GROUP] = 127
    return x


def _products(weight: Tensor, x: Floats, isa: Isa | None) -> list[Floats]:
    """x [tokens, columns] times the weight, [count, rows] for each of TOKENS."""
    tokens, width = x.shape
    ops = (Embed("x", "table", tokens, width), Linear("y", "x", "w", width, weight.rows), SelectRows("logits", "y"))
    table = Tensor("table", x.shape, F32, x.view(np.uint8))
    program = CpuProgram(Graph("self-test", ops, (), {"logits": "logits"}), {"table": table, "w": weight}, LoadPlan(()), isa)
    found = []
    for count in TOKENS:
        program.forward(Step((Span(0, 0, count, count),), np.arange(count, dtype=np.int32), ()))
        found.append(program.logits().copy())
    return found
