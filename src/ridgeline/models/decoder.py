"""Facts that every decoder-only family shares: its sizes and what may differ from layer to layer. Knows no file format."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.errors import UserError
from ridgeline.models.rope import Rotary


@dataclass(frozen=True, slots=True)
class Sizes:
    """dim: width of the residual; head_dim: of a query and key head; v_dim: of a value head; context_len: positions it was trained
    for; max_model_len: positions the graph's RoPE was fixed for."""

    vocab: int
    dim: int
    head_dim: int
    v_dim: int
    eps: float
    context_len: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class Layer:
    """rotary None: no position embedding; window None: full attention."""

    heads: int
    kv_heads: int
    ffn_dim: int
    rotary: Rotary | None
    window: int | None = None


def check_layers(name: str, sizes: Sizes, layers: tuple[Layer, ...]) -> None:
    """Raise `UserError` for shapes that no layer can have."""
    if sizes.head_dim % 2:
        raise UserError(f"{name}: head_dim is {sizes.head_dim}, must be even", field="head_dim", value=sizes.head_dim)
    for i, layer in enumerate(layers):
        if layer.heads % layer.kv_heads:
            raise UserError(
                f"{name}: layer {i} has {layer.heads} query heads, which {layer.kv_heads} KV heads cannot share evenly",
                field="num_key_value_heads", value=layer.kv_heads, limit=layer.heads,
            )  # fmt: skip


def model_length(asked: int | None, trained: int, reach: int | None = None) -> int:
    """The maximum model length: what was asked, else what the model was trained for. `reach` is how far its RoPE scaling goes
    (default: trained). Raises `UserError` beyond that."""
    limit = max(trained, reach or 0)
    if asked is None:
        return trained
    if not 1 <= asked <= limit:
        raise UserError(
            f"max-model-len is {asked}, the model allows 1 to {limit}",
            field="max_model_len", value=asked, limit=limit, remedy=f"use --max-model-len {limit} or less",
        )  # fmt: skip
    return asked
