"""Files written by the public `gguf` and `safetensors` packages, so that our writer and reader cannot share a mistake."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ridgeline.encodings import BY_GGML_ID
from ridgeline.formats.checkpoint import open_checkpoint
from ridgeline.formats.gguf import read_gguf
from ridgeline.quant.decode import decode

VALUES = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)


@pytest.mark.parametrize("alignment", [32, 4096])
def test_the_gguf_package_writes(tmp_path: Path, alignment: int) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_custom_alignment(alignment)
    writer.add_context_length(77)
    writer.add_float32("a.float", 0.25)
    writer.add_bool("a.bool", True)
    writer.add_token_list(["a", "é", ""])
    writer.add_token_scores([0.5, -1.0, 2.0])
    writer.add_array("a.ints", [1, -2])
    kinds = [gguf.GGMLQuantizationType[name] for name in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4")]
    stored = {kind: gguf.quants.quantize(VALUES, kind) for kind in kinds}
    for kind, data in stored.items():
        writer.add_tensor(kind.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(tmp_path / "m.gguf")
    assert {key: file.metadata[key] for key in ("llama.context_length", "a.float", "a.bool", "a.ints")} == {
        "llama.context_length": 77, "a.float": 0.25, "a.bool": True, "a.ints": [1, -2],
    }  # fmt: skip
    assert file.metadata["tokenizer.ggml.tokens"] == ["a", "é", ""]
    assert file.metadata["tokenizer.ggml.scores"] == [0.5, -1.0, 2.0]
    for kind, data in stored.items():
        tensor = file.tensors[kind.name].tensor()
        assert (tensor.shape, tensor.encoding) == (VALUES.shape, BY_GGML_ID[kind])
        np.testing.assert_array_equal(decode(tensor), gguf.quants.dequantize(data, kind))


def test_the_gguf_package_splits(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
    for n in range(5):
        writer.add_tensor(f"t{n}", VALUES + n)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = open_checkpoint(tmp_path)
    assert len(checkpoint.files) == 3
    for n in range(5):
        np.testing.assert_array_equal(decode(checkpoint.tensors[f"t{n}"]), VALUES + n)


def test_the_safetensors_package_writes(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    safetensors.save_file(
        {"a": VALUES, "b": VALUES.astype(np.float16), "c": VALUES[0, :3]}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    checkpoint = open_checkpoint(tmp_path)
    np.testing.assert_array_equal(decode(checkpoint.tensors["a"]), VALUES)
    np.testing.assert_array_equal(decode(checkpoint.tensors["b"]), VALUES.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(decode(checkpoint.tensors["c"]), VALUES[:1, :3])
