"""`bench feel`: memory, first tokens by length and a queue of people, on a tiny model. Rows 124 to 126."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ridgeline.bench.feel import FeelOptions, render, run
from ridgeline.bench.feel_report import document
from ridgeline.bench.machine_load import forget_peak, own_peak, own_rss
from ridgeline.bench.random_gguf import SHAPES, write_random
from ridgeline.bench.report import report as charts
from ridgeline.bench.report_json import documents_of, to_json
from ridgeline.cli import main
from ridgeline.errors import UserError
from ridgeline.options import Options

SOME = 1 << 20


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "tiny.gguf"
    write_random(path, SHAPES["tiny"], "Q4_0")
    return str(path)


def test_memory_times_and_people(model: str) -> None:
    options = Options(model, max_model_len=128, threads=1, max_num_seqs=3)
    report = run(FeelOptions(options, (8, 32, 64), 3, 16, 6))
    assert 0 < report.before_bytes <= report.loaded_bytes and report.weights_bytes > 0
    assert [r.tokens for r in report.rows] == [8, 32, 64] and all(r.ttft_s > 0 for r in report.rows)
    kv_of = 2 * 2 * 2 * 64 * 2  # layers, keys and values, KV heads of 64, two bytes
    assert [r.kv_bytes for r in report.rows] == [n * kv_of for n in (8, 32, 64)]
    assert [r.scores_bytes for r in report.rows] == [4 * 4 * n * n for n in (8, 32, 64)]  # four heads
    a, b, c = report.ttft_fit
    assert all(abs(a + b * r.tokens + c * r.tokens**2 - r.ttft_s) < 1e-6 + 0.01 * r.ttft_s for r in report.rows)  # three points: exact
    for people in (report.one_by_one, report.together):
        assert [w.name for w in people] == ["user 1", "user 2", "user 3"]
        assert all(0 <= w.queue_s <= w.first_s <= w.end_s for w in people)
    # One at a time: nobody begins before the one ahead has ended.
    assert all(b.first_s > a.end_s for a, b in zip(report.one_by_one, report.one_by_one[1:], strict=False))
    assert report.together[-1].first_s < report.together[0].end_s
    text = render(report)
    assert "before loading" in text and "the last waits" in text and "fit:" in text
    last = max(w.end_s for w in report.together)
    assert report.tok_s(report.together) == pytest.approx(3 * 6 / last) and report.itl_s(report.together) > 0
    assert report.as_json()["rates"]["one_by_one"]["itl_ms"] == pytest.approx(report.itl_s(report.one_by_one) * 1e3)
    made = document(report, "1.0")
    assert documents_of(json.loads(json.dumps(to_json(made))), "f") == [made]
    page = charts([made], reported=False).html
    assert "Memory by prompt" in page and "Time to the first token" in page and page.count("3 people who ask at once") >= 2


def test_memory_of_this_process() -> None:
    assert own_rss(Path("/nowhere")) == 0 and own_rss() > 1 << 20
    assert own_peak(Path("/nowhere")) == 0 and not forget_peak(Path("/nowhere"))


@pytest.mark.skipif(not forget_peak(), reason="the system lets nobody begin a peak anew")
def test_the_peak_begins_anew() -> None:
    held = np.ones(8 << 20)
    assert own_peak() + SOME >= own_rss() > held.nbytes  # pages come between the two looks
    del held
    forget_peak()
    before = own_peak()
    held = np.ones(4 << 20)
    assert own_peak() >= before + held.nbytes - SOME
    del held
    assert own_peak() > own_rss()


@pytest.mark.parametrize("lengths", [(8, 16), (8, 8, 16), (0, 1, 2)])
def test_lengths_that_fit_nothing(lengths: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="three rising"):
        FeelOptions(Options("m"), lengths)


def test_the_command(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["bench", "feel", model, "--lengths", "8,16,32", "--users", "2", "--prompt", "8", "--output", "4", "--threads", "1"]
    assert main([*args, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["together"]) == 2
    assert main(["bench", "feel", model, "--lengths", "8,x"]) == 2
    assert "--lengths is 'x'" in capsys.readouterr().err
    assert main(["bench", "feel", model, "--users", "0"]) == 2
