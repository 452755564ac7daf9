"""A small builder that model files use to write a graph: it names values, collects ops, caches and taps. Knows no model."""

from __future__ import annotations

from dataclasses import dataclass, field

from ridgeline.graph.caches import Cache, Paged
from ridgeline.graph.graph import Graph
from ridgeline.graph.ops import (
    ActivationKind,
    Add,
    Attend,
    CacheWrite,
    Embed,
    GatedActivation,
    Linear,
    Op,
    RmsNorm,
    Rope,
    SelectRows,
    Softcap,
)


@dataclass
class Builder:
    """Each method appends one op and returns the name of the value it makes."""

    name: str
    ops: list[Op] = field(default_factory=list)
    caches: list[Cache] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)

    def embed(self, out: str, weight: str, vocab: int, dim: int, scale: float = 1.0) -> str:
        self.ops.append(Embed(out, weight, vocab, dim, scale))
        return out

    def norm(self, out: str, x: str, weight: str, dim: int, eps: float, groups: int = 1) -> str:
        self.ops.append(RmsNorm(out, x, weight, dim, eps, groups))
        return out

    def linear(self, out: str, x: str, weight: str, in_dim: int, out_dim: int, bias: str | None = None) -> str:
        self.ops.append(Linear(out, x, weight, in_dim, out_dim, bias))
        return out

    def rope(self, out: str, x: str, heads: int, head_dim: int, inv_freq: tuple[float, ...], scale: float = 1.0) -> str:
        self.ops.append(Rope(out, x, heads, head_dim, inv_freq, scale))
        return out

    def attend(self, out: str, q: str, k: str, v: str, cache: Paged, heads: int, scale: float, softcap: float | None = None) -> str:
        """Declare `cache`, write k and v to it, attend to it."""
        self.caches.append(cache)
        self.ops.append(CacheWrite(cache.name, k, v))
        self.ops.append(Attend(out, q, cache.name, heads, scale, softcap))
        return out

    def add(self, out: str, a: str, b: str) -> str:
        self.ops.append(Add(out, a, b))
        return out

    def gated(self, out: str, gate: str, up: str, kind: ActivationKind) -> str:
        self.ops.append(GatedActivation(out, gate, up, kind))
        return out

    def select(self, out: str, x: str) -> str:
        self.ops.append(SelectRows(out, x))
        return out

    def softcap(self, out: str, x: str, cap: float) -> str:
        self.ops.append(Softcap(out, x, cap))
        return out

    def tap(self, name: str, value: str) -> None:
        self.outputs[name] = value

    def graph(self) -> Graph:
        return Graph(self.name, tuple(self.ops), tuple(self.caches), dict(self.outputs), dict(self.tied))
