"""Real models: the CPU backend is no further from the float32 reference than llama.cpp is, on the same tokens of a frozen text.

llama.cpp's figures were recorded once (PEERS below). `ridgeline bench accuracy MODEL --text FILE` walks any text.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ridgeline.backends.cpu.native._native", reason="the native backend is not built")

from ridgeline.bench.accuracy import AccuracyOptions, Divergence, run
from ridgeline.formats.pull import find_cached
from ridgeline.options import Options
from ridgeline.types import KvDtype

pytestmark = pytest.mark.real_model
TEXT = Path(__file__).parent / "accuracy_text.txt"  # licence, prose, tables and Python, 14,712 characters, never to change
WINDOW = 1024
# (model, positions) -> (mean KL in nats, share of equal likeliest tokens) of llama.cpp with an f16 KV cache: build of 2026-11 with native
# flags (AVX-512), logits of the same ids through its C API, default repacking and flash attention, against this reference backend.
PEERS: dict[tuple[str, int], tuple[float, float]] = {
    ("smollm2", 320): (5.64e-3, 0.9625),
    ("smollm2", 2048): (3.50e-3, 0.9639),
    ("gemma3-270m", 1024): (5.42e-3, 0.9473),
}
CASES = [pytest.param(*case, marks=pytest.mark.long) if case[1] > 1024 else case for case in PEERS]


def measured(model: str, positions: int, dtypes: tuple[KvDtype, ...]) -> tuple[float, tuple[Divergence, ...]]:
    if find_cached(model) is None:
        pytest.skip(f"{model} is not in the cache: ridgeline pull {model}")
    report = run(AccuracyOptions(Options(model), TEXT, positions, WINDOW, dtypes))
    assert report.positions == positions
    return report.ppl, report.engines


@pytest.mark.parametrize(("model", "positions"), CASES)
def test_no_further_from_the_reference_than_the_peer(model: str, positions: int) -> None:
    """With the default KV dtype. Perplexity has a standard error of about sqrt(2 KL / positions): fewer positions say nothing of 0.5%."""
    ppl, (found,) = measured(model, positions, ("bf16",))
    kl, top1 = PEERS[model, positions]
    assert 0 < found.kl_mean <= kl, found
    assert found.top1 >= top1 - 3 / positions, found  # near ties: three positions either way say nothing
    assert abs(found.ppl / ppl - 1) <= 0.005, found
