"""Golden numbers of deployments: rows 36-46, 75, 128-133, 138, and the scaling-book's tables; demand against the graph's own costs."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ridgeline.errors import UserError
from ridgeline.graph.step import SharedWalk, Span
from ridgeline.planner import formulas
from ridgeline.planner.catalog import find_model
from ridgeline.planner.cost import GraphCost
from ridgeline.planner.demand import ModelDemand, touched_experts, weight_bytes
from ridgeline.planner.deployment import Deployment
from ridgeline.planner.facts import ModelFacts
from ridgeline.planner.formats import WEIGHT_FORMATS, kv_format_named
from ridgeline.planner.hardware import Machine, devices, find_device, workshop_devices
from ridgeline.planner.load import Traffic, steady
from ridgeline.planner.parallel import Layout, tp_limit
from ridgeline.planner.setup import Overhead, Setup, host_device
from ridgeline.planner.sheet import operating_points

TABLE = devices()
BF16, KV = WEIGHT_FORMATS["bf16"], kv_format_named("bf16")


def setup(model: str | ModelFacts, device: str = "H100 SXM 80GB", *, ideal: bool = True, **more: object) -> Setup:
    facts = find_model(model) if isinstance(model, str) else model
    return Setup(facts, find_device(device, TABLE), BF16, KV, Layout(), ideal).change(**more)


def ideal(model: str | ModelFacts, device: str = "H100 SXM 80GB", **more: object) -> Deployment:
    return setup(model, device, **more).deployment()


ROWS = [
    (None, 1, 26.87, 8.02, 124.7), (None, 64, 79.72, 23.80, 2689), (None, 256, 240.78, 71.87, 3562),
    (8, 1, 22.84, 6.82, 146.7), (8, 64, 33.41, 9.97, 6417), (8, 256, 65.63, 19.59, 13068),
]  # fmt: skip


@pytest.mark.parametrize("kv_heads, batch, gigabytes, ms, rate", ROWS)
def test_llama_13b_on_h100(kv_heads: int | None, batch: int, gigabytes: float, ms: float, rate: float) -> None:
    """Rows 41-43."""
    d = ideal(find_model("Llama-2-13B", kv_heads))
    assert d.memory(batch, 1024).total / 1e9 == pytest.approx(gigabytes, abs=0.006)
    assert d.decode(batch, 1024).seconds * 1e3 == pytest.approx(ms, abs=0.006)
    assert d.throughput(batch, 1024) == pytest.approx(rate, rel=4e-4)


@pytest.mark.parametrize("model, keys, values", [("Llama-3.1-8B", 128, 128), ("DeepSeek-V3 / R1", 576, 512)])
def test_attention_of_a_host_with_pairs_of_bfloat16(model: str, keys: int, values: int) -> None:
    """Scores and values each at their own peak (MLA: only the scores come in pairs); linear layers, and every other device, as before."""
    plain = Machine("m", 40.0, 400.0, 100.0, 2, "avx512", "measured", "2026-11-30")
    pairs = replace(plain, isa="avx512_bf16", bf16_gflops=200.0)

    def peaks(machine: Machine, kv: str) -> tuple[float, float]:
        found = Setup(find_model(model), host_device(machine, 8e12), BF16, kv_format_named(kv), Layout()).deployment().ceilings
        return found.linear_flops_per_s, found.attention_flops_per_s

    mixed = (keys + values) / (keys / 200 + values / (100 if model.startswith("DeepSeek") else 200))
    assert peaks(pairs, "bf16") == peaks(pairs, "int8") == (100e9, pytest.approx(mixed * 1e9))
    for kv in ("f16", "int4", "fp8"):
        assert peaks(pairs, kv) == peaks(plain, kv) == peaks(plain, "bf16") == (100e9, 100e9)
    assert peaks(pairs, "bf16/int4") == (100e9, pytest.approx((keys + values) / (keys / 200 + values / 100) * 1e9))
    d = Setup(find_model("Llama-3.1-8B"), host_device(pairs, 8e12), BF16, kv_format_named("bf16"), Layout()).deployment()
    prefill = operating_points(d, 1, 100_000, "x")[-1]
    assert 100e9 < prefill.flop_s < 200e9  # of linear layers at one peak, of attention at the other
    assert all(device.pairs_tflops is None for device in (*TABLE.values(), *workshop_devices().values()))


def test_llama_13b_limits() -> None:
    """Rows 44 and 45: asymptotes, 64 sequences on 80e9 bytes and 197 on 192e9, fewer once anything else needs memory; ridge 295."""
    d = ideal("Llama-2-13B")
    assert d.asymptote(1024) == pytest.approx(3993.5, abs=0.05)
    assert ideal(find_model("Llama-2-13B", 8)).asymptote(1024) == pytest.approx(19967.6, abs=0.05)
    assert (d.max_users(1024), ideal("Llama-2-13B", memory=192e9).max_users(1024)) == (64, 197)
    assert d.memory(64, 1024).fits and not d.memory(256, 1024).fits
    assert not ideal("Llama-2-13B", overhead=Overhead(1e9)).memory(64, 1024).fits
    real = setup("Llama-2-13B", ideal=False).deployment()
    assert real.max_users(1024) < 64 and not real.memory(64, 1024).fits
    assert d.ridge_batch() == pytest.approx(295.2, abs=0.05)


def test_workshop_users() -> None:
    """Rows 130 and 132, test vector 1: 14.5 GB of weights; 8 GB or a tenth of the device kept free."""
    for device, memory, users in (("A100 SXM", 80e9, 107), ("H200", 141e9, 220), ("A100 40GB", 40e9, 32)):
        assert ideal("Mistral-7B-v0.1", device, weights_total=14.5e9, overhead=Overhead(8e9), memory=memory).max_users(4096) == users
    assert ideal("Mistral-7B-v0.1", "L4 24GB", weights_total=14.5e9, overhead=Overhead(share=0.1)).max_users(4096) == 13
    # C21: the slides say 237, their own formula gives 221.
    assert ideal("Mistral-7B-v0.3", "H200", weights_total=14.0e9, overhead=Overhead(8e9)).max_users(4096) == 221


@pytest.mark.parametrize("batch, context, ms", [(32, 2048, 11.3), (80, 2048, 17.7), (120, 2048, 23.1), (80, 4096, 28.5), (107, 4096, 35.7)])
def test_step_times(batch: int, context: int, ms: float) -> None:
    """Test vector 2; C19: 80 sequences of 4K take 28.5 ms, a bound that cannot be beaten."""
    d = ideal("Mistral-7B-v0.3", "A100 SXM", weights_total=14.0e9, bandwidth=2.0e12)
    assert d.decode(batch, context).seconds * 1e3 == pytest.approx(ms, abs=0.051)


FOUR_K = {"A10G": 29.6, "L4": 59.2, "A100 40GB": 11.4, "A100 80GB": 8.71, "L40S": 20.6, "H100": 5.30, "H200": 3.70, "MI300X": 3.35}
SIXTEEN_K = {"A10G": 48.4, "L4": 96.8, "A100 40GB": 18.7, "A100 80GB": 14.2, "L40S": 33.6, "H100": 8.67, "H200": 6.05, "MI300X": 5.48}


@pytest.mark.parametrize("context, golden", [(4096, FOUR_K), (16384, SIXTEEN_K)])
def test_premium_chat_steps(context: int, golden: dict[str, float]) -> None:
    """Row 138, test vectors 3 and 4, to the digits that are printed."""
    for name, device in workshop_devices().items():
        ms = setup("Mistral-7B-v0.3", weights_total=14.0e9).change(device=device).deployment().decode(7, context).seconds * 1e3
        assert ms == pytest.approx(golden[name], abs=0.0051 if golden[name] < 10 else 0.051)


SCALING_BOOK = [
    (1.0, 1, 4.98, 200.6), (1.0, 8, 12.13, 659.3), (1.0, 16, 20.30, 788.0), (1.0, 32, 36.65, 873.2), (1.0, 64, 69.33, 923.1),
    (1.0, 240, 249.09, 963.5), (0.2, 1, 4.17, 239.9), (0.2, 8, 5.60, 1429), (0.2, 16, 7.23, 2212), (0.2, 32, 10.50, 3048),
    (0.2, 64, 17.04, 3757), (0.2, 240, 52.99, 4529),
]  # fmt: skip


@pytest.mark.parametrize("share, batch, ms, rate", SCALING_BOOK)
def test_scaling_book_table(share: float, batch: int, ms: float, rate: float) -> None:
    """8 TPU v5e, Llama-2-13B, 8192 tokens: with the book's rounded inputs exactly, with the exact ones within 0.5%."""
    seconds = formulas.decode_step_seconds(26e9, 6.7e9 * share, batch, 13e9, 8 * 8.2e11, 8 * 197e12)
    assert seconds * 1e3 == pytest.approx(ms, abs=0.0055)
    assert batch / seconds == pytest.approx(rate, rel=4e-4)
    if share == 1.0:
        d = ideal("Llama-2-13B", "TPU v5e", layout=Layout(tp=8), bandwidth=8.2e11)
        assert d.decode(batch, 8192).seconds * 1e3 == pytest.approx(ms, rel=5e-3)


