"""A model that is its own draft: the same packed weights, what is left out is searched once and kept, the words stay the same."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.cli.tiny_gguf import tiny_gguf
from tests.models.tiny import tiny

from ridgeline.backends.base import LoadPlan, Program
from ridgeline.backends.reference import load as load_reference
from ridgeline.cli import main
from ridgeline.engine import self_draft
from ridgeline.engine.llm import LLM
from ridgeline.engine.self_draft import KEPT, LeftOut, blocks_for, gain, keep_for, kept_for, search
from ridgeline.formats.tensors import Tensor
from ridgeline.graph.caches import cache_groups
from ridgeline.graph.graph import Graph
from ridgeline.graph.rewrite import residual_sums, without
from ridgeline.graph.step import Int32Array, Span, Step
from ridgeline.planner.cost import GraphCost
from ridgeline.types import SamplingParams

SELF = {"method": "self", "num_speculative_tokens": 3, "adaptive": False}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("ridgeline.bench.probe.SHORT_SECONDS", 0.02)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


def logits(program: Program, graph: Graph, tokens: Int32Array) -> np.ndarray:
    tables = ((np.arange(-(-len(tokens) // 16), dtype=np.int32),),) * len(cache_groups(graph.caches))
    program.forward(Step((Span(0, 0, len(tokens), len(tokens)),), tokens, tables))
    return program.logits().copy()


@pytest.mark.parametrize(("family", "encoding"), [("llama", "Q4_K"), ("gemma3", "Q8_0"), ("qwen3", "F32")])
def test_packed_weights_are_used_where_they_lie(family: str, encoding: str) -> None:
    """The draft is given a file of zeros for matrices: what it says comes from the packed ones, even when their first owner is gone."""
    cpu = pytest.importorskip("ridgeline.backends.cpu", reason="the native backend is not built")
    graph, tensors = tiny(family, encoding=encoding)
    draft, tokens = without(graph, residual_sums(graph)[1:3]), np.arange(40, dtype=np.int32)
    empty = {n: replace(t, stored=np.zeros_like(t.data)) if len(t.shape) == 2 else t for n, t in tensors.items()}

    def plan(g: Graph) -> LoadPlan:
        return LoadPlan((4,) * len(cache_groups(g.caches)), threads=2)

    whole, seen = cpu.load(graph, tensors, plan(graph)), list[int]()
    guesser = cpu.load(draft, empty, plan(draft), None, lambda done, total: seen.append(done), shared=whole.packed)
    want = logits(cpu.load(draft, tensors, plan(draft)), draft, tokens)
    own = logits(whole, graph, tokens)
    assert np.array_equal(logits(guesser, draft, tokens), want) and not np.array_equal(own, want) and seen == []
    assert np.array_equal(logits(whole, graph, tokens), own), "each has its own keys and values"
    del whole
    gc.collect()
    assert np.array_equal(logits(guesser, draft, tokens), want)


def found_for(graph: Graph, tensors: dict[str, Tensor]) -> LeftOut:
    texts = [np.random.default_rng(i).integers(0, 199, 70).astype(np.int32) for i in range(2)]
    cost: Callable[[Graph], float] = lambda g: GraphCost(g).total(GraphCost(g).work([Span(0, 128, 1, 1)])).bytes  # noqa: E731

    def run(g: Graph, taps: tuple[str, ...]) -> Program:
        return load_reference(g, tensors, LoadPlan(blocks_for(g, texts, 16), taps=taps))

    return search(graph, texts, 16, run, lambda g, step: cost(g) * (1 + 0.05 * step.rows))


def test_the_search_finds_what_is_not_missed() -> None:
    """Two halves that add nothing are left out, and with them the model says what it said: all guesses come true, and cost less."""
    graph, tensors = tiny("llama")
    for name in ("layers.1.o", "layers.0.down"):
        tensors[name] = replace(tensors[name], stored=np.zeros_like(tensors[name].data))
    left = found_for(graph, tensors)
    assert set(left.sums) >= {"layers.1.attn_sum", "layers.0.out"} and left.halves == 4
    assert left.agreement == 1.0 or len(left.sums) > 2
    assert left.gain == pytest.approx(left.gain) and left.gain > 0
    assert without(graph, left.sums).caches
    assert found_for(graph, tensors) == left, "it is the same each time"


def test_gains_are_those_of_the_arithmetic() -> None:
    assert gain(0.0, 0.5, 0.1) == pytest.approx(1 / 1.6)
    assert gain(1.0, 0.25, 0.0) == pytest.approx(9 / 3)
    assert gain(0.8, 0.5, 0.1) == pytest.approx(max((1 - 0.8 ** (k + 1)) / 0.2 / (1 + 0.6 * k) for k in range(1, 9)))


def test_what_was_found_is_kept_for_that_model_only(_cache: Path) -> None:
    graph, tensors = tiny("llama")
    spec: Any = SimpleNamespace(graph=graph, tensors=tensors)
    assert kept_for(spec) is None
    left = LeftOut(("layers.1.attn_sum", "layers.1.out"), 4, 0.75, 0.9)
    keep_for(spec, left)
    assert kept_for(spec) == left
    assert kept_for(SimpleNamespace(graph=graph, tensors=tiny("llama", seed=1)[1])) is None  # type: ignore[arg-type]
    for sums in ((), ("layers.9.out",), residual_sums(graph), residual_sums(graph)[::2]):  # nothing, unknown, all, no attention left
        keep_for(spec, replace(left, sums=sums))
        assert kept_for(spec) is None, sums
    keep_for(spec, replace(left, agreement=7.0))
    assert kept_for(spec) is None
    (_cache / KEPT).write_text('{"x": 3, "y"')
    assert kept_for(spec) is None


def test_words_stay_and_memory_is_counted(file: str, monkeypatch: pytest.MonkeyPatch, _cache: Path) -> None:
    params = [SamplingParams(max_tokens=14, temperature=t, seed=3, ignore_eos=True, n=2, logprobs=1) for t in (0.0, 1.0)]
    budget = {"kv_cache_memory_bytes": 400_000, "max_num_seqs": 4}

    def answers(llm: LLM) -> list[Any]:
        outs = [llm.generate("hello", p)[0] for p in params]
        return [(c.token_ids, c.text, c.finish_reason, c.logprobs, c.cumulative_logprob) for out in outs for c in out.outputs]

    plain = LLM(file, **budget)
    first = LLM(file, speculative_config=SELF, **budget)
    assert list(json.loads((_cache / KEPT).read_text()))
    monkeypatch.setattr("ridgeline.engine.loader.search", lambda *a: pytest.fail("it was searched a second time"))
    again = LLM(file, speculative_config=json.dumps(SELF), **budget)
    want = answers(plain)
    for llm in (first, again):
        assert answers(llm) == want
        counts, draft, plan = llm.core.metrics.counts, llm.model.draft, llm.model.plan
        assert counts["spec_decode_num_draft_tokens"] > 10 and counts["speculation_faults"] == 0
        assert draft is not None and draft.plan.kv_bytes + plan.kv_bytes <= 400_000
        assert min(draft.plan.blocks) >= min(plan.blocks) - 1, "both hold about as many tokens"
        assert draft.program.kv_bytes == draft.plan.kv_bytes and draft.program.weight_bytes < llm.model.program.weight_bytes  # type: ignore[attr-defined]
        assert any("itself without" in note and "no weights" in note for note in plan.notes), plan.notes
    assert first.model.plan == again.model.plan and first.model.draft.plan == again.model.draft.plan  # type: ignore[union-attr]


def test_the_definition_guesses_for_itself_too(file: str) -> None:
    config = {"method": "self", "num_speculative_tokens": 2, "adaptive": False}
    params = SamplingParams(max_tokens=6, temperature=1.0, seed=1, ignore_eos=True)
    llm = LLM(file, backend="reference", max_model_len=64, max_num_seqs=2, speculative_config=config)
    assert llm.model.draft is not None and llm.model.draft.program._weights is llm.model.program._weights  # type: ignore[attr-defined]
    got = llm.generate("abc", params)[0].outputs[0]
    plain = LLM(file, backend="reference", max_model_len=64, max_num_seqs=2).generate("abc", params)[0].outputs[0]
    assert got.token_ids == plain.token_ids and got.drafted_tokens > 0


def test_a_search_that_cannot_be_kept_is_made_again(file: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "file"))
    llm = LLM(file, speculative_config=SELF, kv_cache_memory_bytes=400_000, max_num_seqs=4)
    assert llm.generate("ab", SamplingParams(max_tokens=4, ignore_eos=True))[0].outputs[0].finish_reason == "length"


def test_commands_take_it(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    config = json.dumps(SELF)
    documents = []
    for more in ([], ["--speculative-config", config]):
        assert main(["run", file, "abc abc", "--max-tokens", "12", "--ignore-eos", "--json", *more]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    assert documents[0]["token_ids"] == documents[1]["token_ids"]
    details = documents[1]["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"] > 0
    monkeypatch.setattr("ridgeline.bench.spec.prompts_of", lambda domain: ["abcabcabc"])
    assert main(["bench", "spec", file, "--domain", "chat", "--drafts", "1", "--gen", "6", "--json", "--speculative-config", config]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["method"] == "self" and report["differing"] == 0 and report["rows"][1]["acceptance"] is not None
    assert self_draft.KEPT in {p.name for p in Path(tmp_path / "cache").iterdir()}
