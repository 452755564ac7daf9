"""KV blocks that one sequence holds as it grows, from the engine's own allocator: full layers grow, window layers stop. Loads no model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ridgeline.graph.caches import Cache, cache_groups
from ridgeline.kv.layout import group_block_bytes, peak_blocks
from ridgeline.kv.manager import NO_HIT, KvCache


@dataclass(frozen=True, slots=True)
class Held:
    """Layers of one window (None: full attention). blocks: in use at each of the asked lengths; block_bytes: of a block in all layers;
    most: blocks in use at any length up to the longest."""

    window: int | None
    layers: int
    block_bytes: int
    blocks: tuple[int, ...]
    most: int

    @property
    def bytes(self) -> tuple[int, ...]:
        return tuple(n * self.block_bytes for n in self.blocks)


def held(caches: Iterable[Cache], dtype: str, block_size: int, lengths: Sequence[int]) -> tuple[Held, ...]:
    """One sequence, a token at a time, through `KvCache`; lengths rising."""
    groups = cache_groups(caches)
    pools = [peak_blocks(g.window, block_size, lengths[-1]) + 1 for g in groups]
    cache = KvCache([g.window for g in groups], pools, block_size, "off")
    table = cache.open(b"", NO_HIT)
    at, most = [list[int]() for _ in groups], [0] * len(groups)
    for past in range(lengths[-1]):
        cache.grow(table, past, 1)
        cache.settle()
        used = [in_use for _, _, in_use in cache.usage()]
        most = [max(a, b) for a, b in zip(most, used, strict=True)]
        if past + 1 in lengths:
            for blocks, count in zip(at, used, strict=True):
                blocks.append(count)
    return tuple(
        Held(g.window, len(g.members), group_block_bytes(g, block_size, dtype), tuple(blocks), n)
        for g, blocks, n in zip(groups, at, most, strict=True)
    )


def window_lines(found: Sequence[Held], lengths: Sequence[int], block_size: int) -> list[str]:
    """A line for each window: what its layers hold within it and beyond."""
    lines = []
    for h in found:
        if h.window is None:
            continue
        beyond = [n for n, size in zip(lengths, h.bytes, strict=True) if n > h.window]
        most = -(-(h.window - 1) // block_size) + 1
        kept = "stay at" if h.most <= most else "GROW TO"
        said = f"from there on they {kept} {h.most} blocks, {h.most * h.block_bytes / 1e6:.2f} MB" if beyond else "not passed here"
        lines.append(f"  KV of the {h.layers} layers with a window of {h.window:,} tokens: {said}")
    return lines
