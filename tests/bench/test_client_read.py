"""The client's arithmetic, exact on recorded (time, bytes) pairs. Cases BM-01 and BM-02."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.bench.client_metrics import Outcome, Slo, figures
from ridgeline.bench.client_read import Reading, read_document, read_events, read_stream, refusal


def event(**document: Any) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def delta(text: str | None = None, *, index: int = 0, role: str | None = None, finish: str | None = None, **more: Any) -> bytes:
    inner = {k: v for k, v in (("role", role), ("content", text)) if v is not None}
    return event(choices=[{"index": index, "delta": inner | more.pop("delta", {}), "finish_reason": finish}], **more)


def usage(completion: int, prompt: int = 7, cached: int | None = None) -> dict[str, Any]:
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion} | details


DONE = b"data: [DONE]\n\n"
BM01 = [
    (0.05, delta("", role="assistant")), (0.50, delta("a")), (0.60, delta("bcde")), (0.70, delta("fghi", finish="length")),
    (0.71, event(choices=[], usage=usage(9))), (0.90, DONE),
]  # fmt: skip


def outcome(reading: Reading, arrival: float = 0.0, **more: Any) -> Outcome:
    return Outcome("r", arrival, arrival, reading, end_s=reading.end_s or arrival, **more)


def test_chunks_are_not_tokens() -> None:
    found = outcome(read_stream(BM01))
    assert found.ttft_s == 0.50
    assert found.tpot_s == pytest.approx(0.025, abs=1e-12)
    assert found.e2e_s == 0.70
    assert found.reading.tokens == 9 and found.reading.text == "abcdefghi"
    assert found.reading.basis == "events"
    f = figures([found], Slo())
    assert f.first_event_ms is not None and f.first_event_ms.p50 == 50.0
    assert f.ttft_ms is not None and f.ttft_ms.p50 == 500.0
    assert f.seconds == 0.90 and f.output_tok_s == pytest.approx(10.0)


def test_usage_on_every_event_splits_gaps_into_tokens() -> None:
    pairs = [
        (0.05, delta("", role="assistant", usage=usage(0))), (0.50, delta("a", usage=usage(1))), (0.60, delta("bcde", usage=usage(5))),
        (0.70, delta("fghi", usage=usage(9), finish="length")), (0.71, event(choices=[], usage=usage(9))), (0.90, DONE),
    ]  # fmt: skip
    reading = read_stream(pairs)
    assert reading.basis == "usage"
    gaps = list(reading.gaps())
    assert len(gaps) == 8 and gaps == pytest.approx([0.025] * 8)


def test_the_first_token_is_not_a_role_an_empty_text_or_a_comment() -> None:
    pairs = [
        (0.1, b": ping\n\n"), (0.2, delta("", role="assistant")), (0.3, delta(None)), (0.4, event(choices=[])),
        (0.5, delta("x", finish="stop")), (0.6, DONE),
    ]  # fmt: skip
    reading = read_stream(pairs)
    assert reading.first_event_s == 0.2 and [p.at_s for p in reading.pieces] == [0.5]


@pytest.mark.parametrize(
    "first",
    [{"reasoning_content": "hm"}, {"reasoning": "hm"}, {"refusal": "no"}, {"tool_calls": [{"index": 0, "function": {"name": "f"}}]},
     {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}],
)  # fmt: skip
def test_reasoning_and_tool_text_are_first_tokens(first: dict[str, Any]) -> None:
    reading = read_stream([(0.1, delta("", role="assistant")), (0.2, delta(delta=first)), (0.3, delta("x", finish="stop")), (0.4, DONE)])
    assert reading.pieces[0].at_s == 0.2 and reading.error is None


def test_the_end_token_has_no_text_yet_each_event_is_a_token() -> None:
    pairs = [(0.1 * i, event(choices=[{"index": 0, "text": "w"}])) for i in range(1, 4)]
    pairs += [(0.4, event(choices=[{"index": 0, "text": "", "finish_reason": "stop"}], usage=usage(4))), (0.5, DONE)]
    reading = read_stream(pairs)
    assert reading.basis == "tokens" and list(reading.gaps()) == pytest.approx([0.1, 0.1])


def test_choices_have_gaps_of_their_own() -> None:
    pairs = [
        (1.0, delta("a", index=0)), (1.1, delta("b", index=1)), (1.2, delta("a", index=0)), (1.6, delta("b", index=1, finish="length")),
        (1.7, event(choices=[], usage=usage(4))), (1.7, DONE),
    ]  # fmt: skip
    reading = read_stream(pairs)
    assert sorted(reading.gaps()) == pytest.approx([0.2, 0.5])
    assert reading.text == "aa" and reading.basis == "tokens"
    assert outcome(reading, choices=2).tpot_s == pytest.approx(0.6)


WRONG: list[tuple[list[tuple[float, bytes]], str]] = [
    ([(0.1, delta("a"))], "broke off"),
    ([(0.1, delta("a")), (0.2, event(error={"message": "out of\nmemory"}))], "out of memory"),
    ([(0.1, delta("a")), (0.2, event(error={"message": "late"})), (0.3, DONE)], "late"),
    ([(0.1, delta("", role="assistant")), (0.2, DONE)], "no text"),
    ([(0.1, delta("a")), (0.2, b"data: {oops\n\n"), (0.3, DONE)], "not JSON"),
    ([(0.1, b"data: [1]\n\n"), (0.3, DONE)], "not an object"),
    ([(0.1, b'data: {"object":"error","message":"bad"}\n\n')], "bad"),
    ([], "broke off"),
    ([(0.1, b"<html>busy</html>")], "broke off"),
]


@pytest.mark.parametrize(("pairs", "word"), WRONG)
def test_what_did_not_end_well_says_why(pairs: list[tuple[float, bytes]], word: str) -> None:
    error = read_stream(pairs).error
    assert error is not None and word in error and "\n" not in error


def test_failures_stay_in_the_denominator() -> None:
    good, bad = outcome(read_stream(BM01)), Outcome("b", 0.0, 0.0, Reading(error="HTTP 500: x"), end_s=1.8)
    f = figures([good, bad, bad], Slo(ttft_s=1.0))
    assert (f.requests, f.completed, f.failed) == (3, 1, 2)
    assert f.failures == {"HTTP 500: x": 2}
    assert f.attainment == pytest.approx(1 / 3)
    assert f.seconds == 1.8 and f.requests_s == pytest.approx(1 / 1.8) and f.goodput_s == pytest.approx(1 / 1.8)
    assert f.ttft_ms is not None and f.ttft_ms.count == 1


def test_nothing_but_failures_has_rates_of_zero_and_no_latency() -> None:
    f = figures([Outcome("b", 1.0, 1.0, Reading(error="x"), end_s=2.0)], Slo())
    assert (f.output_tok_s, f.goodput_s, f.attainment) == (0.0, 0.0, 0.0)
    assert f.ttft_ms is None and f.tpot_ms is None and f.hit_rate is None
    assert figures([], Slo()).requests_s is None


@pytest.mark.parametrize(("slo", "met"), [(Slo(0.5, 0.025), 1), (Slo(0.499, None), 0), (Slo(None, 0.0249), 0), (Slo(), 1)])
def test_goodput_needs_both_promises(slo: Slo, met: int) -> None:
    assert figures([outcome(read_stream(BM01))], slo).attainment == met


def test_an_open_loop_counts_from_the_time_a_request_was_due() -> None:
    late = Outcome("r", -1.0, 0.0, read_stream(BM01), end_s=0.9)
    assert late.ttft_s == 1.5


def test_cached_tokens_and_timings() -> None:
    pairs = [
        (0.4, delta("a", finish="length")),
        (0.5, event(choices=[], usage=usage(1, prompt=100, cached=64), timings={"prompt_ms": 300.0, "cache_n": 3})), (0.6, DONE),
    ]  # fmt: skip
    f = figures([outcome(read_stream(pairs))], Slo())
    assert f.hit_rate == 0.64 and f.cached_tokens == 64
    assert f.prefill_ms is not None and f.prefill_ms.p50 == 300.0
    assert f.queue_ms is not None and f.queue_ms.p50 == pytest.approx(100.0)
    assert read_stream([(0.1, delta("a", finish="stop", timings={"cache_n": 3}))]).cached_tokens == 3


def test_the_time_of_the_prompt_from_the_usage() -> None:
    """Row 7: our own server and Groq's say it there, of every request; percentiles of both parts of TTFT follow."""
    def reply(i: int) -> list[tuple[float, bytes]]:
        told = event(choices=[], usage=usage(2) | {"queue_time": 0.01, "prompt_time": 0.1 * i})
        return [(0.2 * i, delta("a")), (0.2 * i + 0.1, delta("b", finish="stop")), (0.2 * i + 0.1, told), (1.0, DONE)]

    f = figures([outcome(read_stream(reply(i))) for i in (1, 2, 3)], Slo())
    assert f.prefill_ms is not None and (f.prefill_ms.p50, f.prefill_ms.max) == (pytest.approx(200), pytest.approx(300))
    assert f.queue_ms is not None and f.ttft_ms is not None and f.queue_ms.p50 == pytest.approx(f.ttft_ms.p50 - 200)
    for odd in (True, -1, "x", 1e300, float("nan")):
        assert read_stream([(0.1, delta("a", finish="stop", usage=usage(1) | {"prompt_time": odd}))]).prefill_s is None


