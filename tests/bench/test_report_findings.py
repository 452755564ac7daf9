"""What a report says of each kind of document: sentences, losses, noise, and what may not be compared. Nothing is measured here."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.bench.report_samples import ladder

from ridgeline.bench.report import read, report
from ridgeline.bench.report_blocks import Block, Grid, Opening, Words
from ridgeline.bench.report_engines import curve_part, distribution_part, engine_findings, shared_loads
from ridgeline.bench.report_findings import comparison_part, findings_part
from ridgeline.bench.report_json import documents_of
from ridgeline.bench.report_names import named, with_names
from ridgeline.bench.report_predicted import of_document, prediction_part
from ridgeline.bench.report_schema import (
    Comparison,
    Curve,
    Distribution,
    Gantt,
    LoadPoint,
    Percentiles,
    Prediction,
    ReportDocument,
    Setup,
    TurnPoint,
)

HOSTILE = "<script>alert(1)</script>&\"'"


def sweep(engine: str, tok_s: tuple[float, ...], ttft: float = 100.0, knee: float | None = None, **more: Any) -> ReportDocument:
    """Loads 1, 2, 4, 8 ... of `chat`."""
    points = tuple(
        LoadPoint(2.0**i, 32, 0, v, ttft_ms=Percentiles(ttft * (i + 1), p95=1.0), tpot_ms=Percentiles(10.0), **more)
        for i, v in enumerate(tok_s)
    )
    setup = Setup({"host": "h"}, settings={"requests": 32, "scale": 1.0, "model": engine, "file": "/m/a.gguf"})
    values = tuple(Distribution("TTFT", f"{engine}, concurrency {p.load:g}", (1.0, 2.0, p.load)) for p in points)
    return ReportDocument("bench serve", f"{engine}: chat", setup, (Curve(engine, "chat", points, knee=knee),), values)


def agents(engine: str, seconds: float, failed: int = 0) -> ReportDocument:
    turns = tuple(TurnPoint(i, 16, failed, Percentiles(100.0 * i * seconds, p95=200.0), Percentiles(900.0), 0.3 * i) for i in (1, 2))
    first = Percentiles(50.0 * seconds)
    point = LoadPoint(16.0, 32, failed, 200.0, requests_s=32 / seconds, ttft_ms=first, hit_rate=0.5, seconds=seconds, turns=turns)
    return ReportDocument("bench serve", f"{engine}: agents", Setup({"host": "h"}), (Curve(engine, "agents", (point,)),))


def said(documents: list[ReportDocument]) -> list[str]:
    return [b.words for b in findings_part(documents) if isinstance(b, Words)]


def lost(blocks: list[Block]) -> list[str]:
    return [b.words for b in blocks if isinstance(b, Words) and b.kind == "loss"]


# --- engine against engine ----------------------------------------------------------------------------------------------------------


def test_engines_are_compared_at_loads_that_both_ran_and_at_their_best() -> None:
    found = said([sweep("llama.cpp", (50.0, 80.0), 400.0, 2.0), sweep("ridgeline", (200.0, 300.0, 520.0), knee=4.0)])
    assert (
        "chat, 2 at once: ridgeline 300 output tok/s, llama.cpp 80: 3.75x; TTFT p50 200 ms against 800 ms; TPOT p50 10 ms against 10 ms. "
        "One run each." in found
    )
    assert any(w.startswith("chat, 1 at once: ridgeline 200 output tok/s, llama.cpp 50: 4.00x") for w in found)
    best = "chat, most at any load: ridgeline 520 output tok/s (at 4), llama.cpp 80 (at 2): 6.50x. Knee: ridgeline at 4; llama.cpp at 2."
    assert f"{best} One run each." in found
    assert shared_loads([]) == []


def test_what_was_lost_is_said_as_plainly() -> None:
    found = lost(list(findings_part([sweep("ridgeline", (40.0, 60.0), 900.0), sweep("openvino", (50.0, 80.0), 100.0)])))
    assert any(w.endswith("One run each. openvino is better in throughput and TTFT p50.") for w in found)
    assert any("most at any load" in w and "0.75x" in w for w in found)


def test_other_loads_and_disturbed_cells_are_no_comparison() -> None:
    a, b = sweep("ridgeline", (10.0, 20.0)), sweep("llama.cpp", (5.0, 6.0))
    b = replace(b, setup=replace(b.setup, settings={"requests": 4, "scale": 0.25}))
    (only,) = list(engine_findings([a, b]))
    assert "did not have the same load (requests 32 against 4, scale 1.0 against 0.25): no comparison" in only.words
    loud = sweep("llama.cpp", (5.0, 6.0), others=0.4)
    assert "Not to be relied on: others had over 5% of the CPUs (llama.cpp 40%)." in said([a, loud])[0]
    page = report([a, loud], reported=False).html
    assert "disturbed" in page and "one run each" not in page
    failing = replace(loud, curves=(replace(loud.curves[0], points=tuple(replace(p, failed=3) for p in loud.curves[0].points)),))
    assert "3 of 32 requests of llama.cpp failed" in said([a, failing])[0]


def test_other_weights_are_told_and_compared() -> None:
    a, b = sweep("ridgeline", (10.0, 20.0)), sweep("vllm", (5.0, 6.0))
    b = replace(b, setup=replace(b.setup, settings={"requests": 32, "scale": 1.0, "file": "folder"}))
    assert said([a, b])[0].endswith("One run each. Other weights: /m/a.gguf against folder.")


def test_of_two_runs_of_this_engine_the_one_on_the_same_file_is_compared() -> None:
    """Else a 4-bit file of ours would hide what is lost with equal weights."""

    def on(file: str, d: ReportDocument) -> ReportDocument:
        return replace(d, setup=replace(d.setup, settings={**d.setup.settings, "file": file}))

    small, equal = on("q4.gguf", sweep("ridgeline", (50.0, 60.0))), on("folder", sweep("ridgeline", (10.0, 20.0), 300.0))
    peer, other = on("folder", sweep("vllm", (5.0, 6.0), 100.0)), on("q4.gguf", sweep("llama.cpp", (5.0, 6.0)))
    found = said([small, equal, peer, other])
    assert any("2 at once: ridgeline (folder) 20 output tok/s, vllm 6: 3.33x" in w and "vllm is better in TTFT p50" in w for w in found)
    assert any("2 at once: ridgeline (q4.gguf) 60 output tok/s, llama.cpp 6: 10.00x" in w for w in found)
    assert not any("Other weights" in w for w in found)
    (table,) = (b for b in findings_part([small, on("x", sweep("vllm", (5.0, 6.0)))]) if isinstance(b, Grid))
    assert table.rows[0][-1] == "one run each, other weights"


def test_one_engine_alone_is_compared_with_nobody() -> None:
    assert said([sweep("ridgeline", (10.0, 20.0))]) == []


def test_engines_share_figures_and_distributions_are_of_one_load() -> None:
    documents = [sweep("ridgeline", (10.0, 20.0, 30.0)), sweep("llama.cpp", (5.0, 6.0))]
    page = report(documents, reported=False).html
    assert page.count("chat: latency against throughput") == 2  # the title and what is read aloud
    assert "chat: first token against requests at once" in page
    drawn = "".join(b.drawn for b in distribution_part(documents) if hasattr(b, "drawn"))
    assert "chat, requests at once: 2" in drawn and "ridgeline, concurrency 2" in drawn and "concurrency 4" not in drawn
    alone = "".join(b.drawn for b in distribution_part(documents[:1]) if hasattr(b, "drawn"))
    assert "concurrency 1" in alone and "concurrency 4" in alone and "concurrency 2" not in alone


def test_a_single_load_draws_no_line_and_predictions_are_dashed() -> None:
    single = [b for b in curve_part([sweep("ridgeline", (10.0,))]) if hasattr(b, "drawn")]
    assert single == []
    made = sweep("ridgeline", (10.0, 20.0), predicted_output_tok_s=15.0)
    page = report([made, sweep("llama.cpp", (5.0, 6.0))], reported=False).html
    assert "ridgeline, predicted" in page and '"line c0 d1"' in page and '"line c1 d0"' in page


# --- agents -------------------------------------------------------------------------------------------------------------------------


def test_agents_have_a_section_with_turns_and_a_sentence() -> None:
    documents = [agents("ridgeline", 2.0), agents("llama.cpp", 8.0)]
    found = said(documents)
    assert found[0].startswith("16 branches, two turns: ridgeline has all answers after 2.0 s, llama.cpp after 8.0 s: 4.0x as fast")
    assert "16 against 4 requests/s" in found[0] and "One run each." in found[0]
    text = report(documents, reported=False).markdown
    assert "## Agents: many branches of one prompt" in text and "rates it from 1 to 10" in text
    assert "| llama.cpp | 2 | 16 | 0 | 1,600 | 200 | 900 | 60.0% |" in text and "## Latency and throughput" not in text
    page = report(documents, reported=False).html
    assert "Until all have ended" in page and "turn 2, p95" in page and "Prompt tokens found in the cache" in page


def test_agents_that_lose_or_fail_say_so() -> None:
    blocks = list(findings_part([agents("ridgeline", 9.0), agents("vllm", 3.0, failed=2)]))
    (words,) = lost(blocks)
    assert "3.0x as long" in words and "2 of 32 requests of vllm failed" in words


def test_agents_of_a_document_without_turns() -> None:
    made = agents("ridgeline", 2.0)
    bare = replace(made.curves[0].points[0], turns=(), seconds=None)
    text = report([replace(made, curves=(replace(made.curves[0], points=(bare,)),))], reported=False).markdown
    assert "16 branches, two turns: ridgeline has all answers after 2.0 s" in text and "| ridgeline | both | 32 |" in text


# --- comparisons and predictions ----------------------------------------------------------------------------------------------------


def test_ladder_losses_are_findings() -> None:
    assert "+ KV int8 loses 3.3% of the throughput of the rung before (0.967x)." in lost(
        list(findings_part([ReportDocument("ladder", "l", ladders=(ladder(),))]))
    )


def test_too_few_rounds_are_one_sentence_and_decide_nothing() -> None:
    pairs = tuple(
        Comparison("a", "b", m, 3.0, 1.5, 9.0, f"2 rounds are too few to tell (a / b = {m})", 2, where="chat", a_value=3.0, b_value=1.0)
        for m in ("output tok/s at 4", "e2e p50 at 4")
    )
    made = ReportDocument("bench ab", "ab", comparisons=pairs)
    found = said([made])
    assert found == ["chat, a over b: output tok/s at 4 3.00x; e2e p50 at 4 3.00x. 2 rounds are too few to tell."]
    (grid,) = [b for b in comparison_part([made]) if isinstance(b, Grid)]
    assert [r[-1] for r in grid.rows] == ["too few rounds"] * 2


def test_a_prediction_is_told_once_with_its_calibration_and_roofs_are_no_errors() -> None:
    made = sweep("ridgeline", (10.0,), predicted_output_tok_s=15.0)
    label = "fitted: calibrated today"
    again = Prediction("/m/a.gguf, chat, concurrency 1", "throughput tok/s", 15.0, 10.0, 0.0, label)
    roof = Prediction("prompt", "tok/s", 100.0, 40.0, label="predicted: roofline's fastest")
    made = replace(made, predictions=(again, roof))
    assert [(p.metric, p.label) for p in of_document(made)] == [("tok/s", roof.label), ("output tok/s", label)]
    blocks = list(prediction_part([made]))
    assert any(isinstance(b, Words) and b.words.startswith("Predictions that are fitted: calibrated today.") for b in blocks)
    (roofs,) = [b for b in blocks if isinstance(b, Grid) and b.title.startswith("Share")]
    assert list(roofs.rows[0]) == ["prompt", "tok/s", 100.0, 40.0, "40%"]
    (cells,) = next(b for b in blocks if isinstance(b, Opening)).grids
    assert cells.rows[0][0] == "ridgeline, chat, 1 requests at once" and label not in str(cells.rows)
    assert "bench serve: output tok/s 50.0% off, +50.0% (ridgeline, chat, 1 requests at once)." in said([made])


# --- results without a report of their own ------------------------------------------------------------------------------------------


def predicted() -> dict[str, Any]:
    run = {"tpot_ms": 10.0, "throughput_tok_s": 90.0, "ttft_p95_ms": 50.0, "seconds": 1.0, "steal": 0.0, "others": 0.0, "at": "2026-01-02"}
    cell = {"model": "m.gguf", "prompt": 128, "output": 64, "users": 4, "rate": 0.0, "requests": 8}
    guess = {"tpot_ms": 11.0, "throughput_tok_s": 99.0, "ttft_p95_ms": 40.0, "seconds": 1.0}
    loud = run | {"others": 0.5, "tpot_ms": 99.0}
    later = {"cell": cell | {"users": 0, "rate": 2.5}, "predicted": guess, "measured": []}
    cells = [{"cell": cell, "predicted": guess, "measured": [run, loud]}, later]
    model = {"written": "x", "calibrated": "2026-01-02T00:00:00+00:00", "calibration_s": 1.0, "host": "h", "isa": "avx2", "threads": 2,
             "kv_dtype": "bf16", "cells": cells}  # fmt: skip
    return {"models": {"m.gguf": model}}


def row(**more: Any) -> dict[str, Any]:
    return {"model": "m.gguf", "part": "chat", "measure": "chat, 8 sessions, 4 at once: output tok/s", "peer": "llama.cpp", "ours": 40.0,
            "theirs": 10.0, "ratio": 4.0, "low": 3.0, "high": 5.0, "better": "higher", "our_command": "ridgeline x",
            "peer_command": "llama y", "note": "3 rounds", "disturbed": 0.0} | more  # fmt: skip


def engine() -> dict[str, Any]:
    found: dict[str, Any] = dict.fromkeys(("decode", "batching", "ragged", "branch", "arrival", "overhead", "reuse", "samples", "overload"))
    branch = {"shared": 1000, "branches": 32, "own": 64, "gen": 96, "seconds": 5.0, "off_seconds": 25.0, "speedup": 5.0, "predicted_s": 4.5}
    peer = {"file": "q.gguf", "decode_tok_s": 200.0, "ratio": 0.5, "command": "llama-batched-bench q"}
    decode = {"seqs": 32, "prompt": 128, "gen": 128, "decode_tok_s": 100.0, "total_tok_s": 80.0, "prompt_tok_s": 900.0, "peers": [peer]}
    reuse = {"prompt": 1016, "cached": 1000, "same": True}
    return {"model": "/x/m.gguf", "threads": 2, "isa": "avx2", "repeat": 3} | found | {"branch": branch, "decode": decode, "reuse": reuse}


def test_predictions_kept_in_a_file_are_read(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(predicted()))
    (made,) = read([path])
    assert made.kind == "bench predict" and [p.measured for p in made.predictions] == [10.0, 90.0, 50.0]
    assert made.predictions[0].what == "m.gguf, prompts of 128, 4 at once"
    assert made.notes == ("m.gguf: 1 of 2 predicted cells were not measured",)
    assert "bench predict: TPOT mean ms 10.0% off, +10.0%" in said([made])[0]


def test_peers_kept_in_a_file_are_read_with_their_intervals() -> None:
    bare = {"measure": "one sequence, tok/s", "low": None, "high": None, "note": ""}
    rows = [
        row(), row(measure="chat, 8 sessions, 4 at once: TTFT p50, ms", better="lower", ratio=2.0, low=1.5, high=2.5),
        row(**bare, ratio=0.8), row(**bare, model="n.gguf"),
        row(peer="vllm", ratio=None, ours=None, theirs=None, note="vllm is not installed"), row(model="o.gguf", disturbed=0.3),
        row(**bare, model="p.gguf", ratio=9.0, disturbed=0.4),
    ]  # fmt: skip
    (made,) = documents_of({"kind": "bench peers", "rows": rows}, "f")
    found = said([made])
    loud = "o.gguf, chat, 8 sessions, 4 at once, output tok/s: not to be relied on (4.00x): others took up to 30%"
    assert any(w.startswith(loud) for w in found)
    assert [w for w in found if "p.gguf" in w] == [
        "p.gguf, one sequence, tok/s: not to be relied on (9.00x): others took up to 40% of the CPUs"
    ]
    both = next(w for w in found if w.startswith("m.gguf, chat"))
    assert "output tok/s 4.00x (95% 3 to 5)" in both and both.endswith("llama.cpp is better in TTFT p50, ms.")
    files = next(w for w in found if w.startswith("one sequence, tok/s"))
    assert "0.80x (m.gguf, 40 against 10) to 4.00x (n.gguf, 40 against 10), 2 files; llama.cpp is ahead on m.gguf." in files
    assert "vllm is not installed" in found and made.setup.commands == ("ridgeline x", "llama y")
    (grid,) = [b for b in comparison_part([made]) if isinstance(b, Grid)]
    assert [r[-1] for r in grid.rows][:4] == ["ridgeline", "llama.cpp", "", ""]


def test_engine_results_are_read() -> None:
    (made,) = documents_of(engine(), "f")
    text = report([made], reported=False).markdown
    assert "| branch | 32 branches of 1000 shared + 64 own tokens, 96 each | 5 | s |" in text and "| reuse | cached | 1000 |" in text
    assert "m.gguf, 32 branches of 1000 shared tokens" in text and "/x/m.gguf" not in text
    assert "llama.cpp is ahead on q.gguf" in text and "llama-batched-bench q" in text


@pytest.mark.parametrize("broken", [{"models": {"m": 3}}, {"kind": "bench peers", "rows": [{}]}, {"models": {}} | {"report": []}])
def test_files_that_only_look_like_results_are_refused(broken: dict[str, Any]) -> None:
    from ridgeline.errors import FileFormatError

    with pytest.raises(FileFormatError, match="holds no report"):
        documents_of(broken, "f")


# --- names and hostile text ---------------------------------------------------------------------------------------------------------


def test_files_are_named_without_folders_but_commands_stay() -> None:
    assert named("/work/tmp/models/a.gguf, one sequence") == "a.gguf, one sequence"
    assert named("http://127.0.0.1:80/v1/models tok/s 1/2 a/b") == "http://127.0.0.1:80/v1/models tok/s 1/2 a/b"
    made = ReportDocument(
        "bench micro", "/d/e/a.gguf: x", Setup(settings={"model": "/d/e/a.gguf"}, commands=("run /d/e/a.gguf",)),
        gantts=(Gantt("/d/e/a.gguf", ()),), notes=("see /tmp/x.log", "/d/e/a.gguf is fast"),
    )  # fmt: skip
    found = with_names(made)
    assert (found.title, found.setup.settings["model"], found.gantts[0].title) == ("a.gguf: x", "a.gguf", "a.gguf")
    assert found.setup.commands == ("run /d/e/a.gguf",) and found.notes == ("see /tmp/x.log", "a.gguf is fast")
    page = report([made], reported=False)
    assert "<div>run /d/e/a.gguf</div>" in page.html and '"title": "/d/e/a.gguf: x"' in page.json


def test_hostile_names_stay_words_everywhere() -> None:
    a, b = sweep(HOSTILE, (10.0, 20.0), knee=1.0), sweep("ridgeline", (5.0, 6.0))
    other = agents(HOSTILE, 2.0)
    plain = json.loads(json.dumps({"kind": "bench peers", "rows": [row(peer=HOSTILE, model=HOSTILE, our_command=HOSTILE)]}))
    hostile = predicted()
    hostile["models"] = {HOSTILE: hostile["models"]["m.gguf"]}
    kept = [d for found in (plain, hostile, engine() | {"model": HOSTILE}) for d in documents_of(found, "f")]
    made = report([a, b, other, agents("ridgeline", 3.0), *kept])
    assert "<script" not in made.html and "&lt;script&gt;" in made.html
    assert "<script" not in re.sub(r"```.*?```", "", made.markdown, flags=re.DOTALL)
