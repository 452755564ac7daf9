"""Which devices, how many, in which format, at which batch: the cheapest way to keep a promise, and why the others were dropped.

Each option that fails carries its reason and the nearest change that would make it pass. Prices come from the table's band or the user.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from math import ceil

from ridgeline.errors import UserError
from ridgeline.planner.deployment import Deployment
from ridgeline.planner.formats import WEIGHT_FORMATS, kv_format_named
from ridgeline.planner.load import Traffic, steady
from ridgeline.planner.price import per_million
from ridgeline.planner.setup import Setup


@dataclass(frozen=True, slots=True)
class Goal:
    """context: tokens held per sequence (the prompt, for TTFT). batch: exactly so many at once on a replica; else users: at once over all
    replicas; else traffic. itl_s and ttft_s None: no promise. price: USD per device and hour, None for the table's lower figure."""

    context: int
    itl_s: float | None = None
    ttft_s: float | None = None
    batch: int | None = None
    users: int | None = None
    traffic: Traffic | None = None
    price: Decimal | None = None
    utilization: Decimal = Decimal(1)


@dataclass(frozen=True, slots=True)
class Option:
    """One way, judged. reason "": it keeps the promise. batch: sequences at once on a replica; tok_s, usd_per_hour: all devices together.
    usd_per_mtok: None without a price, and always for what does not fit."""

    setup: Setup
    batch: int
    itl_s: float
    ttft_s: float
    tok_s: float
    max_users: int
    usd_per_hour: Decimal | None
    usd_per_mtok: Decimal | None
    reason: str = ""
    fix: str = ""

    @property
    def passes(self) -> bool:
        return not self.reason


def judge(setup: Setup, goal: Goal, *, advise: bool = True) -> Option:
    """Whether `setup` keeps the promise, at the batch that serves the goal. Raises `UserError` only for a setup that cannot be at all."""
    d = setup.deployment()
    users = d.max_users(goal.context)
    batch, replicas = _batch(d, goal, users)
    setup = setup.change(layout=replace(setup.layout, replicas=max(replicas, setup.layout.replicas)))
    itl, ttft = d.decode(max(1, batch), goal.context).seconds, d.ttft(goal.context)
    queue = _queue(d, goal, replicas) if batch else 0.0
    reason = _reason(d, goal, batch, itl, ttft, queue)
    tok_s = setup.layout.replicas * d.throughput(max(1, batch), goal.context)
    if goal.users is not None and goal.batch is None:
        tok_s = min(tok_s, goal.users / itl)
    hourly = _price(setup, goal)
    priced = hourly is not None and batch > 0 and d.memory(batch, goal.context).fits
    usd = per_million(hourly, tok_s, goal.utilization) if priced and hourly is not None else None
    if goal.traffic is not None and priced and hourly is not None:
        usd = per_million(hourly, goal.traffic.rate * goal.traffic.output)
    fix = _nearest_fix(setup, goal) if reason and advise else ""
    return Option(setup, batch, itl, ttft, tok_s, users, hourly, usd, reason, fix)


def _queue(d: Deployment, goal: Goal, replicas: int) -> float:
    """Seconds in the queue at an arrival rate; without one nobody waits for others."""
    found = None if goal.traffic is None else steady(d, goal.traffic, replicas)
    return 0.0 if found is None else found.queue_s


def _price(setup: Setup, goal: Goal) -> Decimal | None:
    each = goal.price if goal.price is not None else setup.device.usd_low
    return None if each is None else each * setup.layout.devices


def _batch(d: Deployment, goal: Goal, users: int) -> tuple[int, int]:
    """(sequences at once, replicas). The batch is 0 when nothing serves the goal."""
    if goal.batch is not None:
        return goal.batch, 1
    best = d.best_batch(goal.context, goal.itl_s)
    if goal.users is not None:
        if best == 0:
            return min(goal.users, users), 1
        replicas = ceil(goal.users / best)
        return ceil(goal.users / replicas), replicas
    if goal.traffic is not None and best:
        return _at_rate(d, goal, goal.traffic)
    return (best if goal.itl_s is not None else d.knee(goal.context)), 1


def _at_rate(d: Deployment, goal: Goal, traffic: Traffic) -> tuple[int, int]:
    """The fewest replicas that keep both promises, queue included; the fewest that keep the ITL where none keeps the TTFT."""
    kept, alone = list[tuple[int, int]](), d.ttft(goal.context)
    for replicas in _counts(d, traffic):
        found = steady(d, traffic, replicas)
        if found is None or not found.stable or (goal.itl_s is not None and found.itl_s > goal.itl_s):
            continue
        kept.append((max(1, round(found.in_flight)), replicas))
        if goal.ttft_s is None or alone + found.queue_s <= goal.ttft_s:
            return kept[-1]
        if alone > goal.ttft_s:
            break  # no number of replicas helps
    return kept[0] if kept else (0, 1)


def _counts(d: Deployment, traffic: Traffic) -> Iterable[int]:
    """Replica counts worth trying: from what the rate needs at least, upwards."""
    alone = steady(d, traffic)
    least = ceil(traffic.rate / alone.max_rate * 1.0001) if alone is not None else 1
    return (least + extra for extra in (0, 1, 2, 4, 8, 16, 32, least, 3 * least, 7 * least))


