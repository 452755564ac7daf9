"""What stands beside every result: the command without its key."""

from __future__ import annotations

import shlex

import pytest

from ridgeline.bench import record


@pytest.mark.parametrize("given", [["--api-key", "s3cret"], ["--api-key=s3cret"]])
def test_the_command_is_told_without_its_key(monkeypatch: pytest.MonkeyPatch, given: list[str]) -> None:
    monkeypatch.setattr(record.sys, "argv", ["x", "bench", "serve", *given, "--engine-args", "-fa on"])
    told = record.command_line()
    assert "s3cret" not in told and "--api-key" in told
    assert shlex.split(told)[:3] == ["ridgeline", "bench", "serve"] and shlex.split(told)[-1] == "-fa on"
