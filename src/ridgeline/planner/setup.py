"""From what was asked to a deployment: formats, math, memory, bandwidth and overhead resolved, each with a word on where it came from.

A label begins with one word: exact (counted), given (by the user), table (cited), ideal (the lecture's arithmetic), assumed or measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from ridgeline.encodings import BY_NAME
from ridgeline.errors import UserError
from ridgeline.graph.graph import Graph
from ridgeline.graph.manifest import manifest
from ridgeline.kv.layout import KvFormat, bf16_pairs
from ridgeline.options import Options
from ridgeline.planner.calibration import CalibratedSeconds, Calibration, linear_formats
from ridgeline.planner.cost import GraphCost
from ridgeline.planner.demand import weight_bytes
from ridgeline.planner.deployment import CHUNK, PERFECT, Ceilings, Deployment, Draft, Efficiency
from ridgeline.planner.facts import ModelFacts, Parts
from ridgeline.planner.formats import WeightFormat, native_format
from ridgeline.planner.hardware import Device, Machine, MathType
from ridgeline.planner.parallel import Layout

# aiconfigurator's reserve and its NCCL buffers, bytes; a small device gives a tenth of its memory at most.
RESERVE_BYTES, RESERVE_SHARE, COLLECTIVE_BYTES = 3.5e9, 0.1, 0.4e9
# Our own engine: interpreter and libraries, and the tokenizer's tables per id, fitted to the resident peaks of SmolLM2-135M and
# Gemma-3-270M (2026-11-30, x86-64, Python 3.11); tokens of a step; bytes of an activation.
HOST_OVERHEAD_BYTES, HOST_ID_BYTES, HOST_CHUNK, HOST_VALUE_BYTES = 75e6, 150.0, Options("").max_num_batched_tokens, 4


@dataclass(frozen=True, slots=True)
class Overhead:
    """What the user set aside per device: bytes, or a share of its memory."""

    bytes: float = 0.0
    share: float = 0.0

    def of(self, memory_bytes: float) -> float:
        return self.bytes + self.share * memory_bytes


@dataclass(frozen=True)
class Setup:
    """One way to serve a model. form None: weights as stored. Overrides are None where nothing was given."""

    facts: ModelFacts
    device: Device
    form: WeightFormat | None
    kv: KvFormat
    layout: Layout
    ideal: bool = False
    math: MathType | None = None
    weights_total: float | None = None
    bandwidth: float | None = None
    memory: float | None = None
    overhead: Overhead | None = None
    efficiency: Efficiency | None = None
    calibration: Calibration | None = None
    draft: ModelFacts | None = None

    @property
    def host(self) -> bool:
        return self.device.provenance == "measured"

    @property
    def memory_bytes(self) -> float:
        return self.memory if self.memory is not None else self.device.memory_gb * 1e9

    @property
    def overhead_bytes(self) -> float:
        if self.overhead is not None:
            return self.overhead.of(self.memory_bytes)
        if self.ideal:
            return 0.0
        if self.host:
            return HOST_OVERHEAD_BYTES + HOST_ID_BYTES * self.facts.vocab
        reserve = min(RESERVE_BYTES, RESERVE_SHARE * self.memory_bytes)
        return reserve + (COLLECTIVE_BYTES if self.layout.of_replica > 1 else 0.0)

    @property
    def chunk(self) -> int:
        """Tokens of a step at most."""
        return HOST_CHUNK if self.host else CHUNK

    @property
    def chosen_math(self) -> MathType:
        """What linear layers compute in: as asked, else the format's own where the device has it, else bf16 (weights are widened)."""
        if self.math is not None:
            return self.math
        form = self.form
        if self.device.kind == "cpu" and (form is None or form.bits < 16) and "int8" in self.device.tflops:
            return "int8"
        return form.math if form is not None and form.math in self.device.tflops else "bf16"

    @property
    def weights(self) -> Parts:
        facts = self.facts.idealized() if self.ideal else self.facts
        counted = weight_bytes(facts, self.form)
        if self.weights_total is None:
            return counted
        by = self.weights_total / counted.total
        return Parts(counted.embed * by, counted.head * by, counted.linear * by, counted.norms * by, counted.routed * by)

    def deployment(self) -> Deployment:
        """Raises `UserError` for heads that do not divide, a peak nobody knows, or sizes that cannot be."""
        self.layout.check(self.facts)
        for name, value in (("--memory", self.memory), ("--bandwidth", self.bandwidth), ("--weights-bytes", self.weights_total)):
            if value is not None and value <= 0:
                raise UserError(f"{name} is {value:g}, must be above 0", field=name, value=value, limit=0)
        link = self.device.link_gb_s
        if self.layout.of_replica > 1 and link is None and not self.ideal:
            raise UserError(
                f"{self.device.name} has no known link between devices, so --tp, --pp and --ep cannot be timed",
                field="--tp", value=self.layout.tp, remedy="use --replicas, or add link_GBps_one_way in a --hardware-file",
            )  # fmt: skip
        peak = self.device.peak(self.chosen_math)
        ceilings = Ceilings(
            self.device.name, self.memory_bytes, self.bandwidth or self.device.bandwidth_gb_s * 1e9, peak, self._attention_peak(peak),
            None if link is None else link * 1e9, "measured" if self.host else "assumed",
        )  # fmt: skip
        default = PERFECT if self.ideal or self.host else Efficiency()
        facts = self.facts.idealized() if self.ideal else self.facts
        return Deployment(
            facts, self.weights, self.kv, ceilings, self.layout, self.efficiency or default, self.ideal, self.overhead_bytes,
            calibrated=self.calibrated, draft=self._draft(),
            chunk=self.chunk, value_bytes=HOST_VALUE_BYTES if self.host else 2,
        )  # fmt: skip

    def _attention_peak(self, linear: float) -> float:
        """FLOP/s of scores and values together; what is multiplied in pairs of bfloat16 has a peak of its own where the device has one."""
        plain, pairs = self.device.tflops.get("bf16", linear / 1e12) * 1e12, self.device.pairs_tflops
        if pairs is None:
            return plain
        whole = paired = 0
        for k in self.facts.kept:
            dims = k.cache.k_dim, k.cache.v_dim
            whole += k.layers * k.heads * sum(dims)
            paired += k.layers * k.heads * sum(n for n, in_pairs in zip(dims, bf16_pairs(k.cache, self.kv), strict=True) if in_pairs)
        return whole / (paired / (pairs * 1e12) + (whole - paired) / plain) if whole else plain

    def _draft(self) -> Draft | None:
        """A file's draft as stored, a row's in its own format."""
        if self.draft is None:
            return None
        form = None if self.draft.stored is not None else native_format(self.draft.native)
        return Draft(self.draft, weight_bytes(self.draft, form).total)

    @cached_property
    def uncalibrated(self) -> tuple[str, ...]:
        """Formats of the model's products that this host was not calibrated for, while it was for others."""
        graph, found = self.facts.graph, self.calibration
        if graph is None or found is None or self.ideal:
            return ()
        return tuple(form for form in linear_formats(graph, self._formats(graph)) if form not in found.linear_s)

    @cached_property
    def calibrated(self) -> CalibratedSeconds | None:
        """Step times fitted to this host, when it was calibrated for the formats of a model that has a graph."""
        graph = self.facts.graph
        if self.calibration is None or graph is None or self.ideal or self.uncalibrated:
            return None
        return CalibratedSeconds(graph, self._formats(graph), self.calibration, self.kv)

    def costs(self) -> GraphCost | None:
        """What steps move and compute here, when the model has a graph and our own formats."""
        graph = self.facts.graph
        formats = {} if graph is None else self._formats(graph)
        if graph is None or not formats or any(form not in BY_NAME for form in formats.values()):
            return None
        sizes = {name: prod(shape) for name, shape in manifest(graph).items()}
        return GraphCost(graph, {n: round(sizes[n] * BY_NAME[form].bits_per_value / 8) for n, form in formats.items()}, self.kv.name)

    def _formats(self, graph: Graph) -> Mapping[str, str]:
        """Encoding of each weight: the file's own, or the one that was asked for."""
        if self.form is None:
            return self.facts.formats
        name = {"FP16": "F16", "FP32": "F32"}.get(self.form.name.upper(), self.form.name.upper())
        return dict.fromkeys(manifest(graph), name)

    def change(self, **fields: Any) -> Setup:
        return replace(self, **fields)

    def labels(self) -> dict[str, str]:
        """Where each kind of number comes from."""
        facts = self.facts
        counted = {
            "graph": "exact: counted from the graph", "config": "exact for the config's facts: no graph of this family",
            "cited": "table: published total, no graph of this family",
        }[facts.counted]  # fmt: skip
        if self.ideal and facts.formula_params is not None:
            counted = "ideal: 2VD + 3DFL + (2DNH + 2DKH)L, norms and biases left out"
        form = f"{self.form.bits:g} bit a weight in scope ({self.form.name})" if self.form else "as the file stores them"
        weights = "given: --weights-bytes" if self.weights_total is not None else f"exact: {form}"
        e = self.efficiency or (PERFECT if self.ideal or self.host else Efficiency())
        if self.ideal:
            time = "ideal: bytes / bandwidth, efficiency 1"
        elif self.calibrated is not None:
            c = self.calibrated.calibration
            time = f"fitted: this host as calibrated {c.date}, {c.threads} threads, {c.isa}"
        elif self.host:
            time = f"measured ceilings of this host ({self.device.price_dates}), roofline at efficiency 1: no run is faster"
        else:
            time = f"assumed: table's peaks x efficiency {e.memory:g} of bandwidth, {e.math:g} of math, {e.op_s * 1e6:g} us an op"
        rest = "overhead fitted to two small models" if self.host and self.overhead is None else "overhead"
        memory = "exact: weights + KV" if self.ideal else f"exact weights and KV; assumed activations and {rest}"
        return {
            "params": counted, "weights_bytes": weights, "kv_bytes_per_token": f"exact: {self.kv.name} cache", "memory_bytes": memory,
            "kv_bytes_per_sequence": f"exact: {self.kv.name} cache" + ("" if self.ideal else ", whole blocks of 16 tokens"),
            "step_time_ms": time, "throughput_tok_s": time, "ttft_ms": time + ", no queue", "ridge_batch": time,
            "fits": memory, "max_users": memory,
        }  # fmt: skip


def host_device(machine: Machine, memory_bytes: float) -> Device:
    """This host as a device: ceilings as the probe measured them, memory that may still be used."""
    tflops: dict[MathType, float] = {"bf16": machine.f32_gflops / 1e3, "int8": machine.int8_gops / 1e3}
    return Device(
        f"this host ({machine.name})", "cpu", memory_bytes / 1e9, machine.read_gb_s, tflops, price_dates=machine.date,
        spec_source=f"probe, {machine.threads} threads, {machine.isa}", provenance=machine.provenance,
        pairs_tflops=machine.bf16_gflops / 1e3 if machine.pairs else None,
    )  # fmt: skip
