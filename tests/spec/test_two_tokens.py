"""The two-token proof of docs/two_tokens.html: what its sliders come to is the target's law, and wrong rules are shown to be wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.browser import chromium, shot

PAGE = Path(__file__).resolve().parents[2] / "docs" / "two_tokens.html"


def test_it_is_one_file_that_asks_nobody() -> None:
    text = PAGE.read_text("utf8")
    assert not re.search(r"https?://|\bsrc=|href=", text)
    assert set(re.findall(r'\$\("(\w+)"\)', text)) <= set(re.findall(r'id="(\w+)"', text))


@pytest.fixture
def browser() -> Iterator[Any]:
    with chromium() as made:
        yield made


def put(page: Any, name: str, value: float) -> None:
    page.evaluate(f"(v) => {{ const e = document.getElementById('{name}'); e.value = v; e.dispatchEvent(new Event('input')) }}", value)


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_law_is_the_targets_wherever_the_sliders_stand(browser: Any, scheme: str) -> None:
    page = browser.new_page(color_scheme=scheme, viewport={"width": 760, "height": 1000})
    faults: list[str] = []
    page.on("pageerror", lambda e: faults.append(str(e)))
    page.on("console", lambda m: faults.append(m.text) if m.type == "error" else None)
    page.goto(PAGE.as_uri())
    for draft, target in ((0.8, 0.45), (0.1, 0.9), (0.5, 0.5), (0.0, 0.3), (1.0, 0.3), (0.3, 0.0), (0.3, 1.0), (0.0, 1.0), (1.0, 1.0)):
        put(page, "p", draft)
        put(page, "q", target)
        assert page.inner_text("#verdict").startswith(f"The law is q: A comes out with {target:.4f}"), (draft, target)
        page.click("#draw")
        found = float(re.search(r"times A: ([\d.]+)", page.inner_text("#drawn"))[1])  # type: ignore[index]
        assert abs(found - target) < 0.009, (draft, target)  # over five standard errors of 100,000 draws
    put(page, "p", 0.8)
    put(page, "q", 0.45)
    page.focus("#q")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#q_said") == "0.46"
    shot(page, f"two-tokens-{scheme}")
    for rule, law in (("target", 0.46 + 0.34 * 0.46), ("keep", 0.8)):
        page.select_option("#rule", rule)
        assert page.inner_text("#verdict") == f"Not q: A comes out with {law:.4f}, the target says 0.4600."
    page.set_viewport_size({"width": 360, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    shot(page, f"two-tokens-{scheme}-phone")
    assert faults == []
