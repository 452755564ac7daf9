"""`bench serve` and `bench ab` from options to documents, on the fake server; engines as data; what others take of the machine."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep

import pytest
from tests.bench.fake_server import fake_server

from ridgeline.bench import ab, ab_show, engines, serve
from ridgeline.bench.client import Target
from ridgeline.bench.client_metrics import Figures, Outcome, Slo, figures
from ridgeline.bench.client_read import Piece, Reading
from ridgeline.bench.engines import ENGINES, Wish, command, engine, program, version
from ridgeline.bench.engines_process import Process, free_port
from ridgeline.bench.machine_load import Noise, Watch, listener, tree, tree_rss, tree_seconds
from ridgeline.bench.report_json import documents_of
from ridgeline.bench.serve_cells import Cell
from ridgeline.bench.serve_document import document, records
from ridgeline.bench.serve_metrics import values
from ridgeline.bench.serve_options import ServeOptions, Source
from ridgeline.bench.serve_text import render
from ridgeline.bench.stats import Ratio
from ridgeline.cli import main
from ridgeline.errors import UserError


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with fake_server() as found:
        yield found


def options(url: str, script: str = "ttft=0.001", **more: object) -> ServeOptions:
    asked = ServeOptions(Source(url=url, served_model=script), requests=6, scale=0.05, repeats=0, warmup=1, concurrency=(1, 3))
    return replace(asked, **more)  # type: ignore[arg-type]


def test_a_run_and_its_documents(url: str) -> None:
    result = serve.run(options(url))
    assert [c.load for c in result.cells] == [1.0, 3.0] and result.warm.requests == 3
    for cell in result.cells:
        assert (cell.figures.requests, cell.figures.failed) == (6, 0)
    found = json.loads(json.dumps(document(result), allow_nan=False))
    assert documents_of(found, "x")[0].curves[0].points[1].load == 3.0
    assert found["cells"][0]["figures"]["ttft_ms"]["count"] == 6 and found["workload"]["optimises"] == "goodput_s"
    text = render(result)
    for word in ("TTFT", "TPOT", "goodput", "definitions", "(e2e - TTFT) / (output tokens - 1)", "SLO: TTFT <= 1000 ms", "cold"):
        assert word in text


def test_records_hold_what_figures_are_made_of(url: str) -> None:
    cell = serve.run(options(url, concurrency=(2,))).cells[0]
    rows = records(cell)
    assert len(rows) == 6 and min(r["arrival_s"] for r in rows) == 0.0
    first = [(r["piece_s"][0] - r["arrival_s"]) * 1e3 for r in rows]
    assert cell.figures.ttft_ms is not None and max(first) == pytest.approx(cell.figures.ttft_ms.max)


def test_two_turns_are_told_apart(url: str) -> None:
    cell = serve.run(options(url, workload="agents", concurrency=(0,), requests=3)).cells[0]
    assert [t.requests for t in cell.turns] == [3, 3] and cell.figures.requests == 6
    assert cell.turns[1].prompt_tokens > cell.turns[0].prompt_tokens


@pytest.mark.parametrize("workload", ["rag", "long", "code", "batch", "rl"])
def test_every_workload_runs(url: str, workload: str) -> None:
    cell = serve.run(options(url, workload=workload, concurrency=(2,), requests=3)).cells[0]
    assert cell.figures.completed == 3


def test_open_loop_bursts_and_trace(url: str, tmp_path: Path) -> None:
    asked = options(url, rates=(50.0, 100.0), concurrency=(), burst=2)
    result = serve.run(asked)
    assert [c.load for c in result.cells] == [50.0, 100.0] and result.cells[0].kind == "rate"
    path = tmp_path / "t.jsonl"
    path.write_text('{"arrival": 0, "prompt_len": 9, "output_len": 3}\n{"arrival": 0.01, "prompt_len": 9, "output_len": 3}\n')
    cell = serve.run(options(url, trace=path, concurrency=())).cells[0]
    assert cell.kind == "trace" and cell.figures.output_tokens == 6
    documents_of(json.loads(json.dumps(document(result))), "x")


def test_what_is_said_of_a_trace_is_true_of_it(url: str, tmp_path: Path) -> None:
    """A trace has the file's arrivals and lengths: nothing of the workload's is told, in the text or in a report's definitions."""
    path = tmp_path / "t.jsonl"
    path.write_text('{"arrival": 0, "prompt_len": 9, "output_len": 3}\n')
    result = serve.run(options(url, trace=path, concurrency=()))
    told = f"{render(result)}\n{json.dumps(document(result)['report'])}"
    preset, head = result.asked.preset, render(result).partition("definitions")[0]
    assert preset.about not in told and preset.arrival not in told and "sessions a cell" not in told and "sessions/s" not in told
    assert f"trace {path}" in head and "arrivals and lengths are the file's" in told and "\n  trace, " in head


