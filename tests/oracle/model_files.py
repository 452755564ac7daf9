"""Finds a real model in the local cache and skips the test when it is not there; tests never download."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.formats.pull import find_cached


def model_file(alias: str) -> Path:
    """The cached file of an alias; RIDGELINE_CACHE says where the cache is."""
    path = find_cached(alias)
    if path is None:
        pytest.skip(f"{alias} is not in the cache: run `ridgeline pull {alias}`")
    return path
