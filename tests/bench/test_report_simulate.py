"""The report of a simulated run: static beside continuous batching from the same arrivals, idle share printed. Row 96 of the table."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.bench.test_simulate import fleet, job

from ridgeline.bench.client_metrics import Slo
from ridgeline.bench.outcome import outcome
from ridgeline.bench.plots_bars import MOST_ROWS
from ridgeline.bench.report import report
from ridgeline.bench.report_json import documents_of, read_documents, to_json
from ridgeline.bench.report_schema import Setup
from ridgeline.bench.simulate import simulate
from ridgeline.bench.simulate_report import document
from ridgeline.bench.workloads import OpenLoop
from ridgeline.cli import main


def test_bars_are_the_runs_own_times() -> None:
    load = OpenLoop("<b>&", [job(f"r{i}", 0.01 * i, 20, 3 + 7 * (i % 4)) for i in range(60)])
    runs = []
    for batching in ("static", "continuous"):
        run = simulate(fleet(batching=batching), load)
        runs.append((f"{batching} batching", run, outcome(run, Slo())))
    found = document("t", runs, Setup())
    assert documents_of(json.loads(json.dumps(to_json(found))), "f") == [found]
    for chart, (name, run, result) in zip(found.gantts, runs, strict=True):
        assert chart.title == name and chart.idle == result["slots_idle"] and len(chart.bars) == MOST_ROWS and chart.group == "<b>&"
        for bar, live in zip(chart.bars, run.lives, strict=False):
            assert (bar.name, bar.arrival_s) == (live.job.id, live.job.arrival_s)
            assert (bar.first_s, bar.last_s) == (live.token_s[0], live.token_s[-1])
            assert bar.arrival_s <= bar.admitted_s <= bar.first_s <= bar.last_s
    assert found.gantts[0].idle > found.gantts[1].idle  # type: ignore[operator]
    page = report([found], reported=False).html
    for chart in found.gantts:
        assert f"{chart.idle:.1%} of the sequence slots are idle" in page
    gain = (found.gantts[1].output_tok_s or 0) / (found.gantts[0].output_tok_s or 1)
    assert f"continuous batching makes {gain:.2f}x the tokens per second of static batching." in page and gain > 1
    assert {(d.metric, d.name) for d in found.distributions} >= {("TTFT", "static batching"), ("ITL", "continuous batching")}
    assert "<b>&" not in page and len(re.findall(r"<rect[^>]*><title>r\d+ generates", page)) == 2 * MOST_ROWS


@pytest.mark.parametrize("batching", ["continuous", "both"])
def test_the_command_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str], batching: str) -> None:
    page, result = tmp_path / "s.html", tmp_path / "s.json"
    command = ["simulate", "Llama-3.1-8B", "--device", "H100 SXM 80", "--requests", "20", "--rate", "50/s", "--batching", batching]
    assert main([*command, "--html", str(page), "--json"]) == 0
    result.write_text(capsys.readouterr().out)
    (found,) = read_documents(result)
    assert len(found.gantts) == (2 if batching == "both" else 1) and found.setup.seeds == {"workload": 0}
    assert "Requests in time" in page.read_text()
    assert main(["bench", "report", str(result), "-o", str(tmp_path / "r.html"), "--md", str(tmp_path / "r.md"), "--own-only"]) == 0
    assert "idle" in (tmp_path / "r.md").read_text() and "Gantt" not in (tmp_path / "r.md").read_text().split("##")[0]
    assert main(["bench", "report", str(result)]) == 0
    assert capsys.readouterr().out.startswith("# Llama-3.1-8B on 1 x H100 SXM 80GB, simulated: poisson")


def test_a_run_in_which_nothing_happened() -> None:
    run = simulate(fleet(), OpenLoop("x", []))
    found = document("t", [("continuous batching", run, outcome(run, Slo()))], Setup())
    assert "no request had an answer" in report([found], reported=False).html


@pytest.mark.parametrize("bad", ["nope/r.html", "."])
def test_a_place_that_cannot_be_written(tmp_path: Path, bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = tmp_path / "s.json"
    result.write_text(json.dumps({"kind": "a", "title": "b"}))
    assert main(["bench", "report", str(result), "-o", str(tmp_path / bad)]) == 2
    assert "folder" in capsys.readouterr().err
