"""The round numbers that talks on inference like to quote, each computed again and judged.

A claim passes when the computed value lies within its tolerance. What only a benchmark can tell is taken from a run that others reported
(`data/reported.csv`) and says so; nothing here was measured by us.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ridgeline.bench.report_reported import WORKSHOP, rows
from ridgeline.planner.catalog import find_model
from ridgeline.planner.demand import weight_bytes
from ridgeline.planner.formats import weight_format
from ridgeline.planner.hardware import devices, find_device

TOLERANCE = 0.05
# What that run ran.
ALONE, TOGETHER = "Hugging Face transformers, one at a time", "vLLM default, 10 at once"
PLAIN, GUESSING = "vLLM + prefix cache + fp8 KV, 10 at once", "vLLM + all + n-gram speculation, 10 at once"


@dataclass(frozen=True, slots=True)
class Claim:
    """said: as quoted; claimed and found in `unit`. kind: computed here, or cited from a run. found None: nothing to compute it from.
    source: of a cited run."""

    said: str
    claimed: float
    found: float | None
    unit: str
    kind: Literal["computed", "cited", "unverifiable"]
    because: str
    source: str = ""

    @property
    def passes(self) -> bool:
        return self.found is not None and abs(self.found / self.claimed - 1) <= TOLERANCE

    @property
    def verdict(self) -> str:
        return "pass" if self.passes else "open" if self.found is None else "FAIL"


def claims() -> tuple[Claim, ...]:
    """In the order in which they are usually said."""
    mistral, deepseek = find_model("Mistral-7B-v0.1"), find_model("DeepSeek-V2")
    bf16, int4 = weight_format("bf16"), weight_format("int4")
    weights, small = weight_bytes(mistral, bf16).total, weight_bytes(mistral, int4).total
    token = mistral.kv_bytes_per_token("bf16")
    a100 = find_device("A100 SXM 80GB", devices())
    # One multiply and one add for each 2-byte weight: 1 FLOP a byte, against the ridge of the device.
    below = a100.peak("bf16") / (a100.bandwidth_gb_s * 1e9)
    latent = deepseek.kept[0].cache.k_dim
    ran = {r["engine"]: r for r in rows() if r["source"] == WORKSHOP}
    speed = {name: float(r["output_tok_s"]) for name, r in ran.items()}
    itl = {name: float(r["itl_ms"]) for name, r in ran.items()}
    stream = itl[ALONE] / itl[TOGETHER]
    source = f"{WORKSHOP}, {ran[TOGETHER]['date']}: {ran[TOGETHER]['setup']}, {ran[TOGETHER]['workload']}"
    return (
        Claim("a 7B model takes 14.5 GB", 14.5, weights / 1e9, "GB", "computed", f"{mistral.params:,} parameters x 2 bytes"),
        Claim("131 KB of KV a token", 131, token / 1e3, "kB", "computed", f"2 x 32 layers x 8 heads x 128 x 2 bytes = {token:,.0f} B"),
        Claim("80 users of 4K hold 42 GB", 42, 80 * 4096 * token / 1e9, "GB", "computed", "80 x 4096 tokens x 131,072 B"),
        Claim(
            "decode is 80x below the peak", 80, below, "x", "computed",
            "1 FLOP a byte in bf16, not 2, against the ridge of an A100 80GB: twice as far below as said",
        ),
        Claim(
            "4 bits make the model 4x smaller", 4, weights / small, "x", "computed",
            "scales and the 16-bit embedding and head stay: 4.0 to 4.5 GB, not 3.6",
        ),
        Claim(
            "latent attention makes the cache 56x smaller", 56, 2 * 128 * 128 / latent, "x", "computed",
            "against 128 full heads, as the model would have; 14.2x against 32 heads; layers cancel",
        ),
        Claim(
            "one engine is 15x faster than another", 15, speed[TOGETHER] / speed[ALONE], "x", "cited",
            f"ten requests at once against one: of it {stream:.1f}x is a faster stream, the rest is batching", source,
        ),
        Claim(
            "the engine itself is 15x faster", 15, stream, "x", "cited",
            f"the gain of one stream, inter-token {itl[ALONE]:g} against {itl[TOGETHER]:g} ms, in that same run", source,
        ),
        Claim(
            "speculation is 2 to 3x", 2, speed[GUESSING] / speed[PLAIN], "x", "cited",
            "n-gram drafts at ten requests at once, in the talk's own data: they cost throughput; the gain is one of low load", source,
        ),
        Claim(
            "paging gives 24x the throughput", 24, None, "x", "unverifiable",
            f"no set-up was given; the same source's run has {speed[TOGETHER] / speed[ALONE]:.1f}x with ten at once",
        ),
    )  # fmt: skip
