"""Naive post-training quantization, to be measured: weights rounded to nearest, with one scale per tensor, per channel or per group.

The rounded values are kept as float32, so that only the rounding differs. Linear layers only; the embedding and the head stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ridgeline.encodings import F32
from ridgeline.errors import UserError
from ridgeline.formats.tensors import Tensor
from ridgeline.graph.graph import Graph
from ridgeline.graph.ops import Linear, LinearGroup
from ridgeline.quant.decode import decode_tensor

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Rtn:
    """bits 0: no rounding, only float32. group: values that share a scale along a row; 0: the whole row (channel), -1: the tensor."""

    bits: int
    group: int

    def __str__(self) -> str:
        if not self.bits:
            return "f32"
        return f"int{self.bits}:{ {-1: 'tensor', 0: 'channel'}.get(self.group, str(self.group)) }"


def parse(text: str) -> Rtn:
    """int4:tensor, int4:channel, int4:32 (values of a group), f32. Raises `UserError`."""
    if text == "f32":
        return Rtn(0, 0)
    form, _, scope = text.partition(":")
    bits = form.removeprefix("int")
    group = {"tensor": -1, "channel": 0}.get(scope, int(scope) if scope.isdecimal() and len(scope) < 7 else -2)
    if not form.startswith("int") or bits not in [str(b) for b in range(2, 9)] or group < -1 or scope == "0":
        remedy = "write int4:tensor, int4:channel, int4:32 or f32"
        raise UserError(f"--rtn {text!r} is not understood", field="--rtn", value=text, limit="int2 to int8", remedy=remedy)
    return Rtn(int(bits), group)


def round_to_nearest(values: Floats, how: Rtn) -> Floats:
    """[rows, columns], symmetric: scale = max |w| / (2^(bits-1) - 1), codes from -max to max. Raises `UserError` for a group that does
    not divide the columns."""
    if not how.bits:
        return values
    rows, columns = values.shape
    if how.group > 0 and columns % how.group:
        text = f"groups of {how.group} do not divide rows of {columns}"
        raise UserError(text, field="--rtn", value=how.group, limit=columns, remedy="use a divisor, or channel")
    shape = {-1: (1, rows * columns), 0: (rows, columns)}.get(how.group, (rows * columns // max(1, how.group), how.group))
    parts = values.reshape(shape)
    most = 2 ** (how.bits - 1) - 1
    scale = np.abs(parts).max(axis=1, keepdims=True) / np.float32(most)
    codes = np.rint(np.divide(parts, scale, out=np.zeros_like(parts), where=scale > 0))
    rounded: Floats = (codes * scale).astype(np.float32).reshape(rows, columns)
    return rounded


def rounded_tensors(graph: Graph, tensors: Mapping[str, Tensor], how: Rtn) -> dict[str, Tensor]:
    """The tensors with all linear weights but a head rounded, as float32."""
    names = {n for op in graph.ops for n in ((op.weight,) if isinstance(op, Linear) else op.weights if isinstance(op, LinearGroup) else ())}
    names = {n for n in names if n in tensors and n not in ("head", "embed") and n not in graph.tied}
    return {name: _rounded(tensor, how) if name in names else tensor for name, tensor in tensors.items()}


def _rounded(tensor: Tensor, how: Rtn) -> Tensor:
    values = round_to_nearest(decode_tensor(tensor), how)
    return Tensor(tensor.name, tensor.shape, F32, np.ascontiguousarray(values).view(np.uint8), tensor.origin)
