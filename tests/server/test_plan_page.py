"""The planner page: its answers are the planner's own, refusals name the option, and in a headless Chromium it works as people use it.

Rows 45, 127, 131, 132, 135-139, 141 and 13 of the acceptance table.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit
from xml.etree import ElementTree

import pytest
from tests.planner.test_calibration import NOTHING
from tests.server.browser import chromium, shot
from tests.server.http_server import running

from ridgeline.bench.random_gguf import SHAPES, write_random
from ridgeline.cli import main, plan_page, serve
from ridgeline.errors import UserError
from ridgeline.planner.catalog import find_model, models
from ridgeline.planner.hardware import Machine, devices, find_device
from ridgeline.planner.ledger import Offer
from ridgeline.planner.load import Traffic
from ridgeline.planner.price import TokenPrices
from ridgeline.planner.question import Question, setup_for
from ridgeline.planner.question_text import READERS, question_of, texts_of
from ridgeline.planner.search import Goal
from ridgeline.planner.setup import host_device
from ridgeline.planner.sheet import calibrated_points, fewer_kv_heads, offers_of, operating_points, providers_beside
from ridgeline.server.gate import GateRules
from ridgeline.server.keys import load_keys
from ridgeline.server.plan_app import plan_app
from ridgeline.server.plan_desk import CONTEXTS, Desk, Host

PREMIUM = {"model": "Mistral-7B-v0.3", "workshop": "1", "preset": "premium-chat", "weights_bytes": "14.0e9", "ideal": "1"}


# --- answers ----------------------------------------------------------------------------------------------------------------------


def test_a_sheet_is_the_plan_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    found = Desk().sheet({"model": "Llama-3.1-8B", "device": "H100 SXM 80", "context": "8K", "users": "64", "itl": "30ms"}, 640)
    assert main(["plan", "Llama-3.1-8B", "--device", "H100 SXM 80", "--context", "8K", "--users", "64", "--itl", "30ms", "--json"]) == 0
    assert json.loads(json.dumps(found["document"])) == json.loads(capsys.readouterr().out)
    assert set(found["figures"]) == {"memory", "kv_context", "kv_users", "roofline", "curve", "batch", "intensity", "cells"}
    values = {line["name"]: line["value"] for line in found["lines"]}
    assert values["Users that fit"] == f"{found['document']['max_users']:,}" and values["Parameters"] == "8,030,261,248"
    assert {line["kind"] for line in found["lines"]} == {"exact", "exact + assumed", "assumed", "table"}
    assert all(line["label"] and not line["label"].startswith(line["kind"] + ":") for line in found["lines"])


def test_premium_chat_of_the_workshop() -> None:
    """Golden: at 4K only four of eight devices keep 10 ms, and the most expensive but one is the cheapest per token."""
    asked = Desk()
    at_4k = asked.ranking(PREMIUM, 640)
    passing = [(o["device"], round(o["usd_per_mtok"], 2)) for o in at_4k["options"] if o["passes"]]
    assert passing == [("MI300X", 1.33), ("H100", 1.70), ("A100 80GB", 1.77), ("H200", 1.84)]
    dropped = {o["device"]: (o["reason"], o["fix"]) for o in at_4k["options"] if not o["passes"]}
    assert dropped["A100 40GB"][0].startswith("ITL 11.4 ms > 10 ms") and all(fix for _, fix in dropped.values())
    at_16k = asked.ranking({**PREMIUM, "context": "16K"}, 640)
    assert {o["device"] for o in at_16k["options"] if o["passes"]} == {"H100", "H200", "MI300X"}
    assert "MI300X" in at_4k["figure"] and "A10G" not in at_4k["figure"]
    assert asked.ranking(dict(PREMIUM), 300)["options"] is at_4k["options"]  # remembered


def test_max_users_with_every_term_edited() -> None:
    """Row 132: 107 users of 4K on 80 GB with 14.5 GB of weights and 8 GB of overhead."""
    terms = {"memory": "80GB", "weights_bytes": "14.5e9", "overhead": "8GB", "ideal": "1", "context": "4K"}
    found = Desk().sheet({"model": "Mistral-7B-v0.3", "device": "L4 24GB", **terms}, 640)
    assert found["document"]["max_users"] == 107
    assert (found["in_force"]["memory"], found["in_force"]["overhead"], found["in_force"]["weights_bytes"]) == (80e9, 8e9, 14.5e9)
    on_24 = Desk().sheet({"model": "Mistral-7B-v0.3", "device": "L4 24GB", **terms, "memory": "24GB", "overhead": "10%"}, 640)
    assert on_24["document"]["max_users"] == 13


def test_the_table_of_devices_says_where_its_numbers_come_from() -> None:
    """Row 137: at least the workshop's eight and the table's own, each sourced; an unknown stays unknown."""
    found = Desk().choices()
    assert len(found["workshop"]) == 8 and len(found["table"]) == len(devices()) >= 39
    for row in (*found["table"], *found["workshop"]):
        assert row["source"].strip("() ") and (row["usd_low"] is None or row["price_source"])
    h100 = next(r for r in found["table"] if r["name"] == "H100 SXM 80GB")
    assert (h100["memory_gb"], h100["bandwidth_gb_s"], h100["tflops"]["bf16"], round(h100["ridge"])) == (80, 3350, 989, 295)
    assert any(r["usd_low"] is None for r in found["table"]) and any("fp8" not in r["tflops"] for r in found["table"])


def test_what_does_not_fit_is_said_and_drawn() -> None:
    """Row 45: B=256 of Llama-2-13B on 80 GB."""
    found = Desk().sheet({"model": "Llama-2-13B", "device": "H100 SXM 80", "context": "1024", "batch": "256", "ideal": "1"}, 640)
    assert found["verdict"].startswith("Does not fit: 256 at once") and "161 GB more" in found["verdict"]
    assert re.search(r'class="bad">256 users: 241 GB, shown here<', found["figures"]["memory"])
    assert next(line for line in found["lines"] if line["key"] == "usd_per_mtok")["kind"] == "not given"
    assert "out of memory beyond 80 GB" in found["figures"]["memory"] and found["document"]["usd_per_mtok"] is None
    none = Desk().sheet({"model": "Llama-3.1-405B", "device": "L4 24GB", "context": "1K"}, 640)
    assert none["document"]["max_users"] == 0 and "nothing to show" in none["figures"]["curve"]


def test_roofline_points_lie_under_the_roof() -> None:
    for ideal in (True, False):
        asked = Question("Mistral-7B-v0.3", context=4096, ideal=ideal)
        setup = setup_for(asked, find_model(asked.model), find_device("H100 SXM 80", devices()))
        d = setup.deployment()
        points = operating_points(d, 32, 4096, "assumed")
        assert [p.name for p in points] == ["decode, batch 1", "decode, batch 32", "prefill, 2048 tokens"]
        for p in points:
            roof = min(989e12, p.intensity * 3.35e12)
            assert 0 < p.flop_s <= roof * (1 + 1e-9), p
        assert points[0].intensity < 3 < points[1].intensity < 295 < points[2].intensity


def test_a_calibrated_host_shows_what_was_measured() -> None:
    found = replace(NOTHING, linear_s={"Q4_0": (1e-10, 5e-11, 2e-11)})
    points = calibrated_points(found)
    assert points and all(p.label == "measured" for p in points)
    machine = Machine("x", 20.0, 200.0, 100.0, 2, "avx2", "measured", "2026-11-30")
    asked = Desk(host=lambda: Host(host_device(machine, 8e9), found))
    assert asked.choices()["devices"][0] == "this host" and asked.choices()["calibrated"] == found.date
    form = next(iter(found.linear_s)).lower()
    sheet = asked.sheet({"model": "Qwen2.5-0.5B", "device": "This Host", "context": "1K", "weight_dtype": form, "batch": "4"}, 640)
    assert f"{points[0].name} (measured)" in sheet["figures"]["roofline"] and "(fitted)" in sheet["figures"]["roofline"]
    assert {"fitted"} <= {line["kind"] for line in sheet["lines"]}
    other = asked.sheet({"model": "Qwen2.5-0.5B", "device": "this host", "context": "1K", "weight_dtype": "q8_0"}, 640)
    assert any("not calibrated" in n and "roofline of this host" in n for n in other["document"]["notes"])
    assert "measured" in {line["kind"] for line in other["lines"]}
    with pytest.raises(UserError, match="ceilings are not known"):
        Desk().sheet({"model": "Qwen2.5-0.5B", "device": "this host"}, 640)


def test_a_fifth_of_the_kv_heads() -> None:
    """Row 46: 40 heads to 8, and both effects: smaller sequences, and more of them."""
    plan = {"model": "Llama-2-13B", "device": "H100 SXM 80", "context": "1024"}
    before = Desk().sheet(plan, 640)
    assert before["in_force"]["fewer_kv_heads"] == 8
    after = Desk().sheet({**plan, "kv_heads": "8"}, 640)
    assert before["document"]["kv_bytes_per_sequence"] == 5 * after["document"]["kv_bytes_per_sequence"] == 838_860_800
    assert after["document"]["batch"] > before["document"]["batch"] and after["document"]["max_users"] > 5 * before["document"]["max_users"]
    assert any("accuracy needs an evaluation" in n for n in after["document"]["notes"])
    for name in ("DeepSeek-V3 /", "Gemma-3-270M"):
        assert fewer_kv_heads(find_model(name)) is None
    assert fewer_kv_heads(find_model("Llama-3.1-8B")) == 1


def test_presets_fill_what_was_not_said() -> None:
    found = Desk().sheet({"model": "Mistral-7B-v0.3", "device": "H100 SXM 80", "preset": "async-agent"}, 640)
    assert (found["in_force"]["context"], found["in_force"]["output"], found["in_force"]["itl"]) == (16384, 1024, 0.050)
    assert found["preset"]["pins"].startswith("quality")
    own = Desk().sheet({"model": "Mistral-7B-v0.3", "device": "H100 SXM 80", "preset": "async-agent", "context": "2K"}, 640)
    assert own["in_force"]["context"] == 2048


def test_provider_rows_stand_beside_our_own() -> None:
    """Row 13. Cached tokens are part of the prompt: 2006 with 1920 cached and 300 out at 2.50/1.25/10.00 are 0.005615 USD (PL-04)."""
    rows = offers_of("big: one=2.50/1.25/10.00; mini=0.15/0.075/0.60;")
    assert rows[0] == Offer("big: one", TokenPrices(Decimal("2.50"), Decimal("1.25"), Decimal("10.00")))
    goal = Goal(2006, traffic=Traffic(5.0, 2006, 300, 1920))
    found = providers_beside({"usd_per_mtok": 1.0}, goal, 300, rows)
    assert [r["name"] for r in found] == ["own", "big: one", "mini"]
    assert found[1]["usd_per_request"] == 0.005615 and found[0]["usd_per_request"] == 0.0003
    monthly = providers_beside({"usd_per_mtok": 1.0}, goal, 300, rows, 1000)[1]["usd_per_month"]
    assert monthly == pytest.approx(0.005615 * 1000 * 730 / 24, abs=0.01) and found[1]["usd_per_month"] == 0
    assert found[1]["times_own"] == pytest.approx(0.005615 / 0.0003)
    assert providers_beside({"usd_per_mtok": None}, goal, 300, rows)[1]["times_own"] is None
    for bad in ("x", "x=1", "=1/2/3", "x=1/2/nan", "x=-1/2/3", "x=1/2/inf", ";".join(["x=1/2/3"] * 13), "x" * 2001):
        with pytest.raises(UserError, match="provider"):
            offers_of(bad)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({}, "no model"), ({"model": "nope"}, "not known"), ({"model": "Llama"}, "may be"),
        ({"model": "Llama-3.1-8B", "device": "H"}, "may be"), ({"model": "Llama-3.1-8B", "kv_dtype": "q9"}, "KV dtype"),
        ({"model": "Llama-3.1-8B", "context": "-1"}, "--context is -1"), ({"model": "Llama-3.1-8B", "context": "x"}, "--context is 'x'"),
        ({"model": "Llama-3.1-8B", "context": "5M"}, "at most 4194304"), ({"model": "Llama-3.1-8B", "users": "0"}, "--users is 0"),
        ({"model": "Llama-3.1-8B", "batch": "1", "users": "1"}, "different things"), ({"model": "Llama-3.1-8B", "ideal": "yes"}, "0 or 1"),
        ({"model": "Llama-3.1-8B", "price": "-1"}, "--price"), ({"model": "Llama-3.1-8B", "utilization": "101%"}, "--utilization"),
        ({"model": "Llama-3.1-8B", "hardware_file": "/etc/passwd"}, "is not asked here"),
        ({"model": "a" * 201}, "at most 200"), ({"model": "Llama-3.1-8B", "tp": "3", "device": "H100 SXM 80"}, "tp"),
        ({"model": "Llama-3.1-8B", "overhead": "200%"}, "below 100%"), ({"model": "Llama-3.1-8B", "preset": "x"}, "preset"),
        ({"model": "/etc/passwd"}, "not known"), ({"model": "../main/pyproject.toml"}, "not known"),
    ],
)  # fmt: skip
def test_refusals_name_the_option(texts: dict[str, str], said: str) -> None:
    """No path is read for a caller: a file's name is an unknown model."""
    with pytest.raises(UserError) as caught:
        Desk().sheet(texts, 640)
    assert said in str(caught.value) and caught.value.field


