"""Workloads as data: what is asked, who shares what with whom, and that the same recipe asks the same again."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ridgeline.bench.client_metrics import DEFINITIONS, Slo, figures
from ridgeline.bench.corpus import Corpus
from ridgeline.bench.load import Manner
from ridgeline.bench.load_workloads import PRESETS, Mix, Recipe, Session, fitted, preset, sessions, timed, traced
from ridgeline.cli import main
from ridgeline.errors import UserError

CORPUS = Corpus()


def made(name: str, count: int = 6, **more: object) -> list[Session]:
    return sessions(replace(Recipe(PRESETS[name], count, salt="abc"), **more), CORPUS)  # type: ignore[arg-type]


def common(a: str, b: str) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def prompt(s: Session) -> str:
    return s.system + s.turns[0].text


def test_every_use_has_a_preset_of_its_own() -> None:
    assert list(PRESETS) == ["chat", "rag", "agents", "long", "code", "batch", "eval", "rl"]
    known = set(figures([], Slo()).as_json())
    for p in PRESETS.values():
        assert p.metric in known and p.metric in DEFINITIONS and p.why and p.arrival
    assert len({(p.prompt, p.output, p.shared) for p in PRESETS.values()}) == len(PRESETS)
    assert len({p.arrival for p in PRESETS.values()}) >= 5 and len({(p.slo.ttft_s, p.slo.tpot_s) for p in PRESETS.values()}) >= 5
    with pytest.raises(UserError, match="chat, rag"):
        preset("chatt")


def test_the_presets_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Row 1: each use with its own promise, lengths and arrivals, and the figure it is about."""
    assert main(["bench", "workloads", "--json"]) == 0
    rows = {r["workload"]: r for r in json.loads(capsys.readouterr().out)["workloads"]}
    assert list(rows) == list(PRESETS) and rows["chat"]["optimises"] == "goodput_s" and rows["chat"]["SLO TTFT ms"] == 1000
    assert rows["eval"]["SLO TPOT ms"] is None and rows["eval"]["answer tokens"] == "1" and rows["agents"]["turns"] == 2
    assert main(["bench", "workloads"]) == 0
    assert "output_tok_s" in capsys.readouterr().out


@pytest.mark.parametrize("name", PRESETS)
def test_same_recipe_same_prompts(name: str) -> None:
    assert made(name) == made(name)
    assert made(name) != made(name, seed=1)
    assert [s.turns[0].max_tokens for s in made(name)] == [s.turns[0].max_tokens for s in made(name, salt="other")]


@pytest.mark.parametrize("name", PRESETS)
def test_no_prompt_begins_like_one_of_another_run(name: str) -> None:
    for a, b in itertools.product(made(name), made(name, salt="xyz")):
        assert common(prompt(a), prompt(b)) <= 1


@pytest.mark.parametrize("name", [n for n, p in PRESETS.items() if not p.shared])
def test_sessions_that_share_nothing_differ_within_their_mark(name: str) -> None:
    for a, b in itertools.combinations(made(name), 2):
        assert common(prompt(a), prompt(b)) <= len("[abc.")


def test_agents_share_their_role_and_rate_their_answer() -> None:
    found = made("agents", 5)
    assert len({s.system for s in found}) == 1 and len(found[0].system) > 3000
    assert all(len(s.turns) == 2 and "from 1 to 10" in s.turns[1].text for s in found)
    assert len({s.turns[0].text for s in found}) == 5


def test_rag_has_few_documents() -> None:
    found = made("rag", 9)
    assert len({s.system for s in found}) == 3 and found[0].system == found[3].system


def test_an_evaluation_asks_many_questions_behind_the_same_examples() -> None:
    found = made("eval", 20)
    assert len({s.system for s in found}) == 1 and len(found[0].system) > 2000 and {s.turns[0].max_tokens for s in found} == {1}
    assert len({s.turns[0].text for s in found}) == 20 and PRESETS["eval"].slo == Slo() and PRESETS["eval"].metric == "requests_s"


def test_rollouts_ask_n() -> None:
    assert {s.n for s in made("rl")} == {8}
    body = Manner("m").body([("user", "x")], 4, 8, 0)
    assert body["n"] == 8 and body["temperature"] > 0


