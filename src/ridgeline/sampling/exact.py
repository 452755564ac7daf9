"""exp, log and the draw's noise from IEEE multiplications, additions and divisions only, so that every backend gets the same bits.

No fused multiply-add and no libm: `csrc/ops/sample.cc` repeats these formulas operation by operation. Knows nothing of logits or plans.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

# A softmax weight is exp(x - max) counted in units of 2^-43: integers have one sum, whatever the order of adding them.
WEIGHT_BITS = 43
WEIGHT_CUTOFF = -30.0  # exp(-30) is 0.8 units and rounds to 1; anything smaller weighs nothing
MAX_VOCAB = (1 << 20) - 1  # so that a whole row of weights fits 63 bits

_LOG2E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)  # few bits: n * high is exact
_LN2_LOW = np.float32(-2.12194440054690583e-4)
_ROUND = np.float32(12582912.0)  # 1.5 * 2^23: adding it rounds to an integer
_EXP = tuple(np.float32(1.0 / f) for f in (5040, 720, 120, 24, 6, 2, 1, 1))

_LN2_D_HIGH = float.fromhex("0x1.62e42feep-1")
_LN2_D_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_SQRT_HALF_BITS = np.uint64(0x3FE6A09E667F3BCD)
_ATANH = tuple(1.0 / n for n in range(25, 2, -2))

_GOLDEN = 0x9E3779B97F4A7C15
_MASK64 = (1 << 64) - 1


def weights(x: F32) -> I64:
    """round(exp(x) * 2^43) for x <= 0, zero below the cutoff.  float32 [n] -> int64 [n], relative error about 1e-7."""
    inside = x >= np.float32(WEIGHT_CUTOFF)
    y = np.where(inside, x, np.float32(0.0))
    shifted = y * _LOG2E + _ROUND
    n = shifted - _ROUND
    r = (y - n * _LN2_HIGH) - n * _LN2_LOW
    p = np.full_like(y, _EXP[0])
    for c in _EXP[1:]:
        p = p * r + c
    bits = p.view(np.int32) + (n.astype(np.int32) << 23)
    units = np.rint(bits.view(np.float32).astype(np.float64) * float(1 << WEIGHT_BITS)).astype(np.int64)
    return np.where(inside, units, 0)


def log(x: F64) -> F64:
    """Natural logarithm of positive normal doubles, within a few units of the last place (atanh series)."""
    bits = x.view(np.uint64)
    # Offset the exponent so that the mantissa lies in [sqrt(1/2), sqrt(2)).
    offset = bits - _SQRT_HALF_BITS
    e = (offset.view(np.int64) >> 52).astype(np.float64)
    m = ((offset & np.uint64((1 << 52) - 1)) + _SQRT_HALF_BITS).view(np.float64)
    f = m - 1.0
    s = f / (2.0 + f)
    z = s * s
    q = np.full_like(x, _ATANH[0])
    for c in _ATANH[1:]:
        q = q * z + c
    series = (s + s) + (s + s) * (z * q)
    return e * _LN2_D_HIGH + (series + e * _LN2_D_LOW)


def _mix(x: int) -> int:
    """SplitMix64's finalizer (Steele, Lea, Flood 2014; Stafford's mix 13)."""
    x &= _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def noise_key(seed: int, choice: int, position: int) -> int:
    """64-bit key of one draw: nested mixing of (seed, choice, position), each taken modulo 2^64."""
    key = _mix(seed + _GOLDEN)
    key = _mix(key + choice * _GOLDEN + 1)
    return _mix(key + position * _GOLDEN + 2)


def gumbel(key: int, ids: npt.NDArray[np.int32]) -> F64:
    """Standard Gumbel noise of each token id, float64 in [-3.7, 36.8]: number `id` of the SplitMix64 stream that starts at `key`.

    u = (top 52 bits + 1/2) / 2^52 is exact and never 0 or 1; noise = -log(-log(u)).
    """
    h = np.uint64(key) + (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    h = h ^ (h >> np.uint64(31))
    u = ((h >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return -log(-log(u))
