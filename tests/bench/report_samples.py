"""A report document with something in every field, for the tests of reading and drawing."""

from __future__ import annotations

from ridgeline.bench.report_schema import (
    Bar,
    Ceiling,
    Comparison,
    Curve,
    Distribution,
    Gantt,
    Ladder,
    Line,
    LoadPoint,
    Percentiles,
    Plot,
    Prediction,
    ReportDocument,
    Roof,
    Roofline,
    RoofPoint,
    Rung,
    Setup,
    Table,
)  # fmt: skip

USE = tuple((float(i), min(1.0, i / 20)) for i in range(30))
SENTENCE = "ridgeline is 1.43x llama-server, 95% 1.31-1.55"


def setup() -> Setup:
    return Setup(
        machine={"cpu": "Some <CPU> & more", "cores": 2, "memory_bytes": 24e9},
        versions={"ridgeline": "0.1.0", "llama.cpp": "b1234"},
        seeds={"workload": 7},
        settings={"kv_cache_dtype": "bf16", "warm-up": 2},
        commands=("ridgeline bench serve smollm2 --concurrency 1,4,16 --json", 'llama-server -m "a b.gguf" --parallel 16'),
        ceilings=(Ceiling("read bandwidth", 21.5, "GB/s"), Ceiling("int8 products", 240.0, "GOP/s")),
        date="2026-11-30T03:00:00+00:00",
    )


def curve(engine: str, factor: float) -> Curve:
    loads = (1, 2, 4, 8, 16, 32)
    points = tuple(
        LoadPoint(
            float(n), 40, 1 if n == 32 else 0, factor * 60 * n / (1 + n / 8), factor * 90 * n / (1 + n / 8), n / 4,
            n / 4 if n < 16 else 1.5, Percentiles(30.0 * n, 40.0 * n, 45.0 * n, 60.0 * n, 31.0 * n, 80.0 * n, 29.0 * n, 32.0 * n),
            Percentiles(10.0 + n / factor, 12.0 + n, 14.0 + n, 20.0 + n), Percentiles(11.0 + n / factor, 12.0 + n, 15.0 + n, 19.0 + n),
            Percentiles(1000.0 * n, 1100.0 * n), 58 * n / (1 + n / 8), 28.0 * n, 11.5 + n, 0.25, 0.01, 0.002,
        )
        for n in loads
    )  # fmt: skip
    return Curve(engine, "chat", points, slo_ttft_ms=500.0, slo_tpot_ms=30.0, knee=8.0, saturated=32.0)


def ladder() -> Ladder:
    use = tuple((float(n), n / 40) for n in (1, 5, 10, 15, 20))
    return Ladder(
        "SmolLM2, one optimization at a time", "rag, 10 prompts, seed 7",
        (
            Rung("transformers, sequential", output_tok_s=18.0, one_tok_s=18.0, ttft_ms=Percentiles(900.0), itl_ms=Percentiles(55.0)),
            Rung("ridgeline, one at a time", output_tok_s=52.0, one_tok_s=52.0, ttft_ms=Percentiles(300.0), itl_ms=Percentiles(18.0),
                 predicted_output_tok_s=55.0, kv_users=use, kv_context=tuple((200.0 * x, y) for x, y in use)),
            Rung("continuous batching", output_tok_s=210.0, one_tok_s=52.0, ttft_ms=Percentiles(500.0), itl_ms=Percentiles(40.0),
                 predicted_output_tok_s=225.0),
            Rung("+ prefix cache", output_tok_s=300.0, ttft_ms=Percentiles(150.0), itl_ms=Percentiles(32.0), hit_rate=0.8),
            Rung("+ KV int8", output_tok_s=290.0, ttft_ms=Percentiles(155.0), itl_ms=Percentiles(33.0), lossy=True,
                 quality={"mean KL": 0.002, "top-1": "99.1%"}),
            Rung("+ speculation", status="missing", why="no draft runner yet"),
        ),
    )  # fmt: skip


def gantts() -> tuple[Gantt, ...]:
    def bars(slow: float) -> tuple[Bar, ...]:
        found = []
        for i in range(12):
            start = 0.1 * i + slow * (i // 4)
            found.append(Bar(f"r{i}", 0.1 * i, start, start + 0.1, start + 0.9 + 0.1 * i))
        return tuple(found)

    return (
        Gantt("static batching", bars(1.0), 0.42, 120.0, 5.0, "batching", "simulated"),
        Gantt("continuous batching", bars(0.0), 0.11, 200.0, 3.2, "batching", "simulated"),
    )


def whole_document() -> ReportDocument:
    """Something of everything."""
    return ReportDocument(
        "serve", "SmolLM2 on <two> cores", setup(), (curve("ridgeline", 1.0), curve("llama-server", 0.7)),
        (Distribution("TTFT", "ridgeline, 8", tuple(20.0 + 3 * i for i in range(50))),
         Distribution("TTFT", "llama-server, 8", tuple(25.0 + 5 * i for i in range(50))),
         Distribution("ITL", "ridgeline, 8", tuple(10.0 + i % 7 for i in range(200)))),
        (Roofline("this host", 21.5, (Roof("int8", 240.0), Roof("f32", 110.0)),
                  (RoofPoint("decode, batch 1", 2.1, 40.0), RoofPoint("prefill 512", 300.0, 180.0))),),
        (Plot("KV in use", "seconds", "KV in use", (Line("ridgeline", USE),), "kv_time", "%"),
         Plot("Attention", "tokens", "ms", (Line("a", ((1.0, 1.0), (10.0, 12.0), (100.0, 130.0))),), log_x=True, log_y=True)),
        (ladder(),), gantts(),
        (Prediction("SmolLM2, prompt 128, 1 at a time", "TPOT ms", 11.5, 12.0, 0.01), Prediction("1B, 16", "throughput tok/s", 30.0, 22.0)),
        (Comparison("ridgeline", "llama-server", "output tok/s", 1.43, 1.31, 1.55, SENTENCE, 10, True),),
        (Table("Quality", ("switch", "mean KL", "top-1"), (("KV int8", 0.002, 0.991), ("KV <int4>", None, 0.93)), "against bf16 KV"),),
        {"ttft_ms": "sent to first content token", "tpot_ms": "(e2e - TTFT) / (n - 1)"}, ("a remark with <b>marks</b>",),
    )  # fmt: skip
