"""What the gate said of a lossy KV cache is kept and shown, and asked for once where nobody knows. Row 170."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.cli.tiny_gguf import tiny_gguf
from tests.server.process import serving

import ridgeline.bench.quality_record as record
from ridgeline.cli import main
from ridgeline.errors import UserError
from ridgeline.options import Options, lossy_kv

QUICK = ("--no-tasks", "--positions", "60", "--window", "64")


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
    return tiny_gguf(tmp_path / "tiny.gguf", **{"llama.context_length": 1024})


def int8(path: Path) -> Options:
    return Options(str(path), kv_cache_dtype="int8", threads=1)


@pytest.mark.parametrize(
    ("keys", "values", "is_lossy"), [("auto", None, False), ("f16", "f32", False), ("f16", "int4", True), ("int8/int4", None, True)]
)
def test_which_caches_are_lossy(keys: str, values: str | None, is_lossy: bool) -> None:
    assert lossy_kv(Options("m", kv_cache_dtype=keys, kv_cache_dtype_v=values)) == is_lossy


def test_a_judgement_is_kept_for_the_file_as_it_is(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "quality", str(tiny), *QUICK, "--kv-cache-dtype", "int8", "--kv-cache-dtype", "f16"]) == 0
    kept = json.loads((tiny.parent / "cache" / record.KEPT).read_text())
    assert len(kept) == 1  # a cache in 16 bits needs none
    found = record.told(tiny, "int8")
    assert found is not None and found.base == "KV f32" and found.broken == () and found.positions == 120 and not found.questions
    assert "KV int8 keeps every limit beside KV f32: KL 0.0" in str(found)
    assert record.told(tiny, "int4") is None
    assert main(["run", str(tiny), "hi", "--max-tokens", "2", "--kv-cache-dtype", "int8", "--threads", "1"]) == 0
    assert f"note: {found}" in capsys.readouterr().err
    os.utime(tiny, ns=(1, 1))
    assert record.told(tiny, "int8") is None
    assert main(["run", str(tiny), "hi", "--max-tokens", "2", "--kv-cache-dtype", "int8", "--threads", "1"]) == 0
    assert "was not judged on this file: `ridgeline bench quality" in capsys.readouterr().err


def test_only_its_own_file_judges_it(tiny: Path) -> None:
    other = tiny_gguf(tiny.parent / "other.gguf", seed=1, **{"llama.context_length": 1024})
    main(["bench", "quality", str(tiny), *QUICK, "--kv-cache-dtype", "int8", "--against", str(other)])
    main(["bench", "quality", str(tiny), *QUICK, "--kv-cache-dtype", "int4", "--base-kv-cache-dtype", "int8"])
    assert record.told(tiny, "int8") is None and record.told(tiny, "int4") is None


def test_what_nobody_knows_is_judged_once(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "POSITIONS", 40)
    said: list[str] = []
    assert record.gate(Options(str(tiny), threads=1), "auto", said.append) is None
    assert record.gate(int8(tiny), "off", said.append) is None and said == []
    first = record.gate(int8(tiny), "auto", said.append)
    assert first is not None and first.positions == 80 and first.base == "KV bf16" and len(said) == 1 and "judging it, once" in said[0]
    assert record.gate(int8(tiny), "enforce", said.append) == first and len(said) == 1


def test_a_broken_limit_is_enforced(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "quality", str(tiny), *QUICK, "--kv-cache-dtype", "int8", "--max-kl", "0"]) == 1
    said: list[str] = []
    found = record.gate(int8(tiny), "auto", said.append)
    assert found is not None and found.broken == ("KL mean",) and said == [] and "BREAKS the limit of KL mean" in str(found)
    with pytest.raises(UserError, match="BREAKS"):
        record.gate(int8(tiny), "enforce", said.append)
    capsys.readouterr()
    lines = tiny.parent / "in.jsonl"
    lines.write_text("")
    for command in (["serve", str(tiny), "--port", "0"], ["batch", str(lines), "-o", str(tiny.parent / "out"), "--model", str(tiny)]):
        assert main([*command, "--kv-cache-dtype", "int8", "--quality-gate", "enforce"]) == 2
        assert "BREAKS the limit of KL mean" in capsys.readouterr().err
    assert main(["serve", str(tiny), "--quality-gate", "perhaps"]) == 2


def test_a_server_tells_what_its_cache_costs(tiny: Path) -> None:
    assert main(["bench", "quality", str(tiny), *QUICK, "--kv-cache-dtype", "int8"]) == 0
    with serving(str(tiny), "--kv-cache-dtype", "int8") as server:
        assert f"quality   {record.told(tiny, 'int8')}" in server.said and b"choices" in server.post("/v1/completions", {"prompt": "x"})


def test_a_judge_that_fails_is_told(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "run_logged", lambda command, log, timeout_s: "exit code 7: no")
    said: list[str] = []
    assert record.gate(int8(tiny), "auto", said.append) is None and "exit code 7" in said[-1]
    with pytest.raises(UserError, match="was not judged"):
        record.gate(int8(tiny), "enforce", said.append)
