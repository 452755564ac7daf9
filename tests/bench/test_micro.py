"""`bench micro` on a tiny random model: that its figures are what it says they are, and its dealings with a peer."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from ridgeline.bench import micro
from ridgeline.bench.components import OUTSIDE, layers_of
from ridgeline.bench.core_speed import CoreSpeed, Taken, counted
from ridgeline.bench.micro import MicroOptions, MicroReport, render, run
from ridgeline.bench.micro_report import document
from ridgeline.bench.peer import Kind, Peer, find_binary, tokens_per_s
from ridgeline.bench.random_gguf import SHAPES, write_random
from ridgeline.bench.report import report
from ridgeline.bench.report_json import documents_of, to_json
from ridgeline.bench.runner import OneSequence, random_tokens
from ridgeline.engine.loader import load_program, open_model
from ridgeline.errors import UserError
from ridgeline.options import Options
from ridgeline.planner.hardware import Machine

MACHINE = Machine("test", 10.0, 100.0, 50.0, 1, "portable", "measured", "2026-01-01T00:00:00+00:00")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "tiny.gguf"
    write_random(path, SHAPES["tiny"], "Q8_0")
    return path


@pytest.fixture(autouse=True)
def ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro, "probe", lambda threads, isa, seconds: MACHINE)
    monkeypatch.setattr(CoreSpeed, "now", lambda self: 1.0)


def measure(model: Path, **given: object) -> MicroReport:
    return run(MicroOptions(Options(str(model), max_model_len=64, threads=1), prompt=24, gen=6, repeat=3, **given))  # type: ignore[arg-type]


def linear_parameters() -> int:
    s = SHAPES["tiny"]
    return s.layers * (2 * s.dim * s.dim + 2 * s.kv_dim * s.dim + 3 * s.dim * s.ffn)


def _median(r: MicroReport, kind: Kind) -> float:
    """Of the runs that count."""
    return median(counted([Taken(value, speed) for value, speed in zip(r.runs[kind], r.speeds[kind], strict=True)]))


def test_figures_follow_from_the_medians(model: Path) -> None:
    r = measure(model)
    assert r.prompt_tok_s == pytest.approx(24 / _median(r, "prompt"))
    assert r.gen_tok_s == pytest.approx(6 / _median(r, "gen"))
    # Every layer's matrices for 24 rows, the head for one.
    s = SHAPES["tiny"]
    assert r.prompt_gops * _median(r, "prompt") == pytest.approx(2 * (24 * linear_parameters() + s.vocab * s.dim) / 1e9)
    # Six times all matrices and norms, one embedding row, keys written and read: 21 reads and 6 writes of a token in bf16.
    matrices = (linear_parameters() + s.vocab * s.dim) * 34 // 32
    norms = 4 * s.dim * (2 * s.layers + 1)
    token_kv = s.layers * 2 * s.kv_dim * 2
    moved = 6 * (matrices + norms + s.dim * 34 // 32) + 27 * token_kv
    assert r.gen_gb_s * _median(r, "gen") == pytest.approx(moved / 1e9)
    assert r.prompt_fraction_of_int8 == pytest.approx(r.prompt_gops / 100)
    assert r.gen_fraction_of_read == pytest.approx(r.gen_gb_s / 10)
    # Decode here waits for memory: the prediction is the bytes over the ceiling, and a little arithmetic.
    assert r.predicted_gen_tok_s <= 6 / (moved / 10e9)
    assert r.predicted_gen_tok_s == pytest.approx(6 / (moved / 10e9), rel=0.05)
    assert r.machine.provenance == "measured"


@pytest.mark.parametrize("load, warned", [(0.0, False), (64_000.0, True)])
def test_a_busy_machine_is_said(model: Path, monkeypatch: pytest.MonkeyPatch, load: float, warned: bool) -> None:
    monkeypatch.setattr(micro.os, "getloadavg", lambda: (load, 0.0, 0.0))
    lines: list[str] = []
    r = run(MicroOptions(Options(str(model), max_model_len=64, threads=1), prompt=4, gen=2, repeat=1), lines.append)
    assert ("busy" in render(r)) is warned
    assert any("busy" in line for line in lines) is warned
    assert r.as_json()["load_before"] == load


def test_json_is_plain(model: Path) -> None:
    document = json.loads(json.dumps(measure(model, ops=True).as_json()))
    for key in ("prompt_tok_s", "gen_tok_s", "prompt_gops", "gen_gb_s", "peak_gb_s", "peak_int8_gops"):
        assert isinstance(document[key], float) and document[key] > 0
    assert document["against"] is None


def test_the_report_shows_this_runs_points_on_the_roofline(model: Path) -> None:
    """Row 135: measured points of this run, and none above the ceilings' own arithmetic."""
    found = measure(model, ops=True)
    made = document(found, "1.0")
    assert documents_of(json.loads(json.dumps(to_json(made))), "f") == [made]
    (roofline,) = made.rooflines
    whole = {p.name: p for p in roofline.points[:2]}
    prompt = whole[f"prompt of {found.prompt}"]
    assert prompt.gflop_s == found.prompt_gops and prompt.intensity == pytest.approx(found.prompt_gops / found.prompt_gb_s)
    assert whole["generation, 1 sequence"].intensity < prompt.intensity and all(p.label == "measured" for p in roofline.points)
    page = report([made], reported=False).html
    assert "prompt of" in page and "Time of every kind of op" in page and "the fastest that the measured ceilings allow" in page


