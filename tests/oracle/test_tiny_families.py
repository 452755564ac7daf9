"""Each family on tiny random checkpoints: the reference backend equals `transformers` at every position, and so does the GGUF twin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the oracle extra is not installed")
pytest.importorskip("transformers", reason="the oracle extra is not installed")

from tests.oracle.checkpoints import KINDS, expected, make_model, ours, round_to_q8_0, tokens_for, write_gguf

pytestmark = pytest.mark.oracle
LIMIT = 1e-4


@pytest.mark.parametrize("name", KINDS)
def test_safetensors(name: str, tmp_path: Path, record_property: pytest.RecordProperty) -> None:
    kind = KINDS[name]
    model, tokens = make_model(kind), tokens_for(kind)
    model.save_pretrained(tmp_path)
    logits, _ = ours(tmp_path, tokens)
    want = expected(model, tokens)
    worst = float(np.abs(logits - want).max())
    record_property("worst", worst)
    print(f"{name}: max abs difference {worst:.2e}, logits std {want.std():.2f}")
    assert want.std() > 0.3
    assert worst < LIMIT


@pytest.mark.parametrize("quantize", [False, True], ids=["f32", "q8_0"])
@pytest.mark.parametrize("name", [n for n, k in KINDS.items() if k.gguf])
def test_gguf_twin(name: str, quantize: bool, tmp_path: Path) -> None:
    kind = KINDS[name]
    model, tokens = make_model(kind), tokens_for(kind)
    write_gguf(model, kind, tmp_path / "twin.gguf", quantize)
    if quantize:
        round_to_q8_0(model)
    logits, _ = ours(tmp_path / "twin.gguf", tokens)
    worst = float(np.abs(logits - expected(model, tokens)).max())
    print(f"{name} gguf {'q8_0' if quantize else 'f32'}: max abs difference {worst:.2e}")
    assert worst < LIMIT
