"""GGUF metadata keys that every architecture shares. Knows no family."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.models.decoder import Sizes, model_length
from ridgeline.models.facts import Facts
from ridgeline.models.scaling import gguf_reach
from ridgeline.models.store import Store

MAX_LAYERS = 1024
# Keys that change no number of the forward pass. The vocabulary is counted from the embedding itself.
HARMLESS = ("vocab_size", "tensor_data_layout", "rope.scaling.finetuned")


@dataclass(frozen=True, slots=True)
class Shape:
    """sizes, and (heads, kv_heads, ffn_dim) of each layer."""

    sizes: Sizes
    per_layer: tuple[tuple[int, int, int], ...]


def read_shape(facts: Facts, store: Store, max_model_len: int | None) -> Shape:
    """Head counts and feed-forward widths may be one number or one for each layer; key_length defaults to embedding / heads."""
    facts.ignore(HARMLESS)
    facts.must_be("expert_count", 0)
    facts.must_be("expert_used_count", 0)
    facts.must_be("attention.causal", True)
    facts.must_be("use_parallel_residual", False)
    layers, dim = facts.whole("block_count", high=MAX_LAYERS), facts.whole("embedding_length")
    heads = facts.per_layer("attention.head_count", layers)
    kv_heads = facts.per_layer("attention.head_count_kv", layers) if facts.has("attention.head_count_kv") else heads
    head_dim = None
    if not facts.has("attention.key_length"):
        head_dim, rest = divmod(dim, heads[0])
        if rest or len(set(heads)) > 1:
            raise facts.bad("attention.head_count", heads[0], f"a divisor of embedding_length ({dim}) when attention.key_length is absent")
    head_dim = facts.whole("attention.key_length", head_dim)
    context = facts.whole("context_length")
    sizes = Sizes(
        vocab=store.shape("token_embd.weight", 2)[0], dim=dim, head_dim=head_dim, v_dim=facts.whole("attention.value_length", head_dim),
        eps=facts.real("attention.layer_norm_rms_epsilon"), context_len=context,
        max_model_len=model_length(max_model_len, context, gguf_reach(facts, context)),
    )  # fmt: skip
    return Shape(sizes, tuple(zip(heads, kv_heads, facts.per_layer("feed_forward_length", layers), strict=True)))


def window(facts: Facts) -> int | None:
    """The sliding window, None when absent or 0 (how some converters write "none")."""
    value = facts.whole("attention.sliding_window", 0, low=0) if facts.has("attention.sliding_window") else 0
    return value or None


def slides(facts: Facts, layers: int, every: int) -> tuple[bool, ...]:
    """Which layers have the window: all but each `every`-th, or as attention.sliding_window_pattern says (a number, or flags)."""
    pattern = facts.get("attention.sliding_window_pattern")
    if pattern is None or isinstance(pattern, int):
        every = facts.whole("attention.sliding_window_pattern", every)
        return tuple((i + 1) % every != 0 for i in range(layers))
    flags = list(pattern) if hasattr(pattern, "__len__") else []
    if len(flags) != layers or any(not isinstance(f, bool) for f in flags):
        raise facts.bad("attention.sliding_window_pattern", flags or pattern, f"a whole number or {layers} flags")
    return tuple(flags)


def tied(store: Store) -> bool:
    """GGUF has no key for it: a file without a head uses the embedding."""
    return not store.has("output.weight")
