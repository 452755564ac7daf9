"""`ridgeline bench spec`: what counts as quoting and as going in circles, and the whole report on a tiny model."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tests.cli.tiny_gguf import tiny_gguf

from ridgeline.bench.report import report as report_of
from ridgeline.bench.report_json import documents_of
from ridgeline.bench.spec import DOMAINS, DomainText, Row, SpecBenchOptions, SpecReport, prompts_of
from ridgeline.bench.spec_report import document as document_of
from ridgeline.bench.spec_text import degenerate, quoted
from ridgeline.bench.spec_times import WIDTHS, NarrowTimes
from ridgeline.cli import main
from ridgeline.errors import UserError
from ridgeline.graph.step import Span
from ridgeline.options import Options


def test_prompts_are_shipped_for_every_kind_of_text() -> None:
    for domain in DOMAINS:
        assert len(prompts_of(domain)) == len(set(prompts_of(domain))) == 6


def test_a_quotation_is_a_run_that_stands_in_the_prompt() -> None:
    prompt = list(range(100, 140))
    assert quoted(prompt[5:25], prompt) == 1.0
    assert quoted([1, 2, *prompt[5:15], 3, 4, 5, 6, 7, 8, 9, 10], prompt) == 0.5
    assert quoted(prompt[5:12], prompt) == quoted(prompt[::-1], prompt) == quoted([], prompt) == 0.0


@pytest.mark.parametrize(
    ("answer", "circles"),
    [
        ([1, 2, 3] * 10, True),
        (list(range(40)) + [7] * 30, True),
        (list(range(60)), False),
        (list(range(40)) + [5, 6] * 2, False),  # said twice
        ([1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7], False),
        (list(range(20)) * 3, True),
        (list(range(300)) + [1, 2] * 8, False),  # a small part of a long answer
    ],
)
def test_a_loop_is_a_run_said_over_and_over(answer: list[int], circles: bool) -> None:
    assert degenerate(answer) is circles


def test_times_are_read_between_what_was_measured() -> None:
    times = NarrowTimes((0, 100), WIDTHS, np.array([[float(w) for w in WIDTHS], [2.0 * w for w in WIDTHS]]))
    assert times.step(0, 4) == 4.0 and times.step(50, 10) == 15.0 and times.step(900, 5) == 10.0
    assert times.spans([Span(0, 0, 3, 3), Span(1, 100, 1, 1)]) == 5.0


@pytest.mark.parametrize("wrong", [{"drafts": (0,)}, {"drafts": (17,)}, {"drafts": ()}, {"domains": ("prose",)}, {"gen": 1}, {"repeat": 0}])
def test_what_cannot_be_measured_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError):
        SpecBenchOptions(Options("x"), **wrong)  # type: ignore[arg-type]


def test_the_report_of_a_tiny_model(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setattr("ridgeline.bench.spec.prompts_of", lambda domain: ["abcabcabc", "xyz"])
    tiny = str(tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))
    config = json.dumps({"model": tiny})
    for more in ([], ["--speculative-config", config]):
        assert main(["bench", "spec", tiny, "--domain", "chat", "--drafts", "1,3", "--gen", "6", "--json", *more]) == 0
        report = json.loads(capsys.readouterr().out)
        check_report(report)
        rows = report["rows"]
        assert [(r["drafts"], r["adaptive"]) for r in rows] == [(0, False), (1, False), (3, False), (3, True)]
        assert report["differing"] == 0 and sum(r["best"] for r in rows) == 1 and rows[0]["speedup"] == 1.0
        assert all(r["answers"] == 2 and r["tok_s"] > 0 and r["loop_s"] > 0 and r["predicted_loop_s"] > 0 for r in rows)
    assert report["method"] == "draft_model" and rows[2]["acceptance"] == 1.0 and rows[2]["tokens_per_step"] > 2
    assert main(["bench", "spec", tiny, "--domain", "creative", "--drafts", "2", "--gen", "4"]) == 0
    shown = capsys.readouterr().out
    assert "creative: 2 answers" in shown and "the words were the same with every setting" in shown


def check_report(found: dict[str, Any]) -> None:
    """`bench report` takes it: each figure has a point for every fixed number of guesses, the table a row for every setting."""
    (document,) = documents_of(found, "spec.json")
    plots = {plot.title: plot for plot in document.plots}
    speed, loops = plots["Speed-up"], plots["Time of a loop"]
    assert [x for x, _ in speed.lines[0].points] == [0, 1, 3] == [x for x, _ in loops.lines[0].points]
    assert speed.lines[0].points == tuple((r["drafts"], r["speedup"]) for r in found["rows"] if not r["adaptive"])
    assert len(loops.lines) == 2
    guessed = [r["drafts"] for r in found["rows"] if r["acceptance"] is not None and not r["adaptive"]]
    assert [x for x, _ in plots["Guesses that came true"].lines[0].points] == guessed if guessed else "Guesses that came true" not in plots
    assert len(document.tables[0].rows) == len(document.predictions) == len(found["rows"])
    best = next(r for r in found["rows"] if r["best"])
    assert document.notes[0].startswith(f"chat: {best['drafts']} guesses are best" if best["drafts"] else "chat: no number of guesses")
    assert "Speed-up" in report_of([document]).html


def test_a_kind_of_text_that_does_not_count_has_no_points() -> None:
    row = Row("code", 0, False, 0, 0.0, 0.0, None, 0.0, 0.0, 0.0, 0.0, True)
    found = document_of(SpecReport("m", "ngram", None, 1, "avx2", 8, 0.0, [row], [DomainText("code", 6, 0.0, 0.0, 0.0)], 0), "1")
    assert found.plots == () and "none of 6 answers quotes" in found.notes[0]


def test_acceptance_by_pair_and_kind_of_text(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Row 88: a draft that is its target agrees always, one that is not does not; words stay the same with either."""
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setattr("ridgeline.bench.spec.prompts_of", lambda domain: ["abcabcabc", "xyz"])
    folder = tmp_path_factory.mktemp("pairs")
    tiny, other = str(tiny_gguf(folder / "tiny.gguf")), str(tiny_gguf(folder / "other.gguf", seed=9))
    args = ["bench", "spec", tiny, "--domain", "chat", "--domain", "creative", "--drafts", "2", "--gen", "6"]
    args += ["--draft", tiny, "--draft", other, "--draft", "ngram"]
    assert main([*args, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [p["draft"] for p in found["pairs"]] == ["tiny.gguf", "other.gguf", "ngram"] and not any(p["differing"] for p in found["pairs"])
    (made,) = documents_of(found, "p.json")
    accepted = {(row[0], row[1]): row[2:] for row in made.tables[0].rows}
    assert made.tables[0].columns == ("draft", "guesses", "chat", "creative")
    assert accepted["tiny.gguf", "2"] == (1.0, 1.0) and all(v < 1.0 for v in accepted["other.gguf", "2"])  # type: ignore[operator]
    assert "By pair: accepted" in report_of([made]).html
    assert main(args) == 0
    shown = capsys.readouterr().out
    assert "100%" in shown and "the words were the same with every draft and setting" in shown
    assert main([*args, "--draft", "ngram"]) == 2 and "names one twice" in capsys.readouterr().err
