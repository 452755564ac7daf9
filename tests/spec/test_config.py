"""--speculative-config: vLLM's keys, clear refusals, and what it does to run and to a loaded pair of models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.tiny_gguf import metadata, tiny_gguf

from ridgeline.cli import main
from ridgeline.engine.llm import LLM
from ridgeline.errors import UserError
from ridgeline.options import Options, SpeculativeConfig, speculative_config
from ridgeline.types import SamplingParams


@pytest.mark.parametrize(
    ("given", "config"),
    [
        ('{"method": "ngram", "num_speculative_tokens": 4}', SpeculativeConfig("ngram", 4)),
        ({"num_speculative_tokens": 3, "prompt_lookup_min": 3, "prompt_lookup_max": 5}, SpeculativeConfig("ngram", 3, None, 3, 5)),
        ({"model": "[ngram]", "num_speculative_tokens": 2}, SpeculativeConfig("ngram", 2)),
        ({"model": "small.gguf"}, SpeculativeConfig("draft_model", model="small.gguf")),
        ({"method": "draft_model", "model": "x", "draft_tensor_parallel_size": 1}, SpeculativeConfig("draft_model", model="x")),
        ({"prompt_lookup_max": 1}, SpeculativeConfig("ngram", 4, None, 1, 1)),
        ({"method": "self", "num_speculative_tokens": 2}, SpeculativeConfig("self", 2)),
        ({"rejection_sample_method": "probabilistic"}, SpeculativeConfig("ngram", accept="rejection", adaptive=False)),
        ({"rejection_sample_method": "strict", "adaptive": False}, SpeculativeConfig("ngram", adaptive=False)),
        (None, None),
    ],
)
def test_vllm_keys_are_understood(given: Any, config: SpeculativeConfig | None) -> None:
    assert speculative_config(given) == config
    assert Options("m", speculative_config=given).speculative_config == config


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("ngram", "is not JSON"),
        ("[1]", "must be a JSON object"),
        ({"method": "eagle3"}, "trained heads"),
        ({"method": "self", "model": "x.gguf"}, "takes no model"),
        ({"method": "telepathy"}, "must be one of ngram, draft_model"),
        ({"methods": "ngram"}, "unknown key 'methods'"),
        ({"num_speculative_tokens": 0}, "from 1 to 16"),
        ({"num_speculative_tokens": True}, "from 1 to 16"),
        ({"num_speculative_tokens": "4"}, "from 1 to 16"),
        ({"prompt_lookup_min": 9, "prompt_lookup_max": 5}, "from 1 to 5"),
        ({"method": "draft_model"}, "needs the draft's model"),
        ({"method": "ngram", "model": "x.gguf"}, "takes no model"),
        ({"draft_tensor_parallel_size": 2}, "can only be 1"),
        ({"parallel_drafting": True}, "can only be False"),
        ({"rejection_sample_method": "synthetic"}, "must be one of"),
        ({"adaptive": "yes"}, "must be true or false"),
        ({"method": ["ngram"]}, "must be one of"),
        ({"method": None, "model": 5}, "must be"),
        ({"model": 5}, "must be a name or a path"),
        ({"method": "draft_model", "model": ""}, "must be a name or a path"),
        ("[" * 100_000, "is not JSON"),
        ({"rejection_sample_method": ["strict"]}, "must be one of"),
    ],
)
def test_what_does_not_apply_is_refused_with_its_name(given: Any, words: str) -> None:
    with pytest.raises(UserError, match="speculative_config") as caught:
        speculative_config(given)
    assert words in str(caught.value)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setattr("ridgeline.bench.probe.SHORT_SECONDS", 0.02)


def test_run_says_the_same_and_counts_its_guesses(capsys: pytest.CaptureFixture[str], tiny: str) -> None:
    documents = []
    for more in ([], ["--speculative-config", '{"num_speculative_tokens": 3, "prompt_lookup_min": 1, "adaptive": false}']):
        assert main(["run", tiny, "abc abc abc", "--max-tokens", "12", "--ignore-eos", "--json", *more]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    plain, guessed = documents
    assert plain["token_ids"] == guessed["token_ids"] and "completion_tokens_details" not in plain["usage"]
    details = guessed["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"] > 0
    assert main(["run", tiny, "abc", "--speculative-config", "{"]) == 2
    assert "is not JSON" in capsys.readouterr().err


def test_a_draft_has_its_own_weights_and_half_of_the_cache(tiny: str) -> None:
    """The draft is the target itself: every guess comes true, and both caches hold the same number of tokens within the one budget."""
    params = SamplingParams(max_tokens=14, temperature=1.0, seed=3, ignore_eos=True)
    plain = LLM(tiny, kv_cache_memory_bytes=400_000, max_num_seqs=4)
    want = plain.generate("hello", params)[0].outputs[0]
    options = {"method": "draft_model", "model": tiny, "num_speculative_tokens": 3, "adaptive": False}
    llm = LLM(tiny, kv_cache_memory_bytes=400_000, max_num_seqs=4, speculative_config=options)
    got = llm.generate("hello", params)[0].outputs[0]
    assert got.token_ids == want.token_ids and got.accepted_tokens == got.drafted_tokens > 6
    draft = llm.model.draft
    assert draft is not None and draft.plan.blocks == llm.model.plan.blocks
    assert draft.plan.kv_bytes + llm.model.plan.kv_bytes <= 400_000 < plain.model.plan.kv_bytes * 2
    assert any("draft" in note and "KV cache" in note for note in llm.model.plan.notes)


def test_a_draft_of_another_vocabulary_is_refused(tmp_path: Path, tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = list(metadata()["tokenizer.ggml.tokens"])
    tokens[20] = "???"
    other = tiny_gguf(tmp_path / "other.gguf", **{"tokenizer.ggml.tokens": tokens})
    assert main(["run", tiny, "abc", "--speculative-config", json.dumps({"model": str(other)})]) == 2
    assert "another vocabulary" in capsys.readouterr().err