def _reason(d: Deployment, goal: Goal, batch: int, itl: float, ttft: float, queue: float) -> str:
    need = d.memory(max(1, batch), goal.context)
    if not need.fits:
        return (
            f"does not fit: batch {max(1, batch)} at {goal.context} tokens needs {need.total / 1e9:.1f} GB of {need.capacity / 1e9:.1f} "
            f"(weights {need.weights / 1e9:.1f}, KV {need.kv / 1e9:.1f}, rest {(need.activations + need.overhead) / 1e9:.1f})"
        )
    if goal.itl_s is not None and (itl > goal.itl_s or batch == 0):
        return f"ITL {itl * 1e3:.3g} ms > {goal.itl_s * 1e3:g} ms at batch {max(1, batch)}"
    if goal.ttft_s is not None and ttft + queue > goal.ttft_s:
        waited = f", {queue * 1e3:.0f} ms of it in the queue" if queue else ""
        return f"TTFT {(ttft + queue) * 1e3:.0f} ms > {goal.ttft_s * 1e3:g} ms for {goal.context} tokens{waited}"
    return "the rate cannot be served" if batch == 0 else ""


def _nearest_fix(setup: Setup, goal: Goal) -> str:
    """The first of a list of single changes, mildest first, after which the option passes."""
    for words, changed, wanted in _changes(setup, goal):
        try:
            if judge(changed, wanted, advise=False).passes:
                return words
        except UserError:
            continue
    return "no single change helps"


def _changes(setup: Setup, goal: Goal) -> Iterable[tuple[str, Setup, Goal]]:
    d = setup.deployment()
    if goal.batch is not None:
        smaller = d.best_batch(goal.context, goal.itl_s, goal.batch)
        if smaller:
            yield f"batch {smaller}", setup, _with(goal, batch=smaller)
        shorter = _shorter(d, goal, goal.batch)
        if shorter:
            yield f"context {shorter}", setup, _with(goal, context=shorter)
    if setup.kv.bits > 8:
        yield "fp8 KV cache", setup.change(kv=kv_format_named("fp8")), goal
    bits = setup.form.bits if setup.form is not None else 0
    if setup.weights_total is None:
        for name in ("fp8", "int4"):
            if bits > WEIGHT_FORMATS[name].bits:
                yield f"{name} weights", setup.change(form=WEIGHT_FORMATS[name]), goal
    for tp in (2, 4, 8, 16):
        if tp > setup.layout.tp:
            yield f"tp {tp}", setup.change(layout=replace(setup.layout, tp=tp)), goal


def _shorter(d: Deployment, goal: Goal, batch: int) -> int:
    """The longest context, in steps of 256 tokens, at which the batch fits and keeps its time; 0 for none."""

    def good(context: int) -> bool:
        in_time = goal.itl_s is None or d.decode(batch, context).seconds <= goal.itl_s
        return in_time and d.memory(batch, context).fits and (goal.ttft_s is None or d.ttft(context) <= goal.ttft_s)

    low, high = 0, goal.context // 256 + 1
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if good(middle * 256) else (low, middle)
    return low * 256


def _with(goal: Goal, *, batch: int | None = None, context: int | None = None) -> Goal:
    return Goal(
        context or goal.context, goal.itl_s, goal.ttft_s, batch or goal.batch, goal.users, goal.traffic, goal.price, goal.utilization
    )


def search(setups: Sequence[Setup], goal: Goal) -> list[Option]:
    """The best option of each device: those that pass, cheapest per token first (unpriced ones last), then the dropped ones.

    `setups` are the ways to try; of one device the cheapest that passes is kept, else the first.
    """
    best: dict[str, Option] = {}
    for setup in setups:
        name = setup.device.name
        try:
            found = judge(setup, goal, advise=False)
        except UserError as error:
            best.setdefault(name, _impossible(setup, goal, str(error)))
            continue
        if name not in best or _rank(found) < _rank(best[name]):
            best[name] = found
    options = [o if o.passes or o.fix else judge(o.setup, goal) for o in best.values()]
    return sorted(options, key=_rank)


def _rank(option: Option) -> tuple[bool, bool, Decimal, int]:
    price = option.usd_per_mtok
    return not option.passes, price is None, price if price is not None else Decimal(0), option.setup.layout.devices


def _impossible(setup: Setup, goal: Goal, why: str) -> Option:
    return Option(setup, 0, 0.0, 0.0, 0.0, 0, _price(setup, goal), None, why, "see the message")


def ways(base: Setup, devices: Iterable[object], formats: Sequence[str], tps: Sequence[int]) -> list[Setup]:
    """`base` on every device, in every format (after its own) and tensor-parallel degree."""
    found = []
    for device in devices:
        for form in (base.form, *(WEIGHT_FORMATS[f] for f in formats)):
            found += [base.change(device=device, form=form, layout=replace(base.layout, tp=tp)) for tp in tps]
    return found
