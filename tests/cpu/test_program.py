"""The program around the kernels: what it refuses, what it keeps, what it tells about itself, and that it rests when idle."""

from __future__ import annotations

import mmap
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cpu.rowwise import matrix
from tests.models.tiny import VOCAB, tiny

import ridgeline.backends.cpu.lower as lowering
from ridgeline.backends import cpu
from ridgeline.backends.base import LoadPlan
from ridgeline.backends.cpu import _native
from ridgeline.backends.cpu.program import ISAS, CpuProgram
from ridgeline.backends.cpu.source import drop_pages
from ridgeline.encodings import ENCODINGS, Q4_K, Encoding
from ridgeline.errors import InternalError, UserError
from ridgeline.formats.tensors import Tensor
from ridgeline.graph.caches import Paged, cache_groups
from ridgeline.graph.graph import Graph
from ridgeline.graph.ops import Attend, CacheWrite, Embed, Linear, SelectRows
from ridgeline.graph.step import BlockCopy, SharedWalk, Span, Step
from ridgeline.sampling.plan import SamplePlan, SampleRow


def program(family: str = "llama", encoding: str = "F32", **plan: Any) -> CpuProgram:
    graph, tensors = tiny(family, encoding=encoding)
    return cpu.load(graph, tensors, LoadPlan((8,) * len(cache_groups(graph.caches)), **plan))


def step(new: int = 20, past: int = 0, want: int = 1, groups: int = 1, **changes: Any) -> Step:
    tokens = np.arange(new, dtype=np.int32) % VOCAB
    table = np.arange(8, dtype=np.int32)
    fields: dict[str, Any] = {"spans": (Span(0, past, new, want),), "tokens": tokens, "tables": ((table,),) * groups}
    return Step(**(fields | changes))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"tokens": np.zeros(19, np.int32)}, "19 ids"),
        ({"tokens": np.full(20, VOCAB, np.int32)}, f"token id {VOCAB}"),
        ({"tokens": np.full(20, -1, np.int32)}, "token id -1"),
        ({"tokens": np.zeros(20, np.float32)}, "20 rows"),
        ({"tables": ()}, "0 block tables"),
        ({"tables": ((),)}, "missing"),
        ({"tables": ((np.array([0], np.int32),),)}, "has 1 blocks, needs 2"),
        ({"tables": ((np.array([0, 8], np.int32),),)}, "block id 8"),
        ({"tables": ((np.array([-1, 0], np.int32),),)}, "block id -1"),
        ({"spans": (Span(0, 0, 20, 21),)}, "want in 0..new"),
        ({"spans": (Span(0, -1, 20, 1),)}, "past >= 0"),
        ({"spans": (Span(0, 2**31, 20, 1),)}, "2^31"),
        ({"copies": (BlockCopy(0, 8, 1),)}, "outside the pool"),
        ({"copies": (BlockCopy(1, 0, 1),)}, "cache group"),
        ({"shared": (SharedWalk((1, 0), 256),)}, "span that does not exist"),
        ({"shared": (SharedWalk((0,), 100),)}, "multiple of 16"),
        ({"shared": (SharedWalk((0,), 256),)}, "longer than"),
    ],
)
def test_steps_that_would_leave_the_memory_are_refused(wrong: dict[str, Any], says: str) -> None:
    loaded = program()
    with pytest.raises(InternalError, match=re.escape(says)):
        loaded.forward(step(**wrong))
    loaded.forward(step())  # and the program is still well
    assert np.isfinite(loaded.logits()).all()


def damaged(tensor: Tensor, **changes: Any) -> Tensor:
    return replace(tensor, origin="some.gguf: blk.0", **changes)


