"""However a long step is cut among workers, by tokens, by output rows or through all ops at once, each token gets the same bits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from tests.cpu.rowwise import matrix

from ridgeline.backends import cpu
from ridgeline.backends.base import LoadPlan
from ridgeline.backends.cpu import _native
from ridgeline.backends.cpu.program import ISAS
from ridgeline.bench.random_gguf import random_rows
from ridgeline.encodings import BY_NAME
from ridgeline.formats.tensors import Tensor
from ridgeline.graph.graph import Graph
from ridgeline.graph.ops import Add, Embed, GatedActivation, Linear, LinearGroup, SelectRows
from ridgeline.graph.step import Span, Step

DIM, VOCAB, ROWS = 256, 64, 150
SMALL, LARGE = 160, 12288  # width of the middle: all weights of a stretch stay in a cache, or are read once for each worker's tokens


def tensors(middle: int, encoding: str) -> dict[str, Tensor]:
    rng = np.random.default_rng(1)

    def weight(name: str, rows: int, columns: int) -> Tensor:
        form = BY_NAME[encoding]
        return Tensor(name, (rows, columns), form, np.ascontiguousarray(random_rows(rng, rows, columns, form).reshape(rows, -1)))

    found = {"gate": weight("gate", middle, DIM), "up": weight("up", middle, DIM), "down": weight("down", DIM, middle)}
    return found | {
        name: matrix(name, rng.standard_normal(shape).astype(np.float32)) for name, shape in (("table", (VOCAB, DIM)), ("bias", (middle,)))
    }


def logits(middle: int, encoding: str, threads: int, rows: int) -> npt.NDArray[np.float32]:
    """[ROWS, DIM], taken `rows` tokens a step."""
    graph = Graph(
        "parts",
        (
            Embed("x", "table", VOCAB, DIM),
            LinearGroup(("g", "u"), "x", ("gate", "up"), DIM, (middle, middle), (None, "bias")),
            GatedActivation("h", "g", "u", "silu"), Linear("d", "h", "down", middle, DIM), Add("y", "x", "d"), SelectRows("logits", "y"),
        ),
        (), {"logits": "logits"},
    )  # fmt: skip
    program = cpu.load(graph, tensors(middle, encoding), LoadPlan((), threads=threads), ISAS[_native.best_isa()])
    ids, found = np.arange(ROWS, dtype=np.int32) * 7 % VOCAB, []
    for first in range(0, ROWS, rows):
        part = ids[first : first + rows]
        program.forward(Step((Span(0, 0, len(part), len(part)),), part, ()))
        found.append(program.logits().copy())
    return np.concatenate(found)


@pytest.mark.parametrize(("middle", "encoding"), [(SMALL, "Q4_1"), (SMALL, "F32"), (LARGE, "Q8_0")])
def test_a_step_cut_in_any_way_gives_each_token_the_same_bits(middle: int, encoding: str) -> None:
    alone = logits(middle, encoding, 1, 5)
    assert np.isfinite(alone).all() and np.abs(alone).max() > 0
    for threads, rows in ((1, 33), (1, ROWS), (2, 64), (2, 65), (2, ROWS), (3, ROWS), (4, 127), (5, ROWS)):
        np.testing.assert_array_equal(logits(middle, encoding, threads, rows).view(np.uint32), alone.view(np.uint32), f"{threads}, {rows}")
