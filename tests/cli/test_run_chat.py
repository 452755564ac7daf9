"""run, chat, inspect and pull on a tiny model: what is on which stream, JSON shapes, pipes, Ctrl-C. Real processes where signals matter."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.tiny_gguf import CONTEXT, END_ID, tiny_gguf

from ridgeline.backends.cpu import _native
from ridgeline.backends.cpu.program import ISAS
from ridgeline.bench.core_speed import TRIES
from ridgeline.cli import main

RIDGELINE = [sys.executable, "-c", "import sys; from ridgeline.cli import main; sys.exit(main())"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield str(tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setattr("ridgeline.bench.probe.SHORT_SECONDS", 0.02)
    monkeypatch.setattr("ridgeline.bench.micro.FULL_SECONDS", 0.02)


def documented(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def process(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen([*RIDGELINE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, **options)


def test_run_json_has_exactly_the_documented_keys(capsys: Capture, tiny: str) -> None:
    doc = documented(capsys, "run", tiny, "hello", "--max-tokens", "8")
    assert {"text", "token_ids", "finish_reason", "usage", "timings"} <= set(doc)
    assert doc["usage"] == {"prompt_tokens": 24, "completion_tokens": len(doc["token_ids"]), "total_tokens": 24 + len(doc["token_ids"])}
    assert doc["finish_reason"] in ("stop", "length") and all(isinstance(t, int) for t in doc["token_ids"])
    assert all(v is None or isinstance(v, str | float | int) for v in doc["timings"].values())
    assert doc["timings"]["prompt_tok_s"] > 0


def test_the_same_command_gives_the_same_words_and_the_text_is_on_stdout(capsys: Capture, tiny: str) -> None:
    doc = documented(capsys, "run", tiny, "hello", "--max-tokens", "9")
    assert main(["run", tiny, "hello", "--max-tokens", "9"]) == 0
    shown = capsys.readouterr()
    assert shown.out == doc["text"] + ("" if doc["text"].endswith("\n") else "\n")
    assert "tok/s" in shown.err and "GB/s" in shown.err and "roofline" in shown.err
    assert main(["run", tiny, "hello", "--max-tokens", "9", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_the_seed_that_is_reported_repeats_the_answer(capsys: Capture, tiny: str) -> None:
    first = documented(capsys, "run", tiny, "hello", "--temperature", "1.5", "--max-tokens", "12")
    again = documented(capsys, "run", tiny, "hello", "--temperature", "1.5", "--max-tokens", "12", "--seed", str(first["seed"]))
    assert again["token_ids"] == first["token_ids"]


def test_schedules_backends_and_kv_formats_are_options(capsys: Capture, tiny: str) -> None:
    plain = documented(capsys, "run", tiny, "hello", "--max-tokens", "6", "--kv-cache-dtype", "f32", "--threads", "1")
    for options in (["--block-size", "4"], ["--threads", "2"], ["--max-model-len", "64"]):
        other = documented(capsys, "run", tiny, "hello", "--max-tokens", "6", "--kv-cache-dtype", "f32", *options)
        assert other["token_ids"] == plain["token_ids"]
    reference = documented(capsys, "run", tiny, "hello", "--max-tokens", "6", "--backend", "reference", "--kv-cache-dtype", "f32")
    assert reference["token_ids"] == plain["token_ids"] and reference["timings"]["predicted_gen_tok_s"] is None


def test_raw_is_the_text_itself(capsys: Capture, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "  two spaces, ab, é\n\n"
    counted = len(text.encode()) - 1  # "ab" is one token
    assert documented(capsys, "run", tiny, text, "--raw", "--max-tokens", "1")["usage"]["prompt_tokens"] == counted
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert documented(capsys, "run", tiny, "--raw", "--max-tokens", "1")["usage"]["prompt_tokens"] == counted


def test_a_pipe_loses_its_last_newline_in_a_chat_only(capsys: Capture, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello\n")))
    piped = documented(capsys, "run", tiny, "-", "--max-tokens", "4")
    assert piped["token_ids"] == documented(capsys, "run", tiny, "hello", "--max-tokens", "4")["token_ids"]


def test_user_text_never_becomes_a_control_token_but_raw_text_may(capsys: Capture, tiny: str) -> None:
    mark = "<|im_end|>"
    chat = documented(capsys, "run", tiny, mark, "--max-tokens", "1")["usage"]["prompt_tokens"]
    assert chat == 24 - len("hello") + len(mark)
    assert documented(capsys, "run", tiny, mark, "--raw", "--max-tokens", "1")["usage"]["prompt_tokens"] == 1


def test_an_ending_eos_is_in_the_ids_and_not_in_the_text(capsys: Capture, tmp_path: Path, tiny: str) -> None:
    # Any token may be declared the end: take one that greedy decoding says third.
    ids = documented(capsys, "run", tiny, "hello", "--max-tokens", "8")["token_ids"]
    end = next(t for t in ids[2:] if t not in ids[:2])
    path = tiny_gguf(tmp_path / "end.gguf", **{"tokenizer.ggml.eos_token_id": end})
    doc = documented(capsys, "run", str(path), "hello", "--max-tokens", "8")
    assert doc["finish_reason"] == "stop" and doc["token_ids"] == ids[: ids.index(end) + 1] and END_ID not in doc["token_ids"]
    goes_on = documented(capsys, "run", str(path), "hello", "--max-tokens", "8", "--ignore-eos")
    assert goes_on["token_ids"] == ids and goes_on["finish_reason"] == "length"


def test_chat_remembers_what_was_said(capsys: Capture, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def talk(lines: str) -> list[str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
        assert main(["chat", tiny, "--max-tokens", "3", "--temperature", "0"]) == 0
        return capsys.readouterr().out.split("\n")

    two, one, cleared = talk("hi\nhi\n"), talk("hi\n"), talk("hi\n/clear\nhi\n/exit\nnever\n")
    assert two[0] == one[0] == cleared[0] == cleared[1] and two[1] != two[0]


def test_chat_keeps_going_after_a_message_that_does_not_fit(capsys: Capture, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(("x" * 300 + "\nhi\n").encode())))
    assert main(["chat", tiny, "--max-tokens", "3"]) == 2
    shown = capsys.readouterr()
    assert shown.err.count("error: ") == 1 and str(CONTEXT) in shown.err and shown.out.count("\n") >= 1


def test_ctrl_c_stops_the_answer_and_not_the_conversation(tmp_path: Path) -> None:
    # The end is a token that never wins, so the first answer lasts until Ctrl-C.
    path = tiny_gguf(tmp_path / "long.gguf", **{"llama.context_length": 500_000})
    mine, theirs = pty.openpty()
    child = process("chat", str(path), "--temperature", "0", "--max-model-len", "400k", stdin=theirs)
    os.close(theirs)
    assert child.stdout is not None and child.stderr is not None
    os.write(mine, b"hi\n")
    assert child.stdout.read(4)
    child.send_signal(signal.SIGINT)
    os.write(mine, b"/exit\n")
    _, err = child.communicate(timeout=60)
    os.close(mine)
    assert child.returncode == 0, err
    assert b"(stopped)" in err and b"Traceback" not in err and b"tok/s" in err


def test_ctrl_c_ends_a_run_with_130(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "long.gguf", **{"llama.context_length": 500_000})
    child = process("run", str(path), "hi", "--max-tokens", "300k", "--ignore-eos", "--max-model-len", "400k")
    assert child.stdout is not None and child.stdout.read(4)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130 and b"Traceback" not in err


INTERRUPTED = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
begun = set(sys.modules)
sys.meta_path.insert(0, Interrupt())
from ridgeline.cli import main
assert set(sys.modules) - begun <= {{"ridgeline", "ridgeline.cli", "__future__"}}, set(sys.modules) - begun
sys.exit(main({arguments!r}))
"""


