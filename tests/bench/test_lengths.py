"""`bench lengths` on a tiny random model: same words with and without the cache, and figures that follow from the rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ridgeline.bench import lengths
from ridgeline.bench.held import held, window_lines
from ridgeline.bench.lengths import LengthOptions, answer_lengths, render, run
from ridgeline.bench.lengths_report import document
from ridgeline.bench.machine_load import CpuTime
from ridgeline.bench.mfu import PromptModel, PromptWork
from ridgeline.bench.random_gguf import SHAPES, write_random
from ridgeline.bench.report_json import documents_of, to_json
from ridgeline.bench.runner import Ids, OneSequence
from ridgeline.errors import UserError
from ridgeline.graph.caches import Paged
from ridgeline.graph.step import Step
from ridgeline.options import Options
from ridgeline.planner.hardware import Machine

MACHINE = Machine("test", 10.0, 100.0, 50.0, 1, "portable", "measured", "2026-01-01T00:00:00+00:00")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lengths") / "tiny.gguf"
    write_random(path, SHAPES["tiny"], "Q8_0")
    return path


def test_rows_fits_and_identity(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 23: decoding without a cache says the same, and its predicted growth is that of the graph's own costs."""
    monkeypatch.setattr(lengths, "machine", lambda threads, isa: MACHINE)
    report = run(LengthOptions(Options(str(model), max_model_len=100, threads=1), (8, 24, 48, 96), repeat=1))
    assert report.identical
    assert [row.tokens for row in report.rows] == [8, 24, 48, 96]
    assert 1.0 <= report.growth_predicted <= 2.0
    last, before = report.rows[-1], report.rows[-2]
    assert report.growth_measured == pytest.approx(np.log(last.uncached_s / before.uncached_s) / np.log(2))
    assert all(row.predicted_uncached_s > row.predicted_ttft_s > row.predicted_cached_s > 0 for row in report.rows)
    assert report.slope.bytes_s == pytest.approx(report.kv_bytes_per_token / 10e9)
    assert all(row.attention_s > 0 for row in report.rows)
    assert report.as_json()["slope"]["kv_bytes"] == pytest.approx(report.kv_bytes_per_token)
    assert "bit for bit" in render(report)
    made = document(report, "1.0")
    assert documents_of(json.loads(json.dumps(to_json(made))), "f") == [made]
    first = {line.name: line.points for line in made.plots[0].lines}
    assert first["measured"] == tuple((row.tokens, pytest.approx(1e3 * row.ttft_s)) for row in report.rows)
    a, b, c = report.ttft_fit
    assert first["fit"][-1][1] == pytest.approx(1e3 * (a + b * 96 + c * 96**2))