def test_scaling_book_quiz() -> None:
    """30B in int8 on 4x4 v5e, 8192 tokens of 100 kB."""
    for batch, ms in ((4, 2.5), (256, 21)):
        seconds = formulas.decode_step_seconds(30e9, 8192 * 100e3, batch, 30e9, 16 * 8.2e11, 16 * 197e12)
        assert seconds * 1e3 == pytest.approx(ms, rel=0.02)


def test_critical_batches() -> None:
    """240 on v5e in bf16; int8 weights with bf16 maths halve it; A100 153 (the workshop rounds to 156)."""
    v5e = setup("Llama-2-13B", "TPU v5e")
    assert v5e.deployment().ridge_batch() == pytest.approx(240.5, abs=0.05)
    assert v5e.change(form=WEIGHT_FORMATS["int8"]).deployment().ridge_batch() == pytest.approx(120.3, abs=0.05)
    assert v5e.change(form=WEIGHT_FORMATS["int8"], math="int8").deployment().ridge_batch() == pytest.approx(240.5, abs=0.05)
    assert ideal("Llama-2-13B", "A100 SXM").ridge_batch() == pytest.approx(153.0, abs=0.05)


def test_decode_slope_is_kv_over_bandwidth() -> None:
    """Row 133."""
    d = ideal("Mistral-7B-v0.3")
    slope = (d.decode(1, 3000).seconds - d.decode(1, 1000).seconds) / 2000
    assert slope == pytest.approx(131_072 / 3.35e12)


