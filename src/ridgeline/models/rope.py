"""Rotary frequencies: every scaling rule that checkpoints name, computed once at load for the maximum model length. Knows no model.

Sources: RoPE (arXiv 2104.09864), position interpolation (2306.15595), YaRN (2309.00071), LongRoPE (2402.13753), the Llama 3.1
reference code's wavelength rule, and dynamic NTK as `transformers` defines it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rotary:
    """inv_freq [rotated dims / 2] in radians per position; `scale` multiplies sine and cosine (see `graph.ops.Rope`)."""

    inv_freq: tuple[float, ...]
    scale: float = 1.0


def rotary(inv_freq: Floats, scale: float = 1.0) -> Rotary:
    """Frequencies are kept as float32 numbers: that is how checkpoints were trained and how every peer stores them."""
    return Rotary(tuple(float(f) for f in inv_freq.astype(np.float32)), scale)


def frequencies(dims: int, theta: float) -> Floats:
    """theta ** (-2i / dims), i < dims / 2, with the float32 roundings of PyTorch: 1 / (theta ** exponent).

    An ulp of frequency moves logits by 1e-3 at position 2,000, so the roundings belong to the definition.
    """
    exponents = np.arange(0, dims, 2, dtype=np.float32) / np.float32(dims)
    powers = np.power(theta, exponents.astype(np.float64)).astype(np.float32)
    return (np.float32(1) / powers).astype(np.float64)


def llama3(inv_freq: Floats, factor: float, low: float, high: float, original: int) -> Floats:
    """Long waves (over original / low positions) are slowed by `factor`, short ones (under original / high) kept, between them blended."""
    turns = original * inv_freq / (2 * math.pi)  # full turns within the original context
    keep: Floats = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 - keep) * inv_freq / factor + keep * inv_freq


def yarn(
    inv_freq: Floats, theta: float, factor: float, original: int, beta_fast: float = 32.0, beta_slow: float = 1.0, truncate: bool = True
) -> Floats:
    """Dimensions that turn more than beta_fast times in the original context are kept, fewer than beta_slow slowed by `factor`."""
    dims = 2 * len(inv_freq)

    def dimension(turns: float) -> float:
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(beta_fast), dimension(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    slowed: Floats = np.clip((np.arange(len(inv_freq)) - low) / max(high - low, 0.001), 0.0, 1.0)
    return slowed * inv_freq / factor + (1 - slowed) * inv_freq


def yarn_scale(factor: float, mscale: float = 1.0) -> float:
    """The paper's attention temperature, applied to sine and cosine."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def longrope_scale(factor: float, original: int) -> float:
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))


def dynamic(dims: int, theta: float, factor: float, trained: int, length: int) -> Floats:
    """The base grows with the length; here the length is the maximum model length, so that words never depend on the schedule."""
    growth = factor * max(length, trained) / trained - (factor - 1)
    return frequencies(dims, theta * growth ** (dims / (dims - 2)))
