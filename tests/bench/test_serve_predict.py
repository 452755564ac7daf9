"""Sessions as the simulator's workload: who follows whom, what is shared, and where there is no prediction."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.bench.fake_server import fake_server
from tests.cli.tiny_gguf import tiny_gguf

from ridgeline.bench import serve, serve_cells
from ridgeline.bench.load_workloads import Session, Turn
from ridgeline.bench.serve_document import document, errors
from ridgeline.bench.serve_options import ServeOptions, Source
from ridgeline.bench.serve_predict import Forecast, Forecaster, Sessions
from ridgeline.bench.serve_text import render
from ridgeline.errors import UserError


class LetterWords:
    """A token a letter; a conversation is its texts."""

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def render(self, messages: list[dict[str, Any]]) -> tuple[str, list[int]]:
        text = "".join(m["content"] for m in messages)
        return text, self.encode(text)


def workload(made: list[Session], users: int | None) -> Sessions:
    return Sessions(made, LetterWords(), "chat", users)  # type: ignore[arg-type]


def two_turns(count: int) -> list[Session]:
    return [Session(f"s{i}", "role ", (Turn(f"ask {i}", 3), Turn("rate", 4)), arrival_s=0.5 * i) for i in range(count)]


def text(ids: np.ndarray[Any, Any]) -> str:
    return "".join(chr(i) for i in ids)


def test_a_closed_loop_begins_the_next_session_when_one_has_ended() -> None:
    found = workload(two_turns(3), 2)
    first, second = found.start()
    assert (text(first.prompt), first.output, second.id) == ("role ask 0", 3, "s1.0")
    turn = found.after(first, 1.0, np.array([ord("x")] * 3, np.int32))
    assert turn is not None
    assert (turn.id, text(turn.prompt), turn.output, turn.arrival_s) == ("s0.1", "role ask 0xxxrate", 4, 1.0)
    following = found.after(turn, 2.0, np.array([], np.int32))
    assert following is not None and (following.id, following.arrival_s) == ("s2.0", 2.0)
    last = found.after(following, 3.0, np.array([], np.int32))
    assert last is not None and last.id == "s2.1"
    assert found.after(last, 4.0, np.array([], np.int32)) is None


def test_an_open_loop_begins_all_at_their_times() -> None:
    found = workload(two_turns(3), None)
    assert [j.arrival_s for j in found.start()] == [0.0, 0.5, 1.0]
    single = [replace(s, turns=s.turns[:1]) for s in two_turns(1)]
    alone = workload(single, None)
    assert alone.after(alone.start()[0], 1.0, np.array([], np.int32)) is None


def test_no_calibration_no_prediction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(UserError, match="ridgeline calibrate MODEL"):
        Forecaster(str(tiny_gguf(tmp_path / "tiny.gguf")), 64, 2, 1)


def test_predicted_stands_beside_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fixed:
        def of(self, made: object, endpoint: str, users: int | None) -> Forecast:
            return Forecast(100.0, 20.0, None, "2026-01-01")

    monkeypatch.setattr(serve, "_forecaster", lambda asked, say: Fixed())
    with fake_server() as url:
        source = Source(url=url, served_model="ttft=0.001")
        result = serve.run(ServeOptions(source, concurrency=(1,), requests=2, scale=0.05, repeats=0, warmup=0))
    cell: serve_cells.Cell = result.cells[0]
    assert cell.figures.ttft_ms is not None
    assert errors(cell)["TTFT p50 ms"] == pytest.approx(20.0 / cell.figures.ttft_ms.p50 - 1)
    found = document(result)
    assert found["cells"][0]["predicted"]["output_tok_s"] == 100.0 and "TPOT p50 ms" not in found["cells"][0]["predicted"]["error"]
    assert [p["metric"] for p in found["report"]["predictions"]] == ["throughput tok/s", "TTFT p50 ms"]
    assert "predicted for measured: throughput tok/s 100.0 for" in render(result)