def test_ttft() -> None:
    """Row 36: FLOPs / peak; HF's 54 ms for 1,670 tokens of Mistral-7B is 45% of the peak by 2 P S, 48% with the attention."""
    d = ideal("Mistral-7B-v0.1")
    assert d.ttft(1670) / 0.054 == pytest.approx(0.48, abs=0.005)
    linear = 2 * 7.24e9 * 1670 / 989e12
    assert linear / 0.054 == pytest.approx(0.453, abs=0.001)
    assert d.ttft(2000, cached=1000) < d.ttft(2000)
    assert ideal("Mistral-7B-v0.1").ttft(1) == pytest.approx(2 * find_model("Mistral-7B-v0.1").idealized().params / 3.35e12)
    real = setup("Mistral-7B-v0.1", ideal=False).deployment()
    assert real.ttft(1670) == pytest.approx(0.05, rel=0.15)


@pytest.mark.parametrize("name", ["Qwen2.5-0.5B", "Gemma-3-270M", "SmolLM2-135M", "Mistral-7B-v0.1", "Qwen3-0.6B"])
def test_demand_is_the_graphs_cost(name: str) -> None:
    """Clock's and planner's bytes are the graph's, for steps of any kind."""
    facts = find_model(name)
    assert facts.graph is not None
    sizes = {n: 2 * _product(s) for n, s in _manifest(facts).items()}
    book, demand = GraphCost(facts.graph, sizes, "bf16"), ModelDemand(facts, weight_bytes(facts, BF16), KV)
    rng = random.Random(1)
    for _ in range(30):
        spans = [Span(i, rng.randrange(6000), rng.choice((0, 1, 1, 7, 600)), 0) for i in range(rng.randrange(1, 9))]
        spans = [replace(s, want=rng.randrange(min(3, s.new) + 1)) for s in spans]
        total, asked = book.total(book.work(spans)), demand.step(spans)
        assert asked.kv_bytes == total.kv_read_bytes
        assert asked.write_bytes == total.kv_write_bytes
        assert asked.linear_flops == total.linear_flops
        # Norm weights of unwanted rows are read all the same; biases count as weights.
        assert asked.weight_bytes == pytest.approx(total.weight_bytes, rel=2e-4)


def test_shared_walks_save_reads() -> None:
    facts = find_model("Llama-3.2-1B")
    demand = ModelDemand(facts, weight_bytes(facts, BF16), KV)
    spans = [Span(i, 1000, 1, 1) for i in range(4)]
    saved = demand.step(spans).kv_bytes - demand.step(spans, [SharedWalk((0, 1, 2, 3), 768)]).kv_bytes
    assert saved == 3 * 768 * 32_768


