"""`ridgeline serve` as a process: options, start, signals, leftovers (case PR-01). One process per test: each takes about a second."""

from __future__ import annotations

import json
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.tiny_gguf import tiny_gguf
from tests.server.process import everything, serving

from ridgeline.cli import main
from ridgeline.cli.foreign import sort_out
from ridgeline.cli.serve_options import ServeOptions, serve_options
from ridgeline.errors import UserError
from ridgeline.options import parse_size


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", **{"llama.context_length": 4096}))


def test_a_signal_drains_and_ends(tiny: str) -> None:
    with serving(tiny, "--served-model-name", "a", "--served-model-name", "b") as server:
        assert "answers to a, b" in server.said and "1 threads" in server.said and "users at the model length" in server.said
        sock = server.stream()
        server.signal(signal.SIGTERM)
        data = everything(sock)
        assert b"[DONE]" in data and data.endswith(b"0\r\n\r\n")  # the running answer came to its end
        assert server.wait() == 0
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", server.port), timeout=1)
    assert "shutting down" in server.said and "Traceback" not in server.said


def test_a_signal_under_load_leaves_no_request_without_its_end(tiny: str) -> None:
    """Streams and whole replies, running and in the queue: each ends as it would have, and nobody new is let in."""
    with serving(tiny, "--max-num-seqs", "4") as server:
        socks = [server.ask({"max_tokens": 200, "ignore_eos": True, "stream": i % 3 > 0, "prompt": f"{i} x"}) for i in range(32)]
        assert socks[1].recv(100)
        server.signal(signal.SIGTERM)
        replies = [everything(sock) for sock in socks]
        assert server.wait() == 0
    # One that came in too late for a place is told so.
    ends = [b"[DONE]" in reply if i % 3 else b'"usage"' in reply for i, reply in enumerate(replies)]
    late = [reply.startswith(b"HTTP/1.1 503") and b"retry-after" in reply for reply in replies]
    assert all(end or told for end, told in zip(ends, late, strict=True)) and sum(ends) >= 4, replies
    assert "Traceback" not in server.said


def test_a_second_signal_ends_at_once(tiny: str) -> None:
    with serving(tiny, "--drain-timeout", "600") as server:
        socks = [server.stream() for _ in range(4)]
        server.signal(signal.SIGTERM)
        time.sleep(0.1)
        server.signal(signal.SIGTERM)
        code = server.wait()
        replies = [everything(sock) for sock in socks]
    # Either all was over by then, or what was cut short is told so.
    assert code == (0 if all(b"[DONE]" in r for r in replies) else 1)
    assert all((b"[DONE]" in r) != (b"cut short" in r) for r in replies)
    assert "Traceback" not in server.said


def test_a_killed_server_leaves_nobody_behind(tiny: str) -> None:
    with serving(tiny) as server:
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
        server.stream()
        server.process.kill()
        server.wait()
    assert children == []
    with serving(tiny) as again:
        assert b"choices" in again.post("/v1/completions", {"prompt": "x"})


def test_an_idle_server_uses_no_cpu_and_its_log_holds_no_prompt(tiny: str) -> None:
    with serving(tiny, "--log-format", "json") as server:
        server.post("/v1/completions", {"prompt": "my secret words", "max_tokens": 4})
        time.sleep(0.3)
        before = ticks(server.process.pid)
        time.sleep(1.0)
        assert ticks(server.process.pid) - before <= 1  # of 100 in a second
        server.signal(signal.SIGINT)
        assert server.wait() == 0
        time.sleep(0.1)
    lines = [json.loads(line) for line in server.said.splitlines() if line.startswith("{")]
    found = next(line for line in lines if line.get("path") == "/v1/completions")
    assert found["status"] == 200 and found["completion_tokens"] == 4 and found["finish"] == ["length"] and found["ttft_s"] > 0
    assert "secret" not in server.said


def ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def failing(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["serve", *arguments]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("error: ")
    return line


def test_a_port_that_is_taken_is_one_clear_line(capsys: pytest.CaptureFixture[str], tiny: str) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = str(sock.getsockname()[1])
        assert f"port {port}" in failing(capsys, tiny, "--port", port)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--port", "99999"), "--port"), (("--host", "no.such.host.invalid"), "--host"), (("--host", "192.0.2.1"), "192.0.2.1"),
        (("--max-model-len", "1G"), "4096"), (("--kv-cache-memory-bytes", "4 cats"), "4GiB"), (("--kv-cache-memory", "1"), "KV"),
        (("--tool-call-parser", "nope"), "hermes"), (("--reasoning-parser", "nope"), "think"), (("--scheduling-policy", "x"), "fcfs"),
        (("--chat-template", "/no/such/file"), "--chat-template"), (("--api-key-file", "/no/such/file"), "--api-key-file"),
        (("--config", "/no/such/file"), "--config"), (("--max-modle-len", "5"), "--max-model-len"),
        (("--quantization", "awq"), "quantized"),
        (("--tensor-parallel-size", "2"), "one machine"), (("extra",), "unexpected argument"), (("--log-format", "xml"), "text or json"),
    ],
)  # fmt: skip
def test_bad_options_are_one_clear_line(capsys: pytest.CaptureFixture[str], tiny: str, arguments: tuple[str, ...], words: str) -> None:
    assert words in failing(capsys, tiny, "--port", "0", *arguments)


def test_no_model_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no MODEL" in failing(capsys)
    assert "no file" in failing(capsys, "/no/such/model.gguf", "--port", "0")


def test_options_of_vllm_that_mean_nothing_here_are_named() -> None:
    extra = [
        "--gpu-memory-utilization",
        "0.9",
        "--dtype=auto",
        "--enforce-eager",
        "--tensor-parallel-size",
        "1",
        "--no-enable-chunked-prefill",
        "--no-mmap",
        "--numa",
        "distribute",
    ]
    notes = sort_out(extra, [])
    named = ["--gpu-memory-utilization", "--dtype", "--enforce-eager", "--enable-chunked-prefill", "--mmap", "--numa"]
    assert [n.split()[0] for n in notes] == named
    with pytest.raises(UserError, match="did you mean --max-num-seqs"):
        sort_out(["--max-num-seq", "5"], ["max_num_seqs"])


def test_a_config_file_is_below_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(
        "model: a.gguf\nport: 9000\nmax-model-len: 8k\nkv_cache_memory: 2GiB\nserved-model-name: [x, y]\nenable_prefix_caching: false\n"
        "mlock: true\n"
    )
    defaults = {"model": None, "port": 8000, "max_model_len": None, "served_model_name": None, "enable_prefix_caching": True}
    options = serve_options({**defaults, "port": 7000}, str(file), {"port"})
    assert options == ServeOptions(
        "a.gguf", port=7000, max_model_len=8000, kv_cache_memory_bytes=2 << 30, served_model_name=("x", "y"), enable_prefix_caching=False,
        mlock=True,
    )  # fmt: skip
    assert serve_options({"model": "b.gguf"}, str(file), {"model"}).model == "b.gguf"
    for text, word in (("- 1\n", "mapping"), ("a: [\n", "config"), ("prot: 1\n", "prot"), ("port: [1]\n", "port"), ("quiet: 5\n", "bool")):
        file.write_text(text)
        with pytest.raises(UserError, match=word):
            serve_options(defaults, str(file), set())


@pytest.mark.parametrize(
    ("text", "number"),
    [("4GiB", 4 << 30), ("512MB", 512 * 10**6), ("1.5g", 1_500_000_000), ("2Ki", 2048), ("7", 7), ("8 kB", 8000), ("9b", 9)],
)
def test_sizes(text: str, number: int) -> None:
    assert parse_size(text) == number


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1.2.3", "4XB", "1i", "٣", True, "1e9"])
def test_what_is_no_size(text: Any) -> None:
    with pytest.raises(UserError):
        parse_size(text)
