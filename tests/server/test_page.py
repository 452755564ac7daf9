"""The chat page: served with a strict policy, and used as people use it in a headless Chromium (in the long run, where there is one)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.server.browser import chromium, shot
from tests.server.fake_engine import FakeEngine
from tests.server.http_server import running

from ridgeline.server.gate import GateRules
from ridgeline.server.keys import load_keys


def test_the_page_is_whole_and_asks_nobody_else() -> None:
    with running(rules=GateRules(keys=load_keys(["k"], None))) as server:
        code, headers, data = server.get("/")
        assert code == 200 and headers["content-type"].startswith("text/html")
        assert "script-src 'self'" in headers["content-security-policy"] and "unsafe" not in headers["content-security-policy"]
        text = data.decode()
        for name in re.findall(r'(?:src|href)="([^"]+)"', text):
            code, _, more = server.get("/" + name)
            assert code == 200
            text += more.decode()
        assert not re.search(r"https?://|//[a-z]+\.", text.replace("// ", ""))
        used = set(re.findall(r'\$\("(\w+)"\)', text))
        assert used <= set(re.findall(r'id="(\w+)"', text))


@pytest.fixture
def browser() -> Iterator[Any]:
    with chromium() as made:
        yield made


def ask(page: Any, text: str) -> None:
    page.fill("#text", text)
    page.press("#text", "Enter")


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_conversation(browser: Any, scheme: str) -> None:
    hold = asyncio.Event()
    said = "Rivers run to the sea.\n\n1. The Rhine\n2. The Nile <b>not bold</b>\n3. The Amazon"
    engine = FakeEngine(says=lambda *_: said, cached=12)
    with running(engine) as server:
        page = browser.new_page(color_scheme=scheme, viewport={"width": 900, "height": 640})
        faults: list[str] = []
        page.on("console", lambda m: faults.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda e: faults.append(str(e)))
        page.goto(server.url + "/")
        page.wait_for_selector("#model:has-text('tiny')")
        shot(page, f"{scheme}-empty")
        ask(page, "Name three rivers.")
        page.wait_for_selector(".assistant .facts:has-text('tokens/s')")
        assert page.inner_text(".assistant .words") == said
        assert "12 cached" in page.inner_text(".assistant .facts")
        page.click("#toggle")
        page.fill("#max_tokens", "6")
        page.fill("#system", "Be brief.")
        shot(page, f"{scheme}-settings")
        ask(page, "And more?")
        page.wait_for_selector(".facts:has-text('cut at the limit')")
        prompt = engine.words.tokenizer.decode(list(engine.seen[-1].prompt_ids))
        assert "Be brief." in prompt and "Name three rivers." in prompt and "Rivers run" in prompt
        engine.hold = hold
        page.fill("#max_tokens", "")
        ask(page, "Stop me.")
        page.wait_for_selector("#stop:visible")
        shot(page, f"{scheme}-running")
        page.click("#stop")
        page.wait_for_selector(".facts:has-text('stopped')")
        engine.hold = None
        assert server.settled()
        page.fill("#max_tokens", "99999999")
        ask(page, "Too much.")
        page.wait_for_selector(".fault:has-text('model length')")
        shot(page, f"{scheme}-fault")
        page.click("#clear")
        assert page.locator(".turn").count() == 0
        assert [f for f in faults if "400" not in f] == []


@pytest.mark.long
def test_a_narrow_screen_with_a_key(browser: Any) -> None:
    with running(rules=GateRules(keys=load_keys(["secret"], None))) as server:
        page = browser.new_page(viewport={"width": 380, "height": 700})
        page.goto(server.url + "/")
        page.wait_for_selector("#model:has-text('wants an API key')")
        assert page.evaluate("document.activeElement.id") == "key"  # where it is to be typed
        page.fill("#key", "secre")
        page.wait_for_selector("#model:has-text('not known')")
        page.fill("#key", "secret")
        page.wait_for_selector("#model:has-text('tiny')")
        ask(page, "hi")
        page.wait_for_selector(".assistant .words:has-text('hello world')")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        shot(page, "narrow")
