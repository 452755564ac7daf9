"""A short run of the loader fuzzer, and proof that it notices a loader that does not check."""

from __future__ import annotations

import pytest
from tests.fuzz import fuzz_loaders

from ridgeline.formats.gguf_values import Cursor


def test_two_thousand_mutants() -> None:
    report = fuzz_loaders.run(2000, seed=1_000_000)
    assert report.escaped == []
    assert report.mutants == 2000
    assert report.kept_header * 2 == report.kinds["gguf"] + report.kinds["shard"]
    # Both outcomes are common for every kind of file, or the mutants would not reach the code behind the first checks.
    assert all(report.accepted[kind] > 5 for kind in ("gguf", "shard", "safetensors", "index"))
    assert report.refused.total() > 1000
    assert report.rss_growth_bytes < 50e6


def test_mutants_are_reproducible() -> None:
    assert [fuzz_loaders.mutant(seed) for seed in range(50)] == [fuzz_loaders.mutant(seed) for seed in range(50)]


def test_a_loader_without_a_length_check_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def unchecked(self: Cursor, nbytes: int, what: str) -> int:
        self.position += nbytes
        return self.position - nbytes

    monkeypatch.setattr(Cursor, "take", unchecked)
    assert fuzz_loaders.run(300).escaped
