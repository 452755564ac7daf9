"""How many prompt tokens a step may carry so that running decodes keep their inter-token latency.

Knows step times, predicted or measured. Refuses to know sequences and blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ridgeline.errors import UserError
from ridgeline.graph.step import Span, Step

Predict = Callable[[Step], float]
_WEIGHT = 0.2  # of a new measurement in the running averages
_UNKNOWN_CHUNKS = 8  # first mixed step, in smallest chunks, before anything is measured


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one step. tokens >= sequences, so that every decode always advances.

    itl_target: seconds between tokens that running decodes should keep; without it, itl_slack times the time of a step without prompt
    tokens (None: no limit), or itl_floor seconds if that is more. alone_every: then every so many steps the decodes go without prompt
    tokens, so that their own time stays known. min_chunk: prompt tokens that any other step may carry, so that prompts always advance;
    max_chunk: per sequence. prompt_rows: logits rows of prompt positions (`Request.prompt_rows`) that a step may ask for, so that their
    buffer stays small.
    """

    tokens: int = 2048
    sequences: int = 256
    itl_target: float | None = None
    itl_slack: float | None = 2.5
    itl_floor: float = 0.0
    alone_every: int | None = None
    min_chunk: int = 16
    max_chunk: int | None = None
    prompt_rows: int | None = None

    def target(self, decode_s: float) -> float | None:
        """Seconds of a step beside decodes that take so long alone; None: as long as it may be."""
        if self.itl_target is not None or self.itl_slack is None:
            return self.itl_target
        return max(self.itl_slack * decode_s, self.itl_floor)

    def __post_init__(self) -> None:
        if self.sequences < 1 or self.min_chunk < 1 or (self.max_chunk is not None and self.max_chunk < 1):
            raise UserError("max_num_seqs and chunks must be at least 1", field="max_num_seqs", value=self.sequences, limit=1)
        if self.alone_every is not None and self.alone_every < 2:
            raise UserError("prompts need every second step at least", field="alone_every", value=self.alone_every, limit=2)
        if self.prompt_rows is not None and self.prompt_rows < 1:
            raise UserError("a step needs room for at least one prompt row", field="prompt_rows", value=self.prompt_rows, limit=1)
        if self.tokens < self.sequences:
            raise UserError(
                f"max_num_batched_tokens is {self.tokens}, less than max_num_seqs {self.sequences}",
                field="max_num_batched_tokens", value=self.tokens, limit=self.sequences, remedy="raise it or lower max_num_seqs",
            )  # fmt: skip


class StepTimes:
    """Running averages of measured steps: seconds of a step of decodes only, and seconds that each prompt token adds. mixed: steps with
    both since the last of decodes only."""

    def __init__(self) -> None:
        self.decode_s: float | None = None
        self.token_s: float | None = None
        self.mixed = 0

    def observe(self, decodes: int, chunk_tokens: int, seconds: float) -> None:
        if decodes:
            self.mixed = self.mixed + 1 if chunk_tokens else 0
        if seconds <= 0:
            return
        if chunk_tokens == 0:
            self.decode_s = _blend(self.decode_s, seconds)
        elif decodes == 0:
            self.token_s = _blend(self.token_s, seconds / chunk_tokens)
        elif self.decode_s is not None:
            self.token_s = _blend(self.token_s, max(0.0, seconds - self.decode_s) / chunk_tokens)

    def chunk(self, budget: Budget, most: int) -> int:
        """Prompt tokens that fit beside the decodes."""
        target = budget.itl_target if self.decode_s is None else budget.target(self.decode_s)
        if target is None or self.token_s is None or self.decode_s is None:
            return most if budget.itl_slack is None and target is None else min(most, _UNKNOWN_CHUNKS * budget.min_chunk)
        return most if self.token_s == 0 else int(min(most, max(0.0, target - self.decode_s) / self.token_s))


def _blend(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)


def chunk_limit(budget: Budget, decodes: list[Span], prefill: Span, times: StepTimes, predict: Predict | None) -> int:
    """Prompt tokens that this step may carry in all. `decodes` are its decode spans, `prefill` the first chunk that wants in."""
    most = budget.tokens - len(decodes)
    if not decodes or (budget.itl_target is None and budget.itl_slack is None):
        return most
    if budget.itl_target is None and budget.alone_every is not None and times.mixed >= budget.alone_every - 1:
        return 0
    allowed = times.chunk(budget, most) if predict is None else _predicted(budget, decodes, prefill, predict, most)
    return min(most, max(allowed, budget.min_chunk))


def _predicted(budget: Budget, decodes: list[Span], prefill: Span, predict: Predict, most: int) -> int:
    """The chunk that comes nearest to what the prediction allows, by secant steps: its time is nearly linear in the chunk. Rounded, not
    cut: far into a prompt a few tokens fill a step.

    Several short prompts are reckoned as one long one: what counts is their tokens together."""

    def seconds(chunk: int) -> float:
        extra = [Span(prefill.seq, prefill.past, chunk, int(chunk == prefill.new))] if chunk else []
        return predict(Step((*decodes, *extra), np.zeros(len(decodes) + chunk, np.int32), ()))

    base, chunk = seconds(0), most
    target = budget.target(base)
    if target is None:
        return most
    for _ in range(3):
        took = seconds(chunk)
        if took <= target or chunk <= budget.min_chunk:
            break
        chunk = max(budget.min_chunk, int(chunk * max(0.0, target - base) / (took - base) + 0.5)) if took > base else chunk
    return chunk
