"""PF-04: every format's kernel of every version is checked against its definition at load, and a wrong one is found there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.tiny_gguf import tiny_gguf
from tests.cpu.rowwise import matrix
from tests.models.encode import random_matrix, vector

pytest.importorskip("ridgeline.backends.cpu.native._native", reason="the native backend is not built")

from ridgeline.backends.cpu import _native, selftest
from ridgeline.backends.cpu.program import ISAS
from ridgeline.cli import main
from ridgeline.encodings import ENCODINGS
from ridgeline.errors import InternalError
from ridgeline.formats.tensors import Tensor
from ridgeline.quant.decode import decode_tensor
from ridgeline.types import Isa

HERE: tuple[Isa, ...] = ISAS[: _native.best_isa() + 1]


def matrices(rows: int = 24, columns: int = 512) -> list[Tensor]:
    rng = np.random.default_rng(2)
    return [random_matrix(rng, e.name, rows, columns, e.name) for e in ENCODINGS]


@pytest.mark.parametrize("isa", [None, *HERE])
def test_every_format_passes_on_every_version(isa: Isa | None) -> None:
    norm, names = vector("norm", np.ones(4, np.float32)), tuple(e.name for e in ENCODINGS)
    assert selftest.check_kernels([norm, *matrices()], isa) == selftest.check_kernels(matrices(3, 256), isa) == names


@pytest.mark.parametrize("tensor", matrices(), ids=lambda t: t.name)
def test_a_definition_that_differs_in_one_value_is_found(monkeypatch: pytest.MonkeyPatch, tensor: Tensor) -> None:
    def other(t: Tensor) -> Any:
        values = decode_tensor(t).copy()
        values[3, 100] += 16 * np.abs(values).max()
        return values

    monkeypatch.setattr(selftest, "decode_tensor", other)
    with pytest.raises(InternalError, match=f"{tensor.name}: the {tensor.encoding.name} kernel gives .* --isa portable"):
        selftest.check_kernels([tensor], None)


def test_numbers_that_a_file_spoils_are_not_the_kernels_fault() -> None:
    for value in (np.nan, np.inf, 1e38):
        values = np.ones((8, 64), np.float32)
        values[0, 0] = value
        assert selftest.check_kernels([matrix("w", values)], None) == ("F32",)


def test_a_load_makes_the_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(selftest, "decode_tensor", lambda t: decode_tensor(t) + 1)
    assert main(["run", str(tiny_gguf(tmp_path / "tiny.gguf")), "hello"]) == 1
    shown = capsys.readouterr()
    assert "F32 kernel gives" in shown.err and shown.err.count("\n") == 1 and shown.out == ""
