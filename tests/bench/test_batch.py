"""Batches: every line has one reply, in the input's order, whatever stops the run in the middle; kills are real kills."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.cli.tiny_gguf import tiny_gguf

from ridgeline.bench.batch import BatchOptions, Reply, Summary, Unreachable, run
from ridgeline.bench.batch_journal import part_of
from ridgeline.bench.batch_lines import Call, in_order, read_entries
from ridgeline.bench.batch_url import UrlAnswerer
from ridgeline.bench.record import clock_text
from ridgeline.cli import main
from ridgeline.errors import InternalError, UserError

RIDGELINE = [sys.executable, "-m", "ridgeline"]


def line(custom_id: object, prompt: str = "x", **changes: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": prompt}} | changes


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines), "utf8")
    return path


class Fake:
    """Answers with the prompt; `says` may change a reply by prompt. Mutable: what was asked, in order."""

    def __init__(self, **says: Any) -> None:
        self.asked: list[str] = []
        self.says, self.dead = says, ""

    async def ask(self, call: Call) -> Reply:
        prompt = json.loads(call.body)["prompt"]
        self.asked.append(prompt)
        await asyncio.sleep(0)
        said = self.says.get(prompt)
        said = said.pop(0) if isinstance(said, list) and said else said
        if isinstance(said, Exception):
            raise said
        if isinstance(said, Reply):
            return said
        return Reply(200, {"text": prompt, "usage": {"prompt_tokens": 3, "completion_tokens": 2}})

    def fault(self) -> str | None:
        return self.dead or None


def go(tmp_path: Path, fake: Fake, **options: Any) -> Summary:
    asked = BatchOptions(tmp_path / "in.jsonl", tmp_path / "out.jsonl", {"model": "m"}, **options)
    return asyncio.run(run(asked, lambda: fake))


def replies(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(x) for x in (tmp_path / "out.jsonl").read_text("utf8").splitlines()]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.bench.batch.FIRST_WAIT_S", 0.001)
    monkeypatch.setattr("ridgeline.bench.batch.LONGEST_WAIT_S", 0.002)


def test_replies_come_in_the_order_of_the_input(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [line(f"r{i}", f"{'ba'[i % 2]} {i}") for i in range(20)])
    summary = go(tmp_path, fake := Fake())
    assert [r["custom_id"] for r in replies(tmp_path)] == [f"r{i}" for i in range(20)]
    assert all(r["response"]["body"]["text"] == f"{'ba'[i % 2]} {i}" for i, r in enumerate(replies(tmp_path)))
    assert (summary.answered, summary.output_tokens, summary.prompt_tokens, summary.exit_code) == (20, 40, 60, 0)
    assert [p[0] for p in fake.asked] == ["a"] * 10 + ["b"] * 10  # equal beginnings follow each other
    assert not part_of(tmp_path / "out.jsonl").exists()


def test_a_bad_line_is_an_error_of_its_own(tmp_path: Path) -> None:
    lines = [
        line("a"), "{not json", "", "[1]", line(7), line(""), line("b", method="GET"), line("c", url="/v1/embeddings"), line("d", body=[1]),
        line("e", body={"prompt": "x", "stream": True}), line("a", "again"), line("ok"),
    ]  # fmt: skip
    write(tmp_path / "in.jsonl", lines)
    summary = go(tmp_path, fake := Fake())
    codes = [r["error"]["code"] if r["error"] else r["response"]["status_code"] for r in replies(tmp_path)]
    assert codes == [
        200, "invalid_json", "invalid_json", "invalid_custom_id", "invalid_custom_id", "invalid_method", "invalid_url", "invalid_body",
        "stream_not_supported", "duplicate_custom_id", 200,
    ]  # fmt: skip
    assert len(fake.asked) == 2 and summary.exit_code == 2 and summary.client_errors == 9
    assert "line 1's" in replies(tmp_path)[9]["error"]["message"]  # which of the two is answered
    assert replies(tmp_path)[9]["error"]["line"] == 11  # as an editor counts, blank lines too


@pytest.mark.parametrize("raw", [b"\xff\xfe{}\n", b'{"a": "\xff"}\n', b"[" * 100_000 + b"\n", b"\xef\xbb\xbf{}\n", b"nul\x00l\n"])
def test_hostile_bytes_end_one_line_only(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "in.jsonl").write_bytes(raw + json.dumps(line("good")).encode())  # no newline at the end
    go(tmp_path, Fake())
    first, second = replies(tmp_path)
    assert first["error"] and second["response"]["status_code"] == 200


def test_a_body_too_deep_is_an_error_of_its_own(tmp_path: Path) -> None:
    for depth in (300, 900, 980, 5000):
        deep = "[" * depth + "]" * depth
        raw = json.dumps(line("deep", body={"model": "m", "prompt": "x", "deep": 0})).replace('"deep": 0', f'"deep": {deep}')
        write(tmp_path / "in.jsonl", [raw, line("ok")])
        go(tmp_path, Fake(), overwrite=True)
        first, second = replies(tmp_path)
        assert first["error"] is None or first["error"]["code"] in ("invalid_json", "invalid_body")
        assert second["response"]["status_code"] == 200


def test_a_line_without_end_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.bench.batch_lines.MAX_LINE", 1000)
    write(tmp_path / "in.jsonl", [line("long", "x" * 5000), line("short")])
    go(tmp_path, Fake())
    assert [(r["error"] or {}).get("code") for r in replies(tmp_path)] == ["line_too_long", None]


def test_a_refused_call_is_kept_as_the_server_said_it(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [line("a", "bad"), line("b", "broken"), line("c")])
    summary = go(tmp_path, Fake(bad=Reply(400, {"error": {"message": "no"}}), broken=Reply(500, {"error": {}})))
    assert [r["response"]["status_code"] for r in replies(tmp_path)] == [400, 500, 200]
    assert (summary.client_errors, summary.server_errors, summary.exit_code) == (1, 1, 1)


def test_overload_and_lost_connections_are_tried_again(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [line("a", "busy"), line("b", "lost"), line("c")])
    summary = go(tmp_path, Fake(busy=[Reply(429, {}, wait_s=0.001), Reply(503, {})], lost=[Unreachable("reset")]))
    assert [r["response"]["status_code"] for r in replies(tmp_path)] == [200, 200, 200]
    assert summary.retries == 3


def test_one_line_that_never_comes_through_does_not_stop_the_others(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [line(f"r{i}", "poison" if i == 0 else str(i)) for i in range(40)])
    summary = go(tmp_path, Fake(poison=Unreachable("reset by peer")), concurrency=2)
    assert replies(tmp_path)[0]["error"]["code"] == "unreachable"
    assert summary.answered == 39 and summary.exit_code == 1


def test_a_dead_server_ends_the_run_and_the_next_goes_on(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [line(f"r{i}", str(i)) for i in range(10)])
    gone = {str(i): Unreachable("refused") for i in range(4, 10)}
    with pytest.raises(InternalError, match="6 lines are left, the same command goes on"):
        go(tmp_path, Fake(**gone), concurrency=1)
    assert not (tmp_path / "out.jsonl").exists()
    summary = go(tmp_path, fake := Fake())
    assert sorted(fake.asked) == [str(i) for i in range(4, 10)] and summary.resumed == 4
    assert [r["custom_id"] for r in replies(tmp_path)] == [f"r{i}" for i in range(10)]


def test_a_torn_reply_is_asked_again(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [line(f"r{i}", str(i)) for i in range(6)])
    with pytest.raises(InternalError):
        go(tmp_path, Fake(**{str(i): Unreachable("") for i in range(3, 6)}), concurrency=1)
    part = part_of(tmp_path / "out.jsonl")
    part.write_bytes(part.read_bytes()[:-7])  # a write cut in two
    go(tmp_path, fake := Fake())
    assert sorted(fake.asked) == ["2", "3", "4", "5"]
    assert [r["custom_id"] for r in replies(tmp_path)] == [f"r{i}" for i in range(6)]


def test_a_finished_output_is_not_asked_again_and_may_grow(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [line("a", "1"), line("b", "2")])
    go(tmp_path, Fake())
    go(tmp_path, fake := Fake())
    assert fake.asked == []
    write(tmp_path / "in.jsonl", [line("a", "1"), line("b", "2"), line("c", "3")])
    go(tmp_path, fake)
    assert fake.asked == ["3"] and len(replies(tmp_path)) == 3


def test_errors_are_asked_again_on_request(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [line("a", "1"), line("b", "bad")])
    assert go(tmp_path, Fake(bad=Reply(400, {}))).exit_code == 2
    assert go(tmp_path, Fake()).exit_code == 2  # kept
    assert go(tmp_path, fake := Fake(), retry_errors=True).exit_code == 0
    assert fake.asked == ["bad"] and [r["response"]["status_code"] for r in replies(tmp_path)] == [200, 200]


@pytest.mark.parametrize("change", ["input", "model", "foreign", "header"])
def test_what_belongs_to_another_batch_is_not_touched(tmp_path: Path, change: str) -> None:
    write(tmp_path / "in.jsonl", [line("a", "1"), line("b", "2")])
    out, part = tmp_path / "out.jsonl", part_of(tmp_path / "out.jsonl")
    if change == "foreign":
        out.write_text("my notes\n")
    elif change == "header":
        part.write_text("{}\n")
    else:
        with pytest.raises(InternalError):
            go(tmp_path, Fake(**{"2": Unreachable("")}), concurrency=1)
    if change == "input":
        write(tmp_path / "in.jsonl", [line("a", "other"), line("b", "2")])
    before = [p.read_bytes() if p.exists() else None for p in (out, part)]
    asked = BatchOptions(tmp_path / "in.jsonl", out, {"model": "n" if change == "model" else "m"})
    with pytest.raises(UserError, match="--overwrite"):
        asyncio.run(run(asked, Fake))
    assert [p.read_bytes() if p.exists() else None for p in (out, part)] == before
    assert asyncio.run(run(BatchOptions(tmp_path / "in.jsonl", out, {"model": "n"}, overwrite=True), Fake)).answered == 2


def test_two_processes_do_not_write_one_output(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [line("a")])

    class Second(Fake):
        async def ask(self, call: Call) -> Reply:
            asked = BatchOptions(tmp_path / "in.jsonl", tmp_path / "out.jsonl", {"model": "m"})
            with pytest.raises(UserError, match="another process"):
                await run(asked, Fake)
            return await super().ask(call)

    assert go(tmp_path, Second()).answered == 1


def test_long_contexts_are_grouped_by_what_they_share(tmp_path: Path) -> None:
    shared = ["a" * 900 + str(i) * 20_000 for i in range(3)]
    write(tmp_path / "in.jsonl", [line(f"r{i}", shared[i % 3] + str(i)) for i in range(30)])
    order = [e.number % 3 for e in in_order(read_entries(tmp_path / "in.jsonl"))]
    assert sum(a != b for a, b in pairwise(order)) == 2  # three runs of ten
    assert all(len("".join(e.key)) < 300 for e in read_entries(tmp_path / "in.jsonl"))


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (200, "3m 20s"), (3720, "1h 02m"), (360000, "100h 00m")])
def test_clock(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text


# --- a real process, really killed -------------------------------------------------------------------------------------------------


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.replied: Counter[str] = Counter()
        self.path = ""
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked[body["prompt"]] += 1
        self.server.path = self.path
        time.sleep(0.02)
        raw = json.dumps({"text": body["prompt"], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)
        self.server.replied[body["prompt"]] += 1

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[_Server]:
    found = _Server()
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    yield found
    found.shutdown()
    found.server_close()


def test_kill_9_loses_nothing_and_repeats_nothing(tmp_path: Path, server: _Server) -> None:
    count = 150
    write(tmp_path / "in.jsonl", [line(f"r{i}", f"p{i}") for i in range(count)])
    out, part = tmp_path / "out.jsonl", part_of(tmp_path / "out.jsonl")
    url = f"http://127.0.0.1:{server.server_port}/v1"
    command = [*RIDGELINE, "batch", str(tmp_path / "in.jsonl"), "-o", str(out), "--url", url, "--concurrency", "4"]
    kills, kept = 0, 0
    while not out.exists():
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and kills < 3:
            lines = part.read_bytes().count(b"\n") if part.exists() else 0
            if lines > kept + 20:
                process.send_signal(signal.SIGKILL)
                kept, kills = part.read_bytes().count(b"\n"), kills + 1
                break
            time.sleep(0.002)
        _, said = process.communicate(timeout=60)
        assert process.returncode in (0, -signal.SIGKILL), said
    assert kills == 3
    assert [r["custom_id"] for r in replies(tmp_path)] == [f"r{i}" for i in range(count)]
    assert all(r["response"]["body"]["text"] == f"p{i}" for i, r in enumerate(replies(tmp_path)))
    # Only what was in flight at a kill is asked twice: four calls, three kills.
    assert sum(server.asked.values()) <= count + 3 * 4


@pytest.mark.parametrize(
    ("base", "path"), [("", "/v1/completions"), ("/v1", "/v1/completions"), ("/v3", "/v3/completions"), ("/x/v1/", "/x/v1/completions")]
)
def test_a_url_may_end_with_its_version(server: _Server, base: str, path: str) -> None:
    answerer = UrlAnswerer(f"http://127.0.0.1:{server.server_port}{base}", connections=1)
    assert asyncio.run(answerer.ask(Call("/v1/completions", b'{"prompt": "p"}'))).status == 200
    assert server.path == path
    answerer.close()


def test_url_answerer_on_what_is_no_server(server: _Server) -> None:
    for url in ("ftp://x", "http://", "http://h:99999", "http://h:x"):
        with pytest.raises(UserError, match="--url"):
            UrlAnswerer(url)
    with pytest.raises(Unreachable):
        asyncio.run(UrlAnswerer("127.0.0.1:1", connections=1).ask(Call("/v1/completions", b"{}")))


def test_the_engine_in_process_answers_as_the_server_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(tiny_gguf(tmp_path / "tiny.gguf"))
    greedy = {"model": "tiny", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    chat = greedy | {"messages": [{"role": "user", "content": "hello"}]}
    lines = [
        line("c", url="/v1/chat/completions", body=chat), line("t", body=greedy | {"prompt": "hello"}),
        line("bad", body=greedy | {"prompt": "x", "max_tokens": -1}), line("other", body=greedy | {"prompt": "x", "model": "gpt-4"}),
        line("m", url="/v1/messages", body=chat),
        line("r", url="/v1/responses", body={"model": "tiny", "input": "hi", "max_output_tokens": 4}),
    ]  # fmt: skip
    write(tmp_path / "in.jsonl", lines)
    given = ["batch", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl"), "--model", model]
    assert main([*given, "--served-model-name", "tiny", "--price", "36/h", "--json"]) == 2
    summary = json.loads(capsys.readouterr().out)
    assert summary["usd"] == pytest.approx(0.01 * summary["seconds"], abs=1e-6)  # row 168: what the run cost
    found = replies(tmp_path)
    assert [r["response"]["status_code"] for r in found] == [200, 200, 400, 404, 200, 200]
    assert found[0]["response"]["body"]["choices"][0]["message"]["role"] == "assistant"
    assert found[1]["response"]["body"]["usage"]["completion_tokens"] == 4
    assert found[2]["response"]["body"]["error"]["param"] == "max_tokens"
    assert summary["answered"] == 4 and summary["errors"] == {"400": 1, "404": 1} and summary["output_tokens"] >= 13


def test_replies_are_the_same_with_guesses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--speculative-config: no word changes with the coupled rule, and a run may go on under another one; the other rule is told apart."""
    model = str(tiny_gguf(tmp_path / "tiny.gguf"))
    body = {"model": model, "prompt": "abcabcabc", "max_tokens": 12, "temperature": 1, "seed": 5, "ignore_eos": True}
    write(tmp_path / "in.jsonl", [line(f"r{i}", body=body | {"seed": i}) for i in range(4)])
    texts = {}
    for name, more in (("plain", []), ("ngram", ["--speculative-config", '{"prompt_lookup_min": 1, "adaptive": false}'])):
        assert main(["batch", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl"), "--overwrite", "--json", *more]) == 0
        summary, found = json.loads(capsys.readouterr().out), replies(tmp_path)
        texts[name] = [r["response"]["body"]["choices"][0]["text"] for r in found]
        details = [r["response"]["body"]["usage"].get("completion_tokens_details") for r in found]
        assert summary["answered"] == 4 and (any(details) == (name == "ngram")) and "accept" not in summary
    assert texts["plain"] == texts["ngram"]
    rejection = ["--speculative-config", '{"rejection_sample_method": "probabilistic"}']
    assert main(["batch", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "new.jsonl"), "--json", *rejection]) == 0
    assert json.loads(capsys.readouterr().out)["accept"] == "rejection"
    assert main(["batch", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "new.jsonl"), "--speculative-config", "{"]) == 2
    assert "is not JSON" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "words"),
    [([], "holds no request"), ([line("a", body={"prompt": "x"})], "no model"), ([line("a", body={"model": 3})], "no model"),
     ([line("a", body={"model": "x"}), line("b", body={"model": "y"})], "'x' (line 1), 'y' (line 2)")],
)  # fmt: skip
def test_the_model_must_be_clear(tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[Any], words: str) -> None:
    path = write(tmp_path / "in.jsonl", lines)
    assert main(["batch", str(path), "-o", str(tmp_path / "out.jsonl")]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [path]


def test_options_that_exclude_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "in.jsonl", [line("a")])
    for more in (["--model", "m", "--url", "x"], ["--url", "http://x", "-o", str(path)], ["--concurrency", "0"], ["--timeout", "0"]):
        given = ["batch", str(path), *(more if "-o" in more else [*more, "-o", str(tmp_path / "out.jsonl")])]
        assert main(given) == 2, given
        assert capsys.readouterr().err.startswith("error: ")
    assert main(["batch", str(tmp_path / "none.jsonl"), "-o", str(tmp_path / "out.jsonl")]) == 2
    assert main(["batch", str(path), "-o", str(tmp_path / "no" / "out.jsonl"), "--url", "http://x"]) == 2
    assert main(["batch", str(path), "-o", str(tmp_path), "--url", "http://x"]) == 2
    for unreadable in ("/dev/null", str(tmp_path)):
        assert main(["batch", unreadable, "-o", str(tmp_path / "out.jsonl"), "--url", "http://x"]) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.jsonl"]
