"""Capacity templates: row 166. Traffic in people's terms to devices, dollars and simulated percentiles."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import ridgeline.bench.templates as templates
from ridgeline.cli import main
from ridgeline.planner.hardware import devices, find_device

H100 = find_device("H100 SXM", devices())


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "SIMULATED", 30)


def test_templates_are_sized() -> None:
    for name in ("copilot", "rag", "gateway"):
        template = templates.TEMPLATES[name]
        found = templates.size(name, H100)
        assert found["met"] and found["devices"] >= len(template.streams) and found["peak_rate_s"] == template.peak_rate
        assert found["usd_per_month"] == pytest.approx(found["usd_per_hour"] * 730)
        assert sum(s["rate_s"] for s in found["streams"]) == pytest.approx(template.peak_rate)
        for stream in found["streams"]:
            assert stream["ttft_p99_ms"] <= template.ttft_s * 1e3 and stream["tpot_p99_ms"] <= template.itl_s * 1e3
            assert stream["devices"] == stream["replicas"] * stream["tp"] and stream["replicas"] >= stream["replicas_by_mean"]


def test_twice_the_users_need_about_twice_the_devices() -> None:
    one, two = templates.size("chatbot", H100, users=1_000_000), templates.size("chatbot", H100, users=2_000_000)
    assert 1.8 * one["devices"] <= two["devices"] <= 2.2 * one["devices"]
    assert two["usd_per_1k_requests"] == pytest.approx(one["usd_per_1k_requests"], rel=0.12)


def test_replicas_are_added_while_the_queue_breaks_the_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "SIMULATED", 200)
    strict = replace(templates.TEMPLATES["chatbot"], ttft_s=0.1)
    monkeypatch.setattr(templates, "TEMPLATES", {"chatbot": strict})
    (stream,) = templates.size("chatbot", H100)["streams"]
    assert stream["replicas"] > stream["replicas_by_mean"]


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["templates", "copilot", "--price", "2/h", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["usd_per_hour"] == 2 * found["devices"] and found["labels"]["times"].startswith("assumed")
    assert main(["templates", "copilot"]) == 0
    assert "promise kept" in capsys.readouterr().out
    assert main(["templates", "chatbot", "--device", "T4"]) == 2
    assert "does not fit" in capsys.readouterr().err
