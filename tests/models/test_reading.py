"""Reading checkpoints: both containers give the same model; tied heads, row order, norms, fused tensors; what is left over is refused."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.models.encode import random_matrix, vector
from tests.models.memory import GGUF_EXTRA, HF_EXTRA, Memory, gguf, hf, interleave, model
from tests.reference.running import run_whole

from ridgeline.errors import FileFormatError, UnsupportedError
from ridgeline.graph.ops import Attend, Rope
from ridgeline.models.registry import build, load_spec
from ridgeline.models.store import half_split_order
from ridgeline.quant.decode import decode_tensor

TOKENS = np.random.default_rng(4).integers(0, 199, 60).astype(np.int32)
RNG = np.random.default_rng(9)


def logits(checkpoint: Memory) -> np.ndarray[Any, np.dtype[np.float32]]:
    spec = load_spec(checkpoint)
    return run_whole(spec.graph, spec.tensors, TOKENS).logits()


@pytest.mark.parametrize("family", HF_EXTRA)
def test_hugging_face_names_and_keys_give_the_same_model(family: str) -> None:
    config, tensors = model(family)
    spec = load_spec(hf(family, tensors))
    assert spec.graph.ops == build(config).ops
    assert spec.graph.caches == build(config).caches
    want = run_whole(build(config), tensors, TOKENS).logits()
    assert np.abs(run_whole(spec.graph, spec.tensors, TOKENS).logits() - want).max() < 1e-5


@pytest.mark.parametrize("family", GGUF_EXTRA)
@pytest.mark.parametrize("encoding", ["F32", "F16", "Q8_0"])
def test_gguf_names_and_keys_give_the_same_model(family: str, encoding: str) -> None:
    """AR-07: q and k rows of the llama architecture come back in half-split order; whole rows are moved, no byte changes."""
    config, tensors = model(family, encoding)
    spec = load_spec(gguf(family, tensors))
    assert spec.graph.ops == build(config).ops
    for name, tensor in tensors.items():
        assert spec.tensors[name].encoding == tensor.encoding
        assert np.array_equal(spec.tensors[name].data, tensor.data), name
    assert (spec.max_model_len, spec.trained_context_len) == (4096, 4096)


def test_ar07_row_order_is_by_head_biases_included_and_only_for_llama() -> None:
    _, tensors = model("llama", qkv_bias=True, o_bias=True)
    assert not np.array_equal(interleave(128), np.arange(128))
    assert np.array_equal(interleave(128)[half_split_order(128, 32)], np.arange(128))
    spec = load_spec(gguf("llama", tensors))
    for name in ("q", "k", "q_bias", "k_bias", "v_bias", "o_bias"):
        assert np.array_equal(spec.tensors[f"layers.1.{name}"].data, tensors[f"layers.1.{name}"].data), name
    assert not np.array_equal(gguf("llama", tensors).tensors["blk.1.attn_k.bias"].data, tensors["layers.1.k_bias"].data)
    _, qwen = model("qwen2")
    stored = gguf("qwen2", qwen)
    assert np.array_equal(stored.tensors["blk.1.attn_q.weight"].data, load_spec(stored).tensors["layers.1.q"].data)


def test_ar07_a_forgotten_reorder_shows_at_later_positions_only() -> None:
    """Guard of the test above: without the reorder position 0 is right and later ones are wrong."""
    _, tensors = model("llama")
    spec = load_spec(gguf("llama", tensors))
    good = run_whole(spec.graph, spec.tensors, TOKENS).logits()
    stored = gguf("llama", tensors).tensors
    wrong = {f"layers.{i}.{n}": stored[f"blk.{i}.attn_{n}.weight"] for i in (0, 1) for n in "qk"}
    bad = run_whole(spec.graph, {**spec.tensors, **wrong}, TOKENS).logits()
    assert np.abs(good[0] - bad[0]).max() < 1e-5
    assert np.abs(good[50] - bad[50]).max() > 1e-3


@pytest.mark.parametrize("encoding", ["F32", "Q8_0"])
@pytest.mark.parametrize("kind", ["hf", "gguf"])
def test_ar03_tied_and_untied_heads(kind: str, encoding: str, caplog: pytest.LogCaptureFixture) -> None:
    make: Any = hf if kind == "hf" else gguf
    tie: Any = (lambda value: {"tie_word_embeddings": value}) if kind == "hf" else (lambda value: {})
    _, tied = model("llama", encoding)
    head = random_matrix(RNG, "head", 199, 64, encoding)

    spec = load_spec(make("llama", tied, **tie(True)))
    assert spec.graph.tied == {"head": "embed"}
    assert "head" not in spec.tensors

    untied = load_spec(make("llama", {**tied, "head": head}, **tie(False)))
    assert untied.graph.tied == {}
    assert np.array_equal(untied.tensors["head"].data, head.data)

    with caplog.at_level(logging.WARNING):
        both = load_spec(make("llama", {**tied, "head": head}, **tie(True)))
    assert np.array_equal(both.tensors["head"].data, head.data)
    assert ("the head is used" in caplog.text) == (kind == "hf")

    if kind == "hf":
        with pytest.raises(FileFormatError, match=r"lm_head.weight is missing and tie_word_embeddings is false"):
            load_spec(hf("llama", tied, tie_word_embeddings=False))
        same = load_spec(hf("llama", {**tied, "head": tied["embed"]}, tie_word_embeddings=True))
        assert "head" not in same.tensors


@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_ar05_one_is_added_to_norms_exactly_once(family: str) -> None:
    """Hugging Face stores w for a factor 1 + w, GGUF stores the factor; every norm of the model, in half precision too."""
    _, tensors = model(family)
    norms = [n for n in tensors if n.endswith("norm")]
    assert len(norms) == (4 + 2 * (family == "gemma3")) * 2 + 1
    for checkpoint in [hf(family, tensors)] + ([gguf(family, tensors)] if family == "gemma3" else []):
        spec = load_spec(checkpoint)
        for name in norms:
            assert decode_tensor(spec.tensors[name]) == pytest.approx(decode_tensor(tensors[name]), abs=1e-6), name
    half = hf(family, tensors)
    halves = {n: replace(t, encoding=f16(t)[0], stored=f16(t)[1]) if n.endswith("norm.weight") else t for n, t in half.tensors.items()}
    spec = load_spec(replace(half, tensors=halves))
    assert spec.tensors["final_norm"].encoding.name == "F32"
    assert decode_tensor(spec.tensors["final_norm"]) == pytest.approx(decode_tensor(tensors["final_norm"]), abs=1e-3)


def f16(tensor: Any) -> tuple[Any, Any]:
    from ridgeline.encodings import F16

    return F16, decode_tensor(tensor).astype("<f2").view(np.uint8).reshape(1, -1)


def test_ar05_query_scale_is_the_configs_and_embeddings_are_scaled() -> None:
    _, tensors = model("gemma2")
    spec = load_spec(hf("gemma2", tensors))
    assert {op.scale for op in spec.graph.ops if isinstance(op, Attend)} == {28**-0.5}
    assert {op.softcap for op in spec.graph.ops if isinstance(op, Attend)} == {50.0}
    assert spec.graph.ops[0].scale == 8.0  # sqrt(64)
    plain = load_spec(hf("gemma2", tensors, attn_logit_softcapping=20.0, final_logit_softcapping=7.0))
    assert {op.softcap for op in plain.graph.ops if isinstance(op, Attend)} == {20.0}


def fused_phi3(**keys: Any) -> tuple[Memory, dict[str, Any]]:
    """A phi3 checkpoint as it is stored: one qkv tensor, one gate_up tensor."""
    _, ours = model("phi3")
    plain = hf("llama", {n: t for n, t in ours.items() if n.split(".")[-1] not in ("q", "k", "v", "gate", "up")}).tensors
    tensors = dict(plain)
    for i in (0, 1):
        for stored_name, members in (("self_attn.qkv_proj", "q k v"), ("mlp.gate_up_proj", "gate up")):
            rows = [ours[f"layers.{i}.{m}"] for m in members.split()]
            data = np.concatenate([t.data for t in rows])
            tensors[f"model.layers.{i}.{stored_name}.weight"] = replace(rows[0], shape=(len(data), 64), stored=data)
    memory = hf("llama", {}, model_type="phi3", tie_word_embeddings=False, partial_rotary_factor=0.75, **keys)
    return replace(memory, tensors=tensors), ours


def test_phi3_splits_fused_tensors_by_rows() -> None:
    checkpoint, ours = fused_phi3()
    spec = load_spec(checkpoint)
    for name, tensor in ours.items():
        assert np.array_equal(spec.tensors[name].data, tensor.data), name
    assert {len(op.inv_freq) for op in spec.graph.ops if isinstance(op, Rope)} == {12}


def test_phi3_a_fused_tensor_of_the_wrong_height_is_refused() -> None:
    checkpoint, _ = fused_phi3()
    name = "model.layers.1.self_attn.qkv_proj.weight"
    short = checkpoint.tensors[name].take_rows(slice(0, 255))
    with pytest.raises(FileFormatError, match=r"model.layers.1.self_attn.qkv_proj.weight is \[255, 64\], must be \[256, 64\]"):
        load_spec(replace(checkpoint, tensors={**checkpoint.tensors, name: short}))


@pytest.mark.parametrize("kind", ["hf", "gguf"])
def test_missing_left_over_and_misshapen_tensors_are_named(kind: str) -> None:
    make: Any = hf if kind == "hf" else gguf
    _, tensors = model("llama")
    whole = make("llama", tensors)
    gone = "model.layers.1.mlp.down_proj.weight" if kind == "hf" else "blk.1.ffn_down.weight"
    with pytest.raises(FileFormatError, match=f"memory: tensors are missing: {gone}"):
        load_spec(replace(whole, tensors={n: t for n, t in whole.tensors.items() if n != gone}))
    with pytest.raises(FileFormatError, match=r"memory: tensors are not understood: blk.0.attn_sinks, vision.patch"):
        extra = {n: vector(n, np.ones(4, np.float32)) for n in ("blk.0.attn_sinks", "vision.patch")}
        load_spec(replace(whole, tensors={**whole.tensors, **extra}))
    with pytest.raises(FileFormatError, match=rf"shapes do not fit: {gone} is \[64, 64\], must be \[64, 96\]"):
        load_spec(replace(whole, tensors={**whole.tensors, gone: random_matrix(RNG, gone, 64, 64)}))


def test_biases_in_one_layer_only_are_refused() -> None:
    _, tensors = model("qwen2")
    whole = gguf("qwen2", tensors)
    with pytest.raises(FileFormatError, match=r"missing: blk.1.attn_k.bias"):
        load_spec(replace(whole, tensors={n: t for n, t in whole.tensors.items() if n != "blk.1.attn_k.bias"}))


def test_old_buffers_of_hugging_face_checkpoints_are_left_alone() -> None:
    _, tensors = model("llama")
    whole = hf("llama", tensors)
    inv = "model.layers.0.self_attn.rotary_emb.inv_freq"
    assert logits(replace(whole, tensors={**whole.tensors, inv: vector(inv, np.ones(16, np.float32))})).shape == (60, 199)


@pytest.mark.parametrize("kind", ["hf", "gguf"])
def test_unknown_architectures_are_refused_with_what_is_supported(kind: str) -> None:
    _, tensors = model("llama")
    with pytest.raises(UnsupportedError, match=r"architecture 'mamba' is not supported; supported: gemma2, gemma3"):
        load_spec(replace((hf if kind == "hf" else gguf)("llama", tensors), architecture="mamba"))


def test_other_heads_than_language_models_are_refused() -> None:
    _, tensors = model("llama")
    with pytest.raises(UnsupportedError, match="LlamaForSequenceClassification"):
        load_spec(hf("llama", tensors, architectures=["LlamaForSequenceClassification"]))
