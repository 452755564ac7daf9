"""Prefix-cache cases at the level of the scheduler: PC-01, PC-02, PC-05, PC-06, and that a busy prefix is computed once."""

from __future__ import annotations

import numpy as np
import pytest
from tests.kv.kv_memory import random_prompt
from tests.scheduler.null_backend import Harness

from ridgeline.graph.step import Int32Array
from ridgeline.kv.manager import CachePolicy
from ridgeline.scheduler.budget import Budget
from ridgeline.scheduler.state import Faults

B = 16
RNG = np.random.default_rng(11)


def prompt(length: int, seed: int = 0) -> Int32Array:
    return np.random.default_rng(seed).integers(4, 1000, length).astype(np.int32)


@pytest.mark.parametrize("policy", ["radix", "hash"])
@pytest.mark.parametrize("windows", [(None,), (None, 20), (20,)])
@pytest.mark.parametrize("max_chunk", [None, 5])
def test_pc_01_a_hit_equals_a_miss(policy: CachePolicy, windows: tuple[int | None, ...], max_chunk: int | None) -> None:
    h = Harness(windows, [40] * len(windows), B, policy, Budget(64, 4, itl_slack=None, max_chunk=max_chunk))
    for k in range(1, 5):
        for length in (k * B - 1, k * B, k * B + 1):
            p = prompt(length, length)
            other = np.concatenate((p[:B], prompt(9, 99)))
            for tokens in (p, p, np.append(p, 7), other):
                h.submit(tokens, 6)
                h.run()
            for i in range(3):  # eviction pressure
                h.submit(prompt(200, 1000 + i), 3)
            h.run()
            h.submit(p, 6)
            h.run()
    assert h.state.counts["prefix_tokens_hit"] > 500
    h.verify()


@pytest.mark.parametrize("policy", ["radix", "hash"])
@pytest.mark.parametrize("length", [1, B, 2 * B, 8 * B])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("rows", [False, True])
def test_pc_02_a_whole_prompt_in_the_cache(policy: CachePolicy, length: int, n: int, rows: bool) -> None:
    h = Harness(block_size=B, policy=policy)
    hits = []
    for _ in range(3):
        seqs = h.submit(prompt(length), 5, n=n, prompt_rows=rows)
        leader = h.state.by_request[seqs.id][0]
        steps = len(h.steps)
        h.run()
        spans = [s for step in h.steps[steps:] for s in step.spans if s.seq == leader.id]
        hits.append(spans[0].past)
        assert spans[0].new >= 1 and spans[0].want == (length if rows else 1)
        assert leader.report is not None and leader.report.tokens == hits[-1]
    assert hits == ([0, 0, 0] if rows else [0, length - 1, length - 1])
    h.verify()


def test_pc_02_two_readers_of_a_full_block_do_not_write_it() -> None:
    """The harness asserts for each step that no shared or cached block is written; here two requests recompute its last token at once."""
    h = Harness(block_size=B)
    h.submit(prompt(2 * B), 4)
    h.run()
    for _ in range(3):
        h.submit(prompt(2 * B), 20)
    h.run()
    assert h.kv.counts["hits_inside_block"] == 3
    h.verify()


def test_pc_02_history_that_ends_on_a_block() -> None:
    h = Harness(block_size=B)
    history = prompt(B)
    for turn in range(4):
        h.submit(history, 1 + B)  # the last generated token is never computed, so B more tokens are in the cache
        h.run()
        out = h.outputs[f"r{turn}", 0]
        history = np.concatenate((history, out[:B])).astype(np.int32)
    assert h.state.counts["prefix_tokens_hit"] == sum(turn * B + B - 1 for turn in range(1, 4))
    h.verify()


