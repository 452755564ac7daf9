"""`bench batches` on a tiny model: the formula's curve and the measured one, and the batch that each would choose."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.tiny_gguf import tiny_gguf

from ridgeline.bench.batches import BatchesOptions, best, late, render, run
from ridgeline.bench.batches_report import document
from ridgeline.bench.report import report
from ridgeline.bench.report_json import documents_of, to_json
from ridgeline.errors import UserError
from ridgeline.options import Options


def test_measured_beside_the_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 162: both curves, the promise, the best batch, in one figure."""
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
    options = Options(str(tiny_gguf(tmp_path / "tiny.gguf", **{"llama.context_length": 256})), max_num_seqs=4, threads=1)
    found = run(BatchesOptions(options, (1, 2, 4), context=48, itl_s=60.0, repeat=1))
    assert [r.batch for r in found.rows] == [1, 2, 4] and all(r.measured_s > 0 < r.formula_s for r in found.rows)
    assert found.formula.startswith("predicted: the roofline") and found.rows[2].formula_s > found.rows[0].formula_s
    assert found.best_measured == found.best_formula == 4
    assert render(found).count("best measured") == 1 and "best by the formula" in render(found)
    assert json.loads(json.dumps(found.as_json()))["rows"][1]["error"] == pytest.approx(found.rows[1].error)
    made = document(found, "1.0")
    assert documents_of(json.loads(json.dumps(to_json(made))), "f") == [made]
    page = report([made], reported=False).html
    assert "time per token against requests at once" in page and "best: 4" in page and "SLO 60,000 ms" in page.replace("60000", "60,000")


def test_the_best_batch() -> None:
    """The last under the promise; without one the smallest with nine tenths of the best throughput."""
    steps = [(1, 0.010), (2, 0.011), (4, 0.013), (8, 0.025), (16, 0.050)]
    assert (best(steps, 0.013), best(steps, 0.012), best(steps, 0.001)) == (4, 2, None)
    assert best(steps, None) == 4 and best(steps[:2], None) == 2


def test_all_decode_together_long_enough() -> None:
    """Steps until the last prompt is read: what others have decoded by then."""
    assert late(1, 128, 512) == 2 and late(32, 128, 512) == 10 and late(256, 10, 256) == 2561


@pytest.mark.parametrize("given", [{"batches": (4, 2)}, {"batches": (0, 1)}, {"batches": ()}, {"context": 3}, {"repeat": 0}])
def test_what_cannot_be_measured(given: dict[str, object]) -> None:
    with pytest.raises(UserError, match="--"):
        BatchesOptions(Options("m"), **{"batches": (1, 2), **given})  # type: ignore[arg-type]
