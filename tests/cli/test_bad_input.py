"""The bad-input matrix: whatever the user gives, one plain line with value, limit and remedy on stderr, exit code 2, nothing on stdout."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.tiny_gguf import CONTEXT, metadata, tensors, tiny_gguf
from tests.formats.gguf_writer import write_gguf

from ridgeline.cli import main

Make = Callable[[Path], Path]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RIDGELINE_DEBUG", raising=False)
    monkeypatch.setattr("ridgeline.bench.probe.SHORT_SECONDS", 0.02)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield str(tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str], *words: str) -> None:
    """Exit code 2, one line, all the words in it."""
    code = main(arguments)
    shown = capsys.readouterr()
    assert code == 2, shown.err
    assert shown.out == ""
    assert shown.err.startswith("error: ") and shown.err.count("\n") == 1 and shown.err.endswith("\n")
    assert "Traceback" not in shown.err and not set("╭│╰─") & set(shown.err)
    for word in words:
        assert word in shown.err


OPTIONS: list[tuple[list[str], tuple[str, ...]]] = [
    (["--temperature", "-1"], ("temperature", "-1", ">= 0")),
    (["--temperature", "nan"], ("temperature", "nan")),
    (["--temperature", "1e308"], ("temperature", "1e+308", "1e+06")),
    (["--temperature", "hot"], ("--temperature",)),
    (["--top-p", "0"], ("top_p", "0", "> 0", "<= 1")),
    (["--top-p", "1.5"], ("top_p", "1.5")),
    (["--top-p", "nan"], ("top_p", "nan")),
    (["--top-k", "-2"], ("top_k", "-2", "-1")),
    (["--min-p", "2"], ("min_p", "2")),
    (["--max-tokens", "0"], ("max_tokens", "0", "from 1")),
    (["--max-tokens", "-5"], ("max_tokens", "-5")),
    (["--max-tokens", "1.5"], ("--max-tokens", "1.5", "whole number")),
    (["--max-tokens", "many"], ("--max-tokens", "many")),
    (["--seed", str(2**64)], ("seed", str(2**64))),
    (["--stop", ""], ("stop", "empty")),
    (["--max-model-len", "0"], ("max_model_len", "0")),
    (["--max-model-len", "129"], ("129", "128")),
    (["--threads", "0"], ("threads", "0")),
    (["--threads", "two"], ("--threads", "two")),
    (["--kv-cache-dtype", "fp3"], ("kv_cache_dtype", "fp3", "bf16")),
    (["--block-size", "0"], ("block_size", "0")),
    (["--backend", "cuda"], ("backend", "cuda", "reference")),
    (["--isa", "sse9"], ("isa", "sse9", "avx2")),
    (["--raw", "--system", "x"], ("--system", "--raw")),
    (["--nonsense"], ("--nonsense",)),
]


@pytest.mark.parametrize(("options", "words"), OPTIONS, ids=lambda v: " ".join(v)[:40])
def test_options(capsys: pytest.CaptureFixture[str], tiny: str, options: list[str], words: tuple[str, ...]) -> None:
    refused(capsys, ["run", tiny, "hello", *options], *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["frobnicate"], ("frobnicate",)),
        (["run"], ("MODEL",)),
        (["run", "smolm2", "hi"], ("smolm2", "did you mean", "smollm2")),
        (["run", "/no/such/file.gguf", "hi"], ("/no/such/file.gguf",)),
        (["chat", "nobody"], ("nobody", "smollm2")),
        (["inspect", "nobody"], ("nobody",)),
        (["pull", "nobody"], ("nobody",)),
        (["bench", "micro", "nobody"], ("nobody",)),
        (["bench", "macro"], ("macro",)),
        (["run", "../../etc/passwd", "hi"], ("passwd",)),
    ],
    ids=lambda v: " ".join(v)[:40],
)
def test_names(capsys: pytest.CaptureFixture[str], arguments: list[str], words: tuple[str, ...]) -> None:
    refused(capsys, arguments, *words)


def cut(size: int) -> Make:
    def make(folder: Path) -> Path:
        path = tiny_gguf(folder / "cut.gguf")
        data = path.read_bytes()
        path.write_bytes(data[:size] if size >= 0 else data[: len(data) + size])
        return path

    return make


def altered(**changes: object) -> Make:
    return lambda folder: tiny_gguf(folder / "altered.gguf", **changes)  # type: ignore[arg-type]


def without_tensor(name: str) -> Make:
    return lambda folder: write_gguf(folder / "less.gguf", metadata(), [t for t in tensors() if t.name != name])


def with_type(number: int) -> Make:
    changed = [replace(t, encoding=number) if "ffn_up" in t.name else t for t in tensors()]
    return lambda folder: write_gguf(folder / "type.gguf", metadata(), changed)


def with_shape(folder: Path) -> Path:
    other = [replace(t, shape=(t.shape[0] // 2, t.shape[1] * 2)) if t.name == "blk.1.ffn_up.weight" else t for t in tensors()]
    return write_gguf(folder / "shape.gguf", metadata(), other)


def not_a_model(folder: Path) -> Path:
    (folder / "notes.gguf").write_text("these are notes, not weights")
    return folder / "notes.gguf"


def empty_folder(folder: Path) -> Path:
    (folder / "nothing").mkdir()
    return folder / "nothing"


FILES: dict[str, tuple[Make, tuple[str, ...]]] = {
    "one byte short": (cut(-1), ("cut.gguf",)),
    "cut in the tensor table": (cut(12000), ("cut.gguf",)),
    "three bytes": (cut(3), ("cut.gguf",)),
    "no bytes": (cut(0), ("cut.gguf",)),
    "not a model": (not_a_model, ("notes.gguf",)),
    "an empty folder": (empty_folder, ("nothing",)),
    "unknown architecture": (altered(**{"general.architecture": "quuxformer"}), ("quuxformer", "llama")),
    "unknown tokenizer": (altered(**{"tokenizer.ggml.model": "morse"}), ("tokenizer.ggml.model", "morse")),
    "unknown key of the architecture": (altered(**{"llama.attention.causal": False}), ("llama.attention.causal",)),
    "heads that do not divide": (altered(**{"llama.attention.head_count": 5}), ("head_count",)),
    "a negative length": (altered(**{"llama.context_length": -1}), ("llama.context_length", "-1")),
    "a missing tensor": (without_tensor("blk.1.ffn_up.weight"), ("blk.1.ffn_up.weight",)),
    "a wrong shape": (with_shape, ("blk.1.ffn_up.weight",)),
    "a retired tensor type": (with_type(4), ("4", "ffn_up")),
    "an unknown tensor type": (with_type(250), ("250", "ffn_up")),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("command", [["run", "hello"], ["inspect"]], ids=["run", "inspect"])
def test_files(capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str, command: list[str]) -> None:
    make, words = FILES[kind]
    if kind == "unknown tokenizer" and command == ["inspect"]:
        pytest.skip("inspect reads no tokenizer")
    refused(capsys, [command[0], str(make(tmp_path)), *command[1:]], *words)


def test_prompt_past_the_context_gives_both_numbers(capsys: pytest.CaptureFixture[str], tiny: str) -> None:
    refused(capsys, ["run", tiny, "--raw", "x" * 500], "500", str(CONTEXT), "--max-model-len")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--raw", "x" * 500], ("500 tokens", str(CONTEXT))), (["x" * 500], (str(CONTEXT), "--max-model-len")),
        (["x" * 10**7], ("at least", str(CONTEXT))), (["--raw", ""], ("no tokens",)),
        (["hi", "--trace", "/nowhere/t.json"], ("/nowhere/t.json", "folder")),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused_before_anything_is_packed(
    capsys: pytest.CaptureFixture[str], tiny: str, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: tuple[str, ...]
) -> None:
    monkeypatch.setattr("ridgeline.engine.loader.load_program", _packs)
    refused(capsys, ["run", tiny, *arguments], *words)


def _packs(*_: object, **__: object) -> None:
    raise AssertionError("weights are packed")


@pytest.mark.parametrize("raw", [[], ["--raw"]])
def test_an_empty_prompt(capsys: pytest.CaptureFixture[str], tiny: str, raw: list[str]) -> None:
    if raw:
        refused(capsys, ["run", tiny, "", *raw], "no tokens")
    else:
        assert main(["run", tiny, "", "--max-tokens", "2", "-q"]) == 0


@pytest.mark.parametrize("command", [["run", "hi"], ["chat"]])
def test_no_chat_template_names_the_remedy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setattr("ridgeline.engine.loader.load_program", _packs)
    path = tiny_gguf(tmp_path / "base.gguf", template=None)
    refused(capsys, [command[0], str(path), *command[1:]], "base.gguf", "no chat template", "--raw")


@pytest.mark.parametrize(
    ("template", "word"),
    [
        ("{{ raise_exception('only polite people') }}", "only polite people"),
        ("{% for m in %}", "template"),
        ("{{ messages[7].content.x }}", "template"),
        ("{% for i in range(10**9) %}x{% endfor %}", "template"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "template"),
    ],
)
def test_templates_that_fail(capsys: pytest.CaptureFixture[str], tmp_path: Path, template: str, word: str) -> None:
    refused(capsys, ["run", str(tiny_gguf(tmp_path / "t.gguf", template=template)), "hi"], word)


def test_stdin_that_is_no_text(capsys: pytest.CaptureFixture[str], tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\xff\xfe")))
    refused(capsys, ["run", tiny], "UTF-8", "2", "0xff")


def test_json_reports_the_error_as_one_document_too(capsys: pytest.CaptureFixture[str], tiny: str) -> None:
    assert main(["run", tiny, "--raw", "x" * 500, "--json"]) == 2
    shown = capsys.readouterr()
    error = json.loads(shown.out)["error"]
    assert (error["type"], error["field"], error["value"], error["limit"]) == ("ContextLengthError", "prompt", 500, CONTEXT)
    assert shown.err.count("\n") == 1


def test_what_we_break_is_exit_code_1(capsys: pytest.CaptureFixture[str], tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("nobody expected\nthis")

    monkeypatch.setattr("ridgeline.cli.run.answer", broken)
    assert main(["run", tiny, "hi"]) == 1
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1 and "ZeroDivisionError" in shown.err and "nobody expected this" in shown.err


def test_nan_in_the_weights_ends_with_exit_code_1_and_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    poisoned = [replace(t, data=b"\x00\x00\xc0\x7f" * (len(t.data) // 4)) if t.name == "output_norm.weight" else t for t in tensors()]
    path = write_gguf(tmp_path / "nan.gguf", metadata(), poisoned)
    assert main(["run", str(path), "hi", "-q"]) == 1
    shown = capsys.readouterr()
    assert "NaN" in shown.err and shown.err.count("\n") == 1