def test_whole_answers_and_the_fitted_mfu(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 23: answers were really generated both ways; their predicted growth is one power over that of a token. Row 36: the fit."""
    monkeypatch.setattr(lengths, "machine", lambda threads, isa: MACHINE)
    report = run(LengthOptions(Options(str(model), max_model_len=100, threads=1), (8, 24, 48, 96), repeat=1))
    assert [a.tokens for a in report.answers][:3] == [16, 32, 64]
    assert all(a.uncached_s > 0 and a.predicted_uncached_s > a.predicted_cached_s > 0 for a in report.answers)
    assert 1.5 < report.answer_growth_predicted < 3.0
    long, short = report.answers[-1], report.answers[-2]
    assert report.answer_growth_measured == pytest.approx(np.log(long.uncached_s / short.uncached_s) / np.log(2))
    assert report.prompt_model.mfu > 0 and report.prompt_model.fixed_s >= 0
    assert "MFU" in render(report) and "a whole answer without it: like n^" in render(report)


def test_answers_of_asked_lengths(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "machine", lambda threads, isa: MACHINE)
    report = run(LengthOptions(Options(str(model), max_model_len=100, threads=1), (8, 24, 48), repeat=1, answers=(4, 12)))
    assert [a.tokens for a in report.answers] == [4, 12]
    for wrong in ((5,), (5, 5), (0, 3)):
        with pytest.raises(UserError, match="at least two rising"):
            LengthOptions(Options("m"), (8, 24, 48), answers=wrong)


def test_the_mfu_of_known_times_is_found() -> None:
    """Row 36: TTFT = FLOPs / (peak x MFU) + fixed + queue, its constants from measurements."""
    works = [PromptWork(n * 10**9, n * 1e-3) for n in (1, 4, 16, 64)]
    found = PromptModel.to(works, [0.002 + w.at_peak_s / 0.4 for w in works])
    assert found.mfu == pytest.approx(0.4) and found.fixed_s == pytest.approx(0.002) and found.worst < 1e-9
    assert found.peak_gflop_s == pytest.approx(1000) and found.seconds(works[1], queue_s=1.0) == pytest.approx(1.012)
    batch, each = found.together(works[1], 4)  # small batches of prompts help TTFT: 4 as one wait for all of it, else 2.5 in the mean
    assert batch == pytest.approx(0.002 + 4 * 0.01) and each == pytest.approx(2.5 * 0.012)
    assert "over 100%" not in str(found) and "over 100%" in str(replace(found, mfu=1.2))
    # Prompts that get dearer per token as they grow: no negative time is fitted.
    bent = PromptModel.to(works, [w.at_peak_s**1.3 for w in works])
    assert bent.fixed_s == 0 and bent.worst > 0.1


@pytest.mark.parametrize(
    ("most", "token_s", "asked"),
    [(96, 1e-6, (16, 32, 64)), (4096, 1.0, (16, 32, 64)), (4096, 0.7e-3, (16, 32, 64, 128)), (20, 1.0, (5, 10, 20)), (3, 1.0, (1, 2))],
)
def test_answers_stop_where_they_would_take_long(most: int, token_s: float, asked: tuple[int, ...]) -> None:
    assert answer_lengths(most, token_s) == asked


def test_window_layers_stop_holding_more() -> None:
    """Row 55: beyond W a sequence's blocks stay as many; full layers go on. The allocator's own count is asked at every length."""
    caches = [Paged("a", 1, 64, 64, 8), Paged("b", 2, 64, 64, None), Paged("c", 1, 64, 64, 8)]
    full, window = held(caches, "bf16", 4, (4, 8, 16, 64, 256))
    assert (full.window, full.layers, full.blocks) == (None, 1, (1, 2, 4, 16, 64))
    assert (window.window, window.layers, window.block_bytes) == (8, 2, 2 * 4 * 2 * 64 * 2)
    # Seven keys behind and one's own lie in two blocks of four, or in three; what lies behind goes when a block is taken.
    assert window.blocks == (1, 2, 3, 3, 3) and window.most == 3 and window.bytes[-1] == window.bytes[2] == 3 * window.block_bytes
    (line,) = window_lines((full, window), (4, 8, 16, 64, 256), 4)
    assert "2 layers with a window of 8" in line and "stay at 3 blocks" in line
    assert "GROW" in window_lines((replace(window, most=9),), (4, 8, 16, 64, 256), 4)[0]
    assert "not passed" in window_lines(held(caches, "bf16", 4, (1, 2, 8)), (1, 2, 8), 4)[0]


@pytest.mark.parametrize(("share", "said"), [(0.04, False), (0.5, True)])
def test_times_beside_other_work_say_so(model: Path, monkeypatch: pytest.MonkeyPatch, share: float, said: bool) -> None:
    """On the terminal and in the report: half of the CPUs gone makes every slope and share of the roof another one."""
    seconds = iter(range(100))

    def at() -> CpuTime:
        now = float(next(seconds))
        return CpuTime(now, 0.0, now * share, 0.0)

    monkeypatch.setattr(lengths, "machine", lambda threads, isa: MACHINE)
    monkeypatch.setattr(lengths, "cpu_time", at)
    report = run(LengthOptions(Options(str(model), max_model_len=100, threads=1), (8, 24, 48), repeat=1))
    assert report.taken == pytest.approx(share)
    notes = document(report, "1.0").notes
    for text in (render(report), "\n".join(notes)):
        assert ("not to be relied on: others had 50% of the CPUs" in text) == said


def test_broken_cache_is_noticed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that answers from another position must not pass for identical."""
    monkeypatch.setattr(lengths, "machine", lambda threads, isa: MACHINE)
    real = OneSequence.step

    def late(self: OneSequence, past: int, tokens: Ids, want: int) -> Step:
        return real(self, max(0, past - 1) if len(tokens) == 1 else past, tokens, want)

    monkeypatch.setattr(OneSequence, "step", late)
    assert not run(LengthOptions(Options(str(model), max_model_len=100, threads=1), (8, 24, 48), repeat=1)).identical


@pytest.mark.parametrize("asked", [(64, 32, 128), (64, 64, 128), (64, 128), (0, 4, 8)])
def test_lengths_must_rise(asked: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="at least three rising"):
        LengthOptions(Options("smollm2"), asked)