def test_a_trace_is_bound_by_its_own_lengths() -> None:
    """A server that is as long as a trace needs is too short for the workload, which then says nothing."""
    with pytest.raises(UserError, match="workload chat needs more"):
        _ = options("http://x", scale=1.0, model_limit=512).preset
    assert options("http://x", trace=Path("t"), concurrency=(), scale=1.0, model_limit=512).preset.name == "chat"


def test_salts_differ_between_cells_unless_the_cache_is_kept(url: str) -> None:
    assert len({c.salt for c in serve.run(options(url)).cells}) == 2
    kept = serve.run(options(url, keep_cache=True, salt="k"))
    assert {c.salt for c in kept.cells} == {"k"} and kept.salt == "k"


def test_failures_are_shown(url: str) -> None:
    with pytest.raises(UserError, match="the first request failed: HTTP 429: the queue is full"):
        serve.run(options(url, "fault=status"))
    with pytest.raises(UserError, match="out of memory"):
        serve.run(options(url, "fault=error"))


def test_nobody_at_the_url() -> None:
    with pytest.raises(UserError, match=r"GET /v1/models: cannot connect.*so nothing was measured"):
        serve.run(ServeOptions(Source(url=f"http://127.0.0.1:{free_port()}")))


def cell(load: float, tok_s: float, kind: str = "concurrency", ttft: float | None = None) -> Cell:
    f = replace(figures([], Slo()), output_tok_s=tok_s)
    return Cell(kind, load, f, (), (), None, None, "", "", 0, 0, 1)  # type: ignore[arg-type]


def test_the_knee_is_the_smallest_load_with_nine_tenths_of_the_best() -> None:
    rows = [(1, 10.0), (2, 19.0), (4, 35.0), (8, 46.0), (16, 50.0), (32, 51.0)]
    assert serve.knee([cell(n, t) for n, t in rows]) == 8  # 46 >= 0.9 * 51 = 45.9
    assert serve.knee([cell(1, 1.0), cell(2, 2.0)]) is None
    assert serve.knee([cell(n, 10.0 * n) for n in (1, 2, 4, 8)]) is None  # still growing: not seen


@pytest.mark.parametrize(("last", "stops"), [(52.0, True), (52.6, False), (10.0, True)])
def test_a_sweep_stops_when_more_load_brings_under_five_percent(last: float, stops: bool) -> None:
    assert serve.stop([cell(8, 50.0), cell(16, last)], sweep=True) is stops
    assert serve.stop([cell(8, 50.0), cell(16, last)], sweep=False) is False


def test_an_over_saturated_open_loop_is_noticed() -> None:
    """One answer takes 50 ms of a server that takes one at a time; 60 arrive a second."""
    def at(wait: float, arrival: float) -> Outcome:
        return Outcome("r", arrival, arrival, Reading((Piece(arrival + wait, 0, "x"),), finish="stop"))

    queue = [at(0.05 + 0.033 * i, i / 60) for i in range(30)]
    steady = [at(0.25, i / 60) for i in range(30)]
    assert serve.stop([replace(cell(60, 1.0, "rate"), outcomes=tuple(queue))], sweep=False)
    assert not serve.stop([replace(cell(60, 1.0, "rate"), outcomes=tuple(steady))], sweep=False)


def test_sweeps_double() -> None:
    source = Source(url="http://x")
    assert ServeOptions(source, sweep=True, concurrency=(10,)).loads == (1, 2, 4, 8, 10)
    assert ServeOptions(source, sweep=True, concurrency=(8,)).loads == (1, 2, 4, 8)
    assert ServeOptions(source, workload="agents", requests=9).loads == (9,)