def test_lengths_follow_the_measured_characters_and_the_scale() -> None:
    sizes = [len(s.turns[0].text) for s in made("batch", 200)]
    assert np.median(sizes) == pytest.approx(300 * 4.2, rel=0.1)
    assert np.median([len(s.turns[0].text) for s in made("batch", 200, characters=2.1)]) == pytest.approx(300 * 2.1, rel=0.1)
    small = made("batch", 50, scale=0.1)
    assert np.median([s.turns[0].max_tokens for s in small]) == pytest.approx(6.4, rel=0.25)


def test_chat_is_spread_like_sharegpt() -> None:
    """Means of the two lognormals before their cuts, as published for ShareGPT with vLLM: 161 and 338."""
    p = PRESETS["chat"]
    for mix, mean in ((p.prompt, 161), (p.output, 338)):
        assert mix.median * np.exp(mix.sigma**2 / 2) == pytest.approx(mean, rel=0.02)


def test_prompts_are_cut_to_what_the_model_holds() -> None:
    p = fitted(PRESETS["long"], 8192, 1.0)
    assert p.prompt.median == 3000 and p.prompt.high * 1.25 + 32 < 8192 < PRESETS["long"].prompt.high
    assert fitted(PRESETS["chat"], 8192, 1.0) == PRESETS["chat"]
    small = fitted(PRESETS["long"], 2048, 1.0).prompt
    assert small.median == small.high < 1700 and small.low == 500
    with pytest.raises(UserError, match="more than the model's 512 tokens"):
        fitted(PRESETS["agents"], 512, 1.0)
    assert fitted(PRESETS["agents"], 512, 0.1).shared == 1000


def test_draws_keep_their_limits() -> None:
    rng = np.random.default_rng(0)
    values = [Mix(100, 2.0, 20, 300).draw(rng, 1.0) for _ in range(500)]
    assert min(values) == 20 and max(values) == 300
    assert Mix(7).draw(rng, 1.0) == 7 and Mix(7).draw(rng, 1e-9) == 1


def test_arrivals_are_the_simulators() -> None:
    found = timed(made("chat", 400), 4.0, 1, 0)
    gaps = np.diff([s.arrival_s for s in found])
    assert gaps.mean() == pytest.approx(0.25, rel=0.15) and gaps.std() == pytest.approx(0.25, rel=0.3)
    groups = [s.arrival_s for s in timed(made("chat", 40), 4.0, 8, 0)]
    assert len(set(groups)) == 5


def test_a_trace_keeps_its_times_and_shares_its_prefixes(tmp_path: Path) -> None:
    rows = [
        {"arrival": 0.5, "prompt_len": 80, "output_len": 4, "prefix_id": "a", "prefix_len": 60},
        {"arrival": 0.1, "prompt_len": 70, "output_len": 5, "prefix_id": "a", "prefix_len": 60},
        {"arrival": 0.9, "prompt_len": 70, "output_len": 6},
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(json.dumps(r) for r in rows))
    found = traced(path, CORPUS, "s")
    assert [(s.arrival_s, s.turns[0].max_tokens) for s in found] == [(0.1, 5), (0.5, 4), (0.9, 6)]
    first, second, third = (s.turns[0].text.split() for s in found)
    assert first[:61] == second[:61] and first[61:64] != second[61:64]
    assert common(" ".join(first), " ".join(third)) < 12


def test_text_is_ours_and_enough() -> None:
    rng = np.random.default_rng(0)
    assert len(CORPUS.sentences) > 120 and len(CORPUS.functions) > 100 and len(CORPUS.words) > 150
    for write in (CORPUS.prose, CORPUS.code):
        text = write(rng, 50_000)
        assert 49_900 < len(text) <= 50_000
        assert len(write(rng, 1)) == 1


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_what_is_sent(endpoint: str) -> None:
    manner = Manner("m", endpoint, temperature=0.0)  # type: ignore[arg-type]
    body = manner.body([("system", "s"), ("user", "u")], 7, 1, 3)
    assert (body["max_tokens"], body["seed"], body["stream"], body["temperature"], body["ignore_eos"]) == (7, 3, True, 0.0, True)
    assert body["stream_options"] == {"include_usage": True}
    assert ("messages" in body) == (endpoint == "chat") and "n" not in body
    assert "ignore_eos" not in Manner("m", ignore_eos=False).body([("user", "u")], 7, 1, 3)
