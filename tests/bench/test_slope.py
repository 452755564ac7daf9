"""Row 133: what a token of context adds to a decode step, measured, by the roofline and as calibrated, with the ratio said."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ridgeline.bench.slope import DecodeSlope, decode_slope
from ridgeline.graph.step import SharedWalk, Span
from ridgeline.planner.cost import Cost
from ridgeline.planner.roofline import Prediction

CONTEXTS = (128, 512, 1024, 4096)
KV, GB_S = 20_000, 20.0  # bytes a token; 1 us of memory


def _linear(start: float, slope: float) -> list[float]:
    return [start + slope * n for n in CONTEXTS]


def _least(seconds: Sequence[float], read: Sequence[int] = tuple(KV * n for n in CONTEXTS)) -> list[Prediction]:
    """Bounds whose sum of both parts is half more than the greater."""
    return [Prediction(s, 1.5 * s, Cost(kv_read_bytes=n), "measured") for s, n in zip(seconds, read, strict=True)]


def _slope(measured: float, *, attention: float | None = None, fitted: float | None = None, least: float = 1e-6) -> DecodeSlope:
    def seconds(spans: Sequence[Span], shared: Sequence[SharedWalk]) -> float:
        assert fitted is not None and not shared
        (span,) = spans
        assert (span.new, span.want) == (1, 1)
        return 3e-3 + fitted * span.past

    inside = measured if attention is None else attention
    steps, part = _linear(4e-3, measured), _linear(1e-5, inside)
    return decode_slope(CONTEXTS, steps, part, _least(_linear(2e-3, least)), GB_S, None if fitted is None else seconds)


def test_known_slopes_are_found_and_stand_beside_each_other() -> None:
    found = _slope(2.5e-6, attention=2e-6, fitted=2.25e-6)
    assert found.start_s == pytest.approx(4e-3) and found.measured_s == pytest.approx(2.5e-6)
    assert found.attention_s == pytest.approx(2e-6) and found.roofline_s == pytest.approx(1e-6) == found.bytes_s
    assert found.calibrated_s == pytest.approx(2.25e-6)
    assert found.over_roofline == pytest.approx(2.5) and found.attention_gb_s == pytest.approx(10.0)
    first, ratio, flat = found.lines()
    assert "measured 2,500.0 ns (2,000.0 ns in attention)" in first
    assert "roofline 1,000.0 ns: 20,000 bytes of KV at 20.0 GB/s" in first and "calibrated planner 2,250.0 ns (-10%)" in first
    assert "measured over roofline 2.50" in ratio and "at 10.0 GB/s, a plain read 20.0" in ratio and ratio.endswith("would be 1.50")
    assert "4.00 ms before any context, 10% more from 160 tokens on, twice as long from 1,600" in flat


@pytest.mark.parametrize("factor", [1.0, 1.5, 4.0])
def test_the_ratio_is_what_it_is_and_never_below_what_was_measured(factor: float) -> None:
    assert _slope(factor * 1e-6).over_roofline == pytest.approx(factor)


def test_a_host_without_calibration_is_told_how_to_get_one() -> None:
    found = _slope(2e-6)
    assert found.calibrated_s is None and "ridgeline calibrate MODEL" in found.lines()[0]


def test_a_roofline_of_arithmetic_says_so() -> None:
    """Where arithmetic takes longer than reading, the least time is not KV bytes over bandwidth."""
    line = _slope(6e-6, least=3e-6).lines()[0]
    assert "roofline 3,000.0 ns: arithmetic; 20,000 bytes of KV at 20.0 GB/s are 1,000.0 ns" in line


@pytest.mark.parametrize("measured", [-1e-9, 0.0])
def test_noise_is_not_called_a_slope(measured: float) -> None:
    """Times that do not rise give no ratio, in words or in JSON."""
    found = _slope(measured)
    (line,) = found.lines()
    assert "give longer ones" in line and not any(c.isdigit() for c in line)
    assert found.as_json()["over_roofline"] is None and found.as_json()["attention_gb_s"] is None


def test_one_slow_long_step_bends_the_line_no_more_than_a_slow_short_one() -> None:
    """Errors count in proportion: 20% at any one context moves the slope by less than half."""
    for i in range(len(CONTEXTS)):
        steps = _linear(4e-3, 2e-6)
        steps[i] *= 1.2
        got = decode_slope(CONTEXTS, steps, steps, _least(_linear(2e-3, 1e-6)), GB_S, None).measured_s
        assert abs(got / 2e-6 - 1) < 0.5, (i, got)


def test_windows_add_nothing_beyond_their_width() -> None:
    """Bytes that stop growing are not counted as if they grew."""
    read = [KV * min(n, 512) for n in CONTEXTS]
    found = decode_slope(CONTEXTS, _linear(4e-3, 1e-7), _linear(1e-5, 1e-7), _least(_linear(2e-3, 1e-7), read), GB_S, None)
    assert 0 < found.kv_bytes < KV / 4


def test_all_lines_weigh_the_contexts_alike() -> None:
    """Times that bend exactly as the bytes do have the ratio of the two, whatever the bend."""
    read = [KV * min(n, 700) for n in CONTEXTS]
    least = [b / (GB_S * 1e9) for b in read]
    found = decode_slope(CONTEXTS, [4e-3 + 3 * s for s in least], [3 * s for s in least], _least(least, read), GB_S, None)
    assert found.over_roofline == pytest.approx(3.0) and found.attention_gb_s == pytest.approx(GB_S / 3)


def test_beyond_all_windows_no_ratio_is_claimed() -> None:
    """A model whose windows are all shorter than the contexts reads no more for a longer one: whatever rises is not that."""
    found = _slope(1e-9, least=0.0)
    assert not found.rises and found.as_json()["over_roofline"] is None and "no rise" in found.lines()[0]
