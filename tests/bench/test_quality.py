"""The quality gate: exact arithmetic on invented logits, then a tiny model end to end, with exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.tiny_gguf import tiny_gguf

from ridgeline.bench.accuracy import Divergence, compare
from ridgeline.bench.quality import Asked, Gate, QualityOptions, QualityReport, TextResult, judge, shipped_texts
from ridgeline.bench.quality_needle import DEPTHS, Found, needles, search
from ridgeline.bench.quality_rtn import Rtn, parse, round_to_nearest
from ridgeline.bench.quality_show import render, undecided
from ridgeline.bench.quality_tasks import CHUNK, Answers, Asker, Item, Task, lookup_task, shipped_tasks
from ridgeline.bench.runner import Array, Ids
from ridgeline.cli import main
from ridgeline.engine.words import open_words
from ridgeline.errors import UserError
from ridgeline.formats.checkpoint import open_checkpoint
from ridgeline.options import Options
from ridgeline.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("quality") / "tiny.gguf", **{"llama.context_length": 1024})


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Tokenizer:
    return open_words(open_checkpoint(tiny)).tokenizer


class Parrot:
    """A model that says what follows the last occurrence of the longest known end: it repeats what it has read. Bytes are tokens."""

    def __init__(self, vocab: int) -> None:
        self.vocab, self.seen = vocab, list[int]()
        self.most = 0

    def __call__(self, past: int, tokens: Ids, want: int) -> Array:
        self.most = max(self.most, len(tokens))
        del self.seen[past:]
        assert len(self.seen) == past
        rows = []
        for i, token in enumerate(tokens.tolist()):
            self.seen.append(token)
            if i >= len(tokens) - want:
                rows.append(self._row())
        return np.array(rows, np.float32).reshape(want, self.vocab)

    def _row(self) -> Array:
        row = np.zeros(self.vocab, np.float32)
        for length in range(12, 0, -1):
            end = self.seen[-length:]
            for at in range(len(self.seen) - length - 1, -1, -1):
                if self.seen[at : at + length] == end:
                    row[self.seen[at + length]] = 20.0
                    return row
        return row


def parrot(tokenizer: Tokenizer) -> Asker:
    return Asker(Parrot(tokenizer.size), tokenizer, tokenizer.prefix)


def test_a_parrot_looks_up_and_finds_needles(tokenizer: Tokenizer) -> None:
    asked = lookup_task(items=8)
    assert parrot(tokenizer).answer(asked).share == 1.0
    made = needles(tokenizer, (300, 700), each=1)
    found = search(parrot(tokenizer), made)
    assert [(f.tokens, f.depth, f.found) for f in found] == [(n, d, 1) for n in (300, 700) for d in DEPTHS]
    for needle in made:
        assert needle.prompt.count(needle.answer) == 1
        assert abs(len(tokenizer.encode_plain(needle.prompt)) - needle.tokens) < 400  # whole sentences, a byte a token
        at = needle.prompt.index(needle.answer) / len(needle.prompt)
        assert abs(at - needle.depth) < 0.35
    assert [n.prompt for n in made] == [n.prompt for n in needles(tokenizer, (300, 700), each=1)]  # same seed, same hay


def test_long_contexts_go_in_chunks(tokenizer: Tokenizer) -> None:
    model = Parrot(tokenizer.size)
    Asker(model, tokenizer).go_on("x" * (3 * CHUNK + 5), "x")
    assert model.most == CHUNK and len(model.seen) >= 3 * CHUNK + 5


def test_a_choice_is_the_likeliest_whole_continuation(tokenizer: Tokenizer) -> None:
    def model(past: int, tokens: Ids, want: int) -> Array:
        rows = np.zeros((len(tokens), tokenizer.size), np.float32)
        rows[:, ord("b")] = 1.0  # b is likelier than any other byte, everywhere
        return rows[len(rows) - want :]

    asker = Asker(model, tokenizer)
    items = (Item("xa", ("bb", "cc")), Item("xa", ("cc", "bb")), Item("x", ("c", "bbc")), Item("a", ("bb", "cc")))
    found = asker.answer(Task("t", "", "choice", items))
    assert found.given == (0, 1, 0, 0)  # the third: two likely letters do not make up for a longer text; the last: "ab" is one token
    assert found.right == (True, False, True, True) and found.share == 0.75


def test_shipped_questions_are_well_formed() -> None:
    tasks = shipped_tasks()
    assert {t.name for t in tasks} == {"facts", "grammar", "sense", "code", "series"}
    for item in (i for t in tasks for i in t.items):
        assert bool(item.answer) != bool(item.choices)
        assert len(set(item.choices)) == len(item.choices) != 1
    assert all(len({i.prompt + "".join(i.choices) for i in t.items}) == len(t.items) >= 12 for t in tasks)
    assert all(len(text) > 5000 for text in shipped_texts().values())


def test_divergence_of_known_distributions() -> None:
    even = np.zeros((1, 2), np.float32)
    skewed = np.log(np.array([[0.75, 0.25]], np.float32))
    ids = np.zeros(1000, np.int32)

    def same(past: int, tokens: Ids, want: int) -> Array:
        return np.repeat(even, want, axis=0)

    def other(past: int, tokens: Ids, want: int) -> Array:
        rows = same(past, tokens, want)
        if past == 0:
            rows[5] = skewed[0]  # one position of a thousand differs
        return rows

    ppl, (found,) = compare(same, {"x": other}, [ids])
    far = 0.5 * np.log(0.5 / 0.75) + 0.5 * np.log(0.5 / 0.25)
    assert ppl == pytest.approx(2.0)
    assert found.kl_max == pytest.approx(far) and found.kl_mean == pytest.approx(far / 1000)
    assert found.kl_p99 == pytest.approx(0.0, abs=1e-12) and 0 < found.kl_p999 < far
    assert found.ppl == pytest.approx(np.exp((999 * np.log(2) - np.log(0.75)) / 999), rel=1e-3)


def test_the_interval_of_a_rise_comes_from_paired_losses() -> None:
    """Both sides share the text's difficulty; only their differences count."""
    rng = np.random.default_rng(0)
    hard = rng.normal(0, 3, 4001).astype(np.float32)  # how unlikely the next token is, for both

    def model(extra: float, less: float) -> Any:
        def logits(past: int, tokens: Ids, want: int) -> Array:
            rows = np.zeros((want, 2), np.float32)
            at = np.arange(past, past + want)
            rows[:, 1] = hard[at] + np.where(rng_of(at) < 0.5, extra, less)
            return rows

        return logits

    def rng_of(at: Any) -> Any:
        return np.random.default_rng(1).random(4001)[at]

    ids = np.zeros(4001, np.int32)
    ppl, (same, worse) = compare(model(0, 0), {"same": model(0, 0), "worse": model(0.06, -0.02)}, [ids])
    assert (same.rise_low, same.rise_high) == (0, 0)
    rise = worse.ppl / ppl - 1
    assert worse.rise_low is not None and worse.rise_high is not None and 0 < worse.rise_low < rise < worse.rise_high < 0.02
    assert compare(model(0, 0), {"few": model(1, 1)}, [ids[:200]])[1][0].rise_low is None