BAD: list[tuple[dict[str, object], str]] = [
    ({"scale": 0.0}, "--scale"), ({"scale": float("nan")}, "--scale"), ({"rates": (0.0,)}, "--rate"),
    ({"rates": (float("inf"),)}, "--rate"),
    ({"rates": (1.0,), "concurrency": (1,)}, "--rate"), ({"concurrency": (-1,)}, "--concurrency"), ({"requests": 0}, "--requests"),
    ({"workload": "x"}, "--workload"), ({"timeout_s": 0.0}, "--timeout"), ({"trace": Path("x"), "sweep": True}, "--trace"),
    ({"burst": 0}, "--burst"), ({"input_len": 0}, "--input-len"), ({"seed": -1}, "--seed"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "word"), BAD)
def test_options_that_cannot_be(given: dict[str, object], word: str) -> None:
    with pytest.raises(UserError, match=word):
        ServeOptions(Source(url="http://x"), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bench", "serve"], ("--url", "MODEL")), (["bench", "serve", "m", "--url", "http://x"], ("not both",)),
        (["bench", "serve", "m", "--engine", "tgi"], ("tgi", "llama.cpp, vllm")),
        (["bench", "serve", "m", "--concurrency", "1,x"], ("1,x",)),
        (["bench", "serve", "m", "--engine-args", "'"], ("--engine-args",)), (["bench", "ab", "--a", "ridgeline"], ("MODEL",)),
        (["bench", "serve", "m", "--endpoint", "x"], ("--endpoint",)), (["bench", "ab", "m", "--a", "http://x -v"], ("no options",)),
        (["bench", "ab", "m", "--b", "ridgeline"], ("--name-b",)), (["bench", "client", "--streams", "0"], ("--streams",)),
        (["bench", "ab", "m", "--b", "llama.cpp=/none/here"], ("/none/here",)),
    ],
)  # fmt: skip
def test_one_plain_line_for_what_was_typed_wrong(capsys: pytest.CaptureFixture[str], arguments: list[str], words: tuple[str, ...]) -> None:
    assert main(arguments) == 2
    shown_ = capsys.readouterr()
    assert shown_.out == "" and shown_.err.startswith("error: ") and shown_.err.count("\n") == 1
    for word in words:
        assert word in shown_.err


def test_engines_that_are_not_installed_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(engines, "_importable", lambda module: module == "ridgeline")
    for e in ENGINES.values():
        if e.name != "ridgeline":
            with pytest.raises(UserError, match=f"{e.name} is not installed.*so it was not measured"):
                program(e)
    assert program(engine("ridgeline"))


@pytest.mark.parametrize("name", [name for name in ENGINES if name != "ridgeline"])
def test_an_environment_may_be_named_by_its_python(name: str, tmp_path: Path) -> None:
    """--engine-path VENV/bin/python is never run with the arguments of another program."""
    e, python = ENGINES[name], tmp_path / "python3"
    python.write_text("")
    python.chmod(0o755)
    if e.module is None:
        with pytest.raises(UserError, match=f"is a Python, and {e.programs[0]} is not beside it"):
            program(e, str(python))
        beside = tmp_path / e.programs[0]
        beside.write_text("")
        beside.chmod(0o755)
        assert program(e, str(python)) == program(e, str(beside)) == [str(beside)]
    else:
        found = program(e, str(python))
        assert found[0] == str(python) and (found[1:] == ["-m", e.module] if e.script is None else found[1].endswith(e.script))


@pytest.mark.parametrize("name", ENGINES)
def test_commands_name_port_model_and_limits(name: str) -> None:
    line = command(ENGINES[name], ["prog"], Wish("alias", "/m.gguf", 1234, 2048, 8, 2, ("--more", "a b")))
    text = shlex.join(line)
    assert line[0] == ("env" if name == "vllm" else "prog") and "prog" in line and "1234" in line
    assert ("/m.gguf" in line or "alias" in line) and text.endswith("--more 'a b'")


def test_our_own_version() -> None:
    assert "ridgeline" in str(version(engine("ridgeline"), program(engine("ridgeline"))))