def test_a_question_survives_as_text() -> None:
    typed = {
        "model": "Llama-3.1-8B", "device": "H100 SXM 80GB", "preset": "batch", "weight_dtype": "fp8", "kv_dtype": "fp8", "math": "fp8",
        "workshop": "1", "ideal": "1", "ignore_window": "1", "context": "8192", "output": "100", "cached": "64", "kv_heads": "4",
        "tp": "2", "pp": "2", "ep": "4", "replicas": "3", "rate": "300/min", "ttft": "500ms", "itl": "12.5ms", "price": "2.69/h",
        "utilization": "40%", "weights_bytes": "14.0e9", "bandwidth": "3.35TB/s", "memory": "80GB", "overhead": "8GB",
    }  # fmt: skip
    asked = question_of(typed)
    assert question_of(texts_of(asked)) == asked and asked.rate == 5.0
    assert set(typed) | {"users", "batch"} == set(READERS)
    assert texts_of(question_of({"model": "x", "overhead": "10%"})) == {"model": "x", "overhead": "10%"}
    assert texts_of(Question("x")) == {"model": "x"}


def test_the_command_opens_with_what_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    told: dict[str, Any] = {}
    monkeypatch.setattr(plan_page, "serve_page", lambda own, asked, **more: told.update(own=own, asked=asked, **more))
    assert main(["plan", "mistral-7b-v0.3", "--page", "--itl", "30ms", "--overhead-bytes", "10%", "--port", "0"]) == 0
    assert told["asked"] == {"model": "Mistral-7B-v0.3 (no window)", "itl": "30ms", "overhead": "10%"} and told["own"] == {}
    assert not told["show"] and told["port"] == 0
    file = tmp_path / "tiny.gguf"
    write_random(file, SHAPES["tiny"], "Q8_0")
    assert main(["plan", str(file), "--page", "--open"]) == 0 and told["show"]
    (name,) = told["own"]
    sheet = Desk(told["own"]).sheet({"model": name, "device": "H100 SXM 80", "context": "32"}, 640)
    assert sheet["document"]["weight_dtype"] == "as stored" and told["asked"]["model"] == name
    assert main(["plan"]) == 2 and "no model was named" in capsys.readouterr().err


