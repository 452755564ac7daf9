"""What is said of products in pairs of bfloat16: where they are active, of what, and why not; and of kernels that know no such pairs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.planner import planner_shapes as shapes

from ridgeline.backends.table import techniques, why_kernel
from ridgeline.graph.caches import Paged

GRAPH = shapes.llama(96, 32, 80, 2, 4, 2, 8)


@pytest.mark.parametrize(
    "isa, kv_dtype, said",
    [
        ("avx512_bf16", "bf16", "2 times"), ("avx512_bf16", "int8", "2 times"),
        ("avx512_bf16", "int8/int4", "2 times, keys only"), ("avx512_bf16", "f16/int8", "2 times, values only"),
        ("avx512_bf16", "f16", "no: the KV cache is f16"), ("avx512", "bf16", "no: isa avx512"), ("portable", "bf16", "no: isa portable"),
    ],
)  # fmt: skip
def test_pairs_are_said_to_be_active_where_they_are(isa: str, kv_dtype: str, said: str) -> None:
    (row,) = (t for t in techniques(GRAPH, 2, 10, isa, kv_dtype) if t.name == "bfloat16 pairs")
    assert row.active == said


def test_values_that_lie_in_the_keys_rows_have_no_pairs() -> None:
    latent = replace(GRAPH, caches=tuple(replace(c, v_aliases_k=True) for c in GRAPH.caches if isinstance(c, Paged)))
    assert "2 times, keys only" in {t.active for t in techniques(latent, 2, 10, "avx512_bf16", "bf16")}


def test_why_a_kernel_is_what_it_is() -> None:
    assert why_kernel("avx512_bf16", False, "q4_0 avx512 vnni 16x32") == "avx512_bf16 is avx512 in all but attention"
    assert why_kernel("avx512_bf16", False, "attention avx512_bf16, pairs") == "avx512_bf16 is the best that this CPU supports"
    assert why_kernel("avx512", True, "q4_0 avx512 vnni 16x32") == "asked for"
    assert why_kernel("avx512_bf16", False, "q2_k avx2").startswith("no avx512_bf16 kernel")
