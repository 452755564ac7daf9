"""The ladder: exact arithmetic on invented times, then a tiny model up all rungs, killed and resumed."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.tiny_gguf import tiny_gguf

from ridgeline.bench.ladder import LadderOptions, LadderResult, RungResult, run, run_logged
from ridgeline.bench.ladder_numbers import middle, numbers, numbers_from, same_words, waterfall
from ridgeline.bench.ladder_plan import PRESETS, RUNGS, Load, options_of, prompts
from ridgeline.bench.ladder_show import as_json, document, gains, models_of_words, render
from ridgeline.bench.ladder_state import LadderState
from ridgeline.bench.report_json import documents_of, to_json
from ridgeline.cli import main
from ridgeline.cli.output import _plain
from ridgeline.engine.words import open_words
from ridgeline.errors import UserError
from ridgeline.formats.checkpoint import open_checkpoint

OURS = ("one", "static", "continuous", "prefix")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_gguf(tmp_path_factory.mktemp("ladder") / "tiny.gguf"))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setattr("ridgeline.bench.probe.SHORT_SECONDS", 0.02)


def cell(requests: list[tuple[float, list[float]]], seconds: float, **more: Any) -> dict[str, Any]:
    """requests: (when it could begin, when its tokens came)."""
    same = {"prompt_tokens": 10, "cached_tokens": 4}
    made = [same | {"wave_s": w, "admitted_s": w, "token_s": t, "ids": list(range(len(t)))} for w, t in requests]
    rest = {"kv": [], "counts": {}, "steal": 0.0, "others": 0.0, "setup": {}, "load_s": 0.0, "cold_s": 0.0, "warm_s": 0.0}
    return {"requests": made, "seconds": seconds, **rest, **more}


def test_numbers_of_known_times() -> None:
    # Two requests one after the other, and what they would have waited had both been there at once.
    n = numbers(cell([(0.0, [0.5, 0.6, 0.7]), (0.7, [1.0, 1.1])], 2.0))
    assert n.output_tok_s == 2.5 and n.total_tok_s == 12.5
    assert n.ttft.mean == pytest.approx(400) and n.ttft_queue.mean == pytest.approx(750)
    assert n.itl.mean == pytest.approx(100) and n.tpot.mean == pytest.approx(100)
    assert n.hit_rate == 0.4 and n.accepted is None


def test_tokens_of_one_step_are_one_arrival() -> None:
    counts = {"spec_decode_num_draft_tokens": 8, "spec_decode_num_accepted_tokens": 2}
    n = numbers(cell([(0.0, [1.0, 2.0, 2.0, 2.0, 3.0])], 3.0, counts=counts))
    assert n.itl.mean == pytest.approx(1000) and n.tpot.mean == pytest.approx(500) and n.accepted == 0.25


def test_kv_against_users_and_context() -> None:
    n = numbers(cell([(0.0, [1.0])], 1.0, kv=[[1, 10, 0.1], [2, 20, 0.2], [2, 400, 0.5], [2, 22, 0.1], [1, 200, 0.3]]))
    assert n.kv_users == ((1.0, 0.3), (2.0, 0.5))
    assert n.kv_context == ((10.0, 0.2), (200.0, 0.5))  # while two ran; near 10 tokens the greater share
    many = numbers(cell([(0.0, [1.0])], 1.0, kv=[[1, i, i / 1e4] for i in range(10_000)]))
    assert len(many.kv_context) <= 42 and many.kv_context[-1] == (9999.0, 0.9999)


def test_numbers_survive_json() -> None:
    n = numbers(cell([(0.0, [0.5, 0.6])], 2.0, kv=[[1, 10, 0.1]]))
    assert numbers_from(json.loads(json.dumps(asdict(n)))) == n


def test_waterfall_multiplies_to_the_whole() -> None:
    fall = waterfall([("a", [10.0, 12.0, 11.0]), ("b", [20.0, 24.0, 22.0]), ("c", [18.0, 21.6, 19.8])])
    assert fall is not None and [s.factor for s in fall.steps] == pytest.approx([2.0, 0.9])  # the loss stays
    assert fall.product == pytest.approx(1.8) and fall.total == pytest.approx(1.8) and fall.agrees
    assert fall.rounds == pytest.approx((1.8, 1.8, 1.8))
    assert waterfall([("a", [1.0])]) is None


def test_a_product_that_no_round_saw_is_told() -> None:
    # Each factor is 2 in two rounds of three, but never all three in one: every round saw 4, the factors say 8.
    factors = ((2, 2, 1), (2, 1, 2), (1, 2, 2))
    speeds = [[1.0, 1.0, 1.0]]
    for f in factors:
        speeds.append([a * b for a, b in zip(speeds[-1], f, strict=True)])
    fall = waterfall([(f"r{i}", s) for i, s in enumerate(speeds)])
    assert fall is not None and fall.product == 8.0 and fall.total == 4.0 and not fall.agrees


def test_words_that_changed() -> None:
    a, b = cell([(0, [1.0] * 4), (0, [1.0] * 4)], 1), cell([(0, [1.0] * 4), (0, [1.0] * 4)], 1)
    b["requests"][1]["ids"] = [0, 1, 9, 3]
    assert same_words(a, a) == (2, 2, 1.0)
    assert same_words(a, b) == (1, 2, 0.75)


def test_the_middle_run_is_one_that_happened() -> None:
    runs = [numbers(cell([(0.0, [1.0])], s)) for s in (4.0, 1.0, 2.0)]
    assert middle(runs) is runs[2] and middle(runs[:2]) is runs[0]


@pytest.mark.parametrize("preset", PRESETS)
def test_prompts_share_the_stem_and_nothing_more(tiny: str, preset: str) -> None:
    load = PRESETS[preset]
    tokenizer = open_words(open_checkpoint(Path(tiny))).tokenizer
    made = prompts(load, tokenizer)
    assert [len(p) for p in made] == [load.shared + load.own] * load.requests
    assert len({tuple(p[: load.shared]) for p in made}) == 1
    assert len({tuple(p) for p in made}) == load.requests
    assert made == prompts(load, tokenizer) != prompts(replace(load, seed=1), tokenizer)
    assert len(load.outputs) == load.requests and max(load.outputs) == load.output
    assert sorted(load.outputs)[0] == (load.output_low or load.output)


def test_rungs_add_up() -> None:
    assert [r.key for r in RUNGS] == ["transformers", "one", "static", "continuous", "prefix", "kv_int8", "ngram"]
    assert options_of("continuous") == {"enable_prefix_caching": False}
    assert options_of("prefix") == {"enable_prefix_caching": True}
    assert options_of("ngram").keys() == {"enable_prefix_caching", "kv_cache_dtype", "speculative_config"}


def test_answers_no_longer_than_asked() -> None:
    with pytest.raises(UserError, match="--output is 7, must be from 8"):
        replace(PRESETS["mixed"], output=7)


# --- processes ----------------------------------------------------------------------------------------------------------------------


def options(model: str, folder: Path, **changes: Any) -> LadderOptions:
    given: dict[str, Any] = {"rungs": OURS, "quality_positions": 0} | changes
    return LadderOptions(model, PRESETS["tiny"], folder, **given)


@pytest.fixture(scope="module")
def climbed(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> LadderResult:
    """Every rung but transformers, that of KV int8 with quality where it exists."""
    folder = tmp_path_factory.mktemp("climb") / "a"
    return run(options(tiny, folder, rungs=(), quality_positions=60))


def test_every_rung_that_exists_is_climbed(climbed: LadderResult) -> None:
    by = {r.rung.key: r for r in climbed.rungs}
    assert [by[k].status for k in OURS] == ["done"] * 4
    assert by["transformers"].status == "missing" and "--transformers-python" in by["transformers"].why
    for key in ("kv_int8", "ngram"):
        assert by[key].status == "done", by[key]
    assert climbed.left == 0
    for r in climbed.rungs:
        if r.status == "done":
            assert r.raw is not None and [len(q["ids"]) for q in r.raw["requests"]] == climbed.load.outputs
            assert r.runs[0].output_tok_s > 0 and (r.rung.key == "ngram") != (r.predicted is not None)
            if r.rung.lossy:
                assert r.quality is not None and 0 <= r.quality["KL mean"] < 1
            else:
                model = models_of_words(climbed).get(r.rung.key, r)  # neither schedule nor speculation changes a word
                assert same_words(r.raw, model.raw or {})[0] == climbed.load.requests, (r.rung.key, model.rung.key)
    assert by["continuous"].runs[0].hit_rate == 0 and by["prefix"].runs[0].hit_rate > 0.4
    assert max(u for u, _ in by["one"].runs[0].kv_users) == 1
    assert max(u for u, _ in by["continuous"].runs[0].kv_users) == climbed.load.slots


def test_the_predicted_schedule_is_the_measured_one(climbed: LadderResult) -> None:
    for r in climbed.rungs:
        if r.status == "done" and r.predicted is not None:
            assert r.predicted.hit_rate == pytest.approx(r.runs[0].hit_rate)
            assert r.predicted.kv_users[-1][0] == r.runs[0].kv_users[-1][0]


def test_what_people_and_reports_read(climbed: LadderResult) -> None:
    said = render(climbed)
    for word in ("ridgeline, one at a time", "waterfall", "one round agrees with itself", "batching gain", "cold start", "missing: not"):
        assert word in said
    assert "reported" not in said  # only beside the workshop's own workload
    (found,) = documents_of({"report": [to_json(d) for d in document(climbed, "1")]}, "here")
    assert [r.name for r in found.ladders[0].rungs] == [r.name for r in RUNGS]
    assert found.ladders[0].rungs[0].status == "missing"
    assert len(found.predictions) >= 9 and found.setup.commands
    json.dumps(_plain(as_json(climbed)), allow_nan=False)


def test_whose_words_a_rung_must_say() -> None:
    raw = cell([(0.0, [1.0])], 1.0)
    rungs = tuple(RungResult(r, "done" if r.key != "static" else "pending", raw=raw if r.key != "static" else None) for r in RUNGS)
    found = models_of_words(LadderResult("m", Load(), 2, 1, rungs, "", 0))
    assert {k: m.rung.key for k, m in found.items()} == {
        "transformers": "one", "continuous": "one", "prefix": "one", "kv_int8": "one", "ngram": "kv_int8"
    }  # fmt: skip


def test_reported_rows_stand_apart(climbed: LadderResult) -> None:
    as_workshop = replace(climbed, load=PRESETS["workshop"])
    own, told = document(as_workshop, "1")
    assert not any(r.label.startswith("reported") for r in own.ladders[0].rungs)
    assert [r.output_tok_s for r in told.ladders[0].rungs] == [51, 736, 1034, 1010, 991]
    assert all(r.label.startswith("reported: Workshop on inference at scale (demo F), 2026-06-27") for r in told.ladders[0].rungs)
    assert "19.4x" in render(as_workshop)  # 991 over 51, not hidden


def test_batching_gain_is_told_from_kernel_gain() -> None:
    speeds = {"transformers": 2.0, "one": 20.0, "static": 60.0, "continuous": 80.0, "prefix": 160.0}
    rungs = tuple(RungResult(r, "done", runs=(numbers(cell([(0.0, [1.0])], 1 / speeds[r.key])),)) for r in RUNGS if r.key in speeds)
    said = gains(LadderResult("m", Load(), 2, 1, rungs, "", 0))
    assert [s.split("x:")[0].split()[-1] for s in said] == ["10.00", "3.00", "4.00", "2.00"]
    assert "batch 1" in said[0] and "10 at once" in said[1]


def test_a_second_run_measures_nothing_again(tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(options(tiny, tmp_path / "l", rungs=("one",)))
    monkeypatch.setattr("ridgeline.bench.ladder.run_logged", None)
    assert run(options(tiny, tmp_path / "l", rungs=("one",))).rungs[0].runs == first.rungs[0].runs
    with pytest.raises(UserError, match=r"another ladder \(other: load\)"):
        run(replace(options(tiny, tmp_path / "l"), load=replace(PRESETS["tiny"], output=9)))


def test_no_cell_begins_after_its_time(tiny: str, tmp_path: Path) -> None:
    lines: list[str] = []
    result = run(options(tiny, tmp_path / "l", seconds=0.0), lines.append)
    assert [r.status for r in result.rungs] == ["done", "pending", "pending", "pending"] and result.left == 3
    assert any("3 cells are left" in line for line in lines) and "pending" in render(result)


def test_a_cell_that_fails_is_listed_with_its_reason(tiny: str, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no torch here\nexit 7\n")
    broken.chmod(0o755)
    result = run(options(tiny, tmp_path / "l", rungs=("transformers", "one"), python=broken))
    assert (result.rungs[0].status, result.rungs[0].why) == ("failed", "exit code 7: no torch here")
    assert result.rungs[1].status == "done" and result.left == 1
    assert main(["bench", "ladder", tiny, "--preset", "tiny", "--dir", str(tmp_path / "l"), "--rung", "one"]) == 0


@pytest.mark.parametrize(
    ("noises", "kept", "tries"), [([0.01], 0, 1), ([0.4, 0.02, 0.0], 1, 2), ([0.4, 0.6, 0.3], 2, 3), ([0.4, 0.5, 0.6], 0, 3)]
)
def test_a_loud_cell_is_measured_again(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noises: list[float], kept: int, tries: int
) -> None:
    runs = iter(range(len(noises)))

    def fake(command: list[str], log: Path, timeout_s: float) -> None:
        i = next(runs)
        Path(command[-1]).write_text(json.dumps(cell([(0.0, [1.0])], 10.0 + i, steal=0.0, others=noises[i])))

    monkeypatch.setattr("ridgeline.bench.ladder.run_logged", fake)
    result = run(options(tiny, tmp_path / "l", rungs=("one",), retries=2))
    assert result.rungs[0].raw is not None and result.rungs[0].raw["seconds"] == 10.0 + kept
    assert json.loads((tmp_path / "l" / "state.json").read_text())["cells"]["one-0"]["tries"] == tries
    assert ("not to be relied on" in render(result)) == (noises[kept] > 0.05)


def test_a_cell_takes_its_child_down(tmp_path: Path) -> None:
    slow = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert run_logged(slow, tmp_path / "log", 0.3) == "it took more than 0.3 s"
    assert (run_logged(["/nonexistent"], tmp_path / "log", 1) or "").startswith("cannot start")


def wait_for(ready: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_a_killed_ladder_leaves_no_process(tmp_path: Path) -> None:
    log = tmp_path / "log"
    work = f"run_logged(['sh', '-c', 'echo $$; exec sleep 60'], Path({str(log)!r}), 60)"
    process = subprocess.Popen([sys.executable, "-c", f"from pathlib import Path\nfrom ridgeline.bench.ladder import run_logged\n{work}"])
    wait_for(lambda: (log.exists() and log.read_text().endswith("\n")) or process.poll() is not None)
    process.kill()
    process.wait()
    state = Path("/proc") / log.read_text().strip() / "stat"
    wait_for(lambda: not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z")


def test_kill_9_keeps_what_was_measured(tiny: str, tmp_path: Path) -> None:
    folder = tmp_path / "l"
    command = [sys.executable, "-m", "ridgeline", "bench", "ladder", tiny, "--preset", "tiny", "--dir", str(folder)]
    command += ["--rung", "one", "--rung", "static"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wait_for(lambda: (folder / "raw" / "static-0.spec.json").exists() or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = json.loads((folder / "state.json").read_text())["cells"]
    assert set(before) == {"one-0"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "1 cells were measured before" in done.stderr and "static-0 (1 of 1)" in done.stderr
    after = json.loads((folder / "state.json").read_text())["cells"]
    assert after["one-0"] == before["one-0"] and set(after) == {"one-0", "static-0"}
    assert not math.isnan(sum(c["seconds"] for c in after.values()))


def test_one_climber_at_a_time(tmp_path: Path) -> None:
    held = LadderState(tmp_path, {"a": 1})
    with pytest.raises(UserError, match="another process"):
        LadderState(tmp_path, {"a": 1})
    held.close()
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(UserError, match="--dir"):
        LadderState(tmp_path, {"a": 1})


@pytest.mark.parametrize(
    "given",
    ["--preset nope", "--rung nope", "--rounds 0", "--requests 0", "--slots 0", "--transformers-python /none", "--transformers-dtype int8"],
)
def test_what_cannot_be_climbed(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], given: str) -> None:
    assert main(["bench", "ladder", tiny, "--dir", str(tmp_path / "l"), *given.split()]) == 2
    assert given.split()[0] in capsys.readouterr().err
    assert not (tmp_path / "l").exists()


def test_a_load_that_does_not_fit(tiny: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="128"):
        run(replace(options(tiny, tmp_path / "l"), load=PRESETS["workshop"]))
    assert np.all([not p.exists() for p in (tmp_path / "l",)])
