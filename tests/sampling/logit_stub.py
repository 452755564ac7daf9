"""Rows of given logits inside the native backend, and random rows and requests to draw from."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline.backends import cpu
from ridgeline.backends.base import LoadPlan
from ridgeline.encodings import F32
from ridgeline.formats.tensors import Tensor
from ridgeline.graph.graph import Graph
from ridgeline.graph.ops import Embed, SelectRows
from ridgeline.graph.step import Span, Step
from ridgeline.sampling.plan import Sampled, SamplePlan, SampleRow

Rows = npt.NDArray[np.float32]


class NativeLogits:
    """A program without layers: its "model" is a table whose row t is what token t answers, so row i of the logits is row i here."""

    def __init__(self, rows: Rows, threads: int = 2) -> None:
        count, width = rows.shape
        graph = Graph("stub", (Embed("row", "table", count, width), SelectRows("logits", "row")), (), {"logits": "logits"})
        table = Tensor("table", rows.shape, F32, np.ascontiguousarray(rows, np.float32).view(np.uint8))
        self.program = cpu.load(graph, {"table": table}, LoadPlan((), threads=threads))
        self.program.forward(Step((Span(0, 0, count, count),), np.arange(count, dtype=np.int32), ()))

    def sample(self, plan: SamplePlan) -> Sampled:
        return self.program.sample(plan)


def assert_same(a: Sampled, b: Sampled, hint: object = "") -> None:
    """Every bit, NaN for NaN."""
    np.testing.assert_array_equal(a.tokens, b.tokens, str(hint))
    np.testing.assert_array_equal(a.failed, b.failed, str(hint))
    np.testing.assert_array_equal(a.logprobs, b.logprobs, str(hint))
    assert len(a.top) == len(b.top)
    for x, y in zip(a.top, b.top, strict=True):
        assert (x is None) == (y is None), hint
        if x is not None and y is not None:
            np.testing.assert_array_equal(x.ids, y.ids, str(hint))
            np.testing.assert_array_equal(x.values, y.values, str(hint))


def random_logits(rng: np.random.Generator, count: int, width: int) -> Rows:
    """Smooth, tied, peaked, masked, huge or broken rows."""
    rows = (rng.standard_normal((count, width)) * rng.choice([0, 0.01, 1, 3, 10, 100])).astype(np.float32)
    kind = rng.random()
    if kind < 0.3:
        rows = np.round(rows)
    elif kind < 0.4:
        rows = np.clip(rows.astype(np.float64) * 1e36, -3e38, 3e38).astype(np.float32)
    elif kind < 0.5:
        rows[:, rng.integers(0, width)] += 50
    elif kind < 0.6:
        rows[rng.random(rows.shape) < 0.3] = -np.inf
    if rng.random() < 0.1:
        rows[rng.integers(0, count), rng.integers(0, width)] = rng.choice([np.nan, np.inf])
    return rows


def random_row(rng: np.random.Generator, row: int, vocab: int) -> SampleRow:
    """Any mixture of settings, ids outside the vocabulary included."""

    def ids(most: int) -> npt.NDArray[np.int32]:
        return rng.integers(-2, vocab + 3, int(rng.integers(0, most))).astype(np.int32)

    def sometimes(chance: float) -> bool:
        return bool(rng.random() < chance)

    given: dict[str, Any] = {"temperature": float(rng.choice([0, 5e-324, 1e-7, 1e-4, 0.3, 0.8, 1, 1, 2, 50, 1e6]))}
    if sometimes(0.5):
        given["top_k"] = int(rng.choice([-1, 0, 1, 2, 5, 40, 1000, max(1, vocab - 1), vocab, 10**9]))
    if sometimes(0.5):
        given["top_p"] = float(rng.choice([1e-9, 0.1, 0.5, 0.9, 0.95, 0.999999, 1]))
    for name, low, high in (("min_p", 0, 1), ("repetition_penalty", 0.1, 3), ("presence_penalty", -2, 2), ("frequency_penalty", -2, 2)):
        if sometimes(0.3):
            given[name] = float(rng.uniform(low, high))
    if sometimes(0.05):
        given["repetition_penalty"] = float(rng.choice([1e-45, 1e-30, 1e6]))
    for name in ("prompt_ids", "output_ids"):
        if sometimes(0.5):
            given[name] = ids(100)
    if sometimes(0.2):
        given["bias_ids"] = ids(20)
        given["bias_values"] = rng.uniform(-100, 100, len(given["bias_ids"])).astype(np.float32)
    if sometimes(0.2):
        words = (vocab + 31) // 32 - int(sometimes(0.2))
        given["allowed"] = rng.integers(0, 2**32, words, np.uint32) & rng.integers(0, 2**32, words, np.uint32)
    if sometimes(0.5):
        given["logprobs"] = int(rng.choice([0, 1, 5, 20, vocab + 5]))
    if sometimes(0.15):
        given["given"] = int(rng.integers(-2, vocab + 2))
    seed, choice, position = int(rng.integers(-(2**63), 2**63 - 1)), int(rng.integers(0, 5)), int(rng.integers(0, 10000))
    return SampleRow(row, seed=seed, choice=choice, position=position, **given)
