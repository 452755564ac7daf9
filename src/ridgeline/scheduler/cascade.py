"""Which spans of a step share the walk over a long prefix. Knows block tables; refuses to know tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ridgeline.graph.step import KEY_PART, Int32Array, SharedWalk, Span


def shared_walks(spans: Sequence[Span], tables: Sequence[Int32Array], block_size: int, segment: int) -> tuple[SharedWalk, ...]:
    """Disjoint groups of spans whose past begins with the same blocks, chosen to save the most whole key segments. Spans of one token
    share what they can of the next segment too, where blocks are multiples of KEY_PART tokens.

    tables: the full-attention group's, one per span. Equal blocks at one position mean equal prefixes, as a cached block has one path.
    """
    if len(spans) < 2:
        return ()
    found = _whole_segments(spans, tables, block_size, segment)
    return found if block_size % KEY_PART else _longer(found, spans, tables, block_size, segment)


def _whole_segments(spans: Sequence[Span], tables: Sequence[Int32Array], block_size: int, segment: int) -> tuple[SharedWalk, ...]:
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


def _longer(
    found: tuple[SharedWalk, ...], spans: Sequence[Span], tables: Sequence[Int32Array], block_size: int, segment: int
) -> tuple[SharedWalk, ...]:
    """The walks up to the last block that their spans have in common, and walks of spans that share less than a segment. What is not
    worth converting for so few of them is left: it must save the keys of a segment."""
    taken = {i for walk in found for i in walk.spans}
    left: dict[int, list[int]] = {}
    for i, span in enumerate(spans):
        if i not in taken and span.new == 1 and span.past >= block_size:
            left.setdefault(int(tables[i][0]), []).append(i)
    walks = [*found, *(SharedWalk(tuple(group), 0) for group in left.values() if len(group) > 1)]
    longer = []
    for walk in walks:
        tokens = walk.tokens
        if all(spans[i].new == 1 for i in walk.spans):
            begin, end = tokens // block_size, min(tokens + segment, min(spans[i].past for i in walk.spans)) // block_size
            first = tables[walk.spans[0]][begin:end]
            same = np.logical_and.reduce([tables[i][begin:end] == first for i in walk.spans[1:]])
            more = block_size * int(np.argmin(np.append(same, False)))
            tokens += more if (len(walk.spans) - 1) * more >= segment else 0
        if tokens:
            longer.append(SharedWalk(walk.spans, tokens))
    return tuple(longer)


def _same(walk: SharedWalk, tables: Sequence[Int32Array], block_size: int) -> bool:
    end = -(-walk.tokens // block_size)
    first = tables[walk.spans[0]][:end]
    return all(np.array_equal(tables[i][:end], first) for i in walk.spans[1:])
