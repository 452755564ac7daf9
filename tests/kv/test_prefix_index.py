"""Both prefix indexes: what they match, what they keep, why they miss, and that nothing but equal tokens ever hits (PC-03, PC-05)."""

from __future__ import annotations

import ast
from itertools import product
from pathlib import Path as FilePath

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ridgeline.kv
import ridgeline.scheduler
from ridgeline.graph.step import Int32Array
from ridgeline.kv.hashblocks import HashIndex, blake2
from ridgeline.kv.index import ABSENT, Path, namespace, usable
from ridgeline.kv.manager import CachePolicy, Hit, KvCache
from ridgeline.types import CacheReport

POLICIES: list[CachePolicy] = ["radix", "hash"]
Tokens = list[int]


def ids(tokens: Tokens | range) -> Int32Array:
    return np.array(list(tokens), np.int32)


def run(kv: KvCache, tokens: Tokens | range, space: bytes = b"", *, rank: int = 0, ttl: float = 0.0) -> int:
    """A whole sequence: hit, compute, finish. Returns the tokens hit."""
    prompt = ids(tokens)
    hit = kv.lookup(space, prompt, len(prompt) - 1)
    if any(kv.cost(hit, g, len(prompt), 0) > pool.available for g, pool in enumerate(kv.pools)):
        hit = kv.shorten(hit)
    table = kv.open(space, hit)
    past = hit.tokens
    while past < len(prompt):
        new = kv.room(table, past, min(kv.block_size, len(prompt) - past))
        assert new > 0
        kv.grow(table, past, new)
        past += new
        kv.commit(table, prompt, past)
    kv.settle()
    kv.close(table, prompt, past, rank=rank, keep_until=kv.now + ttl if ttl else 0.0)
    kv.check()
    return hit.tokens


def hit_of(kv: KvCache, tokens: Tokens | range, space: bytes = b"") -> int:
    return kv.lookup(space, ids(tokens), len(tokens) - 1).tokens


