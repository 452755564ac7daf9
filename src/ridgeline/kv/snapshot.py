"""The prefix tree as data for people: its largest nodes, who uses them, since when nobody does, how long they are kept.

Reads one cache between two steps and changes nothing. Knows no tokens' meaning: a node's first ids are shown, not its text.
"""

from __future__ import annotations

from typing import Any

from ridgeline.kv.index import ABSENT
from ridgeline.kv.manager import KvCache
from ridgeline.kv.radix import Node, RadixIndex

_FIRST_IDS = 8


def tree_document(kv: KvCache, limit: int) -> dict[str, Any]:
    """Totals, pools, and the `limit` nodes with the most tokens; parents are named by number. Seconds are the engine's clock's."""
    pools = [{"free_blocks": f, "cached_blocks": c, "used_blocks": u} for f, c, u in kv.usage()]
    document: dict[str, Any] = {"policy": kv.policy, "block_size": kv.block_size, "pools": pools, "nodes_total": 0, "nodes": []}
    if not isinstance(kv.index, RadixIndex):
        return document
    nodes = [(node, space) for space, root in kv.index.roots.items() for node in _walk(root)]
    numbers = {id(node): number for number, (node, _) in enumerate(nodes)}
    largest = sorted(nodes, key=lambda item: -len(item[0].tokens))[:limit]
    document["nodes_total"] = len(nodes)
    document["tokens_total"] = sum(len(node.tokens) for node, _ in nodes)
    document["nodes"] = [_node(kv, node, space, numbers) for node, space in largest]
    return document


def _walk(root: Node) -> list[Node]:
    found, stack = [], list(root.children.values())
    while stack:
        node = stack.pop()
        found.append(node)
        stack += node.children.values()
    return found


def _node(kv: KvCache, node: Node, space: bytes, numbers: dict[int, int]) -> dict[str, Any]:
    """references: sequences that use its last block that is there; idle_s: since when none does, ttl_s: how long it is kept, if at all."""
    there = [(pool, block) for pool, blocks in zip(kv.pools, node.blocks, strict=True) for block in blocks if block != ABSENT]
    references = max((pool.refs[block] for pool, block in there), default=0)
    idle = min((pool.idle_s(block) for pool, block in there), default=None)
    ttl = max((pool.ttl_s(block) for pool, block in there), default=0.0)
    return {
        "node": numbers[id(node)], "parent": numbers.get(id(node.parent)), "namespace": space.hex()[:16],
        "start_token": node.start * kv.block_size, "tokens": len(node.tokens), "blocks": len(there), "children": len(node.children),
        "references": references, "idle_s": None if idle is None or references else round(idle, 3), "ttl_s": round(ttl, 3) if ttl else None,
        "first_ids": node.tokens[:_FIRST_IDS].tolist(),
    }  # fmt: skip
