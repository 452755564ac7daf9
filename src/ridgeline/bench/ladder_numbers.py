"""From times to numbers: the metrics of a rung, medians over rounds, factors and their product. Pure arithmetic.

TTFT counts from the moment a request could begin (one at a time: when the one before had ended), as the workshop counted it; ttft_queue
from the moment when all requests were there. ITL: gaps between a request's tokens as they arrived together or apart; TPOT:
(last - first) / (n - 1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from ridgeline.bench.stats import summary


@dataclass(frozen=True, slots=True)
class Spread:
    """Milliseconds."""

    mean: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Numbers:
    """One run of a rung. hit_rate: prompt tokens from the prefix cache; kv_users: (sequences, greatest share of the KV blocks in use while
    so many ran); kv_context: (tokens a sequence, share) while as many ran as ever did; accepted: of drafted tokens."""

    output_tok_s: float
    total_tok_s: float
    seconds: float
    ttft: Spread
    ttft_queue: Spread
    itl: Spread
    tpot: Spread
    hit_rate: float
    kv_users: tuple[tuple[float, float], ...]
    kv_context: tuple[tuple[float, float], ...]
    accepted: float | None = None


def numbers(result: Mapping[str, Any]) -> Numbers:
    """Of a `CellResult` as JSON."""
    requests, seconds = result["requests"], result["seconds"]
    made = sum(len(r["token_s"]) for r in requests)
    read = sum(r["prompt_tokens"] for r in requests)
    gaps = [g for r in requests for g in _gaps(r["token_s"])]
    tpot = [(r["token_s"][-1] - r["token_s"][0]) / (len(r["token_s"]) - 1) for r in requests if len(r["token_s"]) > 1]
    drafted = result["counts"].get("spec_decode_num_draft_tokens", 0)
    accepted = result["counts"].get("spec_decode_num_accepted_tokens", 0)
    return Numbers(
        made / seconds, (made + read) / seconds, seconds, _spread([r["token_s"][0] - r["wave_s"] for r in requests]),
        _spread([r["token_s"][0] for r in requests]), _spread(gaps), _spread(tpot), sum(r["cached_tokens"] for r in requests) / read,
        kv_against_users(result["kv"]), kv_against_context(result["kv"]),
        accepted / drafted if drafted else None,
    )  # fmt: skip


def _gaps(times: Sequence[float]) -> list[float]:
    """Between arrivals; tokens that came together came as one."""
    arrivals = sorted(set(times))
    return [b - a for a, b in pairwise(arrivals)]


def _spread(seconds: Sequence[float]) -> Spread:
    found = summary(seconds)
    return Spread(0.0, 0.0, 0.0, 0.0) if found is None else Spread(*(v * 1e3 for v in (found.mean, found.p50, found.p95, found.p99)))


def kv_against_users(kv: Sequence[Sequence[float]]) -> tuple[tuple[float, float], ...]:
    most: dict[int, float] = {}
    for users, _, share in kv:
        most[int(users)] = max(most.get(int(users), 0.0), share)
    return tuple((float(n), s) for n, s in sorted(most.items()))


def kv_against_context(kv: Sequence[Sequence[float]], points: int = 40) -> tuple[tuple[float, float], ...]:
    """(tokens a sequence, greatest share) of the steps in which as many sequences ran as ever did, at most about `points` of them."""
    most = max((users for users, _, _ in kv), default=0)
    full = [(tokens / users, share) for users, tokens, share in kv if users == most]
    width = max(1.0, max((tokens for tokens, _ in full), default=0.0) / points)
    bins: dict[int, tuple[float, float]] = {}
    for tokens, share in full:
        if share > bins.get(int(tokens / width), (0.0, -1.0))[1]:
            bins[int(tokens / width)] = (float(tokens), share)
    return tuple(bins[i] for i in sorted(bins))


def middle(runs: Sequence[Numbers]) -> Numbers:
    """The run whose throughput is the median (the lower of two)."""
    return sorted(runs, key=lambda n: n.output_tok_s)[(len(runs) - 1) // 2]


@dataclass(frozen=True, slots=True)
class Step:
    """From one rung to the next: the median of the factors of single rounds, and the least and greatest of them."""

    name: str
    before: str
    factor: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Waterfall:
    """product: of all factors; rounds: last over first as each round measured it; total: their median, which knows nothing of the steps
    between. agrees: the product lies within the rounds, five percent to spare. One round agrees by construction."""

    steps: tuple[Step, ...]
    product: float
    total: float
    rounds: tuple[float, ...]
    agrees: bool


def waterfall(rungs: Sequence[tuple[str, Sequence[float]]]) -> Waterfall | None:
    """rungs: (name, tok/s of each round), in order, measured ones only. None for fewer than two."""
    if len(rungs) < 2:
        return None
    steps, product = [], 1.0
    for (before, old), (name, new) in pairwise(rungs):
        each = [b / a for a, b in zip(old, new, strict=False)]
        steps.append(Step(name, before, median(each), min(each), max(each)))
        product *= median(each)
    rounds = tuple(b / a for a, b in zip(rungs[0][1], rungs[-1][1], strict=False))
    agrees = 0.95 * min(rounds) <= product <= 1.05 * max(rounds)
    return Waterfall(tuple(steps), product, median(rounds), rounds, agrees)


def same_words(mine: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[int, int, float]:
    """Of what both answered: (equal answers, answers, mean share of an answer's tokens before the first difference)."""
    equal, shares = 0, []
    pairs = list(zip(mine["requests"], other["requests"], strict=False))
    for a, b in pairs:
        x, y = a["ids"], b["ids"]
        at = next((i for i, (p, q) in enumerate(zip(x, y, strict=False)) if p != q), min(len(x), len(y)))
        equal += x == y
        shares.append(at / max(1, len(x), len(y)))
    return equal, len(pairs), float(np.mean(shares)) if shares else 0.0


def numbers_from(found: Mapping[str, Any]) -> Numbers:
    """Back from JSON."""
    spreads = {n: Spread(**found[n]) for n in ("ttft", "ttft_queue", "itl", "tpot")}
    pairs = {n: tuple((float(a), float(b)) for a, b in found[n]) for n in ("kv_users", "kv_context")}
    return Numbers(**{**found, **spreads, **pairs})
