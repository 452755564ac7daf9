"""What a draw means: the numpy definition that every backend's sampler must equal, token for token. Knows nothing of models or steps.

Ids are ordered by (logit descending, id ascending). Softmax masses are sums of integer weights (`exact.weights`), which have one value
in any order, so nothing here depends on chunks, threads or batch mates.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ridgeline.sampling import exact
from ridgeline.sampling.plan import Sampled, SamplePlan, SampleRow, TopLogprobs

F32 = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]

# Below this a temperature is greedy (vLLM's limit too): the noise could no longer bridge any difference that float32 logits show.
GREEDY_BELOW = 1e-5
_MAX = np.finfo(np.float32).max
_TINY = np.finfo(np.float32).tiny
_NO_TOP = TopLogprobs(np.zeros(0, np.int32), np.zeros(0, np.float32))


def sample_rows(logits: F32, plan: SamplePlan) -> Sampled:
    """Draw one token per row of the plan.  logits: float32 [rows, width], width >= 1; ids from plan.vocab on are never drawn.

    A row that does not exist, with a NaN or +inf among its first `vocab` logits, or with no id left, fails alone, and so does a `given`
    id outside the vocabulary. -inf is an id that is never drawn.
    """
    vocab = min(plan.vocab, logits.shape[1])
    if vocab > exact.MAX_VOCAB:
        raise ValueError(f"vocabulary of {vocab} ids, at most {exact.MAX_VOCAB}")
    n = len(plan.rows)
    tokens, failed = np.full(n, -1, np.int32), np.ones(n, np.bool_)
    logprobs = np.full(n, np.nan, np.float32)
    top: list[TopLogprobs | None] = [None if row.logprobs is None else _NO_TOP for row in plan.rows]
    for i, row in enumerate(plan.rows):
        if not 0 <= row.row < len(logits):
            continue
        raw = np.ascontiguousarray(logits[row.row, :vocab], np.float32)
        if not bool((raw <= _MAX).all()):
            continue
        token = draw(adjusted(raw, row), row) if row.given is None else _known(raw, row.given)
        tokens[i], failed[i] = token, token < 0
        if row.logprobs is not None and token >= 0:
            logprobs[i], top[i] = _logprobs(raw, token, row.logprobs)
    return Sampled(tokens, failed, logprobs, tuple(top))


def _known(raw: F32, given: int) -> int:
    """The given id, -1 when it is outside the vocabulary or no id has any probability."""
    return given if 0 <= given < len(raw) and float(raw.max()) > -np.inf else -1


def adjusted(raw: F32, row: SampleRow) -> F32:
    """Mask, logit bias, then penalties as vLLM documents them: repetition (prompt and output), frequency and presence (output only)."""
    out = raw.copy()
    vocab = len(out)
    if row.allowed is not None:
        bits = np.unpackbits(row.allowed.astype("<u4").view(np.uint8), bitorder="little")[:vocab].astype(np.bool_)
        out[: len(bits)][~bits] = -np.inf
        out[len(bits) :] = -np.inf
    if row.bias_ids is not None and row.bias_values is not None:
        inside = (row.bias_ids >= 0) & (row.bias_ids < vocab)
        np.add.at(out, row.bias_ids[inside], row.bias_values[inside].astype(np.float32))
        np.minimum(out, _MAX, out=out)
    prompt, output = _counts(row.prompt_ids, vocab), _counts(row.output_ids, vocab)
    if row.repetition_penalty != 1.0:
        factor = max(np.float32(row.repetition_penalty), _TINY)
        seen = (prompt > 0) | (output > 0)
        with np.errstate(over="ignore"):
            out[seen] = np.minimum(np.where(out[seen] > 0, out[seen] / factor, out[seen] * factor), _MAX)
    if row.frequency_penalty != 0.0 or row.presence_penalty != 0.0:
        used = output > 0
        out[used] = out[used] - np.float32(row.frequency_penalty) * output[used].astype(np.float32)
        out[used] = np.minimum(out[used] - np.float32(row.presence_penalty), _MAX)
    return out


def _counts(ids: Ids | None, vocab: int) -> npt.NDArray[np.int64]:
    if ids is None:
        return np.zeros(vocab, np.int64)
    return np.bincount(ids[(ids >= 0) & (ids < vocab)], minlength=vocab)


def draw(logits: F32, row: SampleRow) -> int:
    """The id that an adjusted row draws, -1 when no id is left.  Greedy: first of the order; else argmax of x + noise over kept ids."""
    best = int(np.argmax(logits))
    if logits[best] == -np.inf:
        return -1
    if row.temperature < GREEDY_BELOW or row.top_k == 1:
        return best
    ids, x = kept(logits, row)
    score = x.astype(np.float64) + exact.gumbel(exact.noise_key(row.seed, row.choice, row.position), ids)
    return int(ids[score == score.max()].min())


def kept(logits: F32, row: SampleRow) -> tuple[Ids, F32]:
    """Ids that survive top-k, top-p and min-p, in order, and x = (logit - max) / temperature, float32."""
    ids = np.flatnonzero(logits > -np.inf).astype(np.int32)
    order = np.argsort(-logits[ids], kind="stable")
    ids = ids[order]
    if 0 < row.top_k < len(ids):
        ids = ids[: row.top_k]
    with np.errstate(over="ignore"):
        x = (logits[ids] - logits[ids[0]]) / np.float32(row.temperature)
    count = len(ids)
    if row.top_p < 1.0:
        # Rank r is kept while the mass before it is below top_p of the whole: the smallest set that reaches top_p.
        mass = np.cumsum(exact.weights(x))
        before = np.concatenate([np.zeros(1, np.int64), mass[:-1]]).astype(np.float64)
        count = max(1, int((before < row.top_p * float(mass[-1])).sum()))
    if row.min_p > 0.0:
        count = min(count, int((x >= np.float32(math.log(row.min_p))).sum()))
    return ids[:count], x[:count]


def _logprobs(raw: F32, token: int, k: int) -> tuple[np.float32, TopLogprobs]:
    """Raw log-softmax of `token` and of the k best ids that are not -inf."""
    high = raw.max()
    with np.errstate(over="ignore"):
        total = exact.weights(raw - high).sum()
    log_total = exact.log(np.array([float(total) * 2.0**-exact.WEIGHT_BITS]))[0]

    def value(ids: Ids) -> F32:
        exact_values = (raw[ids].astype(np.float64) - float(high)) - float(log_total)
        with np.errstate(over="ignore"):
            return np.asarray(exact_values, np.float32)

    ids = np.flatnonzero(raw > -np.inf).astype(np.int32)
    ids = ids[np.argsort(-raw[ids], kind="stable")[:k]]
    return value(np.array([token], np.int32))[0], TopLogprobs(ids, value(ids))
