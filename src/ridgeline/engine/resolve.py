"""Options -> Plan: what a load comes to on this machine with this model. Pure arithmetic; it opens no file and starts no thread.

KV blocks cost address space, not memory, until they are written; they are still bounded by what the machine could give.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.errors import UserError
from ridgeline.graph.caches import Cache, cache_groups
from ridgeline.kv.layout import group_block_bytes, join_kv_dtype, peak_blocks
from ridgeline.options import KV_DTYPE_NAMES, Options, Plan, speculative_config
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
    """Raises `UserError` for a length or a budget that the model or the memory cannot hold, with both numbers."""
    dtype = kv_dtype_of(options)
    budget = options.kv_cache_memory_bytes or int(facts.memory_bytes * KV_SHARE)
    if budget > facts.memory_bytes:
        text = f"kv_cache_memory_bytes is {budget}, the machine has {facts.memory_bytes} left"
        raise UserError(text, field="kv_cache_memory_bytes", value=budget, limit=facts.memory_bytes)
    chunk, seqs = options.max_num_batched_tokens, options.max_num_seqs
    if chunk < seqs:
        text = f"max_num_batched_tokens is {chunk}, less than max_num_seqs {seqs}"
        raise UserError(text, field="max_num_batched_tokens", value=chunk, limit=seqs, remedy="raise it, or lower max_num_seqs")
    sizing = _Sizing(facts.caches, options.block_size, dtype, chunk)
    length, notes = _length(options, facts, sizing, budget)
    blocks = sizing.share(length, seqs, budget, fill=options.kv_cache_memory_bytes is not None)
    return Plan(
        model=options.model, path=facts.path, backend=options.backend, isa=options.isa, max_model_len=length,
        threads=options.threads or facts.cpus, kv_dtype=dtype, block_size=options.block_size, blocks=blocks,
        kv_bytes=sizing.bytes(blocks), max_num_seqs=seqs, chunk=chunk, notes=notes,
        prefix_caching=options.enable_prefix_caching, scheduling_policy=options.scheduling_policy,
        max_num_queued_reqs=options.max_num_queued_reqs, itl_target=options.itl_target,
        speculative=speculative_config(options.speculative_config),
    )  # fmt: skip


def kv_dtype_of(options: Options) -> str:
    """The dtype of keys, and that of values where it is another one: "int8/int4"."""
    asked = KV_DTYPE_NAMES[options.kv_cache_dtype]
    keys: KvDtype = DEFAULT_KV_DTYPE if asked == "auto" else asked
    values = "auto" if options.kv_cache_dtype_v is None else KV_DTYPE_NAMES[options.kv_cache_dtype_v]
    return join_kv_dtype(keys, keys if values == "auto" else values)


def _length(options: Options, facts: Facts, sizing: _Sizing, budget: int) -> tuple[int, tuple[str, ...]]:
    """The longest sequence to serve, and what is to be said about it."""
    length = options.max_model_len or facts.model_len
    if length > facts.model_len:
        text = f"max_model_len is {length}, the model was made for {facts.model_len}"
        raise UserError(text, field="max_model_len", value=length, limit=facts.model_len, remedy=f"use at most {facts.model_len}")
    need = sizing.bytes(sizing.blocks(length, 1))
    if need <= budget:
        return length, ()
    fits = sizing.longest(length, 1, budget)
    if options.max_model_len is not None or fits < options.block_size:
        raise UserError(
            f"max_model_len {length} needs {need} bytes of KV cache, {budget} are to be had",
            field="max_model_len", value=length, limit=fits, remedy=f"use --max-model-len {max(1, fits)} or less",
        )  # fmt: skip
    return fits, (f"max_model_len reduced from {length} to {fits}: its KV cache must fit in {budget / 1e9:.1f} GB",)


@dataclass(frozen=True, slots=True)
class _Sizing:
    """Blocks per cache group for so many sequences of some length, and what they weigh."""

    caches: tuple[Cache, ...]
    block_size: int
    dtype: str
    chunk: int

    def blocks(self, length: int, seqs: int) -> tuple[int, ...]:
        return tuple(seqs * peak_blocks(g.window, self.block_size, length, self.chunk) for g in cache_groups(self.caches))

    def bytes(self, blocks: tuple[int, ...]) -> int:
        groups = cache_groups(self.caches)
        return sum(n * group_block_bytes(g, self.block_size, self.dtype) for g, n in zip(groups, blocks, strict=True))

    def longest(self, high: int, seqs: int, budget: int) -> int:
        """The greatest length at which `seqs` sequences fit, by bisection; 0 when there is none."""
        low = 0
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.bytes(self.blocks(middle, seqs)) <= budget else (low, middle - 1)
        return low

    def share(self, length: int, seqs: int, budget: int, *, fill: bool) -> tuple[int, ...]:
        """Blocks for `seqs` sequences, as long as all fit at once, so that no group runs out long before the others; never less than
        one sequence of full length needs. With `fill` what is left over goes to all groups alike."""
        one = self.blocks(length, 1)
        fair = self.blocks(self.longest(length, seqs, budget), seqs)
        blocks = tuple(max(a, b) for a, b in zip(one, fair, strict=True))
        over = self.bytes(blocks) - budget
        if over > 0:  # the full sequence's own blocks come on top: take from the rest in proportion
            rest = tuple(b - a for a, b in zip(one, blocks, strict=True))
            share = 1 - over / max(1, self.bytes(rest))
            blocks = tuple(a + int(r * share) for a, r in zip(one, rest, strict=True))
        elif fill and self.bytes(blocks):
            blocks = tuple(int(b * budget / self.bytes(blocks)) for b in blocks)
        return blocks
