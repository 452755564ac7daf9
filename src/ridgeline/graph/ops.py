"""The op kinds. Each is a frozen record that names its input and output values; `backends/reference` defines what it means.

Every value is a matrix of float rows, one row per token of the step (`[T, width]`), until `SelectRows` keeps the rows whose
logits are wanted. Values are assigned once. Weights are named as `formats/names` names them, with shapes `[out_dim, in_dim]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ActivationKind = Literal["silu", "gelu_tanh", "gelu", "relu"]


@dataclass(frozen=True, slots=True)
class Embed:
    """out[t] = scale * weight[token[t]].  weight [vocab, dim] -> out [T, dim]"""

    out: str
    weight: str
    vocab: int
    dim: int
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """Each of `groups` slices of width `dim`: x / sqrt(mean(x^2) + eps) * weight.  weight [dim]; x, out [T, groups * dim]

    The weight is the factor itself: a container that stores w for a factor 1 + w is corrected at load, once.
    groups > 1 is the per-head norm of queries and keys.
    """

    out: str
    x: str
    weight: str
    dim: int
    eps: float
    groups: int = 1


@dataclass(frozen=True, slots=True)
class Linear:
    """out = x @ weight.T + bias.  x [T, in_dim], weight [out_dim, in_dim], bias [out_dim] or None -> out [T, out_dim]"""

    out: str
    x: str
    weight: str
    in_dim: int
    out_dim: int
    bias: str | None = None


@dataclass(frozen=True, slots=True)
class LinearGroup:
    """Several Linears that read one x (queries, keys, values; gate and up): one pass over the activations. Made by `rewrite.fuse`."""

    outs: tuple[str, ...]
    x: str
    weights: tuple[str, ...]
    in_dim: int
    out_dims: tuple[int, ...]
    biases: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding, half-split ("NEOX") layout, on each of `heads` slices of `head_dim`.

    With r = len(inv_freq), dimensions i and i + r (i < r) turn by angle position * inv_freq[i]; both results are multiplied by
    `scale` (YaRN's and LongRoPE's attention factor); dimensions from 2r on pass through. Checkpoints with interleaved rows are
    reordered at load. Frequencies that depend on length were chosen for the maximum model length when the graph was built.
    An angle is the float32 product of position and frequency, as models were trained; its sine and cosine are then rounded once.
    """

    out: str
    x: str
    heads: int
    head_dim: int
    inv_freq: tuple[float, ...]
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class CacheWrite:
    """Store row t of k and v at the position of token t, in the cache's dtype.  k [T, kv_heads * k_dim], v [T, kv_heads * v_dim]"""

    cache: str
    k: str
    v: str


@dataclass(frozen=True, slots=True)
class Attend:
    """Causal attention of q over the cache (its own chunk included), read in the cache's dtype; runs after the `CacheWrite`.

    Query head h reads KV head h // (heads / kv_heads). score = softcap(scale * q.k); window and KV shape belong to the cache.
    softcap(s) = cap * tanh(s / cap), None for none.  q [T, heads * k_dim] -> out [T, heads * v_dim]
    """

    out: str
    q: str
    cache: str
    heads: int
    scale: float
    softcap: float | None = None


@dataclass(frozen=True, slots=True)
class Add:
    """out = a + b (residual)."""

    out: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class AddNorm:
    """total = a + b; out = RmsNorm(total).  Made by `rewrite.fuse`."""

    total: str
    out: str
    a: str
    b: str
    weight: str
    dim: int
    eps: float


@dataclass(frozen=True, slots=True)
class Activation:
    """out = f(x), elementwise. gelu_tanh is the tanh form, gelu the erf form."""

    out: str
    x: str
    kind: ActivationKind


@dataclass(frozen=True, slots=True)
class GatedActivation:
    """out = f(gate) * up, elementwise (SwiGLU, GeGLU)."""

    out: str
    gate: str
    up: str
    kind: ActivationKind


@dataclass(frozen=True, slots=True)
class Mul:
    """out = a * b, elementwise."""

    out: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Scale:
    """out = factor * x."""

    out: str
    x: str
    factor: float


@dataclass(frozen=True, slots=True)
class SelectRows:
    """Keep, in order, the last `want` rows of every span.  x [T, width] -> out [sum of want, width]"""

    out: str
    x: str


@dataclass(frozen=True, slots=True)
class Softcap:
    """out = cap * tanh(x / cap), elementwise (final logits)."""

    out: str
    x: str
    cap: float


Op = (
    Embed | RmsNorm | Linear | LinearGroup | Rope | CacheWrite | Attend | Add | AddNorm | Activation | GatedActivation | Mul | Scale
    | SelectRows | Softcap
)  # fmt: skip


def input_fields(op: Op) -> tuple[str, ...]:
    """Names of the op's fields that name the values it reads."""
    match op:
        case Embed():
            return ()
        case CacheWrite():
            return ("k", "v")
        case Attend():
            return ("q",)
        case Add() | AddNorm() | Mul():
            return ("a", "b")
        case GatedActivation():
            return ("gate", "up")
        case _:
            return ("x",)


def inputs(op: Op) -> tuple[str, ...]:
    """Names of the values that the op reads."""
    return tuple(getattr(op, field) for field in input_fields(op))


def results(op: Op) -> tuple[str, ...]:
    """Names of the values that the op makes."""
    match op:
        case CacheWrite():
            return ()
        case LinearGroup():
            return op.outs
        case AddNorm():
            return (op.total, op.out)
        case _:
            return (op.out,)