def report_of(kv: KvCache, tokens: Tokens | range, space: bytes = b"", salted: bool = False) -> CacheReport:
    limit = len(tokens) - 1
    return kv.report(ids(tokens), kv.lookup(space, ids(tokens), limit), limit, salted=salted)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([1, 2, 3, 4]),
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=12),
    st.lists(st.integers(0, 2), min_size=1, max_size=16),
)
def test_a_match_is_the_longest_common_prefix(size: int, sequences: list[Tokens], query: Tokens) -> None:
    """Without eviction: token by token for the tree, by whole blocks for hashes, whatever order built it."""
    for policy in POLICIES:
        kv = KvCache((None,), (400,), size, policy)
        for tokens in sequences:
            run(kv, tokens)
        common = [next((i for i, (a, b) in enumerate(zip(s, query, strict=False)) if a != b), min(len(s), len(query))) for s in sequences]
        longest = max(common)
        whole = max(min(c, len(s) // size * size) for c, s in zip(common, sequences, strict=True)) // size * size
        expected = longest if policy == "radix" else whole
        assert kv.lookup(b"", ids(query), len(query)).tokens == expected
        assert hit_of(kv, query) == min(expected, len(query) - 1)
        kv.evict()
        assert [free for free, _, _ in kv.usage()] == [400]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([1, 2, 4]),
    st.lists(st.sampled_from([None, 1, 2, 5, 9]), min_size=1, max_size=3),
    st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=3, max_size=3),
    st.integers(0, 24),
)
def test_usable_is_what_the_definition_says(size: int, windows: list[int | None], present: list[list[bool]], limit: int) -> None:
    blocks = tuple([i if there else ABSENT for i, there in enumerate(row)] for row in present[: len(windows)])
    path = Path(6 * size, blocks, [None] * 6, True)

    def serves(n: int) -> bool:
        needed = [(g, p) for g, w in enumerate(windows) for p in range(0 if w is None else max(0, n - w + 1), n)]
        needed += [(g, n) for g in range(len(windows)) if n % size]  # the block it ends inside must be there to be copied
        return all(blocks[g][p // size] != ABSENT for g, p in needed)

    best = max(n for n in range(min(limit, 6 * size) + 1) if serves(n))
    found = usable(path, windows, size, limit)
    assert serves(found) and found == best


@pytest.mark.parametrize("policy", POLICIES)
def test_a_hit_may_end_inside_a_block_only_in_the_tree(policy: CachePolicy) -> None:
    kv = KvCache((None,), (32,), 16, policy)
    run(kv, range(50))
    other = [*range(21), 900, *range(22, 50)]
    assert run(kv, other) == (21 if policy == "radix" else 16)
    assert report_of(kv, [*range(21), *[901] * 20]) == CacheReport(
        41, 21 if policy == "radix" else 16, 21 if policy == "radix" else 16, "never_seen", 901 if policy == "radix" else 16,
        None, 1 if policy == "radix" else 16,
    )  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
def test_a_turn_continues_where_the_last_one_ended(policy: CachePolicy) -> None:
    """Multi-turn: each prompt is the whole history and some more. The tree reuses it to the token."""
    kv = KvCache((None,), (64,), 16, policy)
    history = list(range(37))
    run(kv, history)
    for turn in range(4):
        longer = [*history, *range(1000 * (turn + 1), 1000 * (turn + 1) + 23)]
        assert run(kv, longer) == (len(history) if policy == "radix" else len(history) // 16 * 16)
        history = longer


@pytest.mark.parametrize("policy", POLICIES)
def test_reasons_of_a_miss(policy: CachePolicy) -> None:
    kv = KvCache((None,), (8,), 4, policy)
    assert report_of(kv, range(9)).reason == "never_seen"
    assert report_of(kv, range(9), salted=True).reason == "salted"
    assert report_of(kv, [5]).reason == "too_short"
    kv.now = 5.0
    run(kv, range(16))
    assert report_of(kv, range(16)).reason == "complete"
    assert report_of(kv, [*range(16), *[77] * 9]) == CacheReport(25, 16, 16, "never_seen", 77, None, kv.index.unit if kv.index else 0)
    kv.now = 6.5
    run(kv, range(100, 132))
    report = report_of(kv, range(16))
    assert (report.tokens, report.matched, report.reason, report.evicted_at, report.divergent) == (0, 16, "evicted", 6.5, None)
    off = KvCache((None,), (8,), 4, "off")
    run(off, range(16))
    assert off.report(ids(range(16)), Hit(0), 15, salted=False).reason == "ineligible"


def test_what_another_namespace_holds_is_never_told() -> None:
    kv = KvCache((None,), (16,), 4)
    run(kv, range(16), b"tenant a")
    assert report_of(kv, range(16), b"tenant b", salted=True) == CacheReport(16, 0, 0, "salted", 0, None, 1)
    assert report_of(kv, range(100, 116), b"tenant b", salted=True) == CacheReport(16, 0, 0, "salted", 100, None, 1)


@pytest.mark.parametrize("policy", POLICIES)
def test_memory_of_evicted_prefixes_is_bounded(policy: CachePolicy) -> None:
    kv = KvCache((None,), (16,), 4, policy, ghost_blocks=40)
    for i in range(300):
        run(kv, range(100 * i, 100 * i + 30), str(i % 7).encode())
    index = kv.index
    assert index is not None
    entries = sum(n.count for n in index._nodes()) if policy == "radix" else sum(1 for _ in index._entries())  # type: ignore[attr-defined]
    assert 16 <= entries <= 40 + 16 + 8
    assert report_of(kv, range(29900, 29930), str(299 % 7).encode()).reason == "complete"
    assert report_of(kv, range(29800, 29830), str(298 % 7).encode()).reason in ("evicted", "complete")
    assert report_of(kv, range(30), b"0").reason == "never_seen"


@pytest.mark.parametrize("policy", POLICIES)
def test_eviction_takes_the_least_recently_used_end_first(policy: CachePolicy) -> None:
    kv = KvCache((None,), (8,), 4, policy)
    run(kv, range(16))
    run(kv, range(100, 112))
    run(kv, [*range(8), 50])  # uses the first two blocks again
    assert hit_of(kv, range(16)) == 15 and hit_of(kv, range(100, 112)) == 11
    kv.evict(2)
    assert hit_of(kv, range(16)) == 8 and hit_of(kv, range(100, 112)) == 11
    kv.evict(2)
    assert hit_of(kv, range(16)) == 8 and hit_of(kv, range(100, 112)) == 4


@pytest.mark.parametrize("policy", POLICIES)
def test_a_kept_prefix_outlives_younger_ones_until_its_time_is_up(policy: CachePolicy) -> None:
    kv = KvCache((None,), (12,), 4, policy)
    run(kv, range(16), ttl=10.0)
    for i in range(1, 6):
        kv.now += 1.0
        run(kv, range(100 * i, 100 * i + 20))
    assert hit_of(kv, range(16)) == 15
    kv.now = 20.0
    for i in range(6, 9):
        run(kv, range(100 * i, 100 * i + 20))
    assert hit_of(kv, range(16)) == 0
    # Kept softly: a sequence that needs the whole pool gets it.
    run(kv, range(16), ttl=10.0)
    run(kv, range(900, 948))
    assert hit_of(kv, range(900, 948)) == 47


@pytest.mark.parametrize("policy", POLICIES)
def test_rank_is_a_soft_priority(policy: CachePolicy) -> None:
    kv = KvCache((None,), (12,), 4, policy)
    run(kv, range(16), rank=1)
    run(kv, range(100, 116))
    run(kv, range(200, 220))
    assert hit_of(kv, range(16)) == 15 and hit_of(kv, range(100, 116)) < 15


def test_duplicates_computed_at_the_same_time_are_stored_once() -> None:
    kv = KvCache((None, 6), (32, 32), 4)
    prompt = ids(range(20))
    tables = [kv.open(b"", Hit(0)) for _ in range(3)]
    for table in tables:
        kv.grow(table, 0, 20)
    assert [used for _, _, used in kv.usage()] == [15, 15]
    for table in tables:
        kv.commit(table, prompt, 20)
        kv.check()
    assert [used for _, _, used in kv.usage()] == [5, 5]
    assert tables[0].blocks == tables[1].blocks == tables[2].blocks
    for table in tables:
        kv.close(table, prompt, 20)
    kv.check()


def test_window_blocks_outlive_their_sequence_and_a_hit_is_shortened_when_they_go() -> None:
    kv = KvCache((None, 6), (32, 16), 4)
    run(kv, range(48))
    assert hit_of(kv, range(48)) == 47
    assert hit_of(kv, [*range(20), 99, 98]) == 20  # behind the window when it ended, yet still there
    window = kv.pools[1]
    while any(b != ABSENT for b in kv.lookup(b"", ids(range(48)), 47).path.blocks[1][2:8]):  # type: ignore[union-attr]
        window.evict()
        kv.check()
    assert hit_of(kv, [*range(32), 99, 98]) == 0  # nothing before block 8 is left in the window group
    assert hit_of(kv, range(48)) == 47  # and [42, 47) still is
    assert report_of(kv, [*range(32), 99, 98]).reason == "evicted"


# PC-03: collisions.


def constant(parent: bytes, raw: bytes) -> bytes:
    return b"\0"


def two_bits(parent: bytes, raw: bytes) -> bytes:
    return bytes([blake2(parent, raw)[0] & 3])


@pytest.mark.parametrize("digest", [constant, two_bits])
def test_a_weak_hash_costs_time_but_never_a_wrong_hit(digest: object) -> None:
    strong = KvCache((None,), (64,), 4, "hash")
    weak = KvCache((None,), (64,), 4, "hash")
    weak.index = HashIndex(weak.pools, weak.windows, 4, digest=digest)  # type: ignore[arg-type]
    rng = np.random.default_rng(3)
    for _ in range(150):
        tokens = [int(t) for t in rng.integers(0, 2, int(rng.integers(2, 40)))]
        space = [b"a", b"b"][int(rng.integers(2))]
        assert run(weak, tokens, space) == run(strong, tokens, space)
    run(weak, [7] * 16)
    assert hit_of(weak, [8] * 16) == 0


def test_token_ids_have_fixed_width() -> None:
    for policy in POLICIES:
        kv = KvCache((None,), (64,), 2, policy)
        run(kv, [1, 23, 5])
        run(kv, [256, 0, 5])
        assert hit_of(kv, [12, 3, 5]) == hit_of(kv, [1, 0, 5]) - (policy == "radix") == hit_of(kv, [0, 256, 5]) == 0


def test_namespaces_cannot_pose_as_one_another() -> None:
    words = ["", "a", "b", "ab", "A", "T", "\0", "a\0\0\0\1", "\udc80"]
    made = {namespace(tenant=t, adapter=a, salt=s) for t, a, s in product(words, repeat=3)}
    made |= {namespace(model=m, kv_dtype=k) for m, k in product(words[1:], words[1:])}
    assert len(made) == len(words) ** 3 + (len(words) - 1) ** 2
    for policy in POLICIES:
        kv = KvCache((None,), (64,), 4, policy)
        run(kv, range(16), namespace(model="m", kv_dtype="f16"))
        assert hit_of(kv, range(16), namespace(model="m", kv_dtype="bf16")) == 0
        assert hit_of(kv, range(16), namespace(model="m", kv_dtype="f16")) == 15


def test_no_builtin_hash_on_anything() -> None:
    for package in (ridgeline.kv, ridgeline.scheduler):
        for file in FilePath(package.__path__[0]).glob("*.py"):
            calls = [n.func for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Call)]
            assert not [f for f in calls if isinstance(f, ast.Name) and f.id == "hash"], file
