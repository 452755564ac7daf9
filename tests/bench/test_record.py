"""What stands beside every result: the command without its key, files whole or not at all, what is kept of a host."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ridgeline.bench import record


@pytest.mark.parametrize("given", [["--api-key", "s3cret"], ["--api-key=s3cret"]])
def test_the_command_is_told_without_its_key(monkeypatch: pytest.MonkeyPatch, given: list[str]) -> None:
    monkeypatch.setattr(record.sys, "argv", ["x", "bench", "serve", *given, "--engine-args", "-fa on"])
    told = record.command_line()
    assert "s3cret" not in told and "--api-key" in told
    assert shlex.split(told)[:3] == ["ridgeline", "bench", "serve"] and shlex.split(told)[-1] == "-fa on"


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    record.write_json(path, {"a": 1})
    with pytest.raises(ValueError):
        record.write_json(path, {"a": float("nan")})
    assert path.read_text() == '{\n "a": 1\n}'
    with pytest.raises(OSError):
        record.write_json(tmp_path / "no" / "r.json", {})
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        record.write_json(tmp_path / "folder", {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "r.json"]


def test_what_is_kept_is_added_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
    assert record.read_kept("k.json") == {}
    record.keep("k.json", "a", 1)
    record.keep("k.json", "b", [2])
    assert record.read_kept("k.json") == {"a": 1, "b": [2]}
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache" / "k.json"))
    record.keep("k.json", "a", 1)  # no folder can be made there: a convenience is lost, nothing else
    assert record.read_kept("k.json") == {}
