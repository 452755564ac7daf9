"""What loading takes beside the packed weights: no second copy of a matrix, neither of the file's pages nor of rows that change places."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ridgeline.bench.random_gguf import Shape, write_random
from ridgeline.formats.checkpoint import open_checkpoint
from ridgeline.models import load_spec


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
