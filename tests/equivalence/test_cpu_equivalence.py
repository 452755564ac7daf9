"""Promise 1 on the CPU backend: the same bits for a sequence whatever the schedule, thread count, block size and instruction set's
own kernels; and the suite itself is checked: programs broken on purpose must fail it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.equivalence.world import Floats, Work, World, chunked, differing, mixed, one_step, sequences, whole
from tests.models.tiny import FAMILIES, VOCAB, tiny

from ridgeline.backends.cpu.native import _native
from ridgeline.backends.cpu.program import ISAS, Fault
from ridgeline.encodings import ENCODINGS
from ridgeline.graph.step import SharedWalk
from ridgeline.types import Isa

HERE: tuple[Isa, ...] = ISAS[: _native.best_isa() + 1]
LONG = (300, 45, 21)
SHORT = (40, 23)
SIZES = (5, 16, 1, 37, 70)
EVENTS = ("chunk_inside_block", "chunk_inside_segment", "segment_crossed", "one_token", "window_crossed", "window_eviction", "mixed_step")


@cache
def model(family: str, encoding: str = "F32") -> Any:
    return tiny(family, encoding=encoding)


@cache
def cold(family: str, encoding: str, isa: Isa, kv: str, lengths: tuple[int, ...]) -> list[Floats]:
    """Every sequence whole and alone, one thread: what all schedules must equal."""
    worlds = [World(*model(family, encoding), [s], isa=isa, threads=1, kv=kv) for s in sequences(VOCAB, lengths)]
    return [world.run(whole([n]))[0] for world, n in zip(worlds, lengths, strict=True)]


def schedules(lengths: Sequence[int]) -> dict[str, list[Work]]:
    backwards = list(range(len(lengths)))[::-1]
    return {
        "batch": one_step(lengths, range(len(lengths))),
        "batch backwards": one_step(lengths, backwards),
        "chunks": chunked(lengths, SIZES),
        "tokens": chunked(lengths, (1,)),
        "mixed 1": mixed(lengths, 1),
        "mixed 2": mixed(lengths, 2),
    }


def failures(family: str, encoding: str, lengths: tuple[int, ...], isa: Isa, kv: str = "bf16", **options: Any) -> dict[str, int]:
    """Rows that differ, by schedule; schedules without a difference are left out."""
    want, bad = cold(family, encoding, isa, kv, lengths), {}
    for name, schedule in schedules(lengths).items():
        world = World(*model(family, encoding), sequences(VOCAB, lengths), isa=isa, kv=kv, **options)
        if count := differing(world.run(schedule), want):
            bad[name] = count
    return bad


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family: str) -> None:
    assert failures(family, "F32", LONG, HERE[-1]) == {}


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_every_instruction_set(family: str, isa: Isa) -> None:
    assert failures(family, "Q8_0", SHORT, isa, block_size=8) == {}


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("encoding", [e.name for e in ENCODINGS])
def test_every_weight_format(encoding: str, isa: Isa) -> None:
    want = cold("qwen2", encoding, isa, "bf16", SHORT)
    for schedule in (one_step(SHORT, (1, 0)), mixed(SHORT, 3)):
        assert differing(World(*model("qwen2", encoding), sequences(VOCAB, SHORT), isa=isa).run(schedule), want) == 0


@pytest.mark.parametrize("block_size", [1, 3, 16, 32, 512])
@pytest.mark.parametrize("kv", ["f32", "bf16", "f16", "int8", "int4", "int8/int4"])
def test_every_block_size_and_kv_dtype(block_size: int, kv: str) -> None:
    for isa in HERE[1:] or HERE:
        want = cold("gemma3", "F32", isa, kv, LONG)
        world = World(*model("gemma3"), sequences(VOCAB, LONG), isa=isa, kv=kv, block_size=block_size, threads=1)
        assert differing(world.run(mixed(LONG, 4)), want) == 0


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_thread_count(threads: int) -> None:
    assert failures("qwen3", "Q4_1", LONG, HERE[-1], threads=threads) == {}


def forked(lengths: tuple[int, int], tokens: int, **options: Any) -> tuple[World, int]:
    """The second sequence starts as the first; it takes over `tokens` tokens while the first goes on writing."""
    first, second = sequences(VOCAB, lengths, seed=5)
    second[:tokens] = first[:tokens]
    faults = options.pop("faults", ())
    cold_second = World(*model("gemma2"), [second], threads=1, **options).run(whole([len(second)]))[0]
    cold_first = World(*model("gemma2"), [first], threads=1, **options).run(whole([len(first)]))[0]
    world = World(*model("gemma2"), [first, second], evict=False, faults=faults, **options)
    world.step([(0, tokens + 2)])
    world.fork(1, 0, tokens)
    got = world.run(mixed([len(first) - tokens - 2, len(second) - tokens], 6))
    return world, differing(got, [cold_first, cold_second])


@pytest.mark.parametrize("tokens", [16, 21, 259])
def test_prefix_hit_equals_cold(tokens: int) -> None:
    world, bad = forked((tokens + 40, tokens + 30), tokens)
    assert bad == 0
    assert world.events["block_hit" if tokens == 16 else "copy_on_write"] > 0


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_shared_walk_equals_apart(family: str) -> None:
    lengths, prefix = (300, 290, 283, 280), 256
    batch = sequences(VOCAB, lengths, seed=7)
    for s in batch[1:]:
        s[:prefix] = batch[0][:prefix]
    want = [World(*model(family), [s], threads=1).run(whole([len(s)]))[0] for s in batch]
    world = World(*model(family), batch, evict=False)
    world.step([(0, prefix)])
    for child in (1, 2, 3):
        world.fork(child, 0, prefix)
    walk = (SharedWalk((0, 2, 3), prefix),)
    world.step([(0, 1), (1, 5), (2, 3), (3, 1)], walk)
    world.step([(0, 4), (1, 1), (2, 1), (3, 2)], walk)
    left = [len(r.tokens) - r.past for r in world.running]
    assert differing(world.run(one_step(left, range(4)), walk), want) == 0
    assert world.events["shared_walk"] == 3


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("kv", ["f32", "bf16", "f16", "int8", "int4", "int8/bf16", "bf16/int4"])
@pytest.mark.parametrize("prefix", [160, 304])
def test_walks_that_part_inside_a_segment(prefix: int, kv: str, isa: Isa) -> None:
    """Single tokens share the first keys of a segment and read the others for themselves, at a segment's end and beyond it too."""
    lengths = (prefix + 70, prefix + 9, prefix + 215, prefix + 3)
    batch = sequences(VOCAB, lengths, seed=13)
    for s in batch[1:]:
        s[:prefix] = batch[0][:prefix]
    want = [World(*model("llama"), [s], isa=isa, kv=kv, threads=1).run(whole([len(s)]))[0] for s in batch]
    world = World(*model("llama"), batch, isa=isa, kv=kv, evict=False)
    world.step([(0, prefix)])
    for child in (1, 2, 3):
        world.fork(child, 0, prefix)
    world.step([(0, 67), (1, 6), (2, 212)])
    walk = (SharedWalk((0, 1, 2, 3), prefix),)
    for _ in range(2):
        world.step([(i, 1) for i in range(4)], walk)
    left = [len(r.tokens) - r.past for r in world.running]
    assert left == [1, 1, 1, 1] and differing(world.run(one_step(left, range(4)), walk), want) == 0
    assert world.events["shared_walk"] == 3


