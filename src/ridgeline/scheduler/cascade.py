"""Which spans of a step share the walk over a long prefix. Knows block tables; refuses to know tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ridgeline.graph.step import Int32Array, SharedWalk, Span


def shared_walks(spans: Sequence[Span], tables: Sequence[Int32Array], block_size: int, segment: int) -> tuple[SharedWalk, ...]:
    """Disjoint groups of spans whose past begins with the same blocks, in whole key segments, chosen to save the most segments.

    tables: the full-attention group's, one per span. Equal blocks at one position mean equal prefixes, as a cached block has one path.
    """
    depths = [span.past // segment for span in spans]
    members = [i for i, depth in enumerate(depths) if depth]
    if len(members) < 2:
        return ()

    def block(i: int, depth: int) -> int:
        return int(tables[i][-(-depth * segment // block_size) - 1])

    def best(group: list[int], depth: int) -> tuple[int, list[SharedWalk]]:
        """Most segments saved among spans that share `depth` segments, and how."""
        buckets: dict[int, list[int]] = {}
        while True:
            buckets = {}
            for i in group:
                if depths[i] > depth:
                    buckets.setdefault(block(i, depth + 1), []).append(i)
            if len(buckets) != 1 or len(next(iter(buckets.values()))) < len(group):
                break
            depth += 1
        apart = [best(b, depth + 1) for b in buckets.values() if len(b) > 1]
        together, saved = (len(group) - 1) * depth, sum(s for s, _ in apart)
        if saved > together:
            return saved, [walk for _, walks in apart for walk in walks]
        return together, [SharedWalk(tuple(group), depth * segment)] if depth else []

    found = best(members, 0)[1]
    return tuple(w for w in found if _same(w, tables, block_size))


def _same(walk: SharedWalk, tables: Sequence[Int32Array], block_size: int) -> bool:
    end = -(-walk.tokens // block_size)
    first = tables[walk.spans[0]][:end]
    return all(np.array_equal(tables[i][:end], first) for i in walk.spans[1:])
