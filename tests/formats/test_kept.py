"""Files whole or not at all, and what is kept in the cache folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.formats import kept


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    kept.write_json(path, {"a": 1})
    with pytest.raises(ValueError):
        kept.write_json(path, {"a": float("nan")})
    assert path.read_text() == '{\n "a": 1\n}'
    with pytest.raises(OSError):
        kept.write_json(tmp_path / "no" / "r.json", {})
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        kept.write_json(tmp_path / "folder", {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "r.json"]


def test_what_is_kept_is_added_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
    assert kept.read_kept("k.json") == {}
    kept.keep("k.json", "a", 1)
    kept.keep("k.json", "b", [2])
    assert kept.read_kept("k.json") == {"a": 1, "b": [2]}
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache" / "k.json"))
    kept.keep("k.json", "a", 1)  # no folder can be made there: a convenience is lost, nothing else
    assert kept.read_kept("k.json") == {}
