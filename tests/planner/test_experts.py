"""Row 121: expert parallelism. What each device holds, reads and sends when groups share the experts of a mixture."""

from __future__ import annotations

import json

import pytest

from ridgeline.cli import main
from ridgeline.errors import UserError
from ridgeline.planner.catalog import find_model
from ridgeline.planner.formats import kv_format_named, native_format
from ridgeline.planner.hardware import devices, find_device
from ridgeline.planner.parallel import Layout
from ridgeline.planner.setup import Setup

V3 = "DeepSeek-V3 / R1"


def setup(model: str = V3, layout: Layout = Layout(ep=16), device: str = "H200", **more: object) -> Setup:  # noqa: B008
    facts = find_model(model)
    base = Setup(facts, find_device(device, devices()), native_format(facts.native), kv_format_named("bf16"), layout)
    return base.change(**more)


def test_bytes_that_a_device_sends() -> None:
    """8 experts of a token lie in 16 (1 - (15/16)^8) groups, a sixteenth of them its own; two bytes a value, there and back, 58 layers."""
    facts = find_model(V3)
    assert facts.expert_layers == 58 and facts.layers == 61
    groups = 15 * (1 - (15 / 16) ** 8)
    assert Layout(ep=16).expert_bytes(facts, 64) == pytest.approx(2 * 58 * groups * 64 * 7168 * 2)
    assert Layout(tp=2, ep=16).expert_bytes(facts, 64) == pytest.approx(Layout(ep=16).expert_bytes(facts, 64) / 2)
    assert Layout(ep=2).expert_bytes(facts, 64) < Layout(ep=16).expert_bytes(facts, 64)
    assert Layout(tp=8).expert_bytes(facts, 64) == 0 and Layout(tp=8).collectives(facts) == 2 * 61
    assert Layout(ep=8).collectives(facts) == 2 * 58 and Layout(ep=8).message_bytes(facts, 64) == 0


def test_memory_of_a_device() -> None:
    """Everything but the experts is in each group, the experts once over all; KV is not copied."""
    d, one = setup().deployment(), setup(layout=Layout()).deployment()
    whole, routed = d.weights.total, d.weights.routed
    assert d.memory(16, 4096).weights == pytest.approx(routed + 16 * (whole - routed))
    assert d.memory(16, 4096).kv == one.memory(16, 4096).kv and d.memory(17, 4096).kv == 2 * d.memory(16, 4096).kv
    assert d.memory(16, 4096).capacity == 16 * 141e9 and not one.memory(1, 100).fits and d.memory(16, 4096).fits


def test_time_of_a_step() -> None:
    """A device reads its group's KV and its share of the experts; sequences over more groups make steps shorter."""
    eight, sixteen = setup(layout=Layout(ep=8)).deployment(), setup().deployment()
    asked = eight.decode_demand(128, 4096)
    speed = eight.ceilings.bytes_per_s * eight.efficiency.memory
    step = eight.decode(128, 4096)
    assert step.linear[0] == pytest.approx((asked.weight_bytes - asked.routed_bytes * 7 / 8) / speed)
    assert step.attention[0] == pytest.approx((asked.kv_bytes + asked.write_bytes) / 8 / speed)
    link = eight.ceilings.link_bytes_per_s or 0.0
    assert step.messages_s == pytest.approx(2 * 58 * 10e-6 + Layout(ep=8).expert_bytes(eight.facts, 16) / link)
    assert sixteen.decode(128, 4096).seconds < step.seconds
    assert eight.decode(121, 4096).attention == pytest.approx(step.attention)  # the busiest group has 16 either way
    shared, alone = (setup(ideal=True, layout=Layout(ep=n)).deployment().decode(8, 4096) for n in (8, 1))
    assert shared.messages_s == 0 and shared.linear[0] < alone.linear[0]


def test_one_group_is_what_it_was() -> None:
    """ep 1 changes nothing, for a mixture and for a dense model."""
    for model in ("Mixtral-8x7B", "Llama-3.1-8B"):
        plain, given = setup(model, Layout(tp=2)).deployment(), setup(model, Layout(tp=2, ep=1)).deployment()
        assert plain.decode(7, 1000) == given.decode(7, 1000) and plain.memory(7, 1000) == given.memory(7, 1000)


def test_what_cannot_be() -> None:
    for model, ep, words in (("Llama-3.1-8B", 2, "no experts"), ("Mixtral-8x7B", 3, "8 experts, which must divide"), (V3, 0, "--ep is 0")):
        with pytest.raises(UserError, match=words):
            setup(model, Layout(ep=ep)).deployment()


def test_through_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "deepseek-v3 / r1", "--device", "h200", "--ep", "16", "--context", "4K", "--batch", "256", "--json"]) == 0
    p = json.loads(capsys.readouterr().out)
    facts = find_model(V3)
    assert p["devices"] == 16 and p["parallel"]["ep"] == 16 and p["fits"]
    assert p["parallel"]["expert_message_bytes_per_step"] == pytest.approx(Layout(ep=16).expert_bytes(facts, 16))
    assert p["step"]["messages_ms"] > 0
    assert main(["plan", "llama-3.1-8b", "--device", "h100 sxm", "--ep", "2"]) == 2
    assert "--ep is 2" in capsys.readouterr().err
