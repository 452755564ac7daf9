"""`bench peers`: rows are kept, absent engines are named, losses are said, the table goes where it belongs. Nothing is measured here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.bench import ab, peers, peers_show
from ridgeline.bench.client import Target
from ridgeline.bench.engines import ENGINES
from ridgeline.bench.peers import PeersOptions, PeersResult, Row
from ridgeline.bench.report_json import documents_of
from ridgeline.bench.serve_options import ServeOptions, Source
from ridgeline.bench.serve_server import Server
from ridgeline.bench.stats import Ratio
from ridgeline.cli import main
from ridgeline.errors import FileFormatError, UserError

WIN = Row("m.gguf", "micro", "prompt, tok/s", "llama.cpp", 200.0, 100.0, 2.0, our_command="ours", peer_command="theirs -x")
LOSS = Row("m.gguf", "chat", "chat: TTFT p50, ms", "llama.cpp", 150.0, 100.0, 1.5, 1.4, 1.6, "lower", note="3 rounds")
TIE = Row("m.gguf", "chat", "chat: output tok/s", "llama.cpp", 99.0, 100.0, 0.99, 0.9, 1.1)
ABSENT = Row("any", "-", "-", "vllm", note="vllm is not installed (vllm not found), so it was not measured; pip install vllm")
RESULT = PeersResult((WIN, LOSS, TIE, ABSENT), {"llama.cpp": "version: 5"}, ("busy",))


LOUD = replace(WIN, disturbed=0.75)


@pytest.mark.parametrize(("row", "ahead"), [(LOUD, None), (WIN, True), (LOSS, False), (TIE, None), (ABSENT, None)])
def test_who_is_ahead(row: Row, ahead: bool | None) -> None:
    assert row.ahead is ahead


def test_the_table_says_where_we_lose_and_who_was_not_there() -> None:
    text = peers_show.markdown(RESULT)
    assert "| m.gguf | prompt, tok/s | 200 | 100 (llama.cpp) | 2.00 |  | 2.00x more |" in text
    assert "1.40-1.60 | 1.50x longer, we lose |" in text and "no significant difference |" in text
    loud = peers_show.markdown(replace(RESULT, rows=(LOUD,)))
    assert "| not to be relied on: others took up to 75% of the CPUs |" in loud and "2.00x more" not in loud
    assert "- vllm is not installed" in text and "- busy" in text and "ours\ntheirs -x" in text


def test_versions_name_an_engine_once() -> None:
    text = peers_show.markdown(replace(RESULT, versions={"ridgeline": "ridgeline 0.1.0", "llama.cpp": "version: 5"}))
    assert "ridgeline ridgeline" not in text and " ridgeline 0.1.0; llama.cpp version: 5." in text


def test_an_engine_that_was_measured_is_not_called_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """llama-bench may be here where llama-server is not: the note then says that only the server is missing."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(peers, "_measure", lambda *rest: ([WIN], []))
    notes = [r.note for r in peers.run(PeersOptions(("m.gguf",), parts=("micro",))).rows if r.ratio is None]
    (told,) = (note for note in notes if "llama-server" in note)
    assert told.startswith("no server of llama.cpp beside micro above: ") and "llama-server not found" in told
    assert any(note.startswith("vllm is not installed") for note in notes)


def test_documents() -> None:
    found = json.loads(json.dumps(peers_show.document(RESULT), allow_nan=False))
    assert documents_of(found, "x")[0].tables[0].rows[1][8] == "1.50x longer, we lose"
    assert found["rows"][1]["ahead"] is False


def test_the_table_goes_between_its_markers(tmp_path: Path) -> None:
    path = tmp_path / "R.md"
    path.write_text(f"before\n{peers_show.BEGIN}\nold\n{peers_show.END}\nafter\n")
    for _ in range(2):
        peers_show.insert(path, "new")
    assert path.read_text() == f"before\n{peers_show.BEGIN}\nnew\n{peers_show.END}\nafter\n"
    path.write_text("no place")
    with pytest.raises(FileFormatError, match="has no place for the table"):
        peers_show.insert(path, "new")
    assert path.read_text() == "no place"


def test_parts_are_added_to_the_results_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    measured = {"micro": ([WIN], []), "chat": ([LOSS], ["loud"])}
    monkeypatch.setattr(peers, "_measure", lambda asked, part, *rest: measured[part])
    path = tmp_path / "r.json"
    peers.run(PeersOptions(("m.gguf",), parts=("micro",), results=path))
    result = peers.run(PeersOptions(("m.gguf",), parts=("chat",), results=path))
    assert {r.measure for r in peers.read_rows(path)} == {WIN.measure, LOSS.measure}
    assert [r for r in result.rows if r.ratio is not None] == [WIN, LOSS] and result.remarks == ("loud",)
    assert {r.peer for r in result.rows if r.ratio is None} == set(ENGINES) - {"ridgeline"}
    path.write_text("[]")
    with pytest.raises(FileFormatError, match="--results"):
        peers.read_rows(path)


def test_rows_of_an_ab() -> None:
    compared = ab.Compared(8.0, "TTFT p50", 10.0, 20.0, Ratio(0.5, 0.4, 0.6, 3), "x", False)
    load = ServeOptions(Source(model="m"))
    server = Server("s", Target.of("http://x"), "m", command="cmd")
    result = ab.AbResult(ab.AbOptions(load, load.source, load.source, "a", "b", 3), (server, server), (), (compared,), (), "")
    row = peers._row(compared, "/x/m.gguf", "chat", "chat, 16 sessions, 8 at once", "llama.cpp", result)
    assert (row.model, row.measure, row.better, row.ahead) == ("m.gguf", "chat, 16 sessions, 8 at once: TTFT p50, ms", "lower", True)


def test_a_peer_that_cannot_serve_the_model_ends_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = ab.Compared(8.0, "TTFT p50", 10.0, 20.0, Ratio(0.5, 0.4, 0.6, 3), "x", False)
    server = Server("s", Target.of("http://x"), "m", command="cmd")

    def run(asked: ab.AbOptions, say: object) -> ab.AbResult:
        if asked.b.engine == "vllm":
            raise UserError("the engine ended with 1 before it served: no GGUF")
        return ab.AbResult(asked, (server, server), (), (compared,), ("busy",), "")

    monkeypatch.setattr(ab, "run", run)
    here = {"ridgeline": None, "vllm": "/v/vllm", "openvino": "/o/python"}
    rows, remarks = peers._servers(PeersOptions(("m.gguf",)), "m.gguf", here, lambda line: None, "chat")
    assert [r.peer for r in rows] == ["openvino"]
    assert remarks == [
        "m.gguf, chat: nothing was measured beside vllm: the engine ended with 1 before it served: no GGUF", "m.gguf, chat: busy",
    ]  # fmt: skip


def test_what_cannot_be() -> None:
    for given in ({"models": ()}, {"models": ("m",), "parts": ("x",)}, {"models": ("m",), "peer_dirs": ("/none",)}):
        with pytest.raises(UserError):
            PeersOptions(**given)  # type: ignore[arg-type]


def test_one_plain_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "peers", "m", "--part", "x"]) == 2
    assert capsys.readouterr().err.startswith("error: --part is 'x', must be one of micro, batch, chat, agents")