def test_decode_is_the_step_of_equal_spans() -> None:
    facts = find_model("gpt-oss-20b")
    demand = ModelDemand(facts, weight_bytes(facts, WEIGHT_FORMATS["mxfp4"]), KV)
    assert demand.decode(5, 900) == demand.step([Span(i, 899, 1, 1) for i in range(5)])


def test_experts() -> None:
    """One token meets k of them, many tokens all."""
    assert touched_experts(128, 8, 1) == pytest.approx(8)
    assert touched_experts(128, 8, 100000) == pytest.approx(128)
    facts = find_model("Qwen3-30B-A3B")
    demand = ModelDemand(facts, weight_bytes(facts, BF16), KV)
    one, many = demand.decode(1, 100), demand.decode(4096, 100)
    assert one.weight_bytes == pytest.approx(2 * (facts.active_params - facts.parts.embed), rel=0.01)
    assert many.weight_bytes == pytest.approx(2 * (facts.params - facts.parts.embed + 4096 * facts.dim), rel=0.01)


def test_sparse_attention_reads_less_than_it_holds() -> None:
    """C37: V3.2's decode still scores every index key, but reads 2048 latents only."""
    facts = find_model("DeepSeek-V3.2")
    demand = ModelDemand(facts, weight_bytes(facts, BF16), KV)
    assert demand.decode(1, 100_000).kv_bytes == 61 * 2 * (2048 * 576 + 100_000 * 128)
    assert demand.decode(1, 1000).kv_bytes == 1000 * 85_888


def test_tensor_parallel() -> None:
    """Row 38: heads shard KV at most K ways, then sequences do; messages cost; the ideal ones cost nothing."""
    facts = find_model("Llama-3.1-70B")
    lay = Layout(tp=16)
    assert (lay.kv_shards(facts, 1), lay.kv_shards(facts, 2), Layout(tp=4).kv_shards(facts, 1)) == (8, 16, 4)
    assert lay.message_bytes(facts, 3) == 80 * 2 * (2 * 15 / 16) * 3 * 8192 * 2
    real = setup("Llama-3.1-70B", ideal=False)
    four, two = (real.change(layout=Layout(tp=n)).deployment() for n in (4, 2))
    assert four.decode(8, 4096).messages_s > 0
    assert four.decode(8, 4096).seconds < two.decode(8, 4096).seconds < 2 * four.decode(8, 4096).seconds
    assert not two.memory(64, 4096).fits and four.memory(64, 4096).fits
    assert ideal("Llama-3.1-70B", layout=Layout(tp=4)).decode(8, 4096).messages_s == 0
    # Scaling-book: F / (B beta), beta about 8 on v5e by its numbers.
    assert tp_limit(facts, 1, 8 * 100, 100) == 28672 / 8


def test_layouts_that_cannot_be() -> None:
    for bad in (Layout(tp=3), Layout(pp=99)):
        with pytest.raises(UserError, match=r"--tp is 3|--pp is 99"):
            ideal("Llama-3.1-8B", layout=bad)
    with pytest.raises(UserError, match="--tp is 0"):
        Layout(tp=0)
    with pytest.raises(UserError, match="no known link"):
        setup("Llama-3.1-8B", "Apple M4 Max (40", ideal=False, layout=Layout(tp=2)).deployment()


def test_replicas_scale_throughput_alone() -> None:
    """Row 37, at the level of plans: see test_report. A pipeline keeps a token's time and multiplies throughput."""
    one, two = (setup("Llama-3.1-8B", layout=Layout(pp=n)).deployment() for n in (1, 2))
    assert two.decode(4, 1000).seconds == one.decode(4, 1000).seconds
    assert two.throughput(4, 1000) == 2 * one.throughput(4, 1000)


def test_quantized_weights_do_not_quantize_the_cache() -> None:
    """C23."""
    small = setup("Mistral-7B-v0.3", form=WEIGHT_FORMATS["int4"]).deployment()
    assert small.sequence_bytes(4096) == ideal("Mistral-7B-v0.3").sequence_bytes(4096)
    assert setup("Mistral-7B-v0.3", kv=kv_format_named("fp8")).deployment().sequence_bytes(4096) * 2 == small.sequence_bytes(4096)