def test_serve_plans_for_the_model_it_serves(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_random(file, SHAPES["tiny"], "Q8_0")
    plans = serve._desk(
        SimpleNamespace(served=SimpleNamespace(name="mine")),  # type: ignore[arg-type]
        SimpleNamespace(plan=SimpleNamespace(path=str(file))),  # type: ignore[arg-type]
    )
    assert plans.home and not plans.local and plans.choices()["first_model"] == "mine"
    found = plans.sheet({"model": "MINE", "device": "H100 SXM 80", "context": "32"}, 640)
    assert found["document"]["weight_dtype"] == "as stored" and "stored" in found["lines"][1]["value"]
    with pytest.raises(UserError, match="changes a row of the table"):
        plans.sheet({"model": "mine", "kv_heads": "1"}, 640)


@pytest.mark.parametrize("name", list(models())[::6])
def test_every_kind_of_model_has_a_sheet(name: str) -> None:
    found = Desk().sheet({"model": name, "device": "MI300X 192GB", "itl": "50ms", "context": "32K"}, 375)
    for drawn in found["figures"].values():
        ElementTree.fromstring(drawn)
    assert found["verdict"] and "Infinity" not in json.dumps(found) and "NaN" not in json.dumps(found)


# --- over HTTP --------------------------------------------------------------------------------------------------------------------


def test_the_server_answers_beside_its_model() -> None:
    with running(rules=GateRules(keys=load_keys(["k"], None))) as server:
        page = server.get("/plan")[2].decode()
        for name in ("plan.css", "plan.js", "plots.css"):
            code, headers, data = server.get("/" + name)
            assert code == 200 and name in page and headers["content-security-policy"] and data
            assert not re.search(rb"https?://|@import|url\(", data)
        ids = set(re.findall(r'id="(\w+)"', page))
        script = server.get("/plan.js")[2].decode()
        assert set(re.findall(r'\$\("(\w+)"\)', script)) <= ids
        assert "style=" not in page and "onclick" not in page and not re.search(r"<script>|eval\(", page + script)
        assert server.get("/plan/choices")[0] == 401
        key = {"authorization": "Bearer k"}
        assert server.get("/plan/choices", key)[2]["contexts"] == list(CONTEXTS)
        query = urlencode({"model": "Llama-3.1-8B", "device": "H100 SXM 80", "context": "4K", "width": "375"})
        code, headers, found = server.get("/plan/sheet?" + query, key)
        assert code == 200 and headers["cache-control"] == "no-store" and 'width="375"' in found["figures"]["roofline"]
        code, _, fault = server.get("/plan/sheet?model=Llama-3.1-8B&context=zero", key)
        assert code == 400 and fault["error"]["param"] == "--context"
        assert server.get("/plan/sheet", key)[0] == 400 and server.get("/plan/sheet?model=%00&width=x", key)[0] == 400
        assert server.post("/plan/sheet", {}, key)[0] == 405 and server.get("/health")[0] == 200


def test_many_waiting_plans_are_turned_away() -> None:
    plans = Desk()
    plans.waiting = 8
    app = plan_app(plans, GateRules(frozenset({"testserver"})))

    async def get(path: str) -> tuple[int, Any]:
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http", "path": path,
            "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": [(b"host", b"testserver")],
            "client": ("127.0.0.1", 1), "server": ("testserver", 80),
        }  # fmt: skip
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await app(scope, receive, send)
        return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}

    code, headers = asyncio.run(get("/plan/choices"))
    assert code == 429 and headers["retry-after"] == "1"
    plans.waiting = 0
    assert asyncio.run(get("/plan/choices"))[0] == 200 and plans.waiting == 0
    assert asyncio.run(get("/"))[1]["location"] == "/plan" and asyncio.run(get("/nothing"))[0] == 404


