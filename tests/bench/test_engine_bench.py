"""`bench engine` on a tiny model: every scenario runs, figures hang together, the peer is read as it writes. No figure is judged."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from tests.cli.tiny_gguf import tiny_gguf

from ridgeline.bench.engine import SCENARIOS, EngineBenchOptions, EngineReport, match_seconds, render, run
from ridgeline.bench.rates import ROWS, Rates, branch_seconds
from ridgeline.cli.bench_command import _SCENARIO_HELP
from ridgeline.engine.loader import load
from ridgeline.errors import UserError
from ridgeline.graph.step import Span
from ridgeline.options import Options


def options(folder: Path) -> Options:
    return Options(str(tiny_gguf(folder / "tiny.gguf", **{"llama.context_length": 2048})), max_num_seqs=32, threads=1)


PEER = """#!/bin/sh
echo "$@" > {log}
echo 'llama_context: some line'
echo '{{"pp": 16, "tg": 8, "pl": 3, "speed_pp": 9.0, "speed_tg": 50.0}}'
"""


def test_every_scenario_reports_figures_that_hang_together(tmp_path: Path) -> None:
    peer, trace = tmp_path / "batched-bench", tmp_path / "trace.json"
    peer.write_text(PEER.format(log=tmp_path / "log"))
    peer.chmod(peer.stat().st_mode | stat.S_IEXEC)
    said: list[str] = []
    asked = EngineBenchOptions(
        options(tmp_path), seqs=3, prompt=16, gen=8, repeat=1, against=str(peer), against_models=("other.gguf",), trace=str(trace)
    )
    report = run(asked, said.append)
    d, b, a, o = report.decode, report.branch, report.arrival, report.overhead
    assert d is not None and b is not None and a is not None and o is not None
    assert [Path(p.file).name for p in d.peers] == ["tiny.gguf", "other.gguf"] and d.decode_tok_s > 0 < d.total_tok_s
    for p in d.peers:
        assert p.decode_tok_s == 50.0 and p.ratio == pytest.approx(d.decode_tok_s / 50.0) and str(peer) in p.command and p.file in p.command
    assert "-m other.gguf" in (tmp_path / "log").read_text() and "-npl 3 -t 1" in (tmp_path / "log").read_text()
    assert 31_000 <= b.hit_tokens < 31_100 and b.shared_walks > 0 and b.speedup == pytest.approx(b.off_seconds / b.seconds)
    assert b.predicted_s > 0 and b.measured_over_predicted == pytest.approx(b.seconds / b.predicted_s)
    assert a.prompt == 2046 and a.ttft_s > 0 < a.alone_ttft_s
    pairs = zip(report.runs["p99_itl_s"], report.runs["steady_itl_s"], strict=True)
    assert report.runs["itl_ratio"] == pytest.approx([p99 / steady for p99, steady in pairs])
    assert min(report.runs["itl_ratio"]) <= a.itl_ratio <= max(report.runs["itl_ratio"])
    assert a.whole_p99_itl_s > 0
    assert o.batch1_glue_s > 0 and 0 < o.batch1_share < 1 and 0 < o.batch_n_share < 1 and o.match_s > 0
    assert json.loads(json.dumps(report.as_json()))["branch"]["branches"] == 32
    facts_hang_together(report)
    assert len(render(report).splitlines()) == 16 and "OTHER" not in render(report) and json.loads(trace.read_text())["traceEvents"]


def facts_hang_together(report: EngineReport) -> None:
    """Rows 97, 98, 103, 104, 108, 112 and 123 on any model."""
    r, s, o, t = report.reuse, report.samples, report.overload, report.session
    assert r is not None and s is not None and o is not None and t is not None
    assert (r.cached, r.prompt) == (1000, 1016) and r.same and r.ttft_s > 0 < r.cold_ttft_s
    assert s.blocks == 31 + 4 * 2 < s.apart == 4 * 33 and s.copies == 3 and s.same
    assert o.finished == o.requests == 24 and o.preemptions > 0 and o.most_of_one > 0 and o.same
    assert 0.5 < o.fairness <= 1 and 0.5 < o.in_order <= 1 and 0 <= o.computed_again < 1
    assert t.hit_ttl == t.hit_rank == 607 and t.hit_plain == 0
    batching_hangs_together(report)


def batching_hangs_together(report: EngineReport) -> None:
    """Rows 97, 98 and 105: counts of steps, not times, tell static from continuous."""
    m, r = report.batching, report.ragged
    assert m is not None and r is not None
    assert m.same and m.gain == pytest.approx(m.tok_s / m.static_tok_s) and m.tok_s > 0
    # Five batches last as long as their longest answers do; a continuous one ends soon after its share of all tokens.
    assert 0 <= m.idle < 0.25 < m.static_idle < 0.7
    assert m.late_s > 0 < m.late_static_s and {"late_s", "late_static_s", "long_left_s"} < set(report.runs)
    whole, plain = report.ablation.rows if report.ablation else ((), ())  # row 105; one thread has no other to leave out
    assert (whole.left_out, plain.left_out) == ("", "fused ops") and whole.identical and plain.identical
    assert 0 < whole.instructions < plain.instructions and all(r.prompt_tok_s > 0 < r.gen_tok_s for r in (whole, plain))
    assert r.identical and r.new == (3, 9, 5) and r.rows == 17 and r.together_s > 0 < r.apart_s


@pytest.mark.parametrize(
    ("given", "field"), [({"seqs": 0}, "--seqs"), ({"repeat": 0}, "--repeat"), ({"scenarios": ("nonsense",)}, "--scenario")]
)
def test_bad_options_are_named(given: dict[str, object], field: str) -> None:
    with pytest.raises(UserError) as caught:
        EngineBenchOptions(Options("m"), **given)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_a_peer_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        run(EngineBenchOptions(options(tmp_path), scenarios=("decode",), against=str(tmp_path / "none")))
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'cannot load' >&2\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(UserError, match="cannot load"):
        run(EngineBenchOptions(options(tmp_path), scenarios=("decode",), seqs=2, prompt=8, gen=4, repeat=1, against=str(broken)))


def test_rates_grow_with_the_work(tmp_path: Path) -> None:
    rates = Rates.measure(load(options(tmp_path)))
    assert len(rates.body_s) == len(rates.head_s) == len(ROWS) and (rates.body_s > 0).all() and (rates.attend_s >= 0).all()
    small, large = rates.seconds([Span(0, 0, 4, 1)]), rates.seconds([Span(0, 0, 512, 1)])
    assert 0 < small < large < rates.seconds([Span(0, 0, 1024, 1)])
    few, many = branch_seconds(rates, 512, 1000, 8, 64, 8), branch_seconds(rates, 512, 1000, 32, 64, 32)
    assert 0 < few < many


def test_a_prefix_is_found_in_a_large_tree() -> None:
    assert match_seconds() < 5 * 1e-3


def test_the_help_names_every_scenario() -> None:
    assert _SCENARIO_HELP.partition(";")[0].split(", ") == list(SCENARIOS)
