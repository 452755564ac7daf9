"""Which spans share a prefix walk: whole key segments, the same blocks, disjoint groups, the most segments saved."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.backends.base import KEY_SEGMENT
from ridgeline.graph.step import Int32Array, SharedWalk, Span
from ridgeline.scheduler.cascade import shared_walks
from ridgeline.scheduler.state import SchedulerConfig


def test_the_segment_is_that_of_the_backends() -> None:
    assert SchedulerConfig().key_segment == KEY_SEGMENT


def walks(pasts: list[int], tables: list[list[int]], size: int = 16, segment: int = 256) -> tuple[SharedWalk, ...]:
    arrays = [np.array(t, np.int32) for t in tables]
    return shared_walks([Span(i, p, 1, 1) for i, p in enumerate(pasts)], arrays, size, segment)


def test_one_prefix() -> None:
    stem = list(range(32))
    tables = [[*stem, 100 + i] for i in range(4)]
    assert walks([520, 512, 530, 511], tables) == (SharedWalk((0, 1, 2), 512),)
    assert walks([520, 512, 530, 515], tables) == (SharedWalk((0, 1, 2, 3), 512),)
    assert walks([255, 255], tables[:2]) == () == walks([512], tables[:1])
    assert walks([300, 300], [list(range(20)), list(range(40, 60))]) == ()


def test_a_deeper_part_is_preferred_where_it_saves_more() -> None:
    system, deep = list(range(16)), list(range(16, 96))
    tables = [[*system, *deep, 200 + i] for i in range(3)] + [[*system, 300 + i, *range(400, 480)] for i in range(2)]
    assert walks([1540, 1540, 1540, 300, 300], tables) == (SharedWalk((0, 1, 2), 1536), SharedWalk((3, 4), 256))
    shallow = [[*system, 500 + i] for i in range(10)]
    assert walks([1540, 1540, *[260] * 10], [*tables[:2], *shallow]) == (SharedWalk(tuple(range(12)), 256),)


def test_part_of_a_segment() -> None:
    """Spans of one token share up to their last common block, where that saves the keys of a segment."""
    stem = list(range(60))
    tables = [[*stem, 100 + 10 * i, 101 + 10 * i, 102 + 10 * i] for i in range(4)]
    assert walks([1000] * 4, tables) == (SharedWalk((0, 1, 2, 3), 960),)
    assert walks([1000, 1000, 1000, 955], tables) == (SharedWalk((0, 1, 2, 3), 944),)  # 960 is not all past for the last one
    assert walks([1000] * 2, tables[:2]) == (SharedWalk((0, 1), 768),)  # 192 keys once less are not worth it
    assert walks([140, 150, 160, 170], [[*stem[:8], *t[60:]] for t in tables]) == (SharedWalk((0, 1, 2, 3), 128),)
    assert walks([500] * 4, [[*stem[:8], *range(100 * i, 100 * i + 30)] for i in range(1, 5)]) == (SharedWalk((0, 1, 2, 3), 128),)
    spans, arrays = [Span(0, 1000, 1, 1), Span(1, 1000, 1, 1), Span(2, 1000, 7, 1)], [np.array(t, np.int32) for t in tables[:3]]
    assert shared_walks(spans, arrays, 16, 256) == (SharedWalk((0, 1, 2), 768),)
    assert walks([1000] * 4, tables, size=24) == (SharedWalk((0, 1, 2, 3), 768),)  # blocks of another size share whole segments


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([1, 2, 3, 4]),
    st.lists(st.tuples(st.lists(st.integers(0, 1), min_size=6, max_size=6), st.integers(0, 6)), max_size=8),
)
def test_groups_are_legal_and_never_worse_than_one_group(size: int, rows: list[tuple[list[int], int]]) -> None:
    """Tables as a prefix tree makes them: a block id names its whole path."""
    segment = 4
    blocks = -(-6 * segment // size)
    ids: dict[tuple[int, ...], int] = {}
    tables: list[Int32Array] = []
    for path, _ in rows:
        steps = [(*path[: -(-(j + 1) * size // segment)], j) for j in range(blocks)]
        tables.append(np.array([ids.setdefault(s, len(ids)) for s in steps], np.int32))
    spans = [Span(i, depth * segment + 1, 1, 1) for i, (_, depth) in enumerate(rows)]
    found = shared_walks(spans, tables, size, segment)
    seen: set[int] = set()
    saved = 0
    for walk in found:
        assert len(walk.spans) > 1 and walk.tokens % segment == 0 and walk.tokens > 0 and not seen & set(walk.spans)
        seen |= set(walk.spans)
        end = -(-walk.tokens // size)
        assert all(np.array_equal(tables[i][:end], tables[walk.spans[0]][:end]) and spans[i].past >= walk.tokens for i in walk.spans)
        saved += (len(walk.spans) - 1) * walk.tokens // segment
    for depth in range(1, 7):
        end = -(-depth * segment // size)
        groups: dict[bytes, int] = {}
        for span, table in zip(spans, tables, strict=True):
            if span.past >= depth * segment:
                groups[table[:end].tobytes()] = groups.get(table[:end].tobytes(), 0) + 1
        assert saved >= max([(n - 1) * depth for n in groups.values()], default=0)
