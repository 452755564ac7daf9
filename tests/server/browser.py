"""A headless Chromium where there is one, and pictures of what it shows."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def chromium() -> Iterator[Any]:
    """Skips the test where playwright or a Chromium of the system is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("no chromium on this machine")
    with playwright.sync_playwright() as p:
        made = p.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield made
        made.close()


def shot(page: Any, name: str) -> None:
    """Kept for eyes where RIDGELINE_SHOTS names a folder."""
    folder = os.environ.get("RIDGELINE_SHOTS")
    if folder:
        page.screenshot(path=str(Path(folder) / f"{name}.png"))