# --- in a browser -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def browser() -> Iterator[Any]:
    with chromium() as made:
        yield made


def opened(browser: Any, server: Any, query: str, faults: list[str], **more: Any) -> Any:
    page = browser.new_page(**more)
    page.on("console", lambda m: faults.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: faults.append(str(e)))
    page.goto(f"{server.url}/plan{query}")
    page.wait_for_selector("#numbers tr:nth-child(5)")
    return page


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_calculator_in_a_browser(browser: Any, scheme: str) -> None:
    faults: list[str] = []
    with running() as server:
        page = opened(browser, server, "", faults, color_scheme=scheme, viewport={"width": 1280, "height": 900})
        page.fill("[name=model]", "Mistral-7B-v0.3")
        page.wait_for_selector("#verdict:has-text('Fits')")
        page.fill("[name=context]", "16K")
        page.wait_for_selector("#numbers:has-text('KV of 16,384 tokens')")
        page.fill("[name=users]", "400")
        page.wait_for_selector("#verdict:has-text('at once on each of')")
        page.click("text=batch of a replica")
        page.fill("[name=batch]", "200")
        page.wait_for_selector("#verdict:has-text('Does not fit: 200 at once')")
        assert page.locator("#fig_memory text.bad").count() >= 2
        shot(page, f"plan-{scheme}-over")
        page.check("#formulas")
        assert "2 b K H L" in page.inner_text("#explain")
        state = parse_qs(urlsplit(page.url).query)
        assert state == {"model": ["Mistral-7B-v0.3"], "device": ["H100 SXM 80GB"], "context": ["16K"], "batch": ["200"]}
        other = opened(browser, server, "?" + urlsplit(page.url).query, faults)
        assert other.input_value("[name=batch]") == "200" and other.inner_text("#verdict") == page.inner_text("#verdict")
        page.fill("[name=context]", "lots")
        page.wait_for_selector("#fault:has-text('--context')")
        assert page.get_attribute("[name=context]", "aria-invalid") == "true"
        shot(page, f"plan-{scheme}-fault")
        page.fill("[name=context]", "2K")
        page.wait_for_selector("#fault", state="hidden")
        assert page.get_attribute("[name=context]", "aria-invalid") == "false"
        page.focus("#context_slider")
        page.keyboard.press("ArrowRight")
        assert page.input_value("[name=context]") == "4096"
        page.wait_for_selector("#numbers:has-text('KV of 4,096 tokens')")
        shot(page, f"plan-{scheme}")
    assert [f for f in faults if "400" not in f] == []