def test_pairs_of_bfloat16_have_a_roof_where_the_cpu_has_them(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention may pass the roof of float32; the prediction knows both."""
    plain = measure(model)
    monkeypatch.setattr(micro, "probe", lambda threads, isa, seconds: replace(MACHINE, isa="avx512_bf16", bf16_gflops=100.0))
    pairs = measure(model)
    assert (plain.peak_bf16_gflops, pairs.peak_bf16_gflops, pairs.as_json()["peak_bf16_gflops"]) == (50.0, 100.0, 100.0)
    assert pairs.predicted_prompt_tok_s > plain.predicted_prompt_tok_s
    for r, roofs in ((plain, ["int8", "f32"]), (pairs, ["int8", "f32", "bf16 pairs"])):
        made = document(r, "1.0")
        assert [roof.name for roof in made.rooflines[0].roofs] == roofs and len(made.setup.ceilings) == 1 + len(roofs)
        assert ("bf16 pairs" in render(r)) == (r is pairs)


def test_ops_account_for_the_whole_run(model: Path) -> None:
    r = measure(model, ops=True)
    for phase, calls in (("prompt", 1), ("gen", 6)):
        rows = [row for row in r.ops if row.phase == phase]
        assert sum(row.share for row in rows) == pytest.approx(1)
        head = next(row for row in rows if row.label.endswith(" head"))
        assert head.calls == calls
        flops = sum(row.gflop_s * row.seconds * 1e9 for row in rows if row.label.startswith("linear"))
        tokens = 24 if phase == "prompt" else 6
        assert flops == pytest.approx(2 * (tokens * linear_parameters() + calls * SHAPES["tiny"].vocab * SHAPES["tiny"].dim), rel=1e-6)
    text = render(r)
    assert "GOPS" in text and "roofline" in text and "measured 2026" in text


def test_components_account_for_time_and_arithmetic(model: Path) -> None:
    """Row 32: layers and what they are made of, in time and FLOPs, and what is outside every op, which adds up to the whole."""
    r = measure(model, ops=True)
    s = SHAPES["tiny"]
    for phase, tokens, heads in (("prompt", 24, 1), ("gen", 6, 6)):
        mine = {p.component: p for p in r.parts if p.phase == phase}
        assert sum(p.share for p in mine.values()) == pytest.approx(1) == pytest.approx(sum(p.flop_share for p in mine.values()))
        assert mine["outside the ops"].flops == 0 and mine["embedding and first norm"].flops == 4 * tokens * s.dim
        assert mine["attention: projections"].flops == 2 * tokens * s.layers * (2 * s.dim * s.dim + 2 * s.kv_dim * s.dim)
        # Three matrices, and five operations a value for the gate.
        assert mine["FFN"].flops == tokens * s.layers * s.ffn * (6 * s.dim + 5)
        assert mine["last norm and head"].flops == heads * (2 * s.vocab * s.dim + 4 * s.dim)
        inside = layers_of(r.parts, phase)
        assert inside.flop_share == pytest.approx(1 - sum(mine[n].flop_share for n in mine if n in OUTSIDE))
        assert inside.seconds < sum(p.seconds for p in mine.values())
    rows = [row for row in r.ops if row.phase == "prompt"]
    assert sum(row.flop_share for row in rows) == pytest.approx(1)
    text = render(r)
    assert "transformer layers" in text and "outside the ops" in text and text.count("FLOPs") >= 2


def test_generation_feeds_back_what_it_drew(model: Path) -> None:
    """The timed loop computes what a plain prompt of the same tokens computes."""
    program = load_program(open_model(Options(str(model), max_model_len=64, threads=1)))
    sequence = OneSequence(program)
    sequence.generate_seconds(7, 5)
    last = program.logits().copy()
    tokens = [7]
    for _ in range(4):
        sequence.prompt_seconds(np.array(tokens, np.int32), 64)
        tokens.append(int(program.logits()[0].argmax()))
    sequence.prompt_seconds(np.array(tokens, np.int32), 3)
    np.testing.assert_array_equal(program.logits(), last)
    assert len(set(random_tokens(64, 512).tolist())) > 32


def fake_bench(folder: Path, body: str) -> str:
    path = folder / "llama-bench"
    path.write_text(f"#!{sys.executable}\nimport json, sys\na = sys.argv\n{body}\n")
    path.chmod(0o755)
    return str(path)


ANSWER = """
p, n = int(a[a.index("-p") + 1]), int(a[a.index("-n") + 1])
if "--repack" in a: sys.exit("unknown argument")
rate = 100.0 if p else 10.0
if a[a.index("-fa") + 1] == "1": rate *= 2 if p else 0.5
open(a[0] + ".log", "a").write(" ".join(a[1:]) + chr(10))
print(json.dumps([{"n_prompt": p, "n_gen": n, "avg_ts": rate}]))
"""


def test_against_takes_the_peers_best_settings_in_turns(model: Path, tmp_path: Path) -> None:
    binary = fake_bench(tmp_path, ANSWER)
    r = measure(model, against=binary)
    a = r.against
    assert a is not None
    assert (a.prompt_tok_s, a.gen_tok_s) == (200.0, 10.0)
    assert a.prompt_ratio == pytest.approx(r.prompt_tok_s / 200)
    assert a.gen_ratio == pytest.approx(r.gen_tok_s / 10)
    assert "-fa 1" in a.prompt_command and "-fa 0" in a.gen_command and str(model) in a.prompt_command
    assert a.tried == {"prompt": {"-fa 0": 100.0, "-fa 1": 200.0}, "gen": {"-fa 0": 10.0, "-fa 1": 5.0}}
    calls = Path(binary + ".log").read_text().splitlines()
    assert len(calls) == 4 + 2 * 3  # two settings of two kinds tried, then three turns of each
    assert all("-t 1" in c and "-r 1" in c for c in calls)
    assert f"{a.prompt_ratio:.2f}x" in render(r)


@pytest.mark.parametrize(
    "body, message",
    [("sys.exit('cannot load')", "cannot load"), ("print('hello')", "not llama-bench's JSON"), ("print('[]')", "not llama-bench's JSON")],
)
def test_a_peer_that_fails_is_one_line(model: Path, tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        measure(model, against=fake_bench(tmp_path, body))


def test_a_peer_that_is_not_there(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        find_binary(str(tmp_path / "nothing"), "llama-bench")
    (tmp_path / "text").write_text("")
    with pytest.raises(UserError, match="--against"):
        Peer(str(tmp_path / "text"), str(model), 1, 1, 1).measure("prompt", ())


def test_reads_the_test_of_its_kind() -> None:
    both = json.dumps([{"n_prompt": 512, "n_gen": 0, "avg_ts": 5.5}, {"n_prompt": 0, "n_gen": 128, "avg_ts": 7.5}])
    assert (tokens_per_s(both, "prompt"), tokens_per_s(both, "gen")) == (5.5, 7.5)