def test_an_engine_that_dies_says_its_last_words(tmp_path: Path) -> None:
    process = Process([sys.executable, "-c", "import sys; print('no such model'); sys.exit(3)"], tmp_path / "log")
    with pytest.raises(UserError, match="ended with 3 before it served: no such model"):
        process.wait(Target.of(f"http://127.0.0.1:{free_port()}"), "/health", 30)
    process.end()


def test_an_engine_that_never_serves_is_given_up_and_ended(tmp_path: Path) -> None:
    process = Process([sys.executable, "-c", "import time; print('loading', flush=True); time.sleep(60)"], tmp_path / "log")
    with pytest.raises(UserError, match="did not serve within"):
        process.wait(Target.of(f"http://127.0.0.1:{free_port()}"), "/health", 0.5)
    process.end()
    assert not os.path.exists(f"/proc/{process.pid}/stat") or process._child.poll() is not None


def test_a_program_that_cannot_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot start"):
        Process([str(tmp_path / "nothing")])


def proc(folder: Path, busy: int, idle: int, steal: int, child: int) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 {steal} 0 0\n")
    for pid, parent, ticks in ((10, 1, 5), (11, 10, child), (12, 1, 900)):
        (folder / str(pid)).mkdir(exist_ok=True)
        fields = ["S", str(parent), *["0"] * 9, str(ticks), "0", "0", "0", *["0"] * 6, "3", "0"]
        (folder / str(pid) / "stat").write_text(f"{pid} (a ) b) {' '.join(fields)}\n")
    return folder


def test_who_used_the_cpus(tmp_path: Path) -> None:
    folder = proc(tmp_path / "p", 1000, 1000, 0, 100)
    assert sorted(tree(10, folder)) == [10, 11] and tree_rss(10, folder) == 6 * os.sysconf("SC_PAGE_SIZE")
    watch = Watch(10, folder)
    proc(folder, 5000, 5000, 2000, 1100)
    noise = watch.end()
    assert noise is not None and noise.steal == 0.2
    assert noise.server == pytest.approx(0.1 * 100 / os.sysconf("SC_CLK_TCK"))
    assert noise.others == pytest.approx(0.3, abs=0.02)  # 4000 busy of 10000, 1000 of them the server's, next to none ours
    assert noise.disturbed and tree_seconds(99, folder) is None


def test_unknown_servers_are_not_called_others(tmp_path: Path) -> None:
    folder = proc(tmp_path / "p", 0, 0, 0, 0)
    watch = Watch(None, folder)
    proc(folder, 500, 500, 0, 0)
    noise = watch.end()
    assert noise is not None and noise.others is None and not noise.disturbed
    assert Watch(None, tmp_path / "none").end() is None


