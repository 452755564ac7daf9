"""How many KV blocks a deployment has, per group of caches with one window, as the scheduler's `KvCache` wants them.

The same sums as `Deployment.memory`, turned round. Knows no pool and no sequence.
"""

from __future__ import annotations

from ridgeline.errors import UserError
from ridgeline.kv.layout import peak_blocks
from ridgeline.planner.deployment import Deployment
from ridgeline.planner.facts import BLOCK_SIZE

MAX_BLOCKS = 1 << 20  # per group: more than any scheduler step needs, and few enough to keep in lists


def kv_pool(d: Deployment, longest: int, sequences: int, blocks: int | None = None) -> tuple[tuple[int | None, ...], tuple[int, ...]]:
    """(windows, blocks) of one replica that serves up to `sequences` sequences of at most `longest` tokens; `blocks` overrides the first.

    What memory is left after weights, activations, overhead and states is shared so that all groups run out together.
    Raises `UserError` when not even one sequence fits.
    """
    windows = tuple(sorted({k.cache.window for k in d.facts.kept}, key=lambda w: (w is not None, w))) or (None,)
    weight = {w: sum(k.bytes_per_entry(d.kv) / k.every for k in d.facts.kept if k.cache.window == w) for w in windows}
    need = {w: peak_blocks(w, BLOCK_SIZE, longest, d.chunk) for w in windows}
    memory = d.memory(sequences, 1)
    left = memory.capacity - memory.weights - memory.activations - memory.overhead - sequences * d.facts.state_bytes()
    if d.draft is not None:
        left -= d.draft.bytes(sequences, longest, d.kv, BLOCK_SIZE)
    copies = d.layout.tp / d.layout.kv_shards(d.facts, d.layout.group(sequences))
    per_sequence = sum(need[w] * weight[w] for w in windows) * BLOCK_SIZE * copies
    fits = MAX_BLOCKS if per_sequence == 0 else left / per_sequence
    if fits < 1 and blocks is None:
        has = f"{d.ceilings.name} has {max(0.0, left) / 1e9:.2f} GB left for KV"
        raise UserError(
            f"{has}, one sequence of {longest} tokens needs {per_sequence / 1e9:.2f} GB",
            field="device", value=d.ceilings.name, remedy="shorter sequences, a smaller format, more --tp, or another device",
        )  # fmt: skip
    found = [min(MAX_BLOCKS, int(fits * need[w])) for w in windows]
    if blocks is not None:
        found = [max(1, blocks * n // found[0]) if found[0] else blocks for n in found]
    return windows, tuple(found)