def test_math_falls_back_where_a_peak_is_unknown() -> None:
    """fp8 weights on an A100 are widened; asking for fp8 math there is refused; B300's int8 is as slow as the table says."""
    a100 = setup("Llama-3.1-8B", "A100 SXM", form=WEIGHT_FORMATS["fp8"])
    assert a100.chosen_math == "bf16" and setup("Llama-3.1-8B", form=WEIGHT_FORMATS["fp8"]).chosen_math == "fp8"
    with pytest.raises(UserError, match="no known fp8 peak"):
        a100.change(math="fp8").deployment()
    assert setup("Llama-3.1-8B", "B300", form=WEIGHT_FORMATS["int8"], math="int8").deployment().ceilings.linear_flops_per_s == 153.5e12


def test_memory_is_never_negative_and_counts_logits() -> None:
    """PL-03: weights alone too large gives 0 users; a chunk's buffers and float32 logits count."""
    d = setup("Llama-3.1-405B", ideal=False).deployment()
    assert d.max_users(1000) == 0 and d.max_context(1) == 0 and d.best_batch(1000) == 0
    gemma = setup("Gemma-3-1B", ideal=False).deployment()
    assert gemma.activation_bytes(8192) > 8192 * 262_144 * 4
    with pytest.raises(UserError, match="--memory is 0"):
        setup("Gemma-3-1B", memory=0.0).deployment()


def test_best_batch_keeps_the_promise() -> None:
    """Row 162: the optimum is the last batch under the line."""
    d = ideal("Mistral-7B-v0.3", weights_total=14.0e9)
    best = d.best_batch(4096, 0.010)
    assert d.decode(best, 4096).seconds <= 0.010 < d.decode(best + 1, 4096).seconds
    assert d.best_batch(4096, 0.001) == 0
    assert d.best_batch(4096) == d.max_users(4096)


def test_the_knee() -> None:
    """Row 11: where more sequences bring no more tokens; on a device that computes slowly that is the ridge."""
    slow = setup("SmolLM2-135M", "Apple M4 Max (40", ideal=False).deployment()
    knee = slow.knee(512)
    assert knee < slow.max_users(512)
    assert slow.throughput(knee, 512) >= 0.999 * slow.throughput(slow.max_users(512), 512) > slow.throughput(knee - 1, 512)
    assert ideal("Llama-2-13B").knee(1024) == 64 and ideal("Llama-3.1-405B").knee(10) == 0


def test_the_knee_of_a_host_whose_times_turn_back() -> None:
    """Calibrated steps may cost more than their share beyond some batch: the knee is at the most throughput, not at the most users."""

    class Turning:
        def decode(self, batch: int, context: int) -> float:
            return 0.001 + 0.0001 * batch + 0.00001 * batch**2

    host = replace(ideal("Llama-2-13B"), ideal=False, calibrated=Turning())  # type: ignore[arg-type]
    best = max(range(1, host.max_users(1024) + 1), key=lambda b: host.throughput(b, 1024))
    knee = host.knee(1024)
    assert knee <= best < host.max_users(1024)
    assert host.throughput(knee, 1024) >= 0.97 * host.throughput(best, 1024)


def test_longest_context() -> None:
    d = ideal("Mistral-7B-v0.3")
    assert d.max_context(1) == 32768
    longest = d.max_context(60)
    assert d.memory(60, longest).fits and not d.memory(60, longest + 1).fits


def test_steady_state() -> None:
    """Little's law: what is in flight, decoding, is rate x output x time per token; more than can be served is said so."""
    d = setup("Llama-3.1-8B", ideal=False).deployment()
    traffic = Traffic(5.0, 2048, 256)
    found = steady(d, traffic)
    assert found is not None and found.stable and 0 < found.utilization < 1
    assert found.in_flight == pytest.approx(5.0 * 256 * found.itl_s, rel=0.02)
    busier = steady(d, replace(traffic, rate=10.0))
    assert busier is not None and busier.itl_s > found.itl_s and busier.utilization == pytest.approx(2 * found.utilization)
    halved = steady(d, replace(traffic, rate=10.0), 2)
    assert halved == found
    over = steady(d, replace(traffic, rate=1000.0))
    assert over is not None and not over.stable and over.utilization == 1
    cached = steady(d, replace(traffic, cached=1024))
    assert cached is not None and cached.max_rate > found.max_rate and cached.cached_s > 0 == found.cached_s
    assert steady(setup("Llama-3.1-405B", ideal=False).deployment(), traffic) is None


def _manifest(facts: ModelFacts) -> dict[str, tuple[int, ...]]:
    from ridgeline.graph.manifest import manifest

    assert facts.graph is not None
    return manifest(facts.graph)


def _product(shape: tuple[int, ...]) -> int:
    found = 1
    for n in shape:
        found *= n
    return found
