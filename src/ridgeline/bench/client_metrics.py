"""What a set of replies comes to: every figure by one definition, which is printed beside it. Pure arithmetic on outcomes.

A failed request has no latency, but it stays in every denominator: requests, attainment and goodput count it as asked and not served.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ridgeline.bench.client_read import Reading
from ridgeline.bench.stats import Summary, rate, summary

DEFINITIONS = {
    "ttft_ms": "from arrival (in an open loop the time a request was due) to the first event with content, reasoning or tool text",
    "first_event_ms": "from arrival to the first event of any kind, such as a role without text",
    "queue_ms": "TTFT less the time that the server says it computed the prompt; only where the server says it",
    "prefill_ms": "the time that the server says it computed the prompt; only where the server says it",
    "itl_ms": "gaps between tokens of one stream, the first token not counted, all requests together; an event of k tokens is k gaps of a "
    "k-th where the server counts them, else one gap of the stream (see itl_basis)",
    "tpot_ms": "(e2e - TTFT) / (output tokens - 1) of each request that made more than one token",
    "e2e_ms": "from arrival to the last event with text; the usage event and [DONE] are not counted",
    "output_tok_s": "output tokens of requests that ended well / seconds of the cell",
    "total_tok_s": "prompt and output tokens of requests that ended well / seconds of the cell; cached prompt tokens count",
    "requests_s": "requests that ended well / seconds of the cell",
    "goodput_s": "requests that ended well with TTFT and TPOT within the SLO / seconds of the cell",
    "attainment": "requests that ended well within the SLO / all requests asked, failed ones included",
    "hit_rate": "cached prompt tokens / prompt tokens, both by the server's usage; what a chat template puts before every prompt counts",
    "seconds": "from the first arrival to the last byte of the last reply, or until the last failed request was given up",
    "percentiles": "linear interpolation between the two nearest values; of requests that ended well",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Slo:
    """Seconds; None: no promise."""

    ttft_s: float | None = None
    tpot_s: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request: arrival_s when it was due, sent_s when it left, end_s when it was over, all on one clock. choices: answers asked (n)."""

    id: str
    arrival_s: float
    sent_s: float
    reading: Reading
    turn: int = 0
    choices: int = 1
    end_s: float = 0.0

    @property
    def ok(self) -> bool:
        return self.reading.error is None

    @property
    def ttft_s(self) -> float:
        return self.reading.pieces[0].at_s - self.arrival_s

    @property
    def e2e_s(self) -> float:
        return max(p.at_s for p in self.reading.pieces) - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Of n choices together: each has its own first token, so the divisor is tokens of one choice."""
        steps = self.reading.tokens / self.choices - 1
        return (self.e2e_s - self.ttft_s) / steps if steps > 0 else None

    def within(self, slo: Slo) -> bool:
        if not self.ok or (slo.ttft_s is not None and self.ttft_s > slo.ttft_s):
            return False
        return slo.tpot_s is None or (self.tpot_s or 0.0) <= slo.tpot_s


@dataclass(frozen=True, slots=True)
class Figures:
    """One cell. Times in ms, counts of tokens as the server's usage has them. failures: reason -> how often."""

    requests: int
    completed: int
    failed: int
    failures: dict[str, int]
    seconds: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    hit_rate: float | None
    output_tok_s: float | None
    total_tok_s: float | None
    requests_s: float | None
    goodput_s: float | None
    attainment: float | None
    ttft_ms: Summary | None
    first_event_ms: Summary | None
    queue_ms: Summary | None
    prefill_ms: Summary | None
    itl_ms: Summary | None
    tpot_ms: Summary | None
    e2e_ms: Summary | None
    itl_basis: dict[str, int]
    events_per_token: float | None
    usage_missing: int
    finish: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def figures(outcomes: Sequence[Outcome], slo: Slo) -> Figures:
    """Every figure by its definition in DEFINITIONS."""
    done = [o for o in outcomes if o.ok]
    took = span_s(outcomes)
    made = sum(o.reading.tokens for o in done)
    asked = sum(o.reading.prompt_tokens or 0 for o in done)
    cached = [o.reading.cached_tokens for o in done if o.reading.cached_tokens is not None]
    known = sum(o.reading.prompt_tokens or 0 for o in done if o.reading.cached_tokens is not None)
    met = sum(o.within(slo) for o in outcomes)
    first = [(o.reading.first_event_s or o.arrival_s) - o.arrival_s for o in done]
    early = any(f < o.ttft_s for f, o in zip(first, done, strict=True))
    told = [o for o in done if o.reading.prefill_s is not None]
    return Figures(
        requests=len(outcomes), completed=len(done), failed=len(outcomes) - len(done),
        failures=dict(Counter(o.reading.error for o in outcomes if o.reading.error is not None).most_common(10)),
        seconds=took, prompt_tokens=asked, output_tokens=made, cached_tokens=sum(cached) if cached else None,
        hit_rate=sum(cached) / known if known else None,
        output_tok_s=rate(made, took), total_tok_s=rate(made + asked, took), requests_s=rate(len(done), took),
        goodput_s=rate(met, took), attainment=met / len(outcomes) if outcomes else None,
        ttft_ms=_ms(o.ttft_s for o in done), first_event_ms=_ms(first) if early else None,
        queue_ms=_ms(max(0.0, o.ttft_s - (o.reading.prefill_s or 0.0)) for o in told),
        prefill_ms=_ms(o.reading.prefill_s or 0.0 for o in told),
        itl_ms=_ms(gap for o in done for gap in o.reading.gaps()), tpot_ms=_ms(t for o in done if (t := o.tpot_s) is not None),
        e2e_ms=_ms(o.e2e_s for o in done), itl_basis=dict(Counter(o.reading.basis for o in done)),
        events_per_token=sum(len(o.reading.pieces) for o in done) / made if made else None,
        usage_missing=sum(o.reading.output_tokens is None for o in done), finish=dict(Counter(str(o.reading.finish) for o in done)),
    )  # fmt: skip


def span_s(outcomes: Sequence[Outcome]) -> float:
    """First arrival to the end of the last request, failed ones included: the last byte, or the moment it was given up."""
    if not outcomes:
        return 0.0
    last = max(o.reading.end_s if o.ok and o.reading.end_s is not None else o.end_s for o in outcomes)
    return last - min(o.arrival_s for o in outcomes)


def _ms(seconds: Iterable[float]) -> Summary | None:
    return summary([s * 1e3 for s in seconds])
