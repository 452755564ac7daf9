"""Seconds of a narrow step of one sequence, by its rows and by what stands before them: measured on this machine with this model.

Loops of guessing and verifying are sums of such steps, so their time is known before any is run. Knows nothing of guesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np
import numpy.typing as npt

from ridgeline.backends.base import Program
from ridgeline.bench.runner import OneSequence, random_tokens
from ridgeline.graph.step import Span

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17)
_REPEAT = 5


@dataclass(frozen=True, eq=False)
class NarrowTimes:
    """seconds[i, j]: median of a step of widths[j] rows, all wanted, after pasts[i] tokens; linear in between, the nearest beyond."""

    pasts: tuple[int, ...]
    widths: tuple[int, ...]
    seconds: npt.NDArray[np.float64]

    @classmethod
    def measure(cls, program: Program, longest: int, most: int = WIDTHS[-1]) -> NarrowTimes:
        """In turns, so that what else the machine does falls on all widths alike. Writes to the KV cache as if it were empty.

        longest: context that must not be passed; most: rows of the widest step that is asked for."""
        widths = tuple(sorted({*(w for w in WIDTHS if w < most), most}))
        pasts = tuple(p for p in (32, 512) if p + WIDTHS[-1] < longest) or (0,)
        one = OneSequence(program)
        tokens = random_tokens(max(pasts) + WIDTHS[-1], one.vocab)
        for first in range(0, max(pasts), 256):
            program.forward(one.step(first, tokens[first : min(first + 256, max(pasts))], 0))
        took: dict[tuple[int, int], list[float]] = {}
        for turn in range(_REPEAT + 1):
            for i, past in enumerate(pasts):
                for j, width in enumerate(widths):
                    step = one.step(past, tokens[past : past + width], width)
                    begun = perf_counter()
                    program.forward(step)
                    if turn:  # the first finds memory and pages
                        took.setdefault((i, j), []).append(perf_counter() - begun)
        return cls(pasts, widths, np.array([[median(took[i, j]) for j in range(len(widths))] for i in range(len(pasts))]))

    def step(self, past: int, rows: int) -> float:
        """Seconds of one step."""
        by_past = [float(np.interp(rows, self.widths, row)) for row in self.seconds]
        return float(np.interp(past, self.pasts, by_past))

    def spans(self, spans: Sequence[Span]) -> float:
        """Seconds of a step of one sequence."""
        return sum(self.step(span.past, span.new) for span in spans)
