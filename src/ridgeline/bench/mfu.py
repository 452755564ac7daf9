"""TTFT = FLOPs / (peak x MFU) + what every prompt costs (+ queue): the two constants fitted to measured prompts. Measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.planner.cost import GraphCost
from ridgeline.planner.hardware import Machine
from ridgeline.planner.roofline import predict_prompt, times


@dataclass(frozen=True, slots=True)
class PromptWork:
    """FLOPs of a prompt, and the seconds they take at this machine's peaks (each kind of product at its own)."""

    flops: int
    at_peak_s: float


@dataclass(frozen=True, slots=True)
class PromptModel:
    """mfu: share of the peak that prompts get; fixed_s: seconds of every prompt whatever its length; worst: the greatest error over the
    prompts it was fitted to, as a share of the measured time; peak_gflop_s: of the longest one's mix of products."""

    mfu: float
    fixed_s: float
    worst: float
    peak_gflop_s: float

    @classmethod
    def to(cls, works: Sequence[PromptWork], seconds: Sequence[float]) -> PromptModel:
        """Least squares of relative errors, so that short prompts count; at least two different works. fixed_s is never negative."""
        work, took = np.array([w.at_peak_s for w in works]), np.array(seconds)
        slope, fixed = (float(v) for v in np.polyfit(work, took, 1, w=1 / took))
        if fixed < 0 or slope <= 0:
            share = work / took
            slope, fixed = float(share.sum() / (share**2).sum()), 0.0
        worst = float(np.abs((fixed + slope * work) / took - 1).max())
        return cls(1 / slope, fixed, worst, works[-1].flops / works[-1].at_peak_s / 1e9)

    def seconds(self, work: PromptWork, queue_s: float = 0.0) -> float:
        """TTFT of a prompt that waits `queue_s` first."""
        return work.at_peak_s / self.mfu + self.fixed_s + queue_s

    def together(self, work: PromptWork, prompts: int) -> tuple[float, float]:
        """Mean TTFT of equal prompts that are all there: read as one batch, and one after the other."""
        return self.seconds(PromptWork(prompts * work.flops, prompts * work.at_peak_s)), self.seconds(work) * (prompts + 1) / 2

    def __str__(self) -> str:
        said = (
            f"FLOPs / (peak x MFU) + {self.fixed_s * 1e3:.2f} ms + queue, MFU {self.mfu:.0%} of {self.peak_gflop_s:,.0f} GFLOP/s"
            f" (fitted to these prompts, at most {self.worst:.0%} off)"
        )
        slow = "; over 100%: this machine's peak was measured in a slower moment, `ridgeline bench micro MODEL` measures it anew"
        return said + (slow if self.mfu > 1 else "")


def prompt_work(book: GraphCost, tokens: int, machine: Machine, chunk: int) -> PromptWork:
    """Of a prompt read in chunks, logits of the last token only."""
    cost = predict_prompt(book, tokens, machine, chunk=chunk).cost
    return PromptWork(cost.flops, times(cost, machine).math_s)
