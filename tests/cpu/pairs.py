"""What attention computes where a CPU multiplies bfloat16 in pairs: the definition in numpy, beside which kernels are held."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ridgeline.backends.reference.pool import round_to
from ridgeline.kv.layout import split_kv_dtype
from ridgeline.types import PAIRS_ISA

Floats = npt.NDArray[np.float32]
Attend = Callable[[Floats, Floats, Floats, npt.NDArray[np.bool_], float, float | None], Floats]
PAIRED = ("bf16", "int8")


def value_steps(v: Floats) -> Floats:
    """Of int8: what a row's codes are multiplied with; its largest value is 127 of them. A row of zeros has any."""
    most = np.abs(v).max(axis=1) / np.float32(127)
    steps: Floats = np.where(most == 0, np.float32(1), most)
    return steps


def attend_in_pairs(dtype: str, alias: bool = False) -> Attend:
    """Queries are bfloat16 where keys are multiplied in pairs, and probabilities where values are: those of each 256 keys relative to their
    own largest score, over int8 times the value's step. Keys from position 0 on. alias: values that lie in the keys' rows."""
    keys, values = split_kv_dtype(dtype)

    def attend(q: Floats, k: Floats, v: Floats, visible: npt.NDArray[np.bool_], scale: float, cap: float | None) -> Floats:
        scaled = q * np.float32(scale)
        scores = ((round_to(scaled, "bf16") if keys in PAIRED else scaled) @ k.T).astype(np.float64)
        scores = scores if cap is None else np.tanh(scores / cap) * cap
        scores = np.where(visible, scores, -np.inf)
        top = scores.max(axis=1, keepdims=True)
        steps = value_steps(v) if values == "int8" else np.ones(len(v), np.float32)
        mixed, total = np.zeros((len(q), v.shape[1])), np.zeros((len(q), 1))
        for first in range(0, len(k), 256):
            part = slice(first, first + 256)
            own = np.maximum(scores[:, part].max(axis=1, keepdims=True), -1e30)
            weights = np.exp(scores[:, part] - own)
            rounded = weights
            if values in PAIRED and not alias:
                rounded = round_to((weights * steps[part]).astype(np.float32), "bf16") / steps[part].astype(np.float64)
            mixed += np.exp(own - top) * (rounded @ v[part].astype(np.float64))
            total += np.exp(own - top) * weights.sum(axis=1, keepdims=True)
        out: Floats = (mixed / total).astype(np.float32)
        return out

    return attend


def definition(isa: str, dtype: str, otherwise: Attend, alias: bool = False) -> Attend:
    """Of attention on `isa` over a cache of `dtype`; `otherwise` where nothing is multiplied in pairs."""
    return attend_in_pairs(dtype, alias) if isa == PAIRS_ISA and set(split_kv_dtype(dtype)) & set(PAIRED) else otherwise
