"""Predicted against measured, on a model so small that it takes a second: written first, measured after, resumed, judged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.clock.test_clock import clock_program, engine
from tests.engine.fakes import ByteWords

import ridgeline.bench.calibrate as calibrate
import ridgeline.bench.predict as predict
from ridgeline.backends.cpu.program import choose_isa
from ridgeline.bench.drive import Driven, drive
from ridgeline.bench.machine_load import CpuTime, cpu_time
from ridgeline.bench.random_gguf import SHAPES, write_random
from ridgeline.bench.workloads import ClosedLoop, Job, Lengths, OpenLoop, Tokens
from ridgeline.cli import main
from ridgeline.errors import FileFormatError, UserError
from ridgeline.options import Options
from ridgeline.planner.hardware import Machine
from ridgeline.scheduler.budget import Budget


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A tiny file on a host that was calibrated with tiny layers."""
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
    for name, value in (
        ("DIM", 256), ("FFN", 512), ("SMALL", 256), ("BYTES_READ", 1 << 18), ("ROWS", (1, 16, 64)), ("CONTEXTS", (16, 64)),
        ("CHUNKS", ((0, 32), (96, 32), (112, 16))),
    ):  # fmt: skip
        monkeypatch.setattr(calibrate, name, value)
    machine = Machine("here", 10.0, 100.0, 50.0, 1, choose_isa(None), "measured", "2026-11-30")
    monkeypatch.setattr(calibrate, "probe", lambda threads, seconds: machine)
    monkeypatch.setattr(calibrate, "read_speeds", lambda threads, sets, seconds: {str(mb): 10.0 for mb in sets})
    calibrate.calibrate(1, ("Q4_0", "Q6_K"), 0.5)
    path = tmp_path / "tiny.gguf"
    write_random(path, SHAPES["tiny"], "Q4_0")
    yield str(path)


def asked(model: str, file: Path, **more: Any) -> predict.PredictOptions:
    options = Options(model, max_model_len=64, threads=1, max_num_seqs=4)
    return replace(predict.PredictOptions(options, file, (16,), (1, 4), 8, 1, 0.05), **more)


# --- the engine in real and in virtual time -----------------------------------------------------------------------------------------


def on_a_clock(workload: Any, seconds: float = 0.25) -> Driven:
    program = clock_program(lambda spans, shared: seconds, (64,))
    core = engine(program, Budget(tokens=64, sequences=4, itl_slack=None), 256, clock=program.read)

    def sleep(for_s: float) -> None:
        program.now += for_s

    return drive(core, ByteWords(), workload, sleep)


def test_times_of_an_open_loop() -> None:
    """Each step takes a quarter of a second: a first token after one, and the second request comes while nothing runs."""
    tokens = Tokens(0)
    done = on_a_clock(OpenLoop("x", [Job("a", 0.0, tokens.fresh(8), 3), Job("b", 5.0, tokens.fresh(8), 2)]))
    a, b = done.lives
    assert a.token_s == [0.25, 0.5, 0.75] and a.end_s == 0.75 and a.reason == "length"
    assert b.token_s == [5.25, 5.5] and b.admitted_s == 5.0 and done.seconds == 5.5 and done.steps == 5


def test_a_closed_loop_goes_on_when_an_answer_ends() -> None:
    done = on_a_clock(ClosedLoop(6, 2, Lengths(8, 2)))
    assert len(done.lives) == 6 and [live.job.arrival_s for live in done.lives] == [0.0, 0.0, 0.5, 0.5, 1.0, 1.0]
    assert all(len(live.token_s) == 2 for live in done.lives)


# --- the file ---------------------------------------------------------------------------------------------------------------------


