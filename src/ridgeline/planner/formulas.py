"""Closed forms of the lecture and the scaling-book, in their symbols: B sequences, T new and S context tokens, D model, F hidden, L layers,
N query heads, K KV heads, H head width, V vocabulary, b bytes a value. Exact integers; knows no graph and no device.

They leave out norms, biases and the causal saving, where the graph's own costs (`planner.cost`) count what is really done.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Formula:
    """FLOPs and bytes of one term."""

    flops: int
    bytes: int

    @property
    def intensity(self) -> float:
        return self.flops / self.bytes


def matmul(B: int, D: int, F: int, b: int = 2) -> Formula:
    """X[B, D] W[D, F]: FLOPs 2BDF, values moved BD + DF + BF. Intensity tends to B when B << D, F (b = 2)."""
    return Formula(2 * B * D * F, b * (B * D + D * F + B * F))


def gated_mlp(B: int, T: int, D: int, F: int, b: int = 2) -> Formula:
    """Gate, up and down: FLOPs 6BTDF; values moved 2BTD + 2BTF + 3DF (input, output, gate and up written, weights)."""
    return Formula(6 * B * T * D * F, b * (2 * B * T * D + 2 * B * T * F + 3 * D * F))


def attention(B: int, S: int, T: int, N: int, K: int, H: int, b: int = 2) -> Formula:
    """Scores and values, fused: FLOPs 4BSTNH; values moved: q and output 2BTNH, k and v 2BSKH (K = N: the lecture's 4BSD + 4BTD bytes)."""
    return Formula(4 * B * S * T * N * H, b * (2 * B * S * K * H + 2 * B * T * N * H))


def latent_attention(S: int, N: int, c: int, r: int, b: int = 2) -> Formula:
    """Absorbed latent attention (MLA) in decode, keys only: each of N heads meets S rows of c + r numbers and sums c of them."""
    return Formula(2 * N * S * ((c + r) + c), b * S * (c + r))


def latent_ratio(heads: int, H: int, latent: int) -> float:
    """How many times smaller a latent entry (c + r numbers) is than K and V of `heads` heads: 56.9 for 128, 14.2 for 32 (576, H 128)."""
    return 2 * heads * H / latent


def dense_parameters(V: int, D: int, F: int, L: int, N: int, K: int, H: int, *, tied: bool = False) -> int:
    """2VD + 3DFL + (2DNH + 2DKH)L; a tied head counts VD once."""
    return (1 if tied else 2) * V * D + 3 * D * F * L + (2 * D * N * H + 2 * D * K * H) * L


def kv_bytes(S: int, K: int, H: int, L: int, b: int = 2) -> int:
    """Keys and values of one sequence: 2bKHLS."""
    return 2 * b * K * H * L * S


def ridge(peak_flops: float, bytes_per_s: float) -> float:
    """FLOP/byte where memory and arithmetic take the same time: H100 in bf16 989e12 / 3.35e12 = 295."""
    return peak_flops / bytes_per_s


def decode_seconds(weight_bytes: int, kv_bytes_per_sequence: int, B: int, bytes_per_s: float) -> float:
    """Lower bound of a decode step: everything in memory is read once."""
    return (weight_bytes + B * kv_bytes_per_sequence) / bytes_per_s


def decode_step_seconds(
    weight_bytes: float, kv_bytes_per_sequence: float, B: int, params: float, bytes_per_s: float, flops_per_s: float
) -> float:
    """The scaling-book's general bound: B KV / W + max(2 B P / C, weights / W)."""
    return B * kv_bytes_per_sequence / bytes_per_s + max(2 * B * params / flops_per_s, weight_bytes / bytes_per_s)


def decode_asymptote(kv_bytes_per_sequence: int, bytes_per_s: float) -> float:
    """Tokens/s that no batch can pass: bandwidth / KV bytes of one sequence."""
    return bytes_per_s / kv_bytes_per_sequence


def naive_decode_rows(prompt: int, new: int) -> int:
    """Rows that decoding without a cache computes: every token recomputes the whole sequence so far."""
    return sum(prompt + i for i in range(new))
