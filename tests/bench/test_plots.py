"""Plots: well-formed, escaped, honest about empty data; scales and ticks by hand."""

from __future__ import annotations

import re
from math import inf, nan
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ridgeline.bench.plots import Note, Rule, Series, cdf_plot, line_plot, roofline_plot
from ridgeline.bench.plots_bars import MOST_ROWS, Group, bar_plot, gantt_plot, stack_plot, waterfall_plot
from ridgeline.bench.report_schema import Bar
from ridgeline.bench.svg import STYLE, Axis, esc, linear_ticks, log_ticks, scale_of, short

X, Y = Axis("load"), Axis("tok/s")


def parsed(figure: str) -> ElementTree.Element:
    """Well-formed XML, no style attribute, no script, nothing fetched."""
    assert not re.search(r"<script|style=|href=|url\(|https?:", figure)
    return ElementTree.fromstring(figure)


def texts(figure: str) -> list[str]:
    return [t for t in parsed(figure).itertext() if t.strip()]


@pytest.mark.parametrize(
    ("low", "high", "about", "expected"),
    [(0, 100, 5, [0, 20, 40, 60, 80, 100]), (0, 1, 4, [0, 0.5, 1]), (3, 7, 4, [3, 4, 5, 6, 7]), (-2, 2, 4, [-2, -1, 0, 1, 2])],
)
def test_linear_ticks(low: float, high: float, about: int, expected: list[float]) -> None:
    assert linear_ticks(low, high, about) == pytest.approx(expected)


def test_log_ticks() -> None:
    assert log_ticks(1, 1000, 5) == [1, 10, 100, 1000]
    assert log_ticks(1, 20, 6) == [1, 2, 5, 10, 20]
    assert log_ticks(9, 13, 5) == pytest.approx([9, 10, 11, 12, 13])
    assert len(log_ticks(1e-9, 1e9, 6)) <= 7


def test_scales_put_values_where_they_belong() -> None:
    linear = scale_of([2.0, 10.0], X, 100, 500)
    assert linear is not None and (linear.low, linear(0), linear(5)) == (0, 100, 300)
    log = scale_of([1, 100], Axis("", log=True, low=1, high=100), 0, 200)
    assert log is not None and log(10) == pytest.approx(100)
    assert scale_of([nan, inf], X, 0, 1) is None and scale_of([0, -1], Axis("", log=True), 0, 1) is None


@pytest.mark.parametrize(("value", "said"), [(0, "0"), (0.0123, "0.0123"), (1234, "1,234"), (12_345, "12.3k"), (3.2e6, "3.2M")])
def test_numbers_for_people(value: float, said: str) -> None:
    assert short(value) == said


def test_a_line_plot_shows_its_points_rules_and_words() -> None:
    found = line_plot(
        "A <b>title</b>", X, Y, [Series("one & only", [(1, 10), (2, 30), (4, 40)]), Series("other", [(1, 5)], "points")],
        rules=[Rule("y", 35, "limit", bad=True), Rule("x", 2, "here")], notes=[Note(4, 40, "knee at 4")],
    )  # fmt: skip
    words = texts(found)
    assert {"A <b>title</b>", "one & only", "limit", "here", "knee at 4", "load", "tok/s"} <= set(words)
    svg = parsed(found).find(".//svg")
    assert svg is not None and svg.get("role") == "img" and "one & only: 3 points" in (svg.get("aria-label") or "")
    marks = [c for c in parsed(found).iter() if "mark" in (c.get("class") or "").split()]
    assert len(marks) >= 4  # three circles, one square, and those of the legend
    heights = [float(c.get("cy", "nan")) for c in parsed(found).iter("circle") if "mark" in (c.get("class") or "") and c.get("r") == "4.5"]
    assert heights[0] > heights[1] > heights[2]  # more is further up


@pytest.mark.parametrize("points", [[], [(nan, 1.0)], [(1.0, inf)]])
def test_nothing_is_said_and_not_drawn(points: list[tuple[float, float]]) -> None:
    assert texts(line_plot("T", X, Y, [Series("a", points)])) == ["T", "nothing to show"]


def test_a_log_axis_leaves_out_what_it_cannot_show() -> None:
    found = line_plot("T", Axis("x", log=True), Axis("y", log=True), [Series("a", [(0, 1), (1, 0), (1, 1), (100, 10)])])
    assert "a: 2 points" in found


@given(st.lists(st.tuples(st.floats(), st.floats()), max_size=12), st.booleans(), st.booleans())
@example([(0.0, 0.0), (1.0, 5e-324)], False, False)
@example([(5e-324, 0.0), (0.0, 1.0)], False, False)
def test_any_numbers_make_a_picture(points: list[tuple[float, float]], log_x: bool, log_y: bool) -> None:
    found = line_plot("T", Axis("x", log=log_x), Axis("y", log=log_y), [Series("a", points)])
    assert "nan" not in re.sub(r"<title>.*?</title>", "", found) and "inf" not in re.sub(r"<title>.*?</title>", "", found)
    parsed(found)