UP = "layers.0.up"  # of shape [96, 64]
# What is wrong: the tensor, its change, and what is said about it.
WRONG: dict[str, tuple[str, Callable[[Tensor], Tensor], str]] = {
    "rows are no whole blocks": (UP, lambda t: damaged(t, encoding=Q4_K), "rows of 64 values, Q4_K needs multiples of 256"),
    "bytes are missing": (UP, lambda t: damaged(t, stored=t.data[:, :-4]), "is uint8 [96, 256]"),
    "rows are missing": (UP, lambda t: damaged(t, stored=t.data[:-1]), "has uint8 data of [95, 256]"),
    "numbers are no bytes": (UP, lambda t: damaged(t, stored=t.data.view(np.float32)), "has float32 data"),
    "fewer rows than the graph has": (UP, lambda t: damaged(t.take_rows(slice(0, 8))), "must be [96, 64]"),
    "another width": (UP, lambda t: damaged(t, shape=(t.rows, 32), stored=t.data[:, :128]), "must be [96, 64]"),
    "a format nobody has": (UP, lambda t: damaged(t, encoding=Encoding("Q3_X", 250, 32, 14)), "no kernel for Q3_X"),
    "a short norm": ("final_norm", lambda t: damaged(t.take_rows(slice(0, 8))), "must be [64]"),
    "a short embedding": ("embed", lambda t: damaged(t.take_rows(slice(0, 8))), f"must be [{VOCAB}, 64]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_tensors_that_do_not_fit_are_refused_at_load(case: str) -> None:
    """The native side reads as many bytes as the sizes say, so a wrong one must not reach it."""
    name, change, says = WRONG[case]
    graph, tensors = tiny("llama")
    with pytest.raises(UserError, match=re.escape(says)) as caught:
        cpu.load(graph, {**tensors, name: change(tensors[name])}, LoadPlan((8,)))
    assert name in str(caught.value) or "blk.0" in str(caught.value)


@pytest.mark.parametrize("encoding", [e for e in ENCODINGS if not e.is_float], ids=lambda e: e.name)
def test_a_width_that_is_no_multiple_of_the_block_is_refused_in_every_format(encoding: Encoding) -> None:
    """Case LD-05, for tensors that come from elsewhere than a checked file."""
    width = encoding.block_size + 1
    tensor = Tensor("w", (40, width), encoding, np.zeros((40, 2 * encoding.block_bytes), np.uint8))
    graph = Graph("one", (Embed("x", "e", 4, width), Linear("logits", "x", "w", width, 40)), (), {"logits": "logits"})
    with pytest.raises(UserError, match=f"w: has rows of {width} values, {encoding.name} needs multiples of {encoding.block_size}"):
        cpu.load(graph, {"e": matrix("e", np.zeros((4, width), np.float32)), "w": tensor}, LoadPlan(()))


def test_matrices_are_shared_with_their_like_only() -> None:
    graph, tensors = tiny("llama", encoding="Q8_0")
    owner = cpu.load(graph, tensors, LoadPlan((8,)))
    twin = cpu.load(graph, tensors, LoadPlan((8,)), shared=owner.packed)
    assert twin.weight_bytes == owner.weight_bytes  # counted in both, in memory once
    for loaded in (owner, twin):
        loaded.forward(step())
    assert (owner.logits() == twin.logits()).all()
    with pytest.raises(InternalError, match=r"was packed as \[199, 64\] in Q8_0, here it is \[199, 64\] in F32"):
        cpu.load(graph, tiny("llama")[1], LoadPlan((8,)), shared=owner.packed)


def test_a_missing_tensor_is_named() -> None:
    graph, tensors = tiny("llama")
    del tensors[UP]
    with pytest.raises(UserError, match=r"tensors are missing: layers\.0\.up"):
        cpu.load(graph, tensors, LoadPlan((8,)))


def test_only_wanted_rows_and_taps() -> None:
    graph, tensors = tiny("llama")
    graph = Graph(graph.name, graph.ops, graph.caches, {**graph.outputs, "first": graph.ops[1].out}, graph.tied)  # type: ignore[union-attr]
    loaded = cpu.load(graph, tensors, LoadPlan((8,), taps=("first",)))
    loaded.forward(step(want=3))
    assert loaded.logits().shape == (3, VOCAB) and loaded.tap("first").shape == (20, 64)
    three = loaded.logits().copy()
    loaded.forward(step(want=1))
    assert (loaded.logits() == three[2:]).all()
    loaded.forward(step(want=0))
    assert loaded.logits().shape == (0, VOCAB)
    with pytest.raises(InternalError, match="not asked for"):
        loaded.tap("logits")
    with pytest.raises(InternalError, match="has no tap other"):
        cpu.load(graph, tensors, LoadPlan((8,), taps=("other",)))


def test_old_views_stay_readable() -> None:
    """A view shows the last forward's numbers; one kept across a growing step must not point to freed memory."""
    loaded = program()
    loaded.forward(step(want=1))
    view = loaded.logits()
    for new in (40, 80, 120):
        loaded.forward(step(new=new, want=new))
    assert view.shape == (1, VOCAB) and np.isfinite(view.sum())


def test_tied_weights_are_packed_once_and_bytes_are_counted() -> None:
    graph, tensors = tiny("llama", encoding="Q8_0")
    tied = cpu.load(graph, tensors, LoadPlan((8,)))
    assert graph.tied and [row.subject for row in tied.kernels()].count("embed") == 1
    matrices, vectors = [[t for t in tensors.values() if len(t.shape) == n] for n in (2, 1)]
    packed = [_native.packed_bytes(8, *t.shape) for t in matrices]
    assert tied.weight_bytes == sum(packed) + 4 * sum(t.columns for t in vectors)
    pool = program(kv_dtype="f32", block_size=16)
    assert pool.kv_bytes == 2 * program(kv_dtype="f16", block_size=16).kv_bytes
    assert pool.kv_bytes == sum(8 * 16 * c.kv_heads * (c.k_dim + c.v_dim) * 4 for c in pool.graph.caches if isinstance(c, Paged))


@pytest.mark.parametrize("isa", [None, *ISAS[: _native.best_isa() + 1]])
def test_kernels_are_explained(isa: Any) -> None:
    graph, tensors = tiny("gemma3", encoding="Q4_K")
    rows = cpu.load(graph, tensors, LoadPlan((8, 8)), isa).kernels()
    by_subject = {row.subject: row for row in rows}
    assert by_subject["embed"].encoding == "Q4_K" and {"rows", "attention", "kv"} <= set(by_subject)
    want = isa or ISAS[_native.best_isa()]
    assert want in by_subject["attention"].kernel
    assert by_subject["attention"].why == ("asked for" if isa else f"{want} is the best that this CPU supports")


def test_an_instruction_set_that_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "best_isa", lambda: 0)
    with pytest.raises(UserError, match="isa is avx2, this CPU supports portable"):
        cpu.load(*tiny("llama"), LoadPlan((8,)), "avx2")


def test_op_times_add_up() -> None:
    loaded = program(kv_dtype="bf16")
    loaded.forward(step())
    assert all(t.calls == 0 for t in loaded.op_times())
    loaded.timing(True)
    loaded.forward(step())
    times = loaded.op_times()
    assert sum(len(t.ops) for t in times) == len(loaded.graph.ops)
    assert all(t.calls == 1 and t.seconds > 0 for t in times)
    weights = {name: t.rows * t.columns for name, t in tiny("llama")[1].items() if len(t.shape) == 2}
    head = weights.pop("embed")
    assert sum(t.flops for t in times if t.label == "linear") == 2 * (20 * sum(weights.values()) + head)
    kv = sum(c.kv_heads * (c.k_dim + c.v_dim) * 2 * 20 for c in loaded.graph.caches if isinstance(c, Paged))
    assert sum(t.bytes for t in times if t.label == "attend") == kv
    loaded.timing(False)
    loaded.forward(step())
    assert all(t.calls == 0 for t in loaded.op_times())


def test_sampling_draws_the_largest_logit() -> None:
    loaded = program()
    loaded.forward(step(want=2))
    drawn = loaded.sample(SamplePlan((SampleRow(1, temperature=0.0, logprobs=2), SampleRow(0, temperature=0.0)), VOCAB))
    assert drawn.tokens.tolist() == loaded.logits().argmax(axis=1)[::-1].tolist() and not drawn.failed.any()
    assert drawn.top[0] is not None and len(drawn.top[0].ids) == 2 and drawn.top[1] is None
    with pytest.raises(InternalError, match="1 rows"):
        loaded.sample(SamplePlan((SampleRow(0),), 0))


def test_progress_reaches_the_end() -> None:
    seen: list[tuple[int, int]] = []
    graph, tensors = tiny("gemma2", encoding="Q4_0")
    cpu.load(graph, tensors, LoadPlan((8, 8)), progress=lambda done, all_: seen.append((done, all_)))
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1][0] == sum(t.nbytes for t in tensors.values() if len(t.shape) == 2) <= seen[-1][1]


