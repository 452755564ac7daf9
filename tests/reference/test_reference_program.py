"""The reference program: any schedule gives the same numbers; windows, copies and block tables; nothing unwritten is ever read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.models.tiny import FAMILIES, WINDOW, config, random_tensors, tiny
from tests.reference.running import program, run_chunks, run_whole, scattered

from ridgeline.errors import InternalError
from ridgeline.graph.caches import Paged, cache_groups
from ridgeline.graph.graph import Graph
from ridgeline.graph.ops import Attend, CacheWrite
from ridgeline.graph.step import BlockCopy, Span, Step
from ridgeline.models.registry import build
from ridgeline.sampling.plan import SamplePlan, SampleRow
from ridgeline.types import KvDtype

TOKENS = np.random.default_rng(2).integers(0, 199, 20).astype(np.int32)
CLOSE = 1e-5


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunks", [[1] * 20, [3] * 6 + [2], [17, 3], [16, 1, 1, 1, 1]], ids=["tokens", "threes", "17+3", "prefix+4"])
def test_any_chunking_gives_the_same_logits(family: str, chunks: list[int]) -> None:
    graph, tensors = tiny(family)
    whole = run_whole(graph, tensors, TOKENS).logits()
    parts, _ = run_chunks(graph, tensors, TOKENS, chunks)
    assert np.abs(parts - whole).max() < CLOSE


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3", "phi3"])
def test_a_mixed_batch_gives_the_same_logits(family: str) -> None:
    """Two sequences and a rest in one step: a chunk that wants nothing, one token, a whole prompt."""
    graph, tensors = tiny(family)
    whole = run_whole(graph, tensors, TOKENS).logits()
    groups = len(cache_groups(graph.caches))
    prog = program(graph, tensors, blocks=32)
    ids = np.random.default_rng(5).permutation(32).astype(np.int32)
    tables = [ids[:5], ids[5:10], ids[10:15]]

    def step(spans: list[tuple[int, int, int, int]]) -> Step:
        tokens = np.concatenate([TOKENS[past : past + new] for _, past, new, _ in spans])
        return Step(tuple(Span(*s) for s in spans), tokens, tuple(tuple(tables[s[0]] for s in spans) for _ in range(groups)))

    prog.forward(step([(0, 0, 7, 0), (1, 0, 19, 1)]))
    assert np.abs(prog.logits() - whole[18:19]).max() < CLOSE
    prog.forward(step([(1, 19, 1, 1), (2, 0, 20, 4), (0, 7, 13, 2)]))
    assert np.abs(prog.logits() - np.concatenate([whole[19:], whole[16:], whole[18:]])).max() < CLOSE


def window_graph(window: int | None) -> tuple[Graph, dict[str, object]]:
    made = config("llama")
    layers = (replace(made.layers[0], window=window), made.layers[1])
    graph = build(replace(made, layers=layers))
    return graph, dict(random_tensors(graph))


def test_ar01_a_window_sees_itself_and_w_minus_1_earlier_keys() -> None:
    """With zero queries all visible keys weigh the same: the attention output is the mean of the visible values."""
    graph, tensors = window_graph(4)
    attend = next(op for op in graph.ops if isinstance(op, Attend))
    write = next(op for op in graph.ops if isinstance(op, CacheWrite))
    ops = tuple(replace(op, scale=1e-30) if op is attend else op for op in graph.ops)
    prog = run_whole(replace(graph, ops=ops), tensors, TOKENS)
    values, outs = prog.value(write.v), prog.value(attend.out)
    head = values.shape[1] // 2
    for i in range(20):
        visible = range(max(0, i - 3), i + 1)
        assert len(visible) == min(i + 1, 4)
        mean = np.mean([values[j, :head] for j in visible], axis=0)
        assert outs[i, :head] == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize("window", [1, 4, 19, 64])
def test_row_55_a_window_is_full_attention_under_a_band_mask(window: int) -> None:
    """Scores of all pairs, a band of `window` keys kept, softmax, values: written out here over the program's own q, k and v."""
    graph, tensors = window_graph(window)
    attend = next(op for op in graph.ops if isinstance(op, Attend))
    write = next(op for op in graph.ops if isinstance(op, CacheWrite))
    prog = run_whole(graph, tensors, TOKENS)
    n, cache = len(TOKENS), next(c for c in graph.caches if c.name == attend.cache)
    q = prog.value(attend.q).astype(np.float64).reshape(n, attend.heads, cache.k_dim)
    k = prog.value(write.k).astype(np.float64).reshape(n, cache.kv_heads, cache.k_dim).repeat(attend.heads // cache.kv_heads, 1)
    v = prog.value(write.v).astype(np.float64).reshape(n, cache.kv_heads, cache.v_dim).repeat(attend.heads // cache.kv_heads, 1)
    scores = attend.scale * np.einsum("thd,shd->hts", q, k)
    behind = np.arange(n)[:, None] - np.arange(n)
    scores[:, (behind < 0) | (behind >= window)] = -np.inf
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    want = np.einsum("hts,shd->thd", weights / weights.sum(axis=2, keepdims=True), v).reshape(n, -1)
    assert np.abs(prog.value(attend.out) - want).max() < CLOSE


@pytest.mark.parametrize("chunks", [[20], [1] * 20, [3] * 6 + [2], [16, 4], [17, 3]])
def test_ar01_blocks_behind_the_window_may_be_gone(chunks: list[int]) -> None:
    """Before each chunk every block that lies wholly behind the window of its first query is taken away (-1) and filled with NaN."""
    graph, tensors = window_graph(4)
    whole = run_whole(graph, tensors, TOKENS).logits()
    groups = cache_groups(graph.caches)
    local = next(g for g, group in enumerate(groups) if group.window == 4)
    prog = program(graph, tensors, blocks=16)
    tables = [scattered(5, 16, g) for g in range(2)]
    past, logits = 0, []
    for new in chunks:
        gone = max(0, past - 4 + 1) // 4
        for block in tables[local][:gone]:
            if block >= 0:
                pool = prog._pools[groups[local].members[0].name]
                pool.keys[block] = np.nan
                pool.values[block] = np.nan
        tables[local][:gone] = -1
        prog.forward(Step((Span(0, past, new, new),), TOKENS[past : past + new], tuple((t,) for t in tables)))
        logits.append(prog.logits())
        past += new
    assert np.abs(np.concatenate(logits) - whole).max() < CLOSE


def test_a_window_as_long_as_the_text_changes_nothing_and_a_shorter_one_does() -> None:
    graph, tensors = window_graph(None)
    full = run_whole(graph, tensors, TOKENS).logits()
    same = run_whole(window_graph(20)[0], tensors, TOKENS).logits()
    less = run_whole(window_graph(19)[0], tensors, TOKENS).logits()
    assert np.abs(same - full).max() < CLOSE
    assert np.abs(less[:19] - full[:19]).max() < CLOSE
    assert np.abs(less[19] - full[19]).max() > 1e-4


def test_copy_on_write_leaves_the_other_sequence_alone() -> None:
    graph, tensors = tiny("llama")
    whole = run_whole(graph, tensors, TOKENS).logits()
    prog = program(graph, tensors, blocks=8)
    first, second = np.array([0, 1, 2], np.int32), np.array([0, 4, 5], np.int32)
    prog.forward(Step((Span(0, 0, 6, 1),), TOKENS[:6], ((first,),)))
    # The second sequence shares block 0, takes a copy of block 1 and writes other tokens behind position 6.
    other = TOKENS[::-1][:4].copy()
    prog.forward(Step((Span(1, 6, 4, 1),), other, ((second,),), copies=(BlockCopy(0, 1, 4),)))
    forked = prog.logits()
    prog.forward(Step((Span(0, 6, 4, 1),), TOKENS[6:10], ((first,),)))
    assert np.abs(prog.logits() - whole[9:10]).max() < CLOSE
    want = run_whole(graph, tensors, np.concatenate([TOKENS[:6], other])).logits()
    assert np.abs(forked - want[-1:]).max() < CLOSE


@pytest.mark.parametrize(("kv", "limit"), [("bf16", 0.3), ("f16", 0.03)])
def test_kv_dtype_rounds_what_is_stored(kv: KvDtype, limit: float) -> None:
    graph, tensors = tiny("gemma3")
    exact = run_whole(graph, tensors, TOKENS, "f32").logits()
    rounded = run_whole(graph, tensors, TOKENS, kv).logits()
    assert 0 < np.abs(rounded - exact).max() < limit
    # Its own chunk is read from the cache too, so chunking changes nothing beyond float noise.
    assert np.abs(run_chunks(graph, tensors, TOKENS, [1] * 20, kv)[0] - rounded).max() < 0.1 * limit


def test_ar04_head_dim_and_kv_heads_of_their_own() -> None:
    """4 query heads, 1 KV head, head_dim 32 at dim 64; weights and untouched blocks stay as they were."""
    graph, tensors = tiny("gemma3")
    before = {n: t.data.copy() for n, t in tensors.items()}
    prog = run_whole(graph, tensors, TOKENS)
    assert np.isfinite(prog.logits()).all()
    assert prog.value("layers.0.attn").shape == (20, 4 * 32)
    assert all(np.array_equal(before[n], t.data) for n, t in tensors.items())
    used = set(scattered(5, 8, 1).tolist())  # the window group comes second
    pool = prog._pools["layers.0.kv"]
    assert all(np.isnan(pool.keys[b]).all() == (b not in used) for b in range(8))


def test_ar04_query_head_h_reads_kv_head_h_over_group() -> None:
    graph, tensors = tiny("llama")
    attend = next(op for op in graph.ops if isinstance(op, Attend))
    ops = tuple(replace(op, scale=1e-30) if op is attend else op for op in graph.ops)
    prog = run_whole(replace(graph, ops=ops), tensors, TOKENS[:1])
    values, outs = prog.value("layers.0.v").reshape(2, -1), prog.value("layers.0.attn").reshape(4, -1)
    assert [int(np.abs(values - out).sum(axis=1).argmin()) for out in outs] == [0, 0, 1, 1]


def test_values_narrower_than_keys() -> None:
    """key_length != value_length: the output projection reads heads * v_dim."""
    made = config("llama")
    graph = build(replace(made, sizes=replace(made.sizes, v_dim=24)))
    assert isinstance(graph.caches[0], Paged)
    assert graph.caches[0].v_dim == 24
    prog = run_whole(graph, random_tensors(graph), TOKENS)
    assert prog.value("layers.0.attn").shape == (20, 4 * 24)
    assert np.isfinite(prog.logits()).all()


def test_taps_show_every_layer_and_cost_only_when_asked() -> None:
    graph, tensors = tiny("llama")
    prog = run_whole(graph, tensors, TOKENS, taps=("hidden", "layers.0", "layers.1"))
    assert prog.tap("layers.0").shape == (20, 64)
    assert np.array_equal(prog.tap("hidden"), prog.tap("layers.1"))
    assert not np.array_equal(prog.tap("layers.0"), prog.tap("layers.1"))
    with pytest.raises(InternalError, match="not asked for"):
        run_whole(graph, tensors, TOKENS).tap("hidden")
    with pytest.raises(InternalError, match="no tap depth"):
        run_whole(graph, tensors, TOKENS, taps=("depth",))


def test_no_logits_wanted() -> None:
    graph, tensors = tiny("gemma2")
    prog = program(graph, tensors)
    prog.forward(Step((Span(0, 0, 4, 0),), TOKENS[:4], ((np.arange(1, dtype=np.int32),),) * 2))
    assert prog.logits().shape == (0, 199)


def test_ar05_gemma_caps_logits_before_sampling() -> None:
    graph, tensors = tiny("gemma2")
    big = {**tensors, "final_norm": replace(tensors["final_norm"], stored=(tensors["final_norm"].data.view("<f4") * 1e4).view(np.uint8))}
    logits = run_whole(graph, big, TOKENS).logits()
    assert np.isfinite(logits).all()
    assert np.abs(logits).max() == 30.0


def test_sampling_is_the_definition_of_sampling() -> None:
    graph, tensors = tiny("llama")
    prog = run_whole(graph, tensors, TOKENS)
    drawn = prog.sample(SamplePlan((SampleRow(3, temperature=0.0), SampleRow(19, temperature=0.0)), 199))
    assert drawn.tokens.tolist() == [int(prog.logits()[3].argmax()), int(prog.logits()[19].argmax())]


def test_the_window_of_tiny_models_matters() -> None:
    """A guard for the suites that use them: local layers really cut something off within a few tokens."""
    graph, tensors = tiny("mistral")
    wide = replace(graph, caches=tuple(replace(c, window=None) for c in graph.caches))
    near, far = run_whole(graph, tensors, TOKENS).logits(), run_whole(wide, tensors, TOKENS).logits()
    assert np.abs(near - far)[:WINDOW].max() < CLOSE
    assert np.abs(near - far)[WINDOW:].max() > 1e-3
