"""Sums around the planner: rows 2-4, 13, 54, 65 and 161 of the acceptance table, and `ridgeline cost`, `numbers`, `scorecard`."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ridgeline.bench.claims import claims
from ridgeline.bench.scorecard_report import COLUMNS
from ridgeline.cli import main
from ridgeline.errors import UserError
from ridgeline.planner.formats import kv_format_named, weight_format
from ridgeline.planner.hardware import devices, find_device
from ridgeline.planner.ledger import Offer, compare, crossover, offer
from ridgeline.planner.price import TokenPrices, break_even_days, query_price
from ridgeline.planner.scorecard import Score, reported, scorecard


def scores(context: int = 32768) -> dict[str, Score]:
    found = scorecard(find_device("H100 SXM", devices()), context, weight_format("bf16"), kv_format_named("bf16"))
    return {s.variant: s for s in found}


def shown(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    assert main([*args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_training_against_serving(capsys: pytest.CaptureFixture[str]) -> None:
    """Row 2."""
    found = shown(capsys, "cost", "--training-tokens", "32000g", "--tokens-per-day", "8600g")
    assert found == {"tokens": {"training": 32 * 10**12, "a_day": 86 * 10**11, "break_even_days": 3.72}}


def test_the_day_on_which_serving_has_cost_as_much() -> None:
    """Row 3: 4.6 million against 12,000 a day."""
    when = crossover("4600000", 12000, date(2026, 11, 30))
    assert when.day == date(2027, 12, 18) and when.days is not None and round(when.days, 1) == Decimal("383.3")
    assert when.months[2][0] == 6 and float(when.months[2][1]) == pytest.approx(12000 * 730 / 24 * 6)
    assert crossover(1, 0, date(2026, 1, 1)).day is None and crossover(10**12, 1, date(2026, 1, 1)).day is None


def test_a_query_against_its_ceiling(capsys: pytest.CaptureFixture[str]) -> None:
    """Row 4."""
    args = ("cost", "--queries-per-day", "8.5g", "--tokens-per-query", "4000", "--usd-per-mtok", "0.5", "--ceiling")
    query = shown(capsys, *args, "0.005")["query"]
    assert query == {"usd_per_query": 0.002, "usd_per_year": 0.002 * 8.5e9 * 365, "ceiling_usd": 0.005, "within": True}
    assert shown(capsys, *args, "0.0019")["query"]["within"] is False


def test_our_price_beside_providers(capsys: pytest.CaptureFixture[str]) -> None:
    """Row 13; the request of PL-04."""
    rows = compare([offer("ours=0.5/0.1/2"), offer("a=2.50/1.25/10.00")], 2006, 1920, 300, 10)
    assert rows[1].usd_per_request == Decimal("0.005615") and float(rows[1].usd_per_month) == pytest.approx(0.05615 * 730 / 24)
    assert rows[1].ratio == Decimal("0.005615") / Decimal("0.000835")
    found = shown(
        capsys, "cost", "--prompt", "2006", "--cached", "1920", "--output", "300", "--own", "ours=1/1/1", "--provider", "a=2.5/1.25/10"
    )
    assert [r["name"] for r in found["providers"]] == ["ours", "a"] and found["providers"][1]["usd_per_1k_requests"] == 5.615
    assert offer("b=1/2") == Offer("b", TokenPrices(Decimal(1), Decimal(1), Decimal(2)))
    assert compare([offer("free=0/0")], 5, 0, 5, 1)[0].ratio is None


@pytest.mark.parametrize("text", ["", "a", "a=", "a=1", "=1/2", "a=1/2/3/4", "a=-1/2", "a=nan/1", "a=1/./2", "a=1/x"])
def test_offers_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match="must be like"):
        offer(text)


def test_negative_counts_are_refused() -> None:
    with pytest.raises(UserError):
        break_even_days(5, -1)
    with pytest.raises(UserError):
        query_price(1, -1, 1)
    with pytest.raises(UserError):
        compare([offer("a=1/1")], 5, 0, 5, -1)


@pytest.mark.parametrize(
    "args, words",
    [
        (["cost"], "nothing to reckon with"), (["cost", "--provider", "x"], "must be like name=2.50"),
        (["cost", "--training-usd", "nan", "--tokens-per-day", "1"], "must be USD"),
        (["cost", "--training-usd", "1", "--tokens-per-day", "-1", "--usd-per-mtok", "1"], "--tokens-per-day is -1"),
        (["scorecard", "--context", "0"], "--context is 0"), (["scorecard", "--device", "abacus"], "'abacus' is not known"),
        (["templates", "blimp"], "one of chatbot, copilot, rag, gateway"), (["templates", "rag", "--users", "0"], "--users is 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_reckoned(args: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_the_numbers_of_talks() -> None:
    """Row 161: several fail."""
    found = {c.said: c for c in claims()}
    assert {c.verdict for c in found.values()} == {"pass", "FAIL", "open"}
    assert found["a 7B model takes 14.5 GB"].found == pytest.approx(14.483464192)
    assert found["131 KB of KV a token"].found == 131.072 and found["80 users of 4K hold 42 GB"].found == pytest.approx(42.95, abs=0.005)
    assert found["decode is 80x below the peak"].found == pytest.approx(153, abs=0.1) and not found["decode is 80x below the peak"].passes
    assert found["latent attention makes the cache 56x smaller"].found == pytest.approx(56.9, abs=0.05)
    assert found["one engine is 15x faster than another"].found == pytest.approx(736 / 51)
    assert all(bool(c.source) == (c.kind == "cited") for c in found.values()) and len({c.source for c in found.values()}) == 2
    assert not found["speculation is 2 to 3x"].passes and found["the engine itself is 15x faster"].found == pytest.approx(2.84, abs=0.01)


def test_attention_variants_differ_in_nothing_but_the_cache() -> None:
    """Row 65; rows 48, 51, 54, 55 and 58 by their bytes."""
    found = scores()
    assert [found[v].kv_bytes_per_token for v in ("MHA", "GQA-8", "MQA", "MLA")] == [524_288, 131_072, 16_384, 36_864]
    assert found["cross-layer (CLA2)"].sequence_bytes * 2 == found["GQA-8"].sequence_bytes
    assert found["MHA"].flop_per_byte == 1.0 and found["GQA-8"].flop_per_byte == 4.0 and found["MQA"].flop_per_byte == 32.0
    assert found["MLA"].flop_per_byte == pytest.approx(32 * (576 + 512) / 576)
    # Half is held, all is read: twice the users at the same speed per byte.
    assert found["cross-layer (CLA2)"].users == 2 * found["GQA-8"].users
    assert found["cross-layer (CLA2)"].tok_s < 1.2 * found["GQA-8"].tok_s
    longer = scores(65536)
    assert all(longer[v].sequence_bytes == found[v].sequence_bytes for v in ("sliding 4096", "linear", "Mamba"))
    assert longer["GQA-8"].sequence_bytes == 2 * found["GQA-8"].sequence_bytes


def test_quality_is_cited() -> None:
    """Every figure has its source and set-up, belongs to a row of the card, and says whether it was seen."""
    names = set(scores())
    assert all(q.variant in names and q.source and q.setup and q.checked in ("seen", "recalled") for q in reported())
    assert {q.source for q in reported() if q.metric == "MMLU"} == {"arXiv:2405.04434 table 8"}


def test_every_variant_has_quality_with_a_link() -> None:
    """Row 65: the sliding window, linear attention and Mamba too; each figure names the paper's table and where to read it."""
    cited = {s.variant: s.quality for s in scores().values()}
    assert all(cited.values()) and all(q.link.startswith("https://arxiv.org/abs/2") and " table " in q.source for q in cited["Mamba"])
    assert all(q.link or "figure" in q.source for found in cited.values() for q in found)
    assert {q.source for q in cited["sliding 4096"]} == {"arXiv:2406.07522 table 3", "arXiv:2406.07522 table 4"}
    # No winner: the linear models are ahead on short questions and behind where an answer stands in the text.
    beside = {q.metric: (q.value, float(q.beside.split(",")[0].split()[-1])) for q in cited["linear"]}
    assert beside["average of 8 tasks"][0] > beside["average of 8 tasks"][1]
    assert beside["average of 6 look-up tasks"][0] < beside["average of 6 look-up tasks"][1]


