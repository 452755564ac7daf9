"""`ridgeline plan`, `hardware`, `models`: keys, labels, golden numbers through the command line, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli import main
from ridgeline.planner.hardware import Machine

KEYS = (
    "params", "weights_bytes", "kv_bytes_per_token", "kv_bytes_per_sequence", "memory_bytes", "step_time_ms", "throughput_tok_s", "ttft_ms",
    "ridge_batch", "fits", "max_users", "usd_per_mtok",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RIDGELINE_HARDWARE", raising=False)
    monkeypatch.delenv("RIDGELINE_DEBUG", raising=False)
    machine = Machine("here", 10.0, 100.0, 50.0, 1, "avx2", "measured", "2026-11-30")
    monkeypatch.setattr("ridgeline.bench.probe.machine", lambda threads: machine)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code = main([*arguments, "--json"])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    found: dict[str, Any] = json.loads(shown.out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code = main(list(arguments))
    shown = capsys.readouterr()
    assert code == 2, shown.err
    assert shown.out == "" and shown.err.startswith("error: ") and shown.err.count("\n") == 1
    return shown.err


def test_llama_13b_ideal(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows 39-45 through the command line."""
    for batch, gigabytes, ms, rate, fits in (
        (1, 26.87, 8.02, 124.7, True),
        (64, 79.72, 23.80, 2689, True),
        (256, 240.78, 71.87, 3562, False),
    ):
        p = run(capsys, "plan", "llama-2-13b", "--device", "h100 sxm", "--context", "1024", "--batch", str(batch), "--ideal")
        assert p["params"] == 13_015_449_600 and p["weights_bytes"] == 26_030_899_200
        assert (p["kv_bytes_per_token"], p["kv_bytes_per_sequence"]) == (819_200, 838_860_800)
        assert p["memory_bytes"] / 1e9 == pytest.approx(gigabytes, abs=0.006)
        assert p["step_time_ms"] == pytest.approx(ms, abs=0.006) and p["throughput_tok_s"] == pytest.approx(rate, rel=4e-4)
        assert p["fits"] is fits and p["max_users"] == 64 and p["ridge_batch"] == pytest.approx(295.2, abs=0.05)
        assert p["asymptote_tok_s"] == pytest.approx(3993.5, abs=0.05)
        assert (p["usd_per_mtok"] is not None) is fits


def test_every_key_has_a_label(capsys: pytest.CaptureFixture[str]) -> None:
    for extra in (("--ideal",), (), ("--rate", "2/s", "--price", "2.69/h")):
        p = run(capsys, "plan", "Llama-3.1-8B", "--device", "h100 sxm", "--context", "2K", *extra)
        assert all(key in p for key in KEYS)
        assert set(KEYS) <= set(p["labels"]) and all(p["labels"][k] for k in KEYS)
    assert p["labels"]["usd_per_mtok"].startswith("given: 2.69")
    by_kind = p["usd_per_mtok_by_kind"]
    paid = (2048 * by_kind["input"] + 256 * by_kind["output"]) / 1e6 * 2 * 3600
    assert paid == pytest.approx(p["usd_per_hour"], rel=1e-3)


def test_exact_parameters_without_ideal(capsys: pytest.CaptureFixture[str]) -> None:
    p = run(capsys, "plan", "Mistral-7B-v0.1", "--device", "a100 sxm", "--context", "4K", "--users", "80")
    assert p["params"] == 7_241_732_096 and p["weights_bytes"] == 14_483_464_192
    assert p["kv_bytes_per_sequence"] == 536_870_912 and p["labels"]["params"].startswith("exact")


