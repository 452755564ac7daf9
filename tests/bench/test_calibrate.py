"""Calibration end to end, with layers so small that it takes a second: everything positive, kept, joined, and used by plans."""

from __future__ import annotations

import json
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
from tests.cli.tiny_gguf import tiny_gguf

import ridgeline.bench.calibrate as calibrate
from ridgeline.backends.cpu.program import choose_isa
from ridgeline.cli import main
from ridgeline.planner.calibration import Calibration
from ridgeline.planner.hardware import Machine


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
    for name, value in (("DIM", 256), ("FFN", 512), ("SMALL", 256), ("BYTES_READ", 1 << 18), ("ROWS", (1, 4, 16)),
                        ("CONTEXTS", (16, 64)), ("CHUNKS", ((0, 32), (96, 32), (112, 16)))):  # fmt: skip
        monkeypatch.setattr(calibrate, name, value)
    machine = Machine("here", 10.0, 100.0, 50.0, 1, "avx2", "measured", "2026-11-30")
    monkeypatch.setattr(calibrate, "probe", lambda threads, seconds: replace(machine, isa=choose_isa(None)))
    monkeypatch.setattr(calibrate, "read_speeds", lambda threads, sets, seconds: {str(mb): 10.0 for mb in sets})


def measured(*formats: str, seconds: float = 0.5) -> Calibration:
    return calibrate.calibrate(1, formats, seconds)


def test_everything_is_measured_and_kept() -> None:
    found = measured("Q4_0", "F32", "no such format")
    assert set(found.linear_s) <= {"Q4_0", "F32"} and "Q4_0" in found.linear_s and found.rows == (1, 4, 16)
    assert all(value > 0 for values in found.linear_s.values() for value in values)
    assert min(found.op_s, *found.value_s, found.decode.key_head_s, found.sample_row_s, found.sample_value_s) > 0
    assert found.step_s > 0 and found.sequence_s > 0 and found.decode.key_kv_s >= 0
    assert max(astuple(found.chunk)) > 0 and min(astuple(found.chunk)) >= 0
    assert set(found.linear_op_s) == set(found.linear_s) and min(min(v) for v in found.linear_op_s.values()) >= 0
    assert set(found.read_gb_s) == {"1"} and set(found.read_gb_s["1"]) == {"8", "64", "512"}
    floats = found.float_decode, found.float_chunk
    assert all(f is not None and max(astuple(f)) > 0 for f in floats) if found.isa == "avx512_bf16" else floats == (None, None)
    assert calibrate.load_calibration(1, found.isa) == found
    assert calibrate.load_calibration(3, found.isa) is None


def test_costs_are_solved_for_and_never_negative() -> None:
    work = np.array([[4.0, 1.0, 1.0], [10.0, 2.0, 5.0], [2.0, 3.0, 7.0]])
    assert calibrate._positive(work, work @ [1.0, 2.0, 3.0]) == pytest.approx([1.0, 2.0, 3.0])
    found = calibrate._positive(work, work @ [1.0, -0.3, 0.5])
    assert found[1] == 0.0 and found[0] > 0 and found[2] > 0


def test_one_run_alone_decides_nothing() -> None:
    assert calibrate.settled([5.0, 1.0, 2.0, 9.0]) == 2.0 and calibrate.settled([3.0]) == 3.0


def test_formats_join_those_that_are_known() -> None:
    first = measured("Q8_0")
    second = measured("F16")
    kept = calibrate.load_calibration(1, second.isa)
    assert kept is not None and set(kept.linear_s) == {"Q8_0", "F16"} and kept.linear_s["Q8_0"] == first.linear_s["Q8_0"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"x": 1}'])
def test_a_broken_file_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    found = measured("Q4_0")
    (tmp_path / "cache" / calibrate.FILE).write_text(text)
    assert calibrate.load_calibration(1, found.isa) is None
    measured("Q4_0")
    assert calibrate.load_calibration(1, found.isa) is not None


def test_the_command_and_the_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine("here", 10.0, 100.0, 50.0, 1, "avx2", "measured", "2026-11-30")
    monkeypatch.setattr("ridgeline.bench.probe.machine", lambda threads: machine)
    model = str(tiny_gguf(tmp_path / "tiny.gguf"))
    assert main(["calibrate", model, "--threads", "1", "--seconds", "0.5s", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["linear_s"] and found["threads"] == 1
    assert main(["plan", model, "--this-host", "--threads", "1", "--context", "32", "--batch", "2", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["labels"]["step_time_ms"].startswith("fitted") and plan["step_time_ms"] > 0
    assert main(["calibrate", "--seconds", "1h"]) == 2
    assert "--seconds is 3600" in capsys.readouterr().err
