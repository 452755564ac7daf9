"""Every family and every encoding makes a legal graph whose reference forward is finite and spread out."""

from __future__ import annotations

import numpy as np
import pytest
from tests.models.tiny import FAMILIES, tiny
from tests.reference.running import run_whole

from ridgeline.encodings import ENCODINGS
from ridgeline.graph.verify import verify
from ridgeline.quant.decode import decode_tensor

TOKENS = np.random.default_rng(1).integers(0, 199, 24).astype(np.int32)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_runs(family: str) -> None:
    graph, tensors = tiny(family)
    verify(graph)
    logits = run_whole(graph, tensors, TOKENS).logits()
    assert logits.shape == (24, 199)
    assert np.isfinite(logits).all()
    assert 0.1 < logits.std() < 30


@pytest.mark.parametrize("encoding", [e.name for e in ENCODINGS])
def test_each_encoding_has_sane_weights(encoding: str) -> None:
    graph, tensors = tiny("llama", encoding=encoding)
    weight = decode_tensor(tensors["layers.0.q"])
    assert tensors["layers.0.q"].encoding.name == encoding
    assert 0.5 < weight.std() * weight.shape[1] ** 0.5 < 2
    assert abs(weight.mean()) < 0.3 * weight.std()
    assert np.isfinite(run_whole(graph, tensors, TOKENS).logits()).all()


def test_same_seed_same_model() -> None:
    one, two, other = tiny("qwen3", 3)[1], tiny("qwen3", 3)[1], tiny("qwen3", 4)[1]
    assert all(np.array_equal(one[n].data, two[n].data) for n in one)
    assert not np.array_equal(one["embed"].data, other["embed"].data)
