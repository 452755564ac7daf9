"""The prefix cache on a tiny model: what is cached is what is common, rounded as each policy must, and no word changes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.tiny_gguf import metadata, tiny_gguf

from ridgeline.bench.prefix import PrefixOptions, edits, run, shared_length, texts
from ridgeline.cli import main
from ridgeline.engine.loader import load
from ridgeline.errors import UserError
from ridgeline.options import Options


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_gguf(tmp_path_factory.mktemp("prefix") / "tiny.gguf", **{"llama.context_length": 1024}))


@pytest.mark.parametrize("block", [8, 16])
def test_cached_is_common_rounded_down(tiny: str, capsys: pytest.CaptureFixture[str], block: int) -> None:
    given = ["--shared", "200", "--requests", "3", "--own", "4", "--output", "4", "--block-size", str(block), "--json"]
    assert main(["bench", "prefix", tiny, *given]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [p["policy"] for p in found["policies"]] == ["radix", "hash", "off"]
    for p in found["policies"]:
        asked = [p["first"], *p["rest"], *(e["asked"] for e in p["edits"])]
        assert all(a["same"] for a in asked) and asked[0]["cached"] == 0 and len(asked) == 6
        assert all(a["common"] >= 200 for a in p["rest"])
        unit = {"radix": 1, "hash": block, "off": 0}[p["policy"]]
        for a in asked[1:]:
            assert a["cached"] == (a["common"] // unit * unit if unit else 0), p["policy"]
        places = [e["asked"]["common"] for e in p["edits"]]
        assert places == sorted(places) and 0 < places[0] < places[2] < asked[0]["prompt"]  # not zero, and not all


def test_edits_change_one_letter() -> None:
    prompt = "An axe, an ox and an elk. " * 10
    for at, text in edits(prompt):
        assert prompt[at].isalpha() and prompt[at] != text[at] and len(text) == len(prompt)
        assert sum(a != b for a, b in zip(prompt, text, strict=True)) == 1
    assert shared_length([1, 2, 3], [1, 2, 4]) == 2 and shared_length([1], [1, 2]) == 1 and shared_length([], [1]) == 0


def test_tokens_must_fit_not_letters(tmp_path: Path) -> None:
    pairs = {"tokenizer.ggml.tokens": [*metadata()["tokenizer.ggml.tokens"][:-1], "he"], "tokenizer.ggml.merges": ["h e"]}
    roomy = str(tiny_gguf(tmp_path / "roomy.gguf", **pairs, **{"llama.context_length": 1024}))
    asked = PrefixOptions(Options(roomy, threads=1), 2, 200, 4, 2)
    model = load(asked.options)
    prompts = texts(asked, model)
    every = [*prompts, *(text for _, text in edits(prompts[-1]))]
    need = max(len(model.text.encode(text)) for text in every) + asked.output
    assert need < max(map(len, prompts))
    close = str(tiny_gguf(tmp_path / "close.gguf", **pairs, **{"llama.context_length": need}))
    assert len(run(replace(asked, options=Options(close, threads=1))).policies) == 3
    with pytest.raises(UserError, match="--shared 200 does not fit"):
        run(replace(asked, options=Options(close, threads=1), output=3))


def test_what_does_not_fit(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for bad in (["--shared", "5000"], ["--shared", "3"], ["--requests", "1"]):
        assert main(["bench", "prefix", tiny, *bad]) == 2
        assert capsys.readouterr().err.startswith(("error: ", "prefix"))