@pytest.mark.parametrize("policy", ["radix", "hash"])
def test_pc_05_recomputing_after_preemption_is_no_hit(policy: CachePolicy) -> None:
    rng = np.random.default_rng(5)
    h = Harness(blocks=[50], block_size=4, policy=policy, budget=Budget(64, 16, itl_slack=None), check_every=20)
    for _ in range(200):
        h.submit(rng.integers(4, 1000, int(rng.integers(10, 40))), int(rng.integers(5, 30)))
    h.run()
    counts = h.state.counts
    assert counts["preemptions"] > 10
    assert counts["prefix_tokens_hit"] <= 0.005 * counts["prefix_tokens_queried"]
    assert sum(v for k, v in counts.items() if k.startswith("prefix_") and "tokens" not in k) == 200
    assert counts["prefix_tokens_queried"] == sum(len(r.prompt) for r in h.requests.values())
    h.verify()


@pytest.mark.parametrize(("policy", "unit"), [("radix", 1), ("hash", B)])
def test_pc_05_shared_prefixes_are_counted_to_the_unit(policy: CachePolicy, unit: int) -> None:
    for shared in (B - 1, B, 3 * B):
        h = Harness(block_size=B, policy=policy)
        stem = prompt(shared, 3)
        for i in range(2):
            h.submit(np.concatenate((stem, [10 + i], prompt(30, i))), 4)
            leader = h.state.waiting[0]
            h.run()
        assert leader.report is not None
        assert (leader.report.tokens, leader.report.unit) == (shared // unit * unit, unit)
        assert leader.report.divergent == (11 if policy == "radix" or shared % B == 0 else int(stem[0]))
        h.verify()


@pytest.mark.parametrize("windows", [(None,), (None, 9)])
def test_pc_06_thousands_of_operations_on_64_blocks(windows: tuple[int | None, ...]) -> None:
    rng = np.random.default_rng(6)
    stems = [prompt(40, s) for s in range(5)]
    budget = Budget(40, 8, itl_slack=None, max_chunk=17)
    h = Harness(windows, [64] * len(windows), 4, "radix", budget, check_every=0, contents=False, ghost_blocks=16)
    for _ in range(2500):
        kind = rng.choice(["submit", "step", "step", "abort", "preempt", "evict", "flush"], p=[0.22, 0.3, 0.3, 0.06, 0.06, 0.05, 0.01])
        if kind == "submit" and len(h.state.waiting) < 10:
            h.submit(random_prompt(rng, stems, 1000, 12), int(rng.integers(1, 20)), n=int(rng.choice([1, 1, 3])))
        elif kind == "step":
            h.state.faults = Faults()
            h.step()
        elif kind == "preempt":
            h.state.faults = Faults(preempt_every=1)
            h.step()
        elif kind == "abort" and h.state.by_request:
            h.state.abort(str(rng.choice(list(h.state.by_request))))
        elif kind == "evict":
            h.kv.evict(1)
        elif kind == "flush":
            h.kv.evict()
        h.kv.check()
        for (free, cached, used), pool in zip(h.kv.usage(), h.kv.pools, strict=True):
            assert free + cached + used == 64 and used == sum(1 for r in pool.refs if r)
    h.state.faults = Faults()
    h.run()
    h.collect()
    h.drained()


@pytest.mark.parametrize("tokens", [300, 4096])
def test_branches_that_arrive_together_compute_their_prefix_once(tokens: int) -> None:
    stem = prompt(1000, 1)
    h = Harness(blocks=[400], budget=Budget(tokens, 32, itl_slack=None), check_every=10, contents=False)
    for i in range(32):
        h.submit(np.concatenate((stem, prompt(64, 100 + i))), 4)
    h.run()
    assert sum(h.computed.values()) == 1000 + 32 * 64 + 32 * 3
    assert h.events["walks"] >= 3
    h.drained()


def test_branches_do_not_wait_for_a_prefix_that_is_shorter_than_a_block() -> None:
    h = Harness(blocks=[400], budget=Budget(4096, 32, itl_slack=None))
    for i in range(8):
        h.submit(np.concatenate((prompt(B - 1, 1), [i], prompt(60, i))), 4)
    h.step()
    assert len(h.steps[0].spans) == 8
    h.run()
    h.verify()
