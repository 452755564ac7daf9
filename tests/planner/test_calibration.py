"""Step times fitted to a calibration: interpolation, what each part adds, and what was not measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ridgeline.errors import UserError
from ridgeline.graph.manifest import manifest
from ridgeline.graph.step import SharedWalk, Span
from ridgeline.planner.calibration import CalibratedSeconds, Calibration, ChunkAttention, DecodeAttention, kept_bytes, linear_formats
from ridgeline.planner.catalog import find_model
from ridgeline.planner.explain import explain
from ridgeline.planner.formats import kv_format_named, weight_format
from ridgeline.planner.hardware import Machine
from ridgeline.planner.parallel import Layout
from ridgeline.planner.report import notes
from ridgeline.planner.setup import Setup, host_device

NO_DECODE, NO_CHUNK = DecodeAttention(0.0, 0.0, 0.0, 0.0), ChunkAttention(0.0, 0.0, 0.0)
FREE = {"Q4_0": (1e-30, 1e-30, 1e-30)}
NOTHING = Calibration(
    "h", "avx2", 2, "2026-11-30", (1, 4, 16), FREE, {"Q4_0": (0.0,) * 3}, 1 << 20, 0.0, 0.0, (0.0,) * 3, NO_DECODE, NO_CHUNK, *(0.0,) * 4
)
FACTS = find_model("SmolLM2-135M")


def seconds(**more: Any) -> CalibratedSeconds:
    assert FACTS.graph is not None
    return CalibratedSeconds(FACTS.graph, dict.fromkeys(manifest(FACTS.graph), "Q4_0"), replace(NOTHING, **more))


def test_between_the_points() -> None:
    c = replace(NOTHING, linear_s={"Q4_0": (1.0, 2.0, 8.0)})
    assert [c.weight_seconds("Q4_0", r) for r in (1, 4, 16)] == [1.0, 2.0, 8.0]
    assert c.weight_seconds("Q4_0", 2) == pytest.approx(2**0.5) and c.weight_seconds("Q4_0", 8) == pytest.approx(4.0)
    assert c.weight_seconds("Q4_0", 32) == 16.0  # beyond the last point each row costs what it did there
    with pytest.raises(UserError, match="Q8_0 is not calibrated"):
        c.check("Q8_0")
    assert c.between((0.0, 3.0, 3.0), 2) == pytest.approx(1.5) and c.value_seconds(32) == 0.0


def test_a_model_in_an_uncalibrated_format_is_refused_at_once() -> None:
    assert FACTS.graph is not None
    with pytest.raises(UserError, match="run `ridgeline calibrate MODEL`"):
        CalibratedSeconds(FACTS.graph, dict.fromkeys(manifest(FACTS.graph), "Q6_K"), NOTHING)


def test_products() -> None:
    """All matrices once for all rows, the head for wanted rows only (it is the embedding)."""
    assert FACTS.graph is not None
    flat = seconds(linear_s={"Q4_0": (1.0, 1.0, 1.0)})
    matrices = FACTS.parts.linear
    assert flat([Span(0, 5, 3, 0)]) == matrices
    assert flat([Span(0, 5, 1, 1)]) == matrices + FACTS.parts.embed
    assert flat([]) == 0.0


def test_products_beside_their_weights() -> None:
    """A product of its own for queries, keys and values, for the output, for gate and up, for down; and the head."""
    flat = seconds(linear_op_s={"Q4_0": (1.0, 1.0, 1.0)})
    assert flat([Span(0, 5, 3, 0)]) == pytest.approx(30 * 4) and flat([Span(0, 5, 1, 1)]) == pytest.approx(30 * 4 + 1)


def test_what_caches_keep_is_told_from_two_sizes() -> None:
    """Of 64 bytes 16 stay: 48 are read; of 192, 176."""
    assert kept_bytes(64.0, 48 / 64, 192.0, 176 / 192) == pytest.approx(16.0)
    assert kept_bytes(64.0, 0.01, 192.0, 1.0) == 32.0  # at most half of the fewer
    assert kept_bytes(64.0, 1.0, 192.0, 0.9) == 0.0 and kept_bytes(64.0, 0.0, 192.0, 1.0) == 0.0


def test_caches_keep_less_of_a_larger_model() -> None:
    """Measured with as many weights as the model has: nothing to mend. With half as many, the share that stays weighs less."""
    own = round((FACTS.parts.linear + FACTS.parts.embed) * 4.5 / 8)
    kept, each = 0.25 * own, (1e-10,) * 3
    one, weights = [Span(0, 5, 1, 1)], FACTS.parts.linear + FACTS.parts.embed
    plain = seconds(linear_s={"Q4_0": each})(one)
    assert plain == pytest.approx(weights * 1e-10)
    assert seconds(linear_s={"Q4_0": each}, kept_bytes=kept, linear_bytes=own)(one) == pytest.approx(plain)
    assert seconds(linear_s={"Q4_0": each}, kept_bytes=kept, linear_bytes=own // 2)(one) == pytest.approx(plain * 0.75 / 0.5)
    slow = {"Q4_0": (1e-10, 2e-10, 2e-10)}  # four rows are bound by arithmetic: reading does not count
    four = [Span(0, 5, 4, 4)]
    assert seconds(linear_s=slow, kept_bytes=kept, linear_bytes=own // 2)(four) == pytest.approx(seconds(linear_s=slow)(four))


def test_attention_by_hand() -> None:
    """30 layers of 9 heads over 3 KV heads of 64 + 64 numbers."""
    spans = [Span(0, 99, 1, 0), Span(1, 9, 1, 0)]

    def decode(**more: float) -> CalibratedSeconds:
        return seconds(decode=replace(NO_DECODE, **more))

    def chunk(**more: float) -> CalibratedSeconds:
        return seconds(chunk=replace(NO_CHUNK, **more))

    assert decode(key_kv_s=1.0)(spans) == 30 * 110 * 3 * 128
    assert decode(key_head_s=1.0)(spans) == 30 * 110 * 9 * 128
    assert decode(kv_s=1.0)(spans) == 30 * 2 * 3 and decode(head_s=1.0)(spans) == 30 * 2 * 9
    four = [Span(0, 10, 4, 0)]
    assert chunk(pair_s=1.0)(four) == 30 * (11 + 12 + 13 + 14) * 9 * 128
    assert chunk(row_s=1.0)(four) == 30 * 4 * 9 * 128
    assert chunk(key_s=1.0)(four) == 30 * 14 * 3 * 128
    assert max(chunk(key_s=1.0)(spans), decode(kv_s=1.0)(four)) < 1e-20
    walk = [SharedWalk((0, 1), 256)]
    two = [Span(0, 299, 1, 0), Span(1, 299, 1, 0)]
    assert decode(key_kv_s=1.0)(two, walk) == pytest.approx(30 * (600 - 256) * 3 * 128)
    assert decode(key_head_s=1.0)(two, walk) == 30 * 600 * 9 * 128


def test_a_cache_that_is_multiplied_as_float32_costs_what_was_measured_of_one() -> None:
    """Keys and values each by their dtype; where a CPU has no pairs of bfloat16, all dtypes cost the same."""
    assert FACTS.graph is not None
    alike = replace(NOTHING, decode=replace(NO_DECODE, key_head_s=1.0), chunk=replace(NO_CHUNK, pair_s=1.0))
    apart = replace(alike, float_decode=replace(NO_DECODE, key_head_s=3.0), float_chunk=replace(NO_CHUNK, pair_s=5.0))
    for spans, slower in (([Span(0, 99, 1, 0)], 3.0), ([Span(0, 10, 4, 0)], 5.0)):
        for found, ratio in ((apart, slower), (alike, 1.0)):
            took = {
                kv: CalibratedSeconds(FACTS.graph, dict.fromkeys(manifest(FACTS.graph), "Q4_0"), found, kv)(spans)
                for kv in ("bf16", "f16", "int8", "int4", "bf16/int4", "f16/int8")
            }
            assert took["f16"] == took["int4"] == pytest.approx(ratio * took["bf16"]) and took["bf16"] == took["int8"] > 1
            assert took["bf16/int4"] == took["f16/int8"] == pytest.approx((1 + ratio) / 2 * took["bf16"])


def test_a_plan_of_a_calibrated_host_knows_its_cache() -> None:
    host = host_device(Machine("m", 20.0, 300.0, 100.0, 2, "avx512_bf16", "measured", "2026-11-30", 200.0), 8e9)
    found = replace(NOTHING, chunk=replace(NO_CHUNK, pair_s=1e-9), float_decode=NO_DECODE, float_chunk=replace(NO_CHUNK, pair_s=2e-9))
    setup = Setup(FACTS, host, weight_format("q4_0"), kv_format_named("bf16"), Layout(), calibration=found)
    assert setup.change(kv=kv_format_named("int4")).deployment().ttft(50) == pytest.approx(2 * setup.deployment().ttft(50))


def test_formats_that_products_read() -> None:
    graph = FACTS.graph
    assert graph is not None
    names = manifest(graph)
    vectors = {name: "F32" for name, shape in names.items() if len(shape) == 1}
    assert linear_formats(graph, dict.fromkeys(names, "Q4_1") | vectors | {"embed": "Q8_0"}) == ("Q4_1", "Q8_0")


def test_the_rest() -> None:
    two = [Span(0, 5, 1, 1), Span(1, 5, 1, 1)]
    assert seconds(step_s=3.0, sequence_s=1.0)(two) == pytest.approx(5.0)
    assert seconds(sample_row_s=1.0, sample_value_s=0.5)(two) == pytest.approx(2 * (1 + 49152 / 2))
    one = seconds(op_s=1.0)
    assert one(two) == one([two[0]]) > 30 * 5
    rows = seconds(value_s=(1.0, 1.0, 1.0))
    assert rows([Span(0, 0, 10, 0)]) == pytest.approx(10 * rows([Span(0, 0, 1, 0)]))


def test_plans_of_a_calibrated_host_are_fitted() -> None:
    machine = Machine("m", 20.0, 300.0, 100.0, 2, "avx2", "measured", "2026-11-30")
    host = host_device(machine, 8e9)
    slow = replace(NOTHING, linear_s={"Q4_1": (1e-10, 2e-10, 8e-10)}, linear_op_s={"Q4_1": (0.0,) * 3}, step_s=1e-3)
    setup = Setup(FACTS, host, weight_format("q4_1"), kv_format_named("bf16"), Layout(), calibration=slow)
    d, plain = setup.deployment(), setup.change(calibration=None).deployment()
    fitted = CalibratedSeconds(FACTS.graph, dict.fromkeys(manifest(FACTS.graph), "Q4_1"), slow)  # type: ignore[arg-type]
    assert d.decode(4, 100).seconds == pytest.approx(fitted([Span(i, 99, 1, 1) for i in range(4)]))
    assert fitted.decode(4, 100) == pytest.approx(fitted([Span(i, 99, 1, 1) for i in range(4)]))
    assert d.ttft(50) == pytest.approx(fitted([Span(0, 0, 50, 1)]))
    assert d.decode(1, 100).seconds != plain.decode(1, 100).seconds
    assert setup.labels()["step_time_ms"].startswith("fitted") and setup.change(calibration=None).labels()["step_time_ms"].startswith(
        "measured"
    )
    # Row 36: the MFU that is shown is the one that the fitted time has.
    shown = next(line for line in explain(d, 1, 50) if line.what == "TTFT")
    mfu = d.demand.step([Span(0, 0, 50, 1)]).flops / d.ceilings.linear_flops_per_s / d.ttft(50)
    assert 0 < mfu < 1 and shown.numbers.endswith(f"x {mfu:.2f})")


@pytest.mark.parametrize("model, form, missing", [("SmolLM2-135M", "q8_0", ("Q8_0",)), ("gpt-oss-20b", "mxfp4", ())])
def test_what_was_not_calibrated_is_timed_by_the_roofline_and_says_so(model: str, form: str, missing: tuple[str, ...]) -> None:
    """A format that this host was not calibrated for, and a model without a graph."""
    host = host_device(Machine("m", 20.0, 300.0, 100.0, 2, "avx2", "measured", "2026-11-30"), 64e9)
    setup = Setup(find_model(model), host, weight_format(form), kv_format_named("bf16"), Layout(), calibration=NOTHING)
    plain = setup.change(calibration=None)
    assert setup.uncalibrated == missing and setup.deployment() == plain.deployment() and setup.labels() == plain.labels()
    said = [note for note in notes(setup, 1024) if "not calibrated on this host" in note]
    assert len(said) == len(missing) and all(form in said[0] for form in missing)
