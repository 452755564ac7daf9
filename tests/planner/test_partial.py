"""PL-03: a file with a tensor type or an architecture that nobody knows still gets the part of the answer that can be given."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.tiny_gguf import metadata, tensors, tiny_gguf
from tests.formats.gguf_writer import TensorSpec, write_gguf

from ridgeline.cli import main
from ridgeline.errors import UnsupportedError, UserError
from ridgeline.planner.local import local_facts

DOWN = "blk.0.ffn_down.weight"
UNKNOWN = 77


def with_unknown_type(path: Path, bytes_of_it: int = 640) -> Path:
    changed = [TensorSpec(t.name, t.shape, UNKNOWN, bytes(bytes_of_it)) if t.name == DOWN else t for t in tensors()]
    write_gguf(path, metadata(), changed)
    return path


def test_an_unknown_type_is_counted_by_its_bytes(tmp_path: Path) -> None:
    whole, part = local_facts(tiny_gguf(tmp_path / "a.gguf")), local_facts(with_unknown_type(tmp_path / "b.gguf"))
    assert part.params == whole.params and part.kv_bytes_per_token("bf16") == whole.kv_bytes_per_token("bf16")
    assert whole.stored is not None and part.stored is not None
    assert part.stored.total == whole.stored.total - 32 * 64 * 4 + 640
    assert f"type {UNKNOWN}" in part.partial and "full attention in all 2 layers" in part.partial and not whole.partial


def test_an_unknown_architecture(tmp_path: Path) -> None:
    keys = {k.replace("llama.", "mystery."): v for k, v in metadata().items()} | {"general.architecture": "mystery"}
    write_gguf(tmp_path / "m.gguf", keys, tensors())
    part, whole = local_facts(tmp_path / "m.gguf"), local_facts(tiny_gguf(tmp_path / "a.gguf"))
    assert part.stored == whole.stored and part.parts == whole.parts and part.kept[0].layers == 2
    assert (part.kv_heads, part.head_dim, part.vocab, part.max_context) == (2, 8, 260, 128)
    assert "architecture 'mystery' is not supported" in part.partial


def test_what_cannot_be_counted_at_all_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", {"general.architecture": "mystery"}, tensors())
    with pytest.raises(UnsupportedError, match="mystery"):
        local_facts(tmp_path / "m.gguf")
    path = with_unknown_type(tmp_path / "cut.gguf")
    path.write_bytes(path.read_bytes()[:400])
    with pytest.raises(UserError):
        local_facts(path)


def test_the_plan_says_what_it_does_not_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(with_unknown_type(tmp_path / "b.gguf")), "--device", "H100 SXM", "--context", "64"]) == 0
    out = capsys.readouterr().out
    assert "warning: partly understood" in out and "fits" in out and "by the bytes they take in the file" in out


def with_type(path: Path, kind: int, shape: tuple[int, ...] | None = None) -> Path:
    changed = [TensorSpec(t.name, shape or t.shape, kind, bytes(4096)) if t.name == DOWN else t for t in tensors()]
    write_gguf(path, metadata(), changed)
    return path


@pytest.mark.parametrize("kind", [4, 36, 250])
def test_every_command_names_a_type_that_nobody_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: int) -> None:
    """LD-05 beside PL-03: a plan says it in a warning and counts what can be counted; what would read the weights refuses in one line."""
    path = str(with_type(tmp_path / "m.gguf", kind))
    assert main(["plan", path, "--device", "H100 SXM", "--context", "64"]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if "warning: partly understood" in line]
    assert len(told) == 1 and f"{DOWN}' has type {kind} (" in told[0] and "supported are" in told[0]
    assert main(["simulate", path, "--device", "H100 SXM", "--requests", "4"]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(told) == 1 and f"{DOWN}' has type {kind} (" in told[0]
    for command in (["inspect", path], ["run", path, "hi"], ["bench", "micro", path], ["bench", "engine", path], ["calibrate", path]):
        assert main(command) == 2
        told = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("warning: the machine was busy")]
        assert len(told) == 1 and told[0].startswith("error: ") and f"{DOWN}' has type {kind} (" in told[0], (command, told)


def test_rows_that_are_no_whole_blocks_are_refused_by_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """LD-05: Q4_K with rows of 100 values."""
    path = str(with_type(tmp_path / "m.gguf", 12, (32, 100)))
    for command in (["plan", path, "--device", "H100 SXM"], ["inspect", path], ["run", path, "hi"], ["bench", "micro", path]):
        assert main(command) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and "has rows of 100 values, Q4_K needs multiples of 256" in err, (command, err)
