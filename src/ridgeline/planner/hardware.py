"""What a machine can do at most, and where each number comes from. Facts only; `bench/probe` measures them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Provenance = Literal["measured", "fitted", "assumed"]


@dataclass(frozen=True, slots=True)
class Machine:
    """Ceilings with `threads` threads. read_gb_s: 1e9 bytes/s from memory; int8_gops, f32_gflops: 1e9 operations/s (a multiply-add is two).

    isa: whose kernels the peaks belong to. provenance: how all three numbers were got; date: when (ISO), empty for assumed.
    """

    name: str
    read_gb_s: float
    int8_gops: float
    f32_gflops: float
    threads: int
    isa: str
    provenance: Provenance
    date: str = ""

    def __post_init__(self) -> None:
        if min(self.read_gb_s, self.int8_gops, self.f32_gflops) <= 0 or self.threads < 1:
            raise ValueError(f"a machine's ceilings must be positive: {self}")

    @property
    def int8_ridge(self) -> float:
        """Integer operations per byte above which quantized linear layers are bound by arithmetic."""
        return self.int8_gops / self.read_gb_s


def assumed(threads: int, isa: str) -> Machine:
    """A plain guess for server cores, used until the probe has run: 11 GB/s (40 at most), 120 GOPS, 60 GFLOP/s a thread."""
    return Machine("assumed", min(11.0 * threads, 40.0), 120.0 * threads, 60.0 * threads, threads, isa, "assumed")