def test_workshop_users(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows 130 and 132."""
    common = ("plan", "Mistral-7B-v0.1", "--context", "4K", "--ideal", "--weights-bytes", "14.5e9")
    assert run(capsys, *common, "--device", "a100 sxm", "--overhead-bytes", "8GB")["max_users"] == 107
    assert run(capsys, *common, "--device", "l4 24", "--overhead-bytes", "10%")["max_users"] == 13


def test_premium_chat(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows 138, 139 and 141 through the command line."""
    common = ("plan", "Mistral-7B-v0.3", "--workshop", "--preset", "premium-chat", "--weights-bytes", "14.0e9", "--ideal")
    found = run(capsys, *common)
    assert [o["device"] for o in found["options"] if o["passes"]] == ["MI300X", "H100", "A100 80GB", "H200"]
    assert found["best"]["usd_per_mtok"] == pytest.approx(1.33, abs=0.005)
    assert all(o["reason"] and o["fix"] for o in found["options"] if not o["passes"])
    longer = run(capsys, *common, "--context", "16K")
    assert sorted(o["device"] for o in longer["options"] if o["passes"]) == ["H100", "H200", "MI300X"]


def test_windows_and_their_absence(capsys: pytest.CaptureFixture[str]) -> None:
    """C27."""
    common = ("plan", "Mistral-7B-v0.1", "--device", "h100 sxm", "--context", "16K", "--batch", "1")
    windowed, whole = run(capsys, *common), run(capsys, *common, "--ignore-window")
    assert (windowed["kv_bytes_per_sequence"], whole["kv_bytes_per_sequence"]) == (536_870_912, 2_147_483_648)
    assert any("sliding window 4096" in n for n in windowed["notes"])


def test_grouped_queries_as_a_what_if(capsys: pytest.CaptureFixture[str]) -> None:
    """Row 46: both effects, and the warning."""
    p = run(capsys, "plan", "llama-2-13b", "--device", "h100 sxm", "--context", "1024", "--batch", "256", "--kv-heads", "8", "--ideal")
    assert p["params"] == 11_337_728_000 and p["fits"] and p["step_time_ms"] == pytest.approx(19.59, abs=0.006)
    assert any("accuracy needs an evaluation" in n for n in p["notes"])


def test_a_million_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    held = [
        run(capsys, "plan", m, "--device", "h200", "--tp", "16", "--context", "1M", "--batch", "1")["kv_bytes_per_sequence"]
        for m in ("deepseek-v3.2", "deepseek-v4-pro", "deepseek-v4-flash")
    ]
    assert [round(100 * h / held[0], 1) for h in held] == [100, 11.5, 8.0]


def test_this_host(capsys: pytest.CaptureFixture[str]) -> None:
    p = run(capsys, "plan", "SmolLM2-135M", "--this-host", "--context", "1K", "--weight-dtype", "q4_1", "--batch", "4")
    assert p["fits"] and p["math"] == "int8" and "measured" in p["labels"]["step_time_ms"]


def test_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows 27, 28, 31: the formulas with the user's numbers, for prefill and generation."""
    p = run(capsys, "plan", "llama-2-13b", "--device", "h100 sxm", "--context", "1024", "--batch", "64", "--ideal", "--explain")
    text = "\n".join(p["explain"])
    assert "13,015,449,600" in text and "40 x 128" in text and "23.8 ms (memory bound)" in text
    assert "prefill attention" in text and "512.00 FLOP/byte: compute bound" in text and "1.00 FLOP/byte: memory bound" in text
    assert f"6BTDF = 6 x 64 x 1024 x 5120 x 13824 = {6 * 64 * 1024 * 5120 * 13824:,}" in text
    assert f"generation MLP bytes: 4BTD + 4BTF + 6DF = 4 x 64 x 1 x 5120 + 4 x 64 x 1 x 13824 + 6 x 5120 x 13824 = {429_522_944:,}" in text
    assert f"4BSTNH = 4 x 64 x 1024 x 1 x 40 x 128 = {4 * 64 * 1024 * 40 * 128:,}" in text
    assert "F = 13824 is 2.70 D" in text
    assert "838,860,800 B / (1 x 450 GB/s) = 1.864 ms beside the TTFT" in text  # row 121: prompts computed elsewhere
    latent = "\n".join(run(capsys, "plan", "deepseek-v2-lite", "--device", "h100 sxm", "--batch", "1", "--explain")["explain"])
    assert "56.9x against 128 heads" in latent and "14.2x against 32 heads" in latent and "3.56x against 8 groups" in latent


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("gpt-9", "--device", "h100 sxm"), ("not known",)), (("mistral-7b",), ("may be", "v0.1", "v0.3")),
        (("llama-2-13b", "--device", "h100"), ("may be", "H100 SXM 80GB", "H100 NVL 94GB")),
        (("llama-2-13b", "--device", "abacus"), ("not known", "ridgeline hardware")),
        (("llama-2-13b", "--device", "h100 sxm", "--weight-dtype", "int3"), ("int3", "one of")),
        (("llama-2-13b", "--device", "h100 sxm", "--kv-dtype", "int3"), ("int3", "one of")),
        (("llama-2-13b", "--device", "h100 sxm", "--batch", "-4"), ("--batch is -4",)),
        (("llama-2-13b", "--device", "h100 sxm", "--context", "0"), ("--context is 0",)),
        (("llama-2-13b", "--device", "h100 sxm", "--memory", "0"), ("--memory is 0",)),
        (("llama-2-13b", "--device", "h100 sxm", "--weights-bytes", "-14e9"), ("--weights-bytes", "must be like")),
        (("llama-2-13b", "--device", "h100 sxm", "--itl", "soon"), ("--itl", "500ms")),
        (("llama-2-13b", "--device", "h100 sxm", "--batch", "4", "--users", "4"), ("--users and --batch",)),
        (("llama-2-13b", "--device", "h100 sxm", "--this-host"), ("exclude each other",)),
        (("llama-2-13b", "--device", "a100 sxm", "--math", "fp8"), ("no known fp8 peak",)),
        (("llama-2-13b", "--device", "h100 sxm", "--math", "int1"), ("--math is 'int1'",)),
        (("llama-2-13b", "--device", "h100 sxm", "--tp", "7"), ("--tp is 7", "40 query heads")),
        (("llama-2-13b", "--device", "h100 sxm", "--cached", "9", "--context", "8"), ("--cached is 9",)),
        (("llama-2-13b", "--preset", "x"), ("preset 'x'", "premium-chat")),
        (("llama-2-13b", "--hardware-file", "/nowhere.csv"), ("/nowhere.csv",)),
        (("llama-2-13b", "--utilization", "200%"), ("--utilization",)),
    ],
)  # fmt: skip
def test_bad_input(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    line = refused(capsys, "plan", *arguments)
    assert all(word in line for word in words), line


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(run(capsys, "hardware")["devices"]) == 39
    one = run(capsys, "hardware", "a100 sxm")["devices"]
    assert len(one) == 1 and one[0]["fp8_tflops"] is None and one[0]["ridge_bf16"] == pytest.approx(153, abs=0.1)
    assert len(run(capsys, "hardware", "--workshop")["devices"]) == 8
    assert len(run(capsys, "models")["models"]) == 70
    mistral = run(capsys, "models", "Mistral-7B-v0.1")["models"][0]
    assert mistral["params"] == 7_241_732_096 and mistral["counted"] == "graph" and mistral["window"] == 4096
    assert "may be" in refused(capsys, "hardware", "h100")


def test_text_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ("plan", "llama-3.1-8b", "--device", "h100 sxm", "--rate", "5/s"), ("plan", "mixtral-8x7b", "--itl", "30ms", "--batch", "4"),
        ("hardware",), ("hardware", "l40s"), ("models",), ("models", "qwen3-next"),
    ):  # fmt: skip
        assert main(list(arguments)) == 0
        shown = capsys.readouterr().out
        assert shown and "nan" not in shown.casefold().split() and "Traceback" not in shown