@pytest.mark.parametrize("encoding", ["F32", "BF16", "Q4_0", "Q4_1", "Q8_0"])
def test_a_matrix_packed_in_slices_is_the_same(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, tensors = tiny("gemma2", encoding=encoding)
    whole = cpu.load(graph, tensors, LoadPlan((8, 8)))
    monkeypatch.setattr(lowering, "SLICE_BYTES", 1)
    seen: list[int] = []
    sliced = cpu.load(graph, tensors, LoadPlan((8, 8)), progress=lambda done, all_: seen.append(done))
    assert len(seen) > len(sliced.packed.numbers)
    assert sliced.native.weights_checksum() == whole.native.weights_checksum()


def test_rows_that_are_no_tiles_or_not_there_are_not_packed() -> None:
    native = program().native
    number = native.add_weight(0, 20, 4)
    rows = np.zeros((20, 16), np.uint8)
    native.pack_weight(number, 0, rows)
    native.pack_weight(number, 16, rows[16:])
    for first, count in ((4, 8), (0, 12), (16, 8), (24, 1), (-8, 8)):
        with pytest.raises(ValueError, match="whole tiles"):
            native.pack_weight(number, first, rows[:count])
    with pytest.raises(IndexError):
        native.pack_weight(10**6, 0, rows)


def test_an_idle_program_uses_no_cpu() -> None:
    loaded = program(threads=3)
    for _ in range(50):
        loaded.forward(step())
    time.sleep(0.1)  # workers look for more for a moment
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1


def test_values_that_are_part_of_the_key() -> None:
    """A latent cache stores nothing twice: its values are the first numbers of its keys."""
    rng, rows = np.random.default_rng(0), 300
    x = rng.standard_normal((rows, 24)).astype(np.float32)

    def run(alias: bool) -> np.ndarray:
        cache = Paged("c", 1, 24, 16, v_aliases_k=alias)
        ops = (Embed("k", "k", rows, 24), Embed("v", "v", rows, 16), CacheWrite("c", "k", "v"), Attend("y", "k", "c", 1, 0.2),
               SelectRows("logits", "y"))  # fmt: skip
        tensors = {"k": matrix("k", x), "v": matrix("v", x[:, :16])}
        loaded = cpu.load(Graph("latent", ops, (cache,), {"logits": "logits"}), tensors, LoadPlan((20,), kv_dtype="f32"))
        table = np.arange(20, dtype=np.int32)
        loaded.forward(Step((Span(0, 0, rows, rows),), np.arange(rows, dtype=np.int32), ((table,),)))
        assert loaded.kv_bytes == 20 * 16 * (24 if alias else 40) * 4
        return loaded.logits().copy()

    assert (run(True) == run(False)).all()


def test_source_pages_are_dropped_from_mapped_files_only(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * 256)
    with path.open("rb") as handle:
        mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    view = np.frombuffer(mapped, np.uint8)[100:60000].reshape(-1, 100)
    drop_pages(view)
    assert view[0, 0] == 100 and view[-1, -1] == 59999 % 256
    private = np.full((512, 64), 7, np.uint8)
    drop_pages(private)
    assert (private == 7).all()
