"""The graph itself: ops in order, the caches they name, and the values somebody may ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ridgeline.graph.caches import Cache
from ridgeline.graph.ops import Op


@dataclass(frozen=True)
class Graph:
    """A model as data. `outputs` maps a tap's name ("logits", "hidden") to the value it shows; a tap nobody asks for costs nothing.

    `tied` maps a weight's name to the weight that it shares (a tied head -> "embed"); such a weight is stored once.
    """

    name: str
    ops: tuple[Op, ...]
    caches: tuple[Cache, ...]
    outputs: Mapping[str, str]
    tied: Mapping[str, str] = field(default_factory=dict)
