"""The report: every part of a document appears, ratios are right, losses are told. Rows 144-147, 151, 152, 160 of the acceptance table."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from tests.bench.report_samples import ladder, whole_document

from ridgeline.bench.report import report
from ridgeline.bench.report_blocks import Grid, Opening, Words, markdown
from ridgeline.bench.report_json import documents_of
from ridgeline.bench.report_ladder import gains, ladder_part
from ridgeline.bench.report_predicted import curve_predictions, error, prediction_part
from ridgeline.bench.report_reported import NUMBERS, rows
from ridgeline.bench.report_schema import Distribution, Ladder, Prediction, ReportDocument, Rung, Setup


class Tags(HTMLParser):
    """Which elements a page has, and that each is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in ("meta", "circle", "path", "rect"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("circle", "path", "rect"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read(page: str) -> Tags:
    found = Tags()
    found.feed(page)
    assert found.open == []
    return found


def test_the_page_is_whole_and_fetches_nothing() -> None:
    page = report([whole_document()]).html
    found = read(page)
    assert "script" not in found.seen and "img" not in found.seen and "link" not in found.seen
    assert not re.search(r"url\(|@import|src=", page) and "default-src 'none'" in page
    assert found.seen.count("figure") >= 12
    words = " ".join(found.words)
    for part in (
        "Findings", "Set-up", "Some <CPU> & more", "llama-server -m \"a b.gguf\" --parallel 16", "read bandwidth", "knee at 8", "SLO 30 ms",
        "1 of 40", "TTFT: cumulative distribution", "Roofline of this host", "KV in use", "What each rung changes", "Five metrics",
        "42.0% of the sequence slots are idle", "Predicted beside measured", "+36.4%", "sent to first content token", "Quality",
    ):  # fmt: skip
        assert part in words, part


def test_markdown_and_json_say_the_same() -> None:
    made = whole_document()
    found = report([made])
    assert documents_of(json.loads(found.json), "f") == [made]
    assert "| ridgeline | llama-server | 1.43 |" in found.markdown.replace("output tok/s | ", "")
    assert "| Some &lt;CPU> & more |" in found.markdown or "Some &lt;CPU> & more" in found.markdown
    assert "```\nridgeline bench serve smollm2" in found.markdown and "<figure" not in found.markdown


def test_gains_are_ratios_of_neighbours_and_multiply_to_the_whole() -> None:
    found = gains(ladder())
    assert [g for _, g in found] == [None, *(pytest.approx(x) for x in (52 / 18, 210 / 52, 300 / 210, 290 / 300))]
    words = [b.words for b in ladder_part([whole_document()]) if isinstance(b, Words)]
    assert any("= 16.11; with one round that is the last rung over the first by construction" in w for w in words)
    assert any("one request at a time is 2.89x as fast (kernels and overhead), many at once make 4.04x" in w for w in words)
    assert any(w == "+ KV int8 lost throughput: 0.967x of the rung before." for w in words)


def test_missing_rungs_are_listed_and_lossy_ones_need_quality() -> None:
    rungs = (Rung("a", output_tok_s=1.0), Rung("b", output_tok_s=2.0, lossy=True), Rung("c", status="failed", why="out of memory"))
    found = list(ladder_part([ReportDocument("ladder", "t", ladders=(Ladder("l", "w", rungs),))]))
    assert any(isinstance(b, Words) and b.kind == "loss" and "quality was not measured" in b.words for b in found)
    (grid,) = [b for b in found if isinstance(b, Grid)]
    assert [list(r)[:2] for r in grid.rows] == [["a", ""], ["b", ""], ["c", "failed: out of memory"]]


def test_documents_of_other_machines_are_told_apart() -> None:
    """A simulated device's facts and times never look like this host's."""
    other = ReportDocument(
        "simulate", "a fleet", Setup(machine={"device": "H100"}, versions={"ridgeline": "0.1.0"}), distributions=(
            Distribution("TTFT", "ridgeline, 8", (1.0, 2.0), label="simulated"),
        ),
    )  # fmt: skip
    text = report([whole_document(), other, replace(whole_document(), title="again")]).markdown
    assert "| device | H100 | a fleet |" in text and "| cores | 2 | SmolLM2 on &lt;two> cores, again |" in text
    page = report([whole_document(), other]).html
    assert "TTFT: cumulative distribution, simulated" in page and "TTFT: cumulative distribution<" in page
    twice = report([whole_document(), replace(whole_document(), title="again")]).html
    assert "again: ridgeline, 8" in twice


@pytest.mark.parametrize(
    ("rounds", "verdict"),
    [
        (((1, 1, 1), (2, 2.2, 2), (4, 4, 4.4), (8, 8, 9)), "8.00, 8.00, 9.00, which agrees"),
        (((1, 1, 1), (2, 2, 0.1), (4, 0.2, 0.2), (0.4, 0.4, 0.4)), "0.40, 0.40, 0.40, which does NOT agree"),
    ],
)  # fmt: skip
def test_factors_are_those_of_rounds_and_are_held_against_each(rounds: tuple[tuple[float, ...], ...], verdict: str) -> None:
    """Where every step has its slow moment in another round, the medians multiply to what no round has seen."""
    rungs = tuple(Rung(f"r{i}", output_tok_s=sorted(v)[1], round_tok_s=v) for i, v in enumerate(rounds))
    document = replace(whole_document(), ladders=(Ladder("l", "w", rungs),))
    words = f"Check: 2.00 x 2.00 x 2.00 = 8.00; the last rung over the first, round by round: {verdict}."
    assert words in [b.words for b in ladder_part([document]) if isinstance(b, Words)]
    assert [g for _, g in gains(document.ladders[0])] == [None, *(pytest.approx(x) for x in (2.0, 2.0, 2.0))]


def test_a_rung_that_ran_one_at_a_time_has_no_batching_gain() -> None:
    alone = replace(ladder(), rungs=ladder().rungs[:2])
    assert not any("(batching)" in b.words for b in ladder_part([replace(whole_document(), ladders=(alone,))]) if isinstance(b, Words))


def test_an_empty_ladder_and_an_empty_document_have_a_report() -> None:
    empty = ReportDocument("ladder", "nothing yet", ladders=(Ladder("l", "w", (Rung("a", status="pending"),)),))
    assert "pending" in report([empty]).html
    assert "nothing yet" in report([ReportDocument("x", "nothing yet")], reported=False).html


def test_errors_are_of_the_prediction_over_the_measurement() -> None:
    cells = (Prediction("a", "TPOT ms", 11.0, 10.0), Prediction("b", "TPOT ms", 8.0, 10.0), Prediction("c", "TPOT ms", 1.0, 0.0))
    assert error(cells[0]) == pytest.approx(0.1) and error(cells[2]) == float("inf")
    found = list(prediction_part([ReportDocument("p", "p", predictions=cells)]))
    (whole,) = [b for b in found if isinstance(b, Grid)]
    assert list(whole.rows) == [("p", "TPOT ms", 2, "15.0%", "-20.0%", "b")]
    (grid,) = next(b for b in found if isinstance(b, Opening)).grids
    assert [r[3] for r in grid.rows] == ["+10.0%", "-20.0%", None]
    assert grid.note == "Median error 15.0%, worst 20.0% (b)."


def test_cells_of_a_sweep_that_were_predicted_stand_beside_the_measured_ones() -> None:
    (first, *_) = [p for p in curve_predictions(whole_document().curves[0]) if p.metric == "output tok/s"]
    point = whole_document().curves[0].points[0]
    assert (first.predicted, first.measured, first.steal) == (point.predicted_output_tok_s, point.output_tok_s, 0.01)
    text = report([whole_document()]).markdown
    assert "ridgeline, chat, 1 requests at once" in text and "- TPOT: (e2e - TTFT) / (n - 1)" in text


def test_a_significant_loss_is_marked() -> None:
    made = whole_document()
    lost = replace(made.comparisons[0], ratio=0.8, low=0.7, high=0.9, sentence="A is 0.8x B")
    faster = replace(lost, metric="TTFT p50", higher_is_better=False)
    assert "<p>TTFT p50: A is 0.8x B</p>" in report([replace(made, comparisons=(faster,))]).html
    assert '<p class="loss">output tok/s: A is 0.8x B</p>' in report([replace(made, comparisons=(lost,))]).html


def test_what_others_reported_stands_apart_with_source_and_date() -> None:
    found = rows()
    assert all(r["source"] and r["date"] and r["link"] and r["setup"] for r in found)
    assert all(any(r[k] for k in NUMBERS) for r in found)
    clarifai = [r for r in found if r["source"] == "Clarifai"]
    assert {r["engine"] for r in clarifai} == {"vLLM", "SGLang", "TensorRT-LLM"} and len(clarifai) == 12
    assert all("a third party quotes its table" in r["note"] and r["date"] == "2025-08-29" and r["tok_s"] for r in clarifai)
    demo = [r for r in found if r["date"] == "2026-06-27"]
    assert [demo[0][k] for k in ("output_tok_s", "ttft_ms", "itl_ms")] == ["51", "54", "19.0"]
    assert all("10 prompts, 1656-token shared prefix, 50 output tokens" in r["workload"] for r in demo)
    page = report([whole_document()]).html
    apart = re.findall(r'<section class="apart">.*?</section>', page, re.DOTALL)
    assert len(apart) == len({(r["source"], r["setup"], r["link"]) for r in found})
    outside = re.sub(r'<section class="apart">.*?</section>', "", page, flags=re.DOTALL)
    assert "Clarifai" in "".join(apart) and "Clarifai" not in outside and "demo F" not in outside
    assert all("Source: " in part and "reported" in part for part in apart)
    assert "Reported by others" not in report([whole_document()], reported=False).html


def test_a_ladder_that_others_climbed_is_not_among_ours() -> None:
    told = "reported: workshop"
    rungs = (Rung("theirs A", output_tok_s=51.0, label=told), Rung("theirs B", output_tok_s=736.0, label=told))
    page = report([whole_document(), ReportDocument("ladder", "workshop", ladders=(Ladder("l", "w", rungs),))]).html
    outside = re.sub(r'<section class="apart">.*?</section>', "", page, flags=re.DOTALL)
    assert "theirs B" in page and "theirs" not in outside and "14.43x" not in outside


def test_a_gantt_without_a_known_idle_share_claims_none() -> None:
    made = ReportDocument("bench serve", "t", gantts=(replace(whole_document().gantts[0], idle=None),))
    page = report([made], reported=False).html
    assert "idle" not in page and "120 tok/s, all done after 5.00 s, simulated" in page


def test_words_that_cannot_be_written_are_replaced() -> None:
    for form in vars(report([ReportDocument("x", "a \ud800 b", notes=("\ud800",))])).values():
        assert form.encode("utf8")


def test_markdown_escapes_what_it_would_obey() -> None:
    found = markdown("a *b*", "c | d", [Grid("t", ("x|y",), [("<b>`",)])])
    assert "\\*b\\*" in found and "x\\|y" in found and "&lt;b>\\`" in found