@pytest.mark.long
def test_presets_ranking_and_providers_in_a_browser(browser: Any) -> None:
    faults: list[str] = []
    query = "?" + urlencode({k: v for k, v in PREMIUM.items() if k != "preset"} | {"device": "H100"})
    with running() as server:
        page = opened(browser, server, query, faults, viewport={"width": 1100, "height": 900})
        page.click("#presets button:has-text('premium-chat')")
        page.wait_for_selector("#triangle:has-text('Pinned: latency')")
        if page.get_attribute("#rank", "open") is None:
            page.click("#rank summary")
        page.wait_for_selector("#rank_state:has-text('4 of 8 devices')")
        rows = page.locator("#passing tr").all_inner_texts()
        assert [r.split("\t")[0] for r in rows[1:]] == ["MI300X", "H100", "A100 80GB", "H200"]
        assert "ITL 11.4 ms > 10 ms" in page.inner_text("#dropped")
        for name, value in (("p_name", "mini"), ("p_input", "0.15"), ("p_cached", "0.075"), ("p_output", "0.60")):
            page.fill("#" + name, value)
        page.click("#add_provider button")
        page.wait_for_selector("#providers tr:has-text('mini')")
        assert "providers=mini%3D0.15%2F0.075%2F0.60" in page.url
        shot(page, "plan-premium")
        page.fill("[name=model]", "Llama-2-13B")
        page.click("#fewer:has-text('Try 8 KV heads')")
        page.wait_for_selector("#numbers tr:has-text('KV per token'):has-text('163,840 B'):has-text('819,200 B')")
        page.click("[aria-label='Remove mini']")
        page.wait_for_selector("#providers tr:has-text('mini')", state="detached")
    assert faults == []


