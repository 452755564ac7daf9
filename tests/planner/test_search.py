"""Searching devices: rows 136-141, and that every dropped option says why and what would help."""

from __future__ import annotations

from decimal import Decimal

import pytest

from ridgeline.errors import UserError
from ridgeline.planner.catalog import find_model
from ridgeline.planner.formats import WEIGHT_FORMATS, kv_format_named
from ridgeline.planner.hardware import devices, find_device, workshop_devices
from ridgeline.planner.load import Traffic
from ridgeline.planner.parallel import Layout
from ridgeline.planner.presets import PRESETS, preset
from ridgeline.planner.price import rounded
from ridgeline.planner.search import Goal, Option, judge, search, ways
from ridgeline.planner.setup import Setup

WORKSHOP = workshop_devices()


def workshop(context: int, batch: int = 7) -> dict[str, Option]:
    base = Setup(
        find_model("Mistral-7B-v0.3"),
        WORKSHOP["H100"],
        WEIGHT_FORMATS["fp16"],
        kv_format_named("bf16"),
        Layout(),
        True,
        weights_total=14.0e9,
    )
    return {o.setup.device.name: o for o in search(ways(base, WORKSHOP.values(), (), (1,)), Goal(context, itl_s=0.010, batch=batch))}


def test_premium_chat_at_4k() -> None:
    """Rows 138 and 139: four pass; the dearest of three machines per hour is the cheapest per token."""
    found = workshop(4096)
    assert [n for n, o in found.items() if o.passes] == ["MI300X", "H100", "A100 80GB", "H200"]
    usd = {n: round(float(o.usd_per_mtok or 0), 2) for n, o in found.items()}
    assert usd == {"A10G": 1.19, "L4": 1.90, "A100 40GB": 1.66, "A100 80GB": 1.77, "L40S": 1.96, "H100": 1.70, "H200": 1.84, "MI300X": 1.33}
    prices = {n: o.usd_per_hour or Decimal(0) for n, o in found.items()}
    assert prices["MI300X"] > prices["H100"] > prices["A100 80GB"]


def test_premium_chat_at_16k() -> None:
    found = workshop(16384)
    assert sorted(n for n, o in found.items() if o.passes) == ["H100", "H200", "MI300X"]
    assert "does not fit" in found["A10G"].reason and found["A10G"].usd_per_mtok is None
    assert "ITL 14.2 ms > 10 ms" in found["A100 80GB"].reason


def test_the_smaller_batch_lets_one_more_pass() -> None:
    """Row 138: at batch 2 an A100-40 keeps 10 ms."""
    assert "A100 40GB" in [n for n, o in workshop(4096, 2).items() if o.passes]
    dropped = workshop(4096)["A100 40GB"]
    assert dropped.reason.startswith("ITL 11.4 ms > 10 ms") and dropped.fix == "batch 2"


def base(model: str = "Llama-3.1-8B", device: str = "H100 SXM") -> Setup:
    return Setup(find_model(model), find_device(device, devices()), WEIGHT_FORMATS["bf16"], kv_format_named("bf16"), Layout())


@pytest.mark.parametrize("context, batch, itl", [(4096, 7, 0.010), (8192, 64, 0.030), (32768, 16, 0.020), (2048, 1, 0.002)])
def test_every_fix_works(context: int, batch: int, itl: float) -> None:
    """Row 141: what is named as the nearest fix makes the option pass."""
    goal = Goal(context, itl, batch=batch)
    for option in search(ways(base(), list(devices().values())[::3], (), (1,)), goal):
        assert option.passes or (option.reason and option.fix)
        if option.passes or option.fix in ("no single change helps", "see the message"):
            continue
        word, _, what = option.fix.partition(" ")
        setup, wanted = option.setup, goal
        if word in ("batch", "context"):
            wanted = Goal(int(what) if word == "context" else context, itl, batch=int(what) if word == "batch" else batch)
        elif word == "tp":
            setup = setup.change(layout=Layout(tp=int(what)))
        elif what == "weights":
            setup = setup.change(form=WEIGHT_FORMATS[word])
        else:
            setup = setup.change(kv=kv_format_named("fp8"))
        assert judge(setup, wanted).passes, option.fix


def test_cheapest_first_unpriced_last() -> None:
    found = search(ways(base(), devices().values(), ("fp8",), (1, 2)), Goal(4096, 0.050, users=32))
    passing = [o for o in found if o.passes]
    prices = [o.usd_per_mtok for o in passing]
    known = [p for p in prices if p is not None]
    assert known == sorted(known) and prices[: len(known)] == known and None in prices
    assert found[len(passing) :] == [o for o in found if not o.passes]


def test_users_are_spread_over_replicas() -> None:
    """Row 37: replicas multiply throughput and cost, and leave latency alone."""
    one = judge(base(), Goal(4096, batch=16))
    three = judge(base().change(layout=Layout(replicas=3)), Goal(4096, batch=16))
    assert three.itl_s == one.itl_s and three.tok_s == 3 * one.tok_s
    assert rounded(three.usd_per_mtok) == rounded(one.usd_per_mtok) != 0
    crowd = judge(base(), Goal(4096, users=400))
    assert crowd.setup.layout.replicas > 1 and crowd.batch * crowd.setup.layout.replicas >= 400 and crowd.batch <= crowd.max_users


def test_a_rate_gets_the_replicas_that_it_needs() -> None:
    goal = Goal(2048, 0.030, traffic=Traffic(40.0, 2048, 256))
    found = judge(base(), goal)
    assert found.passes and found.setup.layout.replicas > 1
    assert found.usd_per_mtok is not None and found.usd_per_hour is not None
    assert float(found.usd_per_mtok) == pytest.approx(float(found.usd_per_hour) / (40 * 256 * 3600) * 1e6)


def test_the_users_price_wins() -> None:
    given = judge(base(), Goal(4096, batch=16, price=Decimal("1.00")))
    table = judge(base(), Goal(4096, batch=16))
    assert given.usd_per_hour == 1 and table.usd_per_hour == Decimal("2.4")
    half = judge(base(), Goal(4096, batch=16, price=Decimal("1.00"), utilization=Decimal("0.5")))
    assert half.usd_per_mtok == pytest.approx(2 * (given.usd_per_mtok or 0))


def test_nothing_is_priced_that_does_not_fit() -> None:
    found = judge(base("Llama-3.1-405B"), Goal(4096, batch=1))
    assert not found.passes and found.usd_per_mtok is None and found.max_users == 0
    assert "does not fit" in found.reason and found.fix in ("no single change helps", "tp 16")


def test_a_slow_prompt_is_a_reason() -> None:
    found = judge(base(device="L4 24GB"), Goal(8192, ttft_s=0.5, batch=1))
    assert found.reason.startswith("TTFT ") and "500 ms" in found.reason


def test_presets() -> None:
    """Row 136."""
    assert set(PRESETS) == {"premium-chat", "async-agent", "batch"}
    chat = preset("Premium-Chat")
    assert (chat.context, chat.itl_s, chat.min_batch, chat.formats) == (4096, 0.010, 7, ())
    assert all(p.pins and p.chases and p.solves for p in PRESETS.values())
    with pytest.raises(UserError, match="premium-chat"):
        preset("x")
