"""Options -> Plan: what a load comes to on this machine with this model. Pure arithmetic; it opens no file and starts no thread.

KV blocks cost address space, not memory, until they are written; they are still bounded by what the machine could give.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.errors import UserError
from ridgeline.graph.caches import Cache, cache_groups
from ridgeline.kv.layout import group_block_bytes, peak_blocks
from ridgeline.options import KV_DTYPE_NAMES, Options, Plan
from ridgeline.types import KvDtype

DEFAULT_KV_DTYPE: KvDtype = "bf16"
# Weights, activations and the rest of the machine keep the other part.
KV_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Facts:
    """What a plan depends on beside the options: the model's own length and caches, and what the machine has left."""

    path: str
    model_len: int
    caches: tuple[Cache, ...]
    cpus: int
    memory_bytes: int


def resolve(options: Options, facts: Facts) -> Plan:
    """Raises `UserError` for a length that the model or the memory cannot hold, with both numbers."""
    asked = KV_DTYPE_NAMES[options.kv_cache_dtype]
    dtype: KvDtype = DEFAULT_KV_DTYPE if asked == "auto" else asked
    budget = int(facts.memory_bytes * KV_SHARE)
    notes: list[str] = []
    chunk = options.max_num_batched_tokens

    def bytes_for(length: int) -> int:
        return _total(facts.caches, _blocks(facts.caches, length, 1, options.block_size, chunk), options.block_size, dtype)

    length = options.max_model_len or facts.model_len
    if length > facts.model_len:
        text = f"max_model_len is {length}, the model was made for {facts.model_len}"
        raise UserError(text, field="max_model_len", value=length, limit=facts.model_len, remedy=f"use at most {facts.model_len}")
    if bytes_for(length) > budget:
        fits = _longest(bytes_for, length, budget)
        if options.max_model_len is not None or fits < options.block_size:
            raise UserError(
                f"max_model_len {length} needs {bytes_for(length)} bytes of KV cache, {budget} are to be had",
                field="max_model_len", value=length, limit=fits, remedy=f"use --max-model-len {max(1, fits)} or less",
            )  # fmt: skip
        notes.append(f"max_model_len reduced from {length} to {fits}: its KV cache must fit in {budget / 1e9:.1f} GB")
        length = fits
    # As many full-length sequences as fit in the budget, at least one, at most max_num_seqs.
    seqs = max(1, min(options.max_num_seqs, budget // max(1, bytes_for(length))))
    blocks = _blocks(facts.caches, length, seqs, options.block_size, chunk)
    return Plan(
        model=options.model, path=facts.path, backend=options.backend, isa=options.isa, max_model_len=length,
        threads=options.threads or facts.cpus, kv_dtype=dtype, block_size=options.block_size, blocks=blocks,
        kv_bytes=_total(facts.caches, blocks, options.block_size, dtype),
        max_num_seqs=options.max_num_seqs, chunk=chunk, notes=tuple(notes),
    )  # fmt: skip


def _blocks(caches: tuple[Cache, ...], length: int, seqs: int, block_size: int, chunk: int) -> tuple[int, ...]:
    return tuple(seqs * peak_blocks(g.window, block_size, length, chunk) for g in cache_groups(caches))


def _total(caches: tuple[Cache, ...], blocks: tuple[int, ...], block_size: int, dtype: KvDtype) -> int:
    return sum(n * group_block_bytes(g, block_size, dtype) for g, n in zip(cache_groups(caches), blocks, strict=True))


def _longest(bytes_for: Callable[[int], int], high: int, budget: int) -> int:
    """The greatest length whose cache fits, by bisection; 0 when none does."""
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if bytes_for(middle) <= budget else (low, middle - 1)
    return low