@pytest.mark.long
def test_a_phone_with_a_key_and_the_keyboard(browser: Any) -> None:
    with running(rules=GateRules(keys=load_keys(["secret"], None))) as server:
        page = browser.new_page(viewport={"width": 375, "height": 700})
        page.goto(server.url + "/plan")
        page.wait_for_selector("#fault:has-text('API key')")
        page.fill("#key", "secret")
        page.press("#key", "Tab")
        page.wait_for_selector("#numbers tr:nth-child(5)")
        assert page.evaluate("document.documentElement.scrollWidth") <= 375
        page.evaluate("scrollTo(0, 0)")
        page.wait_for_selector("#brief.away:has-text('Fits')")
        shot(page, "plan-phone")
        small = page.evaluate("[...document.querySelectorAll('#fig_memory svg, #fig_curve svg')].every(s => s.clientWidth <= 345)")
        assert small
        seen = []
        page.focus(".skip")
        for _ in range(12):
            page.keyboard.press("Tab")
            seen.append(page.evaluate("[document.activeElement.name || document.activeElement.textContent.trim().slice(0, 20),"
                                      " getComputedStyle(document.activeElement).outlineStyle]"))
        assert {"model", "device", "premium-chat"} <= {name for name, _ in seen}
        assert all(style == "solid" for _, style in seen)
        unlabelled = page.evaluate(
            "[...document.querySelectorAll('input,select')].filter(e => !e.labels.length && !e.getAttribute('aria-label')).map(e => e.id)"
        )
        assert unlabelled == []
