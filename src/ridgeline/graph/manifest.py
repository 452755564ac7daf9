"""Which tensors a graph needs, with which shapes, and whether a checkpoint has exactly those. Reads shapes, never values."""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline.errors import FileFormatError
from ridgeline.graph.graph import Graph
from ridgeline.graph.ops import AddNorm, Embed, Linear, LinearGroup, RmsNorm
from ridgeline.graph.verify import GraphError

Shape = tuple[int, ...]


def manifest(graph: Graph) -> dict[str, Shape]:
    """Weight name -> shape, `[out_dim, in_dim]` or `[dim]`. A tied weight is listed once, under the name it is stored as.

    Raises `GraphError` when two ops give one weight different shapes.
    """
    found: dict[str, Shape] = {}

    def put(name: str | None, *shape: int) -> None:
        if name is None:
            return
        stored = graph.tied.get(name, name)
        if found.setdefault(stored, shape) != shape:
            raise GraphError(f"graph {graph.name}: weight {name} is used as {list(shape)} and as {list(found[stored])}")

    for op in graph.ops:
        match op:
            case Embed():
                put(op.weight, op.vocab, op.dim)
            case RmsNorm() | AddNorm():
                put(op.weight, op.dim)
            case Linear():
                put(op.weight, op.out_dim, op.in_dim)
                put(op.bias, op.out_dim)
            case LinearGroup():
                for weight, bias, out_dim in zip(op.weights, op.biases, op.out_dims, strict=True):
                    put(weight, out_dim, op.in_dim)
                    put(bias, out_dim)
            case _:
                pass
    return found


def check_tensors(want: Mapping[str, Shape], have: Mapping[str, Shape], origin: str) -> None:
    """Raise `FileFormatError` naming tensors of `have` that are missing, unexpected or of another shape. `origin` is the path shown."""
    missing = [name for name in want if name not in have]
    unexpected = [name for name in have if name not in want]
    wrong = [f"{n} is {list(have[n])}, must be {list(s)}" for n, s in want.items() if n in have and tuple(have[n]) != s]
    for what, names in (("tensors are missing", missing), ("tensors are not understood", unexpected), ("shapes do not fit", wrong)):
        if names:
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            raise FileFormatError(f"{origin}: {what}: {', '.join(names[:4])}{more}", field=origin, value=names[0], limit=len(want))