def test_predictions_are_written_before_anything_is_measured(model: str, tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    document = predict.run(asked(model, file, measure_s=0.0))
    assert json.loads(file.read_text()) == document
    found = document["models"]["tiny.gguf"]
    loads = [predict.Cell(**c["cell"]).load for c in found["cells"]]
    assert loads[:2] == ["1 users", "4 users"] and loads[2].endswith("/s") and found["written"] and found["calibrated"]
    half = found["cells"][2]["cell"]["rate"] * 8
    assert half == pytest.approx(max(c["predicted"]["throughput_tok_s"] for c in found["cells"][:2]) / 2)
    for cell in found["cells"]:
        assert cell["measured"] == [] and all(cell["predicted"][m] > 0 for m in predict.METRICS)
    assert predict.summary(document) == {m: {} for m in predict.METRICS}


def test_measuring_goes_on_where_it_stopped_and_changes_no_prediction(model: str, tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    first = predict.run(asked(model, file, measure_s=0.0))["models"]["tiny.gguf"]
    assert predict.run(asked(model, file, measure_s=0.5))["models"]["tiny.gguf"]["written"] == first["written"]  # no time for any cell
    document = predict.run(asked(model, file))
    second = document["models"]["tiny.gguf"]
    assert [c["predicted"] for c in second["cells"]] == [c["predicted"] for c in first["cells"]]
    for cell in second["cells"]:
        assert cell["measured"] and all(m["throughput_tok_s"] > 0 and 0 <= m["steal"] <= 1 for m in cell["measured"])
        rounds = len([m for m in cell["measured"] if not predict.disturbed(m)])
        assert rounds <= 1 and len(cell["measured"]) <= 1 + predict.MOST_TRIES
    assert len(predict.rows(document)) == 3 and all(len(r) == len(predict.HEADER) for r in predict.rows(document))
    assert predict.summary(document)["tpot_ms"]["cells"] == 3


def test_a_file_of_other_predictions_is_refused(model: str, tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    predict.run(asked(model, file, measure_s=0.0))
    kept = file.read_text()
    for name, more in {"--prompt": {"prompts": (16, 24)}, "--users": {"users": (4,)}, "--output": {"output": 4}}.items():
        with pytest.raises(UserError, match=f"predicted with another {name}"):
            predict.run(asked(model, file, **more))
    with pytest.raises(UserError, match="another --kv-cache-dtype: bf16, now it is f32"):
        predict.run(asked(model, file, options=Options(model, max_model_len=64, threads=1, max_num_seqs=4, kv_cache_dtype="f32")))
    assert file.read_text() == kept


def entry(*runs: tuple[float, float]) -> dict[str, Any]:
    """A cell predicted at 10 tok/s and measured at (tok/s, share that others had)."""
    return {"predicted": {"throughput_tok_s": 10.0}, "measured": [{"throughput_tok_s": v, "steal": 0.0, "others": o} for v, o in runs]}


def test_disturbed_runs_do_not_count_beside_undisturbed_ones() -> None:
    assert predict.measured(entry((8.0, 0.0), (2.0, 0.5)), "throughput_tok_s") == 8.0
    assert predict.measured(entry((2.0, 0.5), (4.0, 0.5)), "throughput_tok_s") == 3.0
    assert predict.error(entry((8.0, 0.0)), "throughput_tok_s") == pytest.approx(0.25)
    assert predict._missing(entry((8.0, 0.0)), 1) == 0 and predict._missing(entry((2.0, 0.5)), 1) == 1
    assert predict._missing(entry(*[(2.0, 0.5)] * 5), 1) == 0


def test_others_and_steal_are_shares_of_all_processors(tmp_path: Path) -> None:
    before, after = CpuTime(100.0, 1.0, 50.0, 40.0), CpuTime(120.0, 2.0, 66.0, 50.0)
    assert (after - before).steal == pytest.approx(0.05) and (after - before).others == pytest.approx(0.3)
    stat = tmp_path / "stat"
    stat.write_text("cpu 100 100 100 100 0 0 0 100 0 0\n")
    assert cpu_time(stat).stolen * 5 == pytest.approx(cpu_time(stat).total)
    stat.write_text("garbage")
    assert cpu_time(stat).total == 0.0 and cpu_time(tmp_path / "none").steal == 0.0


# --- what is refused ----------------------------------------------------------------------------------------------------------------


def test_a_host_without_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path))
    path = tmp_path / "tiny.gguf"
    write_random(path, SHAPES["tiny"], "Q4_0")
    assert main(["bench", "predict", str(path), "--file", str(tmp_path / "p.json")]) == 2
    assert "run `ridgeline calibrate MODEL` first" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{", "[]", '{"models": 3}'])
def test_files_of_something_else(model: str, tmp_path: Path, text: str) -> None:
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(FileFormatError):
        predict.run(asked(model, tmp_path / "p.json"))


@pytest.mark.parametrize("more", [{"prompts": (0,)}, {"users": (-1,)}, {"output": 0}, {"repeat": 0}, {"prompts": ()}])
def test_loads_that_cannot_be(tmp_path: Path, more: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        asked("m", tmp_path / "p.json", **more)


def test_the_command_and_the_simulated_host(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`bench predict` and `simulate --this-host` on the same calibration."""
    args = ["--file", str(tmp_path / "p.json"), "--prompt", "16", "--users", "2", "--output", "8", "--threads", "1", "--cell", "20ms"]
    assert main(["bench", "predict", model, *args, "--predict-only"]) == 0
    assert "predicted" in capsys.readouterr().out
    assert main(["bench", "predict", model, *args, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["tpot_ms"]["cells"] == 2
    load = ["--workload", "closed", "--users", "2", "--requests", "6", "--prompt", "16", "--output", "8", "--spread", "0"]
    assert main(["simulate", model, "--this-host", "--threads", "1", *load, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["labels"]["times"].startswith("fitted") and found["completed"] == 6
    assert main(["simulate", model, *load]) == 2
    assert "nothing to simulate on" in capsys.readouterr().err