def test_without_usage_events_are_counted_and_it_is_said() -> None:
    f = figures([outcome(read_stream([(0.1, delta("a")), (0.2, delta("b", finish="length")), (0.2, DONE)]))], Slo())
    assert f.output_tokens == 2 and f.usage_missing == 1


def test_one_document_instead_of_events() -> None:
    body = json.dumps({"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}], "usage": usage(5)}).encode()
    reading = read_document([(0.3, body[:10]), (0.4, body[10:])])
    assert reading.error is None and reading.tokens == 5 and reading.pieces[0].at_s == 0.4
    assert outcome(reading).tpot_s == 0.0
    assert "not JSON" in str(read_document([(0.1, b"oops")]).error)


@pytest.mark.parametrize(
    ("body", "word"),
    [(b'{"error":{"message":"full"}}', "full"), (b'{"error":"full"}', "full"), (b'{"detail":"gone"}', "gone"), (b"<h1>no</h1>", "<h1>no"),
     (b"", "HTTP 503")],
)  # fmt: skip
def test_refusals_carry_their_message(body: bytes, word: str) -> None:
    error = refusal(503, [(0.1, body)]).error
    assert error is not None and "HTTP 503" in error and word in error


def test_line_ends_and_data_in_pieces() -> None:
    pairs = [(0.1, b"data:{\"a\""), (0.2, b":1}\r\n"), (0.3, b"\r"), (0.4, b"\nevent: x\r\ndata: 1\r\ndata: 2\r\n\r\n")]
    assert list(read_events(pairs)) == [(0.4, '{"a":1}'), (0.4, "1\n2")]


@given(st.lists(st.integers(1, 60), max_size=30), st.integers(0, 3))
def test_how_bytes_are_cut_changes_no_event(cuts: list[int], crlf: int) -> None:
    stream = b"".join(data for _, data in BM01)
    stream = stream.replace(b"\n", b"\r\n") if crlf == 0 else stream
    pairs, at = [], 0
    for cut in [*cuts, len(stream)]:
        if at < len(stream):
            pairs.append((float(at), stream[at : at + cut]))
            at += cut
    pairs.append((float(at), stream[at:]))
    assert [data for _, data in read_events(pairs)] == [data for _, data in read_events([(0.0, stream)])]
    assert read_stream(pairs).text == "abcdefghi"


@given(st.lists(st.binary(max_size=40), max_size=12))
def test_any_bytes_are_read_without_raising(parts: list[bytes]) -> None:
    pairs = [(float(i), part) for i, part in enumerate(parts)]
    for reading in (read_stream(pairs), read_document(pairs), refusal(500, pairs)):
        assert reading.error is None or isinstance(reading.error, str)


KEYS = st.sampled_from([
    "choices", "delta", "text", "usage", "error", "index", "content", "finish_reason", "completion_tokens", "timings", "prompt_ms",
    "prompt_tokens_details", "prompt_time", "tool_calls", "function", "message", "cached_tokens",
])  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)


@given(st.recursive(LEAVES, lambda x: st.lists(x, max_size=3) | st.dictionaries(KEYS, x, max_size=4)))
def test_any_document_is_read_without_raising(document: Any) -> None:
    reading = read_stream([(0.1, b"data: " + json.dumps(document).encode() + b"\n\n"), (0.2, DONE)])
    assert all(math.isfinite(g) for g in reading.gaps())
    figures([outcome(reading)], Slo(1.0, 1.0))