def test_an_interval_across_the_limit_is_said_to_decide_nothing() -> None:
    texts = (result(rise_low=-0.01, rise_high=0.031), result(rise_low=0.001, rise_high=0.019))
    report = QualityReport("b", ("c",), 512, texts, (), tuple(judge(Gate(), texts, [])))
    assert undecided(report) == (
        "c, t: 100 positions do not tell whether perplexity rises by more than 3.00% (+1.00%, 95% -1.00..+3.10%):"
        " --positions N and a longer --text do",
    )
    assert "-1.00..+3.10%" in render(report) and undecided(report)[0] in render(report)
    assert undecided(QualityReport("b", ("c",), 512, texts, (), tuple(judge(Gate(ppl=None), texts, [])))) == ()


def result(**changes: float) -> TextResult:
    values = {"kl_mean": 0.01, "kl_median": 0.0, "kl_p99": 0.1, "kl_p999": 0.2, "kl_max": 0.3, "top1": 0.97, "ppl": 10.1} | changes
    return TextResult("t", "", 100, 10.0, (Divergence("c", 100, **values),))


def told(right: int, found: int) -> Asked:
    return Asked("c", (Answers("t", (0,) * 10, (True,) * right + (False,) * (10 - right)),), (Found(512, 0.5, 10, found),))


@pytest.mark.parametrize(
    ("change", "broken"),
    [({}, None), ({"kl_mean": 0.06}, "KL mean"), ({"kl_p999": 3.1}, "KL 99.9%"), ({"top1": 0.89}, "top-1 agreement"),
     ({"ppl": 10.4}, "perplexity rise"), ({"ppl": 9.0}, None)],
)  # fmt: skip
def test_the_gate_names_what_is_too_far(change: dict[str, float], broken: str | None) -> None:
    checks = judge(Gate(), [result(), result(**change)], [told(9, 9), told(9, 8)])
    assert len(checks) == 6
    assert [c.measure for c in checks if not c.passed] == ([broken] if broken else [])


def test_lost_answers_and_needles_are_gated() -> None:
    checks = judge(Gate(), [result()], [told(9, 9), told(8, 7)])
    assert {c.measure: c.value for c in checks if not c.passed} == {"right answers lost": 0.1, "needles lost": 0.2}
    assert all(c.passed for c in judge(Gate(tasks=None, needles=None), [result()], [told(9, 9), told(0, 0)]))
    assert judge(Gate(kl=None, kl_p999=None, top1=None, ppl=None), [result()], []) == []


def test_columns_stay_apart_when_a_model_is_broken() -> None:
    """A perplexity of millions is a number of times its base, not a percentage of eight digits."""
    report = QualityReport("b", ("c",), 512, (result(), result(ppl=1_902_947.471)), (), ())
    rows = [line.split() for line in render(report).splitlines() if line.startswith("t ")]
    assert rows[0][2:5] == ["10.100", "10.000", "+1.00%"] and rows[1][2:6] == ["1,902,947", "10.000", "x", "190,295"]


