"""Row 24: the bytes that native pools take are those of `kv/layout`, which planner and allocator ask, for shapes of published models."""

from __future__ import annotations

import pytest
from tests.kv.test_layout import GOLDEN

pytest.importorskip("ridgeline.backends.cpu.native._native", reason="the native backend is not built")

from ridgeline.backends.cpu import _native
from ridgeline.backends.cpu.program import KV_DTYPES
from ridgeline.graph.caches import Paged, cache_groups
from ridgeline.kv.layout import group_block_bytes, split_kv_dtype

BLOCKS, BLOCK_SIZE = 3, 16
# Full, grouped, windowed and latent ones, and what is paged of hybrids. Caches without values are the planner's only.
MODELS = [
    name for name, (caches, _, _) in GOLDEN.items()
    if any(isinstance(c, Paged) for c in caches) and all(c.k_dim > 1 and c.v_dim > 0 for c in caches if isinstance(c, Paged))
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "int8", "int4", "int8/int4"])
@pytest.mark.parametrize("model", MODELS)
def test_pools_take_what_the_layout_says(model: str, dtype: str) -> None:
    keys, values = (KV_DTYPES[d] for d in split_kv_dtype(dtype))
    native = _native.Program(0, 1, BLOCK_SIZE, keys, values, 0)
    groups = cache_groups(GOLDEN[model][0])
    for g, group in enumerate(groups):
        for c in group.members:
            native.add_cache(g, BLOCKS, c.kv_heads, c.k_dim, c.v_dim, c.window or 0, c.v_aliases_k)
    assert native.kv_bytes() == BLOCKS * sum(group_block_bytes(group, BLOCK_SIZE, dtype) for group in groups)


def test_that_is_ten_models_and_more() -> None:
    assert len(MODELS) >= 15 and {"DeepSeek-V3", "Qwen3-Next-80B", "Gemma-3-27B", "Phi-3-mini-4k"} <= set(MODELS)
