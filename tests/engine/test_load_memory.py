"""What loading takes beside the packed weights: no second copy of a matrix, neither of the file's pages nor of rows that change places."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from ridgeline.bench.random_gguf import Shape, write_random
from ridgeline.formats.checkpoint import open_checkpoint
from ridgeline.models import load_spec

# One matrix of 139 MB, as the embedding of a small model with a wide vocabulary is most of the file.
WIDE = Shape(vocab=32_000, dim=4096, ffn=256, layers=1, heads=32, kv_heads=8, tied=True)
LOAD = """
import json, sys
from pathlib import Path
from ridgeline.engine.loader import load
from ridgeline.options import Options

def peak():
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])

before = peak()
model = load(Options(sys.argv[1], max_model_len=64, max_num_seqs=1))
print(json.dumps({"grown": peak() - before, "weights": model.program.weight_bytes}))
"""


def test_the_peak_of_loading_holds_a_matrix_once(tmp_path: Path) -> None:
    path = tmp_path / "wide.gguf"
    write_random(path, WIDE, "Q8_0")
    done = subprocess.run([sys.executable, "-c", LOAD, str(path)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["weights"] > 150e6
    assert found["grown"] < found["weights"] * 1.05 + 60e6, found  # 60 MB: tokenizer, libraries, a slice of the file


def test_rows_that_change_places_are_not_copied_before_they_are_packed(tmp_path: Path) -> None:
    """Llama's GGUF files keep the rows of query and key heads in another order."""
    path = tmp_path / "tiny.gguf"
    write_random(path, Shape(512, 256, 512, 2, 4, 2, True), "Q8_0")
    checkpoint = open_checkpoint(path)
    spec = load_spec(checkpoint)
    for name, tensor in spec.tensors.items():
        assert np.shares_memory(tensor.stored, checkpoint.files[0].bytes_), name
    query = spec.tensors["layers.0.q"]
    assert not np.array_equal(query.data, query.stored) and np.array_equal(query.data, query.stored[query.order])
