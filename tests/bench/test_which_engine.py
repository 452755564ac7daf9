"""`ridgeline engines`: row 153. Every leaf can be reached, and says what it rests on."""

from __future__ import annotations

import json

import pytest

from ridgeline.bench.engines import ENGINES
from ridgeline.bench.which_engine import DEFAULT, QUESTIONS, Ask, choose, leaves, walk
from ridgeline.cli import main


def test_every_leaf_has_a_way_and_a_source() -> None:
    found = [leaf.engine for _, leaf in leaves()]
    assert found == ["llama.cpp", "M*", "Dynamo", "transformers", "sglang", "tensorrt-llm", "vllm"]
    assert [choose({q.key: True}) for q in QUESTIONS] == [q.yes for q in QUESTIONS] and choose({}) is DEFAULT
    for _, leaf in leaves():
        assert leaf.evidence and all(e.said and e.source and e.date[-1].isdigit() for e in leaf.evidence)


def test_questions_end_with_the_first_yes() -> None:
    asked: list[str] = []

    def answer(question: Ask) -> bool:
        asked.append(question.key)
        return len(asked) == 5

    assert walk(answer).engine == "sglang" and asked == ["cpu", "multimodal", "fleet", "simple", "agents"]


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engines", "--agents"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("sglang (") and "2312.07104" in shown and "but " in shown
    assert main(["engines", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["leaves"]) == len(QUESTIONS) + 1
    assert main(["engines"]) == 0
    assert "otherwise: vllm" in capsys.readouterr().out


def test_those_that_can_be_measured_are_named_as_the_benchmark_names_them() -> None:
    assert {"llama.cpp", "vllm", "sglang", "transformers"} <= set(ENGINES)
