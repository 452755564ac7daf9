"""A GGUF file that no graph of ours reads, because of a tensor type or an architecture: what can still be said of it, and what not.

Sizes come from where tensors lie in the file, so that a type nobody knows still has its bytes; caches from the metadata keys that all
architectures share, as full attention. Everything that is a guess is said in `ModelFacts.partial`. Decodes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from ridgeline.encodings import BY_GGML_ID
from ridgeline.errors import UnsupportedError
from ridgeline.formats.gguf import DEFAULT_ALIGNMENT, HEADER_BYTES, MAX_DIMS, MAX_KEY_BYTES, MAX_NAME_BYTES, MIN_KEY_BYTES, MIN_TENSOR_BYTES
from ridgeline.formats.gguf_values import TRUNCATED, Array, Cursor, Value
from ridgeline.formats.mapped import MappedFile
from ridgeline.graph.caches import Paged
from ridgeline.planner.facts import Kept, ModelFacts, Parts

NORMS = ("norm", "bias")


@dataclass(frozen=True, slots=True)
class Lying:
    """A tensor as its header says, without judging its type."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


def partial_facts(path: Path, why: UnsupportedError) -> ModelFacts:
    """Raises `why` again when even layers, heads and width are not to be had, `FileFormatError` for a file that lies about its sizes."""
    file = MappedFile(path)
    cursor = Cursor(file.raw, 8, file.size, str(path))
    keys, tensors = _header(cursor, file.size)
    alignment = _whole(keys, "general.alignment") or DEFAULT_ALIGNMENT
    held = _bytes(tensors, file.size - -(-cursor.position // alignment) * alignment)
    unknown = sorted({t.kind for t in tensors if t.kind not in BY_GGML_ID})
    arch = str(keys.get("general.architecture"))

    def key(name: str) -> int | None:
        return _whole(keys, f"{arch}.{name}")

    layers, heads, dim = key("block_count"), key("attention.head_count"), key("embedding_length")
    if not layers or not heads or not dim:
        raise why
    kv_heads, k_dim = key("attention.head_count_kv") or heads, key("attention.key_length") or dim // heads
    v_dim, experts, top_k = key("attention.value_length") or k_dim, key("expert_count") or 0, key("expert_used_count") or 0
    counts = {t.name: prod(t.shape) for t in tensors}
    shared = "output.weight" not in counts
    cache = Paged("kv", kv_heads, k_dim, v_dim)
    embed = next((t for t in tensors if t.name == "token_embd.weight"), None)
    reasons = [f"partly understood: {why}"]
    reasons += [f"tensors of type {', '.join(map(str, unknown))} are counted by the bytes they take in the file"] if unknown else []
    reasons += [f"KV counted as full attention in all {layers} layers ({kv_heads} KV heads of {k_dim} + {v_dim}), from the file's keys"]
    reasons += ["the output layer is taken to be the embedding"] if shared else []
    return ModelFacts(
        path.name, arch, embed.shape[0] if embed else 0, dim, layers, heads, kv_heads, k_dim, key("feed_forward_length") or 0,
        _parts(counts), (Kept(cache, layers, heads),), "config", f"file: {path}", "as stored", experts=experts, top_k=top_k,
        max_context=key("context_length") or 0, stored=_parts(held), partial="; ".join(reasons), expert_layers=layers if experts else 0,
    )  # fmt: skip


def _header(cursor: Cursor, size: int) -> tuple[Mapping[str, Value], list[Lying]]:
    """As `formats.gguf` reads it, which has refused the file only for a type or an architecture; counts are checked here again."""
    n_tensors, n_keys = cursor.u64("tensor count"), cursor.u64("metadata count")
    for what, count, least in (("metadata count", n_keys, MIN_KEY_BYTES), ("tensor count", n_tensors, MIN_TENSOR_BYTES)):
        if count > (size - HEADER_BYTES) // least:
            raise cursor.fail(what, f"is {count}, more than the file can hold", count, remedy=TRUNCATED)
    keys = {cursor.string("metadata key", MAX_KEY_BYTES): cursor.value("metadata value") for _ in range(n_keys)}
    return keys, [_tensor(cursor) for _ in range(n_tensors)]


def _tensor(cursor: Cursor) -> Lying:
    name = cursor.string("tensor name", MAX_NAME_BYTES)
    dims = cursor.u32(f"tensor {name}")
    if not 1 <= dims <= MAX_DIMS:
        raise cursor.fail(f"tensor {name}", f"has {dims} dimensions, 1 to {MAX_DIMS} are allowed", dims, MAX_DIMS)
    shape = tuple(reversed([cursor.u64(f"tensor {name}") for _ in range(dims)]))
    return Lying(name, shape, cursor.u32(f"tensor {name}"), cursor.u64(f"tensor {name}"))


def _bytes(tensors: list[Lying], data_bytes: int) -> dict[str, float]:
    """Bytes of each tensor: of a known type by its blocks, else up to where the next one begins."""
    found: dict[str, float] = {}
    ordered = sorted(tensors, key=lambda t: t.offset)
    for tensor, after in zip(ordered, [*(t.offset for t in ordered[1:]), data_bytes], strict=True):
        encoding = BY_GGML_ID.get(tensor.kind)
        known = None if encoding is None else prod(tensor.shape) // encoding.block_size * encoding.block_bytes
        found[tensor.name] = float(max(0, after - tensor.offset) if known is None else known)
    return found


def _parts(of: Mapping[str, float] | Mapping[str, int]) -> Parts:
    embed, head = of.get("token_embd.weight", 0), of.get("output.weight", 0)
    norms = sum(n for name, n in of.items() if any(word in name for word in NORMS))
    routed = sum(n for name, n in of.items() if "_exps" in name)
    return Parts(embed, head, sum(of.values()) - embed - head - norms - routed, norms, routed)


def _whole(keys: Mapping[str, Value], name: str) -> int | None:
    """A positive whole number, or the greatest of an array of them; None for anything else."""
    value = keys.get(name)
    found = max((v for v in value if isinstance(v, int)), default=0) if isinstance(value, Array) and len(value) else value
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 < found < 1 << 31 else None
