"""`bench lengths` on a tiny random model: same words with and without the cache, and figures that follow from the rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ridgeline.bench import lengths
from ridgeline.bench.lengths import LengthOptions, render, run
from ridgeline.bench.lengths_report import document
from ridgeline.bench.random_gguf import SHAPES, write_random
from ridgeline.bench.report_json import documents_of, to_json
from ridgeline.bench.runner import Ids, OneSequence
from ridgeline.errors import UserError
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
    assert report.slope_predicted_s == pytest.approx(report.kv_bytes_per_token / 10e9)
    assert "bit for bit" in render(report)
    made = document(report, "1.0")
    assert documents_of(json.loads(json.dumps(to_json(made))), "f") == [made]
    first = {line.name: line.points for line in made.plots[0].lines}
    assert first["measured"] == tuple((row.tokens, pytest.approx(1e3 * row.ttft_s)) for row in report.rows)
    a, b, c = report.ttft_fit
    assert first["fit"][-1][1] == pytest.approx(1e3 * (a + b * 96 + c * 96**2))


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
