"""Steady state at an arrival rate: how many sequences are in flight, how busy the devices are, how long one waits, what tokens cost.

Little's law over a deployment's step times: sequences = rate x output x time per token, and prompts take their share of every second.
Waiting is two closed formulas of queueing theory (`queue_seconds`); the simulator runs the real scheduler instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from ridgeline.planner.deployment import Deployment


@dataclass(frozen=True, slots=True)
class Traffic:
    """Per second `rate` requests over all replicas, each with `prompt` tokens (`cached` of them hit the prefix cache) and `output` more."""

    rate: float
    prompt: int
    output: int
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Steady:
    """Of one replica. in_flight: sequences decoding at once; itl_s: with prompts in between; utilization: share of its greatest rate;
    queue_s: from arrival to the first of the prompt's steps, in the mean (infinite where unstable).

    prefill_s, cached_s, decode_s: device seconds of one request, as `price.split_by_device_time` wants them; max_rate: requests/s that it
    can carry; stable False: more arrives than can be served, and the queue grows without end (the other numbers are then at max_rate).
    """

    in_flight: float
    itl_s: float
    utilization: float
    prefill_s: float
    cached_s: float
    decode_s: float
    max_rate: float
    stable: bool
    queue_s: float


def steady(deployment: Deployment, traffic: Traffic, replicas: int = 1) -> Steady | None:
    """None when not even one such request fits in memory."""
    final = traffic.prompt + traffic.output
    most = deployment.max_users(final)
    if most == 0:
        return None
    rate, middle = traffic.rate / replicas, traffic.prompt + traffic.output // 2
    whole = deployment.ttft(traffic.prompt, traffic.cached)
    # What the cached part adds: keys that the new tokens read.
    fresh = deployment.ttft(traffic.prompt - traffic.cached) if traffic.cached else whole
    prefill, cached = min(whole, fresh), max(0.0, whole - fresh)

    def step(batch: float) -> float:
        """Decode step times are nearly linear between whole batches."""
        low = max(1, int(batch))
        at = deployment.decode(low, middle).seconds
        return at + (batch - low) * (deployment.decode(low + 1, middle).seconds - at) if batch > low else at

    max_rate = 1.0 / (whole + traffic.output * step(most) / most)
    stable = rate < max_rate
    used = min(rate, max_rate)
    batch = min(float(most), _in_flight(step, used, traffic.output, whole, most))
    left = max(1e-9, 1.0 - used * whole)
    per_token = step(max(1.0, batch)) / max(1.0, batch)
    itl, used = step(max(1.0, batch)) / left, min(1.0, rate / max_rate)
    waits = queue_seconds(rate, whole, step(max(1.0, batch)), traffic.output * itl, most) if stable else inf
    return Steady(batch, itl, used, prefill, cached, traffic.output * per_token, max_rate, stable, waits)


MOST_PLACES = 100_000  # that are reckoned one by one; more make the wait for one shorter still


def queue_seconds(rate: float, prompt_s: float, step_s: float, answer_s: float, places: int) -> float:
    """Mean wait of a request among Poisson arrivals: for the prompts before it, and for a place among `places` answers.

    Prompts, all alike, go before decodes: M/D/1 whose server is away for a step when idle, rate s^2 / (2 (1 - rate s)) + step / 2
    (decomposition of Fuhrmann and Cooper, 1985). Places: M/M/c, Erlang's C formula with answers that take `answer_s` in the mean.
    """
    ahead = rate * prompt_s
    if ahead >= 1:
        return inf
    return rate * prompt_s**2 / (2 * (1 - ahead)) + step_s / 2 + erlang_wait(rate * answer_s, answer_s, places)


def erlang_wait(offered: float, held_s: float, places: int) -> float:
    """Seconds that an arrival waits for one of `places`, each held `held_s` in the mean; offered: rate x held_s. M/M/c."""
    places = min(places, MOST_PLACES)
    if offered >= places:
        return inf
    lost = 1.0  # Erlang's B of 0, 1, 2 ... places
    for n in range(1, places + 1):
        lost = offered * lost / (n + offered * lost)
        if n > offered and lost < 1e-12:
            return 0.0
    waits = lost / (1 - offered / places * (1 - lost))
    return waits * held_s / (places - offered)


def _in_flight(step: Callable[[float], float], rate: float, output: int, prefill: float, most: int) -> float:
    """The smallest batch B with B = rate x output x step(B) / (1 - rate x prefill), by bisection: the right side grows more slowly."""
    left = 1.0 - rate * prefill
    if left <= 0:
        return float(most)
    low, high = 0.0, float(most)
    for _ in range(60):
        middle = (low + high) / 2
        wanted = rate * output * step(middle) / left
        low, high = (middle, high) if wanted > middle else (low, middle)
    return high