def interrupted(module: str, *arguments: str) -> int:
    """The exit code when Ctrl-C comes as `module` is about to be imported; nothing may be said about it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    script = INTERRUPTED.format(module=module, arguments=list(arguments))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, env=environment, timeout=60)
    assert done.stderr == done.stdout == b"", done
    return done.returncode


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        *((name, ["--help"]) for name in ("ridgeline.cli.app", "typer", "ridgeline.options")),
        *((name, ["run", "no.gguf", "hi"]) for name in ("ridgeline.cli.run", "numpy", "ridgeline.backends.cpu.native")),
        ("ridgeline.cli.chat", ["chat", "no.gguf"]), ("ridgeline.cli.inspect", ["inspect", "no.gguf"]),
        *((name, ["serve", "no.gguf", "--port", "0"]) for name in ("ridgeline.cli.serve", "ridgeline.server.keys")),
    ],
)  # fmt: skip
def test_ctrl_c_while_a_command_starts_ends_it_quietly(module: str, arguments: list[str]) -> None:
    assert interrupted(module, *arguments) == 130


def test_ctrl_c_before_that_is_quiet_too() -> None:
    """An interpreter that was stopped inside a text it ran (a dataclass in the making) ends by the signal: to a shell, 130 too."""
    assert interrupted("ridgeline.cli.start", "--help") in (130, -signal.SIGINT)


def test_a_reader_that_goes_away_is_no_drama(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "long.gguf", **{"llama.context_length": 500_000})
    child = process("run", str(path), "hi", "--max-tokens", "300k", "--ignore-eos", "--max-model-len", "400k")
    assert child.stdout is not None and child.stderr is not None and child.stdout.read(4)
    child.stdout.close()
    assert child.wait(timeout=60) != 0
    assert b"Traceback" not in child.stderr.read()
    child.stderr.close()


def test_inspect_counts_what_is_in_the_file(capsys: Capture, tiny: str) -> None:
    doc = documented(capsys, "inspect", tiny, "--ops", "--kernels", "--tensors", "--new", "1", "--past", "63")
    model = doc["model"]
    assert model["parameters"] == sum(f["parameters"] for f in doc["formats"]) == sum(_product(t["shape"]) for t in doc["tensors"])
    assert model["weight_bytes"] == sum(t["bytes"] for t in doc["tensors"]) == 4 * model["parameters"]
    assert model["kv_bytes_per_token"] == 2 * 2 * 2 * 8 * 2  # k and v, layers, heads, dim, bf16
    total = doc["ops"][-1]
    assert total["op"] == "total" and total["flops"] == sum(o["flops"] for o in doc["ops"][:-1])
    assert total["kv_bytes"] == 65 * model["kv_bytes_per_token"]  # 64 read, one written
    assert {k["subject"] for k in doc["kernels"]} >= {t["name"] for t in doc["tensors"] if len(t["shape"]) == 2}
    used = {t["name"]: t["active"] for t in doc["techniques"]}
    assert (used["fused projections"], used["fused add and norm"], used["FlashAttention"]) == ("4 times", "3 times", "2 times")
    isa = ISAS[_native.best_isa()]
    assert used["bfloat16 pairs"] == ("2 times" if isa == "avx512_bf16" else f"no: isa {isa}")
    assert doc["metadata"]["general.name"] == "tiny"


def _product(shape: list[int]) -> int:
    count = 1
    for n in shape:
        count *= n
    return count


def test_inspect_for_people_shows_no_control_characters_of_the_file(capsys: Capture, tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "evil.gguf", **{"general.name": "a\x1b[2Jb\x07\nc"})
    assert main(["inspect", str(path)]) == 0
    assert not {"\x1b", "\x07"} & set(capsys.readouterr().out)


def test_bench_micro_says_what_was_asked_for(capsys: Capture, tiny: str) -> None:
    arguments = ("bench", "micro", tiny, "--prompt", "24", "--gen", "5", "--repeat", "2", "--threads", "1", "--ops")
    doc = documented(capsys, *arguments)
    for key in ("prompt_tok_s", "gen_tok_s", "prompt_gops", "gen_gb_s", "peak_gb_s", "peak_int8_gops"):
        assert isinstance(doc[key], float) and doc[key] > 0
    assert (doc["prompt"], doc["gen"]) == (24, 5) and doc["ops"]
    assert 2 <= len(doc["runs"]["prompt"]) <= 2 * TRIES  # on a busy machine some runs do not count and are made again
    assert main(list(arguments)) == 0
    assert "roofline" in capsys.readouterr().out


@pytest.mark.parametrize("option", [["--prompt", "0"], ["--gen", "-3"], ["--repeat", "0"], ["--prompt", "4k"], ["--against", "/no/bench"]])
def test_bench_micro_refuses_what_it_cannot_run(capsys: Capture, tiny: str, option: list[str]) -> None:
    assert main(["bench", "micro", tiny, *option]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("error: ") == 1 and "Traceback" not in shown.err


def test_pull_prints_the_path(capsys: Capture, tiny: str) -> None:
    assert documented(capsys, "pull", tiny)["path"] == tiny


def test_version_and_help(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "ridgeline 0.1.0\n"
    for command in ([], ["--help"], ["bench"], *([c, "--help"] for c in ("run", "chat", "inspect", "pull")), ["bench", "micro", "--help"]):
        assert main(command) == 0
        text = capsys.readouterr().out
        assert "Usage:" in text and ("ridgeline " in text)
        if "--help" in command[1:]:
            assert "Examples:" in text


def test_importing_ridgeline_loads_nothing_heavy() -> None:
    code = "import sys, ridgeline; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True).stdout.split()
    assert not {"numpy", "typer", "rich", "jinja2", "tokenizers", "huggingface_hub", "pydantic"} & set(loaded)


def test_an_answer_loads_no_download_and_no_drawing_library(tiny: str) -> None:
    code = "import sys; from ridgeline.cli import main; "
    code += f"main(['run', {tiny!r}, '--raw', 'x', '--max-tokens', '2', '-q']); print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True).stdout.split()
    assert not {"huggingface_hub", "rich", "jinja2", "urllib.request"} & set(loaded)