def run_cli(capsys: pytest.CaptureFixture[str], *given: str) -> tuple[int, dict[str, Any]]:
    code = main(["bench", "quality", *given, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_file_against_itself_is_no_loss(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run_cli(
        capsys, str(tiny), "--kv-cache-dtype", "f32", "--kv-cache-dtype", "bf16", "--positions", "200", "--window", "128", "--needle", "300"
    )
    assert code == 0 and found["passed"]
    for text in found["texts"]:
        same, rounded = text["candidates"]
        assert same["kl_max"] == 0 and same["top1"] == 1 and same["ppl"] == text["base_ppl"]
        assert 0 < rounded["kl_mean"] < 0.01
    assert found["asked"][1]["same"] == 1.0
    assert found["report"]["tables"][0]["title"].startswith("Distance from")
    assert [" keeps every limit: KL 0.0" in n for n in found["report"]["notes"]] == [True, True]


def test_a_loss_beyond_the_limit_is_exit_code_1(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [str(tiny), "--no-tasks", "--positions", "100", "--window", "64"]
    code, found = run_cli(capsys, *given, "--max-kl", "0")
    assert code == 1 and [c["measure"] for c in found["checks"] if not c["passed"]] == ["KL mean"]
    assert " breaks the limit of KL mean: " in found["report"]["notes"][0]
    other = tiny_gguf(tmp_path / "other.gguf", seed=1, **{"llama.context_length": 1024})
    assert main(["bench", "quality", *given, "--against", str(other)]) == 1
    said = capsys.readouterr().out
    assert "FAILED" in said and "not passed" in said


def test_what_cannot_be_compared_is_said(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tiny_gguf(tmp_path / "other.gguf", **{"tokenizer.ggml.merges": ["a b", "t h"], "llama.context_length": 1024})
    assert main(["bench", "quality", str(tiny), "--against", str(other), "--no-tasks"]) == 2
    (tmp_path / "empty.txt").write_text("")
    assert main(["bench", "quality", str(tiny), "--no-tasks", "--positions", "20", "--text", str(tmp_path / "empty.txt")]) == 2
    wrong = ("--needle 2000", "--positions 1", "--max-kl -1", "--min-top1 2", "--kv-cache-dtype nope", "--text /none")
    for bad in (w.split() for w in wrong):
        assert main(["bench", "quality", str(tiny), *bad]) == 2, bad
        assert capsys.readouterr().err.count("\n") >= 1
    with pytest.raises(UserError, match="--window"):
        QualityOptions((Options("m"),), Options("m"), window=3)


@pytest.mark.parametrize(
    ("how", "scales"), [("int4:tensor", [[70, 70], [70, 70]]), ("int4:channel", [[7, 7], [70, 70]]), ("int4:2", [[7, 3.5], [0, 70]])]
)
def test_rounding_to_nearest_has_the_scales_it_says(how: str, scales: list[list[float]]) -> None:
    values = np.array([[7.0, 1.4, 3.5, -0.6], [0.0, 0.0, -70.0, 4.0]], np.float32)
    steps = np.repeat(np.array(scales, np.float32) / 7, 2, axis=1)
    want = np.rint(np.divide(values, steps, out=np.zeros_like(values), where=steps > 0)) * steps
    assert np.array_equal(round_to_nearest(values, parse(how)), want)
    assert np.array_equal(round_to_nearest(values, parse("f32")), values)


def test_finer_scales_lose_less() -> None:
    values = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32) * np.geomspace(0.1, 10, 64, dtype=np.float32)[:, None]
    forms = ("int4:tensor", "int4:channel", "int4:32", "int8:32")
    errors = [float(np.square(round_to_nearest(values, parse(f)) - values).mean()) for f in forms]
    assert errors == sorted(errors, reverse=True) and errors[3] < errors[0] / 1000


@pytest.mark.parametrize("text", ["int4", "int9:tensor", "int4:0", "int4:x", "int:tensor", "4:32", "int4:-1", "", "int4:99999999"])
def test_rounding_that_does_not_exist(text: str) -> None:
    with pytest.raises(UserError, match="--rtn"):
        parse(text)


def test_rounding_is_judged_like_any_loss(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [str(parse(t)) for t in ("int4:tensor", "int8:channel", "int4:32", "f32")] == ["int4:tensor", "int8:channel", "int4:32", "f32"]
    with pytest.raises(UserError, match="do not divide"):
        round_to_nearest(np.zeros((2, 32), np.float32), Rtn(4, 24))
    given = [str(tiny), "--no-tasks", "--positions", "120", "--window", "64", "--rtn", "f32", "--rtn", "int3:tensor", "--rtn", "int3:16"]
    code, found = run_cli(capsys, *given)
    assert code == 1
    for text in found["texts"]:
        plain, coarse, fine = (c["kl_mean"] for c in text["candidates"])
        assert plain < 1e-9 < fine < coarse  # the tiny model's weights are f32 already
