"""What a server counts beside what the tokenizer counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.tiny_gguf import tiny_gguf

from ridgeline.bench.client_metrics import Outcome
from ridgeline.bench.client_read import Piece, Reading
from ridgeline.bench.serve_tokens import check_tokens, tokenizer_of


def answer(text: str, tokens: int | None, choices: int = 1, error: str | None = None) -> Outcome:
    return Outcome("r", 0.0, 0.0, Reading((Piece(0.1, 0, text),), output_tokens=tokens, error=error), choices=choices)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


def test_counts_are_compared(model: str) -> None:
    tokenizer = tokenizer_of(model)
    assert tokenizer is not None
    count = len(tokenizer.encode_plain("hello there", first=False))
    found = check_tokens(tokenizer, [answer("hello there", count), answer("hello there", count + 1), answer("hello there", 9 * count)])
    assert found is not None
    assert (found.answers, found.usage, found.counted, found.within) == (3, 11 * count + 1, 3 * count, 2) and not found.agrees
    honest = check_tokens(tokenizer, [answer("hello there", count)])
    assert honest is not None and honest.agrees


def test_what_cannot_be_compared_is_left_out(model: str) -> None:
    tokenizer = tokenizer_of(model)
    assert tokenizer is not None
    assert check_tokens(tokenizer, [answer("x", None), answer("x", 3, choices=2), answer("x", 3, error="broken")]) is None


@pytest.mark.parametrize("name", [None, "no/such", "http://x", "/etc/hostname"])
def test_no_file_no_check(name: str | None) -> None:
    assert tokenizer_of(name) is None


def test_a_broken_file_is_no_reason_to_fail(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + b"\0" * 20)
    assert tokenizer_of(str(path)) is None
