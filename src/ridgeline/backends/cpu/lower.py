"""From a graph to native instructions: one `add_*` call per op, over numbered buffers, weights, vectors and caches.

Knows the native program's vocabulary; decides nothing about kernels, threads or memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ridgeline.backends.cpu.native._native import Program as NativeProgram
from ridgeline.backends.cpu.source import drop_pages
from ridgeline.encodings import ENCODINGS
from ridgeline.errors import InternalError, UnsupportedError
from ridgeline.formats.tensors import Tensor, Tensors
from ridgeline.graph.caches import Paged, cache_groups
from ridgeline.graph.graph import Graph
from ridgeline.graph.liveness import Buffers, assign_buffers
from ridgeline.graph.manifest import check_tensors, manifest
from ridgeline.graph.ops import (
    Activation,
    ActivationKind,
    Add,
    AddNorm,
    Attend,
    CacheWrite,
    Embed,
    GatedActivation,
    Linear,
    LinearGroup,
    Mul,
    Op,
    RmsNorm,
    Rope,
    Scale,
    SelectRows,
    Softcap,
)
from ridgeline.graph.verify import value_widths
from ridgeline.quant.decode import decode_tensor

ACTIVATIONS: Mapping[ActivationKind, int] = {"silu": 0, "gelu_tanh": 1, "gelu": 2, "relu": 3}
Progress = Callable[[int, int], None]
# A slice of a matrix that is packed at once, in whole rounds of the native side's rows.
SLICE_BYTES, SLICE_ROWS = 16 << 20, 64


@dataclass(frozen=True)
class Packed:
    """Matrices that a native program holds, by stored name: another program of the same file may share them."""

    native: NativeProgram
    numbers: Mapping[str, int]
    tensors: Tensors


@dataclass
class Lowering:
    """What has a number already. `weights` and `vectors` are by stored name, so a tied weight is packed once."""

    graph: Graph
    tensors: Tensors
    native: NativeProgram
    buffers: Buffers
    widths: Mapping[str, int]
    progress: Progress | None = None
    shared: Packed | None = None
    numbers: dict[int, int] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    vectors: dict[str, int] = field(default_factory=dict)
    caches: dict[str, int] = field(default_factory=dict)
    packed: int = 0

    def buffer(self, value: str) -> int:
        return self.numbers[self.buffers.index[value]]

    def tensor(self, name: str) -> Tensor:
        return self.tensors[name]

    def weight(self, name: str) -> int:
        """Packs a matrix at its first use and lets its source pages go; one that another program has packed is shared with it."""
        stored = self.graph.tied.get(name, name)
        if stored not in self.weights and self.shared is not None and stored in self.shared.numbers:
            mine, theirs = self.tensor(stored), self.shared.tensors[stored]
            if (mine.shape, mine.encoding) != (theirs.shape, theirs.encoding):
                packed = f"{list(theirs.shape)} in {theirs.encoding.name}"
                raise InternalError(f"{stored} was packed as {packed}, here it is {list(mine.shape)} in {mine.encoding.name}")
            self.weights[stored] = self.native.share_weight(self.shared.native, self.shared.numbers[stored])
        if stored not in self.weights:
            self.weights[stored] = self._pack(self.tensor(stored))
        return self.weights[stored]

    def _pack(self, tensor: Tensor) -> int:
        """In slices, so that of a large matrix memory holds the packed form and one slice of the file, not both whole."""
        number = self.native.add_weight(tensor.encoding.ggml_id, tensor.rows, tensor.columns)
        step = max(1, SLICE_BYTES * tensor.rows // max(1, tensor.nbytes) // SLICE_ROWS) * SLICE_ROWS
        for first in range(0, tensor.rows, step):
            data = tensor.bytes_of(first, min(first + step, tensor.rows))
            self.native.pack_weight(number, first, data if data.strides[1] == 1 else np.ascontiguousarray(data))
            drop_pages(data)
            self.packed += data.nbytes
            if self.progress is not None:
                self.progress(self.packed, sum(t.nbytes for t in self.tensors.values()))
        drop_pages(tensor.stored)
        return number

    def vector(self, name: str | None) -> int:
        """A norm or bias as float32; -1 for none."""
        if name is None:
            return -1
        stored = self.graph.tied.get(name, name)
        if stored not in self.vectors:
            self.vectors[stored] = self.native.add_vector(np.ascontiguousarray(decode_tensor(self.tensor(stored)).reshape(-1)))
        return self.vectors[stored]


def check_weights(graph: Graph, tensors: Tensors) -> None:
    """The native side takes every size on trust, so a weight of another shape, format or number of bytes is refused here.

    Raises `FileFormatError` or `UnsupportedError` naming the tensor.
    """
    wanted = manifest(graph)
    found = {name: tensors[name] for name in wanted if name in tensors}
    check_tensors(wanted, {name: tensor.shape for name, tensor in found.items()}, graph.name)
    for tensor in found.values():
        if tensor.encoding not in ENCODINGS:
            text = f"{tensor.origin or tensor.name}: there is no kernel for {tensor.encoding.name}"
            raise UnsupportedError(text, field=tensor.name, value=tensor.encoding.name, limit=", ".join(e.name for e in ENCODINGS))
        tensor.check()


def lower(
    graph: Graph,
    tensors: Tensors,
    native: NativeProgram,
    blocks: tuple[int, ...],
    taps: tuple[str, ...],
    progress: Progress | None,
    shared: Packed | None = None,
) -> Lowering:
    """Declare buffers and caches, then add every op in order. `blocks[g]`: KV blocks of cache group g."""
    groups = cache_groups(graph.caches)
    if len(blocks) != len(groups):
        raise InternalError(f"plan gives blocks for {len(blocks)} cache groups, the graph has {len(groups)}")
    keep = [graph.outputs[tap] for tap in (*taps, "logits") if tap in graph.outputs]
    low = Lowering(graph, tensors, native, assign_buffers(graph, keep), value_widths(graph), progress, shared)
    for i, (width, selected) in enumerate(zip(low.buffers.widths, low.buffers.selected, strict=True)):
        low.numbers[i] = native.add_buffer(width, selected)
    for g, group in enumerate(groups):
        for cache in group.members:
            low.caches[cache.name] = _add_cache(native, cache, g, blocks[g])
    for op in graph.ops:
        _add(low, op)
    native.finish()
    return low


def _add_cache(native: NativeProgram, cache: Paged, group: int, blocks: int) -> int:
    return native.add_cache(group, blocks, cache.kv_heads, cache.k_dim, cache.v_dim, cache.window or 0, cache.v_aliases_k)


def _add(low: Lowering, op: Op) -> None:
    """Ops that touch weights or caches; the others in `_add_plain`."""
    native, buffer = low.native, low.buffer
    match op:
        case Embed():
            native.add_embed(buffer(op.out), low.weight(op.weight), op.scale)
        case RmsNorm():
            native.add_norm(buffer(op.out), buffer(op.x), low.vector(op.weight), op.dim, op.eps, op.groups)
        case AddNorm():
            total, out, a, b = (buffer(v) for v in (op.total, op.out, op.a, op.b))
            native.add_add_norm(total, out, a, b, low.vector(op.weight), op.dim, op.eps)
        case Linear():
            native.add_linear([buffer(op.out)], buffer(op.x), [low.weight(op.weight)], [low.vector(op.bias)])
        case LinearGroup():
            outs, weights = [buffer(v) for v in op.outs], [low.weight(w) for w in op.weights]
            native.add_linear(outs, buffer(op.x), weights, [low.vector(b) for b in op.biases])
        case Rope():
            table = native.add_rope_table(list(op.inv_freq), op.scale)
            native.add_rope(buffer(op.out), buffer(op.x), table, op.heads, op.head_dim)
        case CacheWrite():
            native.add_cache_write(low.caches[op.cache], buffer(op.k), buffer(op.v))
        case Attend():
            native.add_attend(buffer(op.out), buffer(op.q), low.caches[op.cache], op.heads, op.scale, op.softcap or 0.0)
        case _:
            _add_plain(low, op)


def _add_plain(low: Lowering, op: Add | Activation | GatedActivation | Mul | Scale | SelectRows | Softcap) -> None:
    native, buffer, width = low.native, low.buffer, low.widths[op.out]
    out = buffer(op.out)
    match op:
        case Add():
            native.add_add(out, buffer(op.a), buffer(op.b), width)
        case Mul():
            native.add_mul(out, buffer(op.a), buffer(op.b), width)
        case Activation():
            native.add_activation(out, buffer(op.x), width, ACTIVATIONS[op.kind])
        case GatedActivation():
            native.add_gated(out, buffer(op.gate), buffer(op.up), width, ACTIVATIONS[op.kind])
        case Scale():
            native.add_scale(out, buffer(op.x), width, op.factor)
        case SelectRows():
            native.add_select(out, buffer(op.x), width)
        case Softcap():
            native.add_softcap(out, buffer(op.x), width, op.cap)
