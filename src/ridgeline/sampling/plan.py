"""What to do with which logits row, as data. Backends draw; `sampling/transforms` defines what a draw means."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One draw. The transforms apply in this order: mask, logit bias, penalties, (greedy stops here), temperature, top-k, top-p, min-p.

    row: index into the logits rows of the last forward.
    seed, choice, position: key of the counter-based noise; `position` is the position that the drawn token will have.
    prompt_ids / output_ids: ids seen so far, int32, for the penalties (repetition counts both, presence and frequency the output only).
    allowed: uint32 bit mask [ceil(vocab / 32)], bit i of word i // 32 set = id allowed (grammar), or None.
    logprobs: how many alternatives to report beside the drawn token; None reports nothing.
    given: nothing is drawn or transformed, the row "draws" this id: log-probabilities of known tokens (prompts, drafts).
    """

    row: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    choice: int = 0
    position: int = 0
    prompt_ids: npt.NDArray[np.int32] | None = None
    output_ids: npt.NDArray[np.int32] | None = None
    bias_ids: npt.NDArray[np.int32] | None = None
    bias_values: npt.NDArray[np.float32] | None = None
    allowed: npt.NDArray[np.uint32] | None = None
    logprobs: int | None = None
    given: int | None = None


@dataclass(frozen=True, slots=True)
class SamplePlan:
    """All draws of a step. `vocab` is the tokenizer's size: ids from there on (padding of the head) are never drawn."""

    rows: tuple[SampleRow, ...]
    vocab: int


@dataclass(frozen=True, slots=True)
class TopLogprobs:
    """Raw log-softmax (before bias, penalties, temperature and masks) of the drawn id and of the k best, best first."""

    ids: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Sampled:
    """tokens: int32 [n], -1 where the row failed; failed: bool [n], a NaN or infinite logit, or nothing allowed.
    logprobs: float32 [n] of the drawn ids (NaN where not asked for); top: per row, None where not asked for."""

    tokens: npt.NDArray[np.int32]
    failed: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float32]
    top: tuple[TopLogprobs | None, ...]