@pytest.mark.parametrize("isa", HERE[1:] or HERE)
@pytest.mark.parametrize("threads", [2, 3])
def test_long_walks_cut_over_segments(threads: int, isa: Isa) -> None:
    """One token after a thousand: its segments are walked by several workers, with and without a shared walk before them."""
    lengths, prefix = (1090, 1084), 512
    batch = sequences(VOCAB, lengths, seed=11)
    batch[1][:prefix] = batch[0][:prefix]
    want = [World(*model("llama"), [s], isa=isa, threads=1).run(whole([len(s)]))[0] for s in batch]
    world = World(*model("llama"), batch, isa=isa, threads=threads, evict=False)
    world.step([(0, prefix)])
    world.fork(1, 0, prefix)
    walk = (SharedWalk((0, 1), prefix),)
    world.step([(0, 570), (1, 565)], walk)
    world.step([(0, 2), (1, 1)], walk)
    world.step([(1, 1), (0, 1)])
    for _ in range(3):
        world.step([(0, 1), (1, 1)], walk)
    got = world.run([[(0, 1)], [(1, 1)], [(1, 1), (0, 1)]])
    assert differing(got, want) == 0


def test_recomputed_after_preemption() -> None:
    """A sequence dropped in the middle and computed again in other blocks, which hold what others left there."""
    want = cold("mistral", "F32", HERE[-1], "bf16", LONG)
    world = World(*model("mistral"), sequences(VOCAB, LONG))
    world.step([(0, 100), (1, 9)])
    dropped = world.running[0]
    for g, table in enumerate(dropped.tables):
        world.free[g] += [b for b in table if b >= 0]
    dropped.past, dropped.logits, dropped.tables = 0, [], [[] for _ in world.windows]
    assert differing(world.run(mixed([300, 36, 21], 8)), want) == 0


def test_events_occur() -> None:
    """A suite in which a case never arises proves nothing about it."""
    events = Counter[str]()
    for family in ("gemma3", "llama"):
        for schedule in schedules(LONG).values():
            world = World(*model(family), sequences(VOCAB, LONG))
            world.run(schedule)
            events += world.events
    for kind in EVENTS:
        assert events[kind] > 5, kind


@pytest.mark.parametrize("fault", ["split_k", "block_segments", "stale_kv"])
def test_broken_programs_fail(fault: Fault) -> None:
    assert failures("llama", "F32", LONG, HERE[-1], faults=(fault,), block_size=4) != {}


def test_no_copy_fails() -> None:
    assert forked((61, 51), 21, faults=("no_copy",))[1] > 0


def test_weights_and_guard_blocks_are_untouched() -> None:
    """AR-04: blocks that no table names stay full of NaN, packed weights keep their checksum."""
    world = World(*model("gemma2"), sequences(VOCAB, SHORT), evict=False)
    guards = [free.pop() for free in world.free]
    before = world.program.native.weights_checksum()
    assert all(np.isfinite(x).all() for x in world.run(mixed(SHORT, 9)))
    assert world.program.native.weights_checksum() == before
    for group, guard in enumerate(guards):
        assert world.program.native.block_holds_only(group, guard, 0xFF)
        assert not world.program.native.block_holds_only(group, world.running[0].tables[group][0], 0xFF)
