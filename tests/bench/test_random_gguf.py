"""Random model files: every encoding decodes to finite numbers of the promised spread, and the file runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ridgeline.bench.micro import MicroOptions
from ridgeline.bench.random_gguf import MIXES, SHAPES, main, write_random
from ridgeline.bench.runner import OneSequence, random_tokens
from ridgeline.encodings import BY_NAME
from ridgeline.engine.loader import load_program, open_model
from ridgeline.options import Options
from ridgeline.planner.cost import parameters

gguf = pytest.importorskip("gguf")


@pytest.mark.parametrize("mix", MIXES)
def test_weights_have_the_promised_spread(tmp_path: Path, mix: str) -> None:
    path = tmp_path / "m.gguf"
    size = write_random(path, SHAPES["tiny"], mix, seed=3)
    assert size == path.stat().st_size
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.n_elements < 100_000:
            continue
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert np.isfinite(values).all()
        assert values.std() == pytest.approx(values.shape[-1] ** -0.5, rel=0.25), (tensor.name, tensor.tensor_type)
        assert abs(values.mean()) < 0.15 * values.std()  # codes 0..15 less 8 are half a step off centre


def test_q4_k_m_is_a_mixture(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_random(path, SHAPES["tiny"], "Q4_K_M")
    kinds = {t.name: t.tensor_type.name for t in gguf.GGUFReader(path).tensors}
    assert kinds["token_embd.weight"] == "Q6_K"
    assert kinds["blk.0.attn_q.weight"] == "Q4_K"
    assert set(kinds.values()) == {"F32", "Q4_K", "Q6_K"}


def test_the_1b_shape_has_the_size_of_the_target_table() -> None:
    """630, 667 and 1141 MB: embedding in Q6_K, half of the layers richer in Q4_K_M."""
    s = SHAPES["1b"]
    kv = s.kv_dim * s.dim
    down = s.dim * s.ffn
    layers, table = s.layers * (2 * s.dim * s.dim + 2 * kv + 3 * down), s.vocab * s.dim
    four, six, eight = (BY_NAME[n].block_bytes / BY_NAME[n].block_size for n in ("Q4_0", "Q6_K", "Q8_0"))
    assert (layers * four + table * six) / 1e6 == pytest.approx(630, abs=1)
    assert (layers * four + s.layers // 2 * (down + kv) * (six - four) + table * six) / 1e6 == pytest.approx(667, abs=1)
    assert (layers + table) * eight / 1e6 == pytest.approx(1141, abs=1)


@pytest.mark.parametrize("mix", ["Q4_0", "Q4_K_M", "Q8_0", "F16"])
def test_the_engine_runs_it(tmp_path: Path, mix: str) -> None:
    path = tmp_path / "m.gguf"
    assert main([str(path), "--shape", "tiny", "--encoding", mix]) == 0
    model = open_model(Options(str(path), max_model_len=64, threads=1))
    assert parameters(model.spec.graph) == sum(t.n_elements for t in gguf.GGUFReader(path).tensors)
    program = load_program(model)
    sequence = OneSequence(program)
    assert sequence.prompt_seconds(random_tokens(40, 512), 16) > 0
    logits = program.logits()
    assert logits.shape == (1, 512)
    assert np.isfinite(logits).all()
    assert 0.1 < logits.std() < 10


def test_lengths_are_checked() -> None:
    with pytest.raises(Exception, match="--gen is 0"):
        MicroOptions(Options("x"), gen=0)
