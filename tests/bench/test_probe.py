"""The probe's file and the sanity of what it measures. No speed is asserted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ridgeline.backends.cpu import _native
from ridgeline.bench import probe, record
from ridgeline.bench.machine_load import CpuTime
from ridgeline.errors import UserError
from ridgeline.types import Isa


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def others(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """[share of the CPUs that others have while a probe runs], whatever runs beside these tests."""
    share, seconds = [0.0], iter(range(10_000))

    def at() -> CpuTime:
        now = float(next(seconds))
        return CpuTime(now, 0.0, now * share[0], 0.0)

    monkeypatch.setattr(probe, "cpu_time", at)
    return share


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The native probe answers at once; its calls are counted."""
    calls: list[tuple[int, int]] = []

    def fake(isa: int, threads: int, seconds: float, max_bytes: int) -> tuple[float, float, float, float, float]:
        calls.append((isa, threads))
        return 10.0 * threads, 50.0, 100.0 * (isa + 1), 30.0, 30.0 if isa < 3 else 60.0

    monkeypatch.setattr(_native, "probe", fake)
    return calls


def test_really_measures(cache: Path) -> None:
    found = probe.probe(1, "portable", seconds=0.2)
    assert found.provenance == "measured"
    assert 0.1 < found.read_gb_s < 10_000
    assert 0.1 < found.int8_gops < 1e6
    assert 0.1 < found.f32_gflops < 1e6
    assert found.date.startswith("20")
    assert (cache / "ceilings.json").is_file()


@pytest.mark.parametrize("isa", probe.ISAS)
def test_pairs_of_bfloat16_have_a_peak_where_the_cpu_multiplies_them(isa: Isa) -> None:
    if probe.ISAS.index(isa) > _native.best_isa():
        pytest.skip(f"this CPU has no {isa}")
    found = probe.probe(1, isa, seconds=0.1)
    assert found.pairs == (isa == "avx512_bf16") == (found.bf16_gflops != found.f32_gflops)
    assert 0.1 < found.bf16_gflops < 1e6 and probe.machine(1, isa) == found


def test_what_was_kept_without_the_peak_of_pairs(cache: Path, quick: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds for kernels that multiply bfloat16 as float32; a CPU that has pairs of them is measured again."""
    monkeypatch.setattr(_native, "best_isa", lambda: 3)
    for isa in ("avx512", "avx512_bf16"):
        probe.probe(1, isa)
    old = {key: {k: v for k, v in entry.items() if k != "bf16_gflops"} for key, entry in _document(cache).items()}
    (cache / "ceilings.json").write_text(json.dumps(old))
    assert probe.kept(1, "avx512") is not None and probe.machine(1, "avx512").bf16_gflops == 30 and len(quick) == 2
    assert probe.kept(1, "avx512_bf16") is None and probe.machine(1, "avx512_bf16").bf16_gflops == 60 and len(quick) == 3
    assert probe.kept(1, "avx512_bf16") == probe.machine(1, "avx512_bf16") and len(quick) == 3


def _document(cache: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads((cache / "ceilings.json").read_text())
    return found


def test_is_kept_per_threads_and_isa(quick: list[tuple[int, int]]) -> None:
    first = probe.machine(1, "portable")
    assert probe.machine(1, "portable") == first
    assert len(quick) == 1
    assert probe.machine(2, "portable").read_gb_s == 20
    assert probe.machine(2).isa == probe.ISAS[_native.best_isa()]
    assert quick[-1] == (_native.best_isa(), 2)
    assert probe.machine(1, "portable") == first
    again = probe.probe(1, "portable")
    assert len(quick) == (4 if _native.best_isa() else 3)
    assert probe.machine(1, "portable") == again


def test_ceilings_of_a_busy_moment_are_not_kept(quick: list[tuple[int, int]], others: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the first command on a busy machine would leave a roof that is too low, and shares of it too high, for good."""
    others[0] = 0.5
    assert probe.machine(1, "portable").read_gb_s == 10 and probe.kept(1, "portable") is None
    others[0] = 0.04
    good = probe.machine(1, "portable")
    assert probe.kept(1, "portable") == good and len(quick) == 2
    others[0] = 0.5
    monkeypatch.setattr(_native, "probe", lambda *asked: (1.0, 1.0, 1.0, 1.0, 1.0))
    assert probe.probe(1, "portable") == good == probe.kept(1, "portable")
    others[0] = 0.0
    assert probe.probe(1, "portable").read_gb_s == 1 and probe.machine(1, "portable").read_gb_s == 1


@pytest.mark.parametrize("text", ["", "[]", "{", '{"x": 1}', "null"])
def test_a_broken_file_is_measured_again(cache: Path, quick: list[tuple[int, int]], text: str) -> None:
    cache.mkdir()
    (cache / "ceilings.json").write_text(text)
    assert probe.machine(1, "portable").int8_gops == 100
    assert quick


def test_another_machines_numbers_are_not_ours(cache: Path, quick: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    probe.machine(1, "portable")
    monkeypatch.setattr(record, "machine_name", lambda: "another")
    probe.machine(1, "portable")
    assert len(quick) == 2
    assert len(json.loads((cache / "ceilings.json").read_text())) == 2


def test_nonsense_in_the_file_is_refused(cache: Path, quick: list[tuple[int, int]]) -> None:
    probe.machine(1, "portable")
    known = json.loads((cache / "ceilings.json").read_text())
    for entry in known.values():
        entry["read_gb_s"] = 0
    (cache / "ceilings.json").write_text(json.dumps(known))
    assert probe.machine(1, "portable").read_gb_s == 10


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, quick: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "file"))
    assert probe.machine(1, "portable").read_gb_s == 10


def test_refuses_what_cannot_be_probed() -> None:
    if _native.best_isa() < 2:
        with pytest.raises(UserError, match="isa"):
            probe.probe(1, "avx512", 0.1)
    for isa, threads in ((_native.best_isa() + 1, 1), (4, 1), (-1, 1), (0, 0)):
        with pytest.raises(ValueError, match="probe"):
            _native.probe(isa, threads, 0.1, 1 << 20)