def test_every_computed_cell_says_what_it_comes_from() -> None:
    """Row 65: the numbers in a source are the cell's."""
    found = scores()
    assert all(set(COLUMNS) == set(s.sources) and all(s.sources.values()) for s in found.values())
    assert found["MLA"].sources["kv_bytes_per_token"] == "32 layers x 576 values, stored once in bf16 = 36,864 B a token"
    assert found["sliding 4096"].sources["sequence_bytes"].endswith("x 4,096 of 32,768 tokens")
    gqa = found["GQA-8"]
    assert f"{gqa.users:,} users / " in gqa.sources["tok_s"] and f"/ {gqa.sequence_bytes / 1e6:,.1f} MB" in gqa.sources["users"]
    step_ms = float(gqa.sources["tok_s"].split(" / ")[1].split()[0])
    assert gqa.users / step_ms * 1e3 == pytest.approx(gqa.tok_s, rel=1e-3)


def test_the_page_opens_its_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Row 65, and the same through `bench report`."""
    page, kept = tmp_path / "s.html", tmp_path / "s.json"
    assert main(["scorecard", "--html", str(page), "--json"]) == 0
    kept.write_text(capsys.readouterr().out)
    text = page.read_text("utf8")
    cells = len(COLUMNS) * len(scores())
    assert text.count("<details><summary>") == cells + len(scores()) + len(reported()) and "<script" not in text
    assert '<a href="https://arxiv.org/abs/2412.06464"' in text
    assert main(["bench", "report", str(kept)]) == 0
    assert "- Mamba, users: (80 GB - " in capsys.readouterr().out
    assert main(["scorecard", "--explain"]) == 0 and "stored once in bf16" in capsys.readouterr().out


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["numbers"]) == 0 and "FAIL" in capsys.readouterr().out
    assert main(["scorecard"]) == 0 and "no winner is drawn" in capsys.readouterr().out
    assert main(["templates"]) == 0 and "chatbot" in capsys.readouterr().out
    assert main(["cost", "--training-usd", "4.6M", "--tokens-per-day", "20g", "--usd-per-mtok", "0.6"]) == 0
    assert "^ training" in capsys.readouterr().out
