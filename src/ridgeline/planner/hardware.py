"""What a machine can do at most, and where each number comes from. Facts only; `bench/probe` measures the ones of this host.

A `Device` is a row of the table: datasheet peaks per number format, never one derived from another. A `Machine` is what time is
reckoned with: ceilings in force, whoever found them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Literal

from ridgeline.errors import UserError
from ridgeline.planner.tables import Row, match, package_rows, user_rows
from ridgeline.types import PAIRS_ISA

Provenance = Literal["measured", "fitted", "assumed"]
MathType = Literal["bf16", "fp8", "int8", "fp4"]
MATH_TYPES: tuple[MathType, ...] = ("bf16", "fp8", "int8", "fp4")
_COLUMNS: Mapping[MathType, str] = {
    "bf16": "bf16_dense_TFLOPS", "fp8": "fp8_dense_TFLOPS", "int8": "int8_dense_TOPS", "fp4": "fp4_dense_TFLOPS",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Machine:
    """Ceilings with `threads` threads. read_gb_s: 1e9 bytes/s from memory; int8_gops, f32_gflops: 1e9 operations/s (a multiply-add is two).

    isa: whose kernels the peaks belong to. provenance: how all these numbers were got; date: when (ISO), empty for assumed.
    bf16_gflops: of attention over a bfloat16 or int8 cache; where none is given, as without pairs of bfloat16, that of float32.
    """

    name: str
    read_gb_s: float
    int8_gops: float
    f32_gflops: float
    threads: int
    isa: str
    provenance: Provenance
    date: str = ""
    bf16_gflops: float = 0.0

    def __post_init__(self) -> None:
        if not self.bf16_gflops:
            object.__setattr__(self, "bf16_gflops", self.f32_gflops)
        if min(self.read_gb_s, self.int8_gops, self.f32_gflops, self.bf16_gflops) <= 0 or self.threads < 1:
            raise ValueError(f"a machine's ceilings must be positive: {self}")

    @property
    def pairs(self) -> bool:
        """Whether bf16_gflops is a ceiling of its own."""
        return self.isa == PAIRS_ISA

    @property
    def int8_ridge(self) -> float:
        """Integer operations per byte above which quantized linear layers are bound by arithmetic."""
        return self.int8_gops / self.read_gb_s


def assumed(threads: int, isa: str) -> Machine:
    """A plain guess for server cores, used until the probe has run: 11 GB/s (40 at most), 120 GOPS, 60 GFLOP/s a thread, in pairs of
    bfloat16 twice that."""
    pairs = 120.0 * threads if isa == PAIRS_ISA else 0.0
    return Machine("assumed", min(11.0 * threads, 40.0), 120.0 * threads, 60.0 * threads, threads, isa, "assumed", bf16_gflops=pairs)


@dataclass(frozen=True, slots=True)
class Device:
    """One row: memory_gb and bandwidth_gb_s in 1e9 bytes (/s); tflops: dense peaks that are known; link_gb_s: one way, 1e9 bytes/s.

    pairs_tflops: of attention over a bfloat16 or int8 cache, where that is not the peak of bf16 (of this host; the table has none).
    Prices are USD per hour, a band of what was asked on the dates; None is unknown.
    """

    name: str
    kind: str
    memory_gb: float
    bandwidth_gb_s: float
    tflops: Mapping[MathType, float]
    link_gb_s: float | None = None
    link_kind: str = ""
    tdp_w: float | None = None
    usd_low: Decimal | None = None
    usd_high: Decimal | None = None
    price_dates: str = ""
    price_sources: str = ""
    spec_source: str = ""
    provenance: str = ""
    notes: str = ""
    pairs_tflops: float | None = None

    def peak(self, math: MathType) -> float:
        """FLOP/s. Raises `UserError` where the table has no number: half the bits are not twice the speed."""
        found = self.tflops.get(math)
        if found is None:
            known = ", ".join(f"{m} {v:g}" for m, v in self.tflops.items()) or "none"
            raise UserError(
                f"{self.name} has no known {math} peak (known, in TFLOP/s: {known})", field="math", value=math, limit=tuple(self.tflops),
                remedy="choose another --math, or add the number in a --hardware-file",
            )  # fmt: skip
        return found * 1e12

    def ridge(self, math: MathType = "bf16") -> float | None:
        """FLOP/byte where memory and arithmetic take the same time; None where the peak is unknown."""
        peak = self.tflops.get(math)
        return None if peak is None else peak * 1e3 / self.bandwidth_gb_s


def devices(user_file: Path | None = None) -> dict[str, Device]:
    """The table by name. A row of `user_file` replaces our row of that name cell by cell, or adds a device; "-" makes a cell unknown."""
    rows = {row.text("name"): row for row in package_rows("hardware.csv", "name")}
    for row in user_rows(user_file, "name") if user_file is not None else ():
        known = {n.casefold(): n for n in rows}
        name = known.get(row.text("name").casefold(), row.text("name"))
        ours = dict(rows[name].cells) if name in rows else {}
        given = {k: "" if v.strip() == "-" else v for k, v in row.cells.items() if v.strip()}
        rows[name] = Row(ours | given | {"name": name}, row.origin, row.line)
    return {name: _device(row) for name, row in rows.items()}


def find_device(name: str, table: Mapping[str, Device]) -> Device:
    """Raises `UserError` with the candidates when no row, or more than one, is meant."""
    return table[match(name, table, "device", "--device")]


def workshop_devices() -> dict[str, Device]:
    """The eight devices of the workshop's calculator as it shows them; prices derived from its $/M figures (label D)."""
    full = devices()
    twins = {
        "A10G": "A10G 24GB", "L4": "L4 24GB", "A100 40GB": "A100 40GB", "A100 80GB": "A100 SXM 80GB", "L40S": "L40S 48GB",
        "H100": "H100 SXM 80GB", "H200": "H200 SXM 141GB", "MI300X": "MI300X 192GB",
    }  # fmt: skip
    found = {}
    for row in package_rows("workshop_gpus.csv", "name"):
        name, price = row.text("name"), row.money("price_usd_per_h")
        twin = full[twins[name]]
        found[name] = Device(
            name, twin.kind, _needed(row, "mem_GB"), _needed(row, "bandwidth_GBps"), twin.tflops, twin.link_gb_s, twin.link_kind,
            twin.tdp_w, price, price, "workshop", "derived from the workshop's $/M figures",
            "workshop calculator; peaks from hardware.csv (C24)", "D",
        )  # fmt: skip
    return found


def _device(row: Row) -> Device:
    known = {math: row.number(column) for math, column in _COLUMNS.items()}
    tflops = {math: value for math, value in known.items() if value}
    low, high = row.money("usd_per_hour_low"), row.money("usd_per_hour_high")
    return Device(
        row.text("name"), row.text("class"), _needed(row, "mem_GB"), _needed(row, "mem_bw_GBps"), tflops, row.number("link_GBps_one_way"),
        row.text("link_kind"), row.number("tdp_W"), low, high if high is not None else low, row.text("price_dates"),
        row.text("price_sources"), row.text("spec_source"), row.text("provenance"), row.text("notes"),
    )  # fmt: skip


def _needed(row: Row, column: str) -> float:
    value = row.number(column)
    if not value:
        raise row.bad(column, "a number above 0")
    return value
