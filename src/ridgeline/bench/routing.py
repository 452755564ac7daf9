"""Which replica gets a request: in turn, the least loaded, or the one that has most of its prompt. Knows loads and prefix indexes.

Source of the prefix-aware cost: NVIDIA Dynamo's KV router (documentation): overlap weight x blocks to prefill + blocks in use, least wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from ridgeline.bench.replica import Replica
from ridgeline.bench.workloads import Job

RouterName = Literal["round-robin", "least-loaded", "prefix"]
ROUTERS: tuple[RouterName, ...] = ("round-robin", "least-loaded", "prefix")
Router = Callable[[Sequence[Replica], Job], Replica]


def router(name: RouterName, overlap_weight: float = 1.0) -> Router:
    """A rule with a memory of its own (the turn of round-robin)."""
    turn = 0

    def in_turn(replicas: Sequence[Replica], job: Job) -> Replica:
        nonlocal turn
        chosen = replicas[turn % len(replicas)]
        turn += 1
        return chosen

    def by_prefix(replicas: Sequence[Replica], job: Job) -> Replica:
        return min(replicas, key=lambda r: (prefix_cost(r, job, overlap_weight), r.index))

    if name == "prefix":
        return by_prefix
    return in_turn if name == "round-robin" else lambda replicas, job: min(replicas, key=lambda r: (r.tokens_ahead, r.index))


def prefix_cost(replica: Replica, job: Job, overlap_weight: float) -> float:
    """Blocks that would be computed, weighted, and blocks that are in use."""
    kv = replica.state.kv
    hit = kv.lookup(b"", job.prompt, len(job.prompt) - 1).tokens
    to_compute = (len(job.prompt) - hit) / kv.block_size
    pool = kv.pools[0]
    waiting = sum(len(live.job.prompt) for live in replica.lives.values() if live.admitted_s < 0) / kv.block_size
    return overlap_weight * to_compute + (pool.size - pool.available) + waiting