@given(st.text())
def test_any_words_are_safe(words: str) -> None:
    found = line_plot(words, Axis(words), Y, [Series(words, [(1, 1), (2, 2)])], rules=[Rule("x", 1, words)], note=words)
    parsed(found)
    parsed(gantt_plot(words, [Bar(words, 0, 1, 2, 3)], note=words))
    parsed(bar_plot(words, Axis(words), (words, "b"), [Group(words, [1, None], words)]))
    assert "<" not in esc(words) and '"' not in esc(words)


def test_a_roofline_bends_at_its_ridge() -> None:
    found = roofline_plot("Roof", 20.0, [("int8", 200.0), ("f32", 100.0)], [("decode", 2.0, 30.0)])
    assert "int8: 200 GFLOP/s, ridge at 10 FLOP/byte" in texts(found) and "decode" in texts(found)
    assert texts(roofline_plot("Roof", 0.0, [("a", 1.0)], [])) == ["Roof", "nothing to show"]


def test_a_cdf_ends_at_everything() -> None:
    found = cdf_plot("C", "ms", [("a", [3.0, 1.0, 2.0]), ("b", [nan])])
    assert "100%" in texts(found) and "a: 3 points" in found
    assert texts(cdf_plot("C", "ms", [("a", [])])) == ["C", "nothing to show"]


def test_stacks_over_the_limit_are_told() -> None:
    groups = [Group("8 users", [14, 4]), Group("90 users", [14, 80])]
    found = stack_plot("Memory", Axis("GB"), ["weights", "KV"], groups, limit=80, limit_words="80 GB")
    words = texts(found)
    assert "8 users: 18 GB" in words and "90 users: 94 GB" in words and "80 GB" in words
    bad = [t.text for t in parsed(found).iter("text") if "bad" in (t.get("class") or "")]
    assert bad == ["90 users: 94 GB", "80 GB"]
    at = {r.findtext("title"): float(r.get("x", "nan")) + float(r.get("width", "nan")) for r in parsed(found).iter("rect") if len(r)}
    assert at["8 users, KV: 4 GB"] < at["90 users, KV: 80 GB"]


def test_a_waterfall_rises_and_falls() -> None:
    found = waterfall_plot("W", "tok/s", [("base", 0, 10), ("better", 10, 40), ("worse", 40, 30)])
    kinds = [r.get("class") for r in parsed(found).iter("rect")]
    assert kinds == ["bar c6", "bar c2", "bar bad"]
    assert {"40  x4.00", "30  x0.75"} <= set(texts(found))


def test_a_gantt_shows_phases_in_order_and_what_it_leaves_out() -> None:
    stays = [Bar(f"r{i}", i, i + 1.0, i + 2.0, i + 4.0) for i in range(60)]
    found = gantt_plot("G", stays, until=100.0, note="idle 12%")
    assert "idle 12%. The first 48 of 60 requests" in texts(found)
    bars = [r for r in parsed(found).iter("rect") if len(r)]
    assert len(bars) == 3 * MOST_ROWS and bars[0].findtext("title") == "r0 waits: 1.000 s"
    ends = [float(r.get("x", "nan")) + float(r.get("width", "nan")) for r in bars[:3]]
    assert ends == sorted(ends)
    assert texts(gantt_plot("G", [])) == ["G", "no request had an answer"]


def test_every_class_that_is_drawn_has_a_style() -> None:
    drawn = line_plot("T", X, Y, [Series(str(i), [(1, i), (2, i)]) for i in range(9)], rules=[Rule("y", 1, "w")], notes=[Note(1, 1, "n")])
    drawn += waterfall_plot("W", "u", [("a", 0, 1), ("b", 1, 0)]) + gantt_plot("G", [Bar("a", 0, 1, 2, 3)])
    used = {c for classes in re.findall(r'class="([^"]*)"', drawn) for c in classes.split()}
    assert used - {"wide", "d0"} <= set(re.findall(r"\.([a-z]\w*)", STYLE))


def test_words_at_neighbouring_points_do_not_cover_one_another() -> None:
    notes = [Note(5, 20, "openvino: knee at 4"), Note(6, 19, "ridgeline: knee at 8"), Note(5.5, 21, "vllm: knee at 2")]
    drawn = line_plot("T", X, Y, [Series("a", [(0, 0), (10, 100)])], notes=notes)
    found = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="(strong[^"]*)">([^<]+)<', drawn)
    assert len(found) == 3
    boxes = []
    for x, y, kind, words in found:
        wide = 6.6 * len(words)
        left = float(x) - wide if "end" in kind else float(x)
        boxes.append((left, float(y), left + wide))
    for i, a in enumerate(boxes):
        assert all(abs(a[1] - b[1]) >= 12 or a[2] <= b[0] or b[2] <= a[0] for b in boxes[:i])