def test_a_disturbed_cell_is_run_again_and_the_best_is_kept(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = iter([0.5, 0.2, 0.3])

    def end(self: Watch) -> Noise:
        return Noise(0.0, next(shares), 0.1, 0.0)

    monkeypatch.setattr(Watch, "end", end)
    found = serve.run(options(url, concurrency=(1,), repeats=2, requests=1)).cells[0]
    assert found.tries == 3 and found.noise is not None and found.noise.others == 0.2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_who_listens(url: str) -> None:
    assert listener(Target.of(url).port) == os.getpid()
    assert listener(free_port()) is None


def test_prometheus_pages() -> None:
    page = '# HELP x y\nx{a="1"} 2\nx{a="2"} 3.5\ny 1e3 \nz NaN-ish\nw_bucket{le="+Inf"} 4\n'
    assert values(page) == {"x": 5.5, "y": 1000.0, "w_bucket": 4.0}


def test_an_ab_runs_in_turns_and_writes_its_documents(url: str) -> None:
    asked = options(url, concurrency=(2,), requests=4)
    sides = [Source(url=url, served_model=script) for script in ("ttft=0.001,gap=0.004,cached=1", "ttft=0.001,gap=0.004")]
    result = ab.run(ab.AbOptions(asked, sides[0], sides[1], "left", "right", 3))
    assert [name for _, name, _ in result.rounds] == ["left", "right", "right", "left", "left", "right"]
    assert [len({c.salt for _, n, c in result.rounds if n == name}) for name in ("left", "right")] == [3, 3]
    prompts = {(n, name): c.figures.output_tokens for n, name, c in result.rounds}
    assert all(prompts[n, "left"] == prompts[n, "right"] for n in range(3))
    found = json.loads(json.dumps(ab_show.document(result), allow_nan=False))
    assert len(documents_of(found, "x")[0].comparisons) == len(result.compared) == len(ab.METRICS)
    text = ab_show.render(result)
    assert "output tok/s: " in text
    assert "right found 0% of prompt tokens in its cache" in text and "method: each round" in text


def test_both_sides_read_what_the_smaller_one_can_hold(url: str) -> None:
    asked = options(url, workload="long", concurrency=(1,), requests=2, scale=1.0)
    large = Source(url=url, served_model="ttft=0")
    result = ab.run(ab.AbOptions(asked, large, replace(large, context=1024), "large", "small", 1))
    read = {name: c.figures.prompt_tokens for _, name, c in result.rounds}
    alone = serve.run(options(url, "ttft=0", workload="long", concurrency=(1,), requests=2, scale=1.0)).cells[0].figures.prompt_tokens
    assert read["large"] == read["small"] < alone


def test_a_difference_in_every_round_is_one() -> None:
    asked = ab.AbOptions(ServeOptions(Source(url="http://x")), Source(url="http://x"), Source(url="http://y"), "a", "b", 3)
    rounds = [(n, name, cell(8, speed * (1 + 0.01 * n))) for n in range(3) for name, speed in (("a", 30.0), ("b", 10.0))]
    compared, _ = ab.compare(asked, rounds)
    assert compared[0].ratio.significant and compared[0].sentence.startswith("a is 3.00x b, 95% 3.00-3.00")


def test_a_difference_on_a_disturbed_machine_is_not_relied_on() -> None:
    asked = ab.AbOptions(ServeOptions(Source(url="http://x")), Source(url="http://x"), Source(url="http://y"), "a", "b", 3)
    loud = Noise(0.0, 0.75, 0.2, 0.0)
    rounds = [(n, name, replace(cell(8, speed), noise=loud)) for n in range(3) for name, speed in (("a", 30.0), ("b", 10.0))]
    compared, remarks = ab.compare(asked, rounds)
    assert compared[0].disturbed == 0.75 and "NOT to be relied on: others took up to 75%" in compared[0].sentence
    assert any("in 3 of 3 cells of a" in r for r in remarks)


def test_failures_weaken_a_comparison_and_it_is_said() -> None:
    asked = ab.AbOptions(ServeOptions(Source(url="http://x")), Source(url="http://x"), Source(url="http://y"), "a", "b", 1)
    bad: Figures = replace(figures([], Slo()), requests=5, failed=2, failures={"HTTP 500": 2}, output_tok_s=10.0)
    rounds = [(0, "a", cell(8, 10.0)), (0, "b", replace(cell(8, 10.0), figures=bad))]
    compared, remarks = ab.compare(asked, rounds)
    assert compared[0].ratio == Ratio(1.0, 0.0, float("inf"), 1)
    assert any("2 of 5 requests of b failed (HTTP 500)" in r for r in remarks) and any("1 rounds say nothing" in r for r in remarks)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(("told", "code_"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_benchmark_that_ends_takes_its_engine_with_it(tmp_path: Path, told: signal.Signals, code_: int) -> None:
    """One that ignores SIGTERM included."""
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from ridgeline.bench import engines_process as e\n"
        "e._GRACE_S = 0.2\n"
        "child = [sys.executable, '-c', 'import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(60)']\n"
        "log = Path(sys.argv[1])\n"
        "with e.until_told_to_end(), e.ended(e.Process(child, log)) as process:\n"
        "    while not log.read_text(): time.sleep(0.01)\n"
        "    print(process.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    ours = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True)
    assert ours.stdout is not None
    pid = int(ours.stdout.readline())
    ours.send_signal(told)
    assert ours.wait(30) == code_
    ours.stdout.close()
    until = monotonic() + 30
    while alive(pid) and monotonic() < until:
        sleep(0.01)
    assert not alive(pid)
