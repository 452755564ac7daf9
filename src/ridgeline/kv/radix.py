"""Prefix tree over real tokens. Nodes begin and end on block boundaries; a match may end anywhere, also inside a block.

Knows which block holds which tokens. Refuses to hash tokens and to know sequences beyond their table; eviction order is the pool's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from ridgeline.errors import InternalError
from ridgeline.graph.step import Int32Array
from ridgeline.kv.blocks import BlockPool
from ridgeline.kv.index import ABSENT, Cursor, Path


class Node:
    """A run of blocks. Only a node without children may be `short`: one block with fewer tokens than a block holds.

    Siblings differ within their first block; none is a prefix of another. Blocks of full attention are present up to some position,
    then gone; those of windows may be gone anywhere. A position with no block left in any group only remembers its tokens.
    """

    __slots__ = ("alive", "blocks", "children", "gone_at", "key", "keys", "parent", "start", "tokens")

    def __init__(
        self, parent: Node | None, start: int, tokens: Int32Array, blocks: list[list[int]], gone_at: list[float | None], key: bytes
    ) -> None:
        self.parent = parent
        self.start = start  # in blocks from position 0
        self.tokens = tokens
        self.blocks = blocks
        self.gone_at = gone_at
        self.key = key
        self.children: dict[bytes, Node] = {}
        self.keys: list[bytes] = []
        self.alive = True

    @property
    def count(self) -> int:
        """Blocks in the run."""
        return len(self.gone_at)

    @property
    def end(self) -> int:
        return self.start + len(self.gone_at)

    def ghost(self, i: int) -> bool:
        """Nothing but tokens left at block i of the run."""
        return all(b[i] == ABSENT for b in self.blocks)

    def attach(self, child: Node) -> None:
        if child.key not in self.children:
            self.keys.insert(bisect_left(self.keys, child.key), child.key)
        self.children[child.key] = child
        child.parent = self

    def detach(self, child: Node) -> None:
        del self.children[child.key]
        del self.keys[bisect_left(self.keys, child.key)]
        child.alive = False


def _key(block: Int32Array) -> bytes:
    # Big-endian, so that byte order is token order and neighbours in `keys` share the longest prefix.
    return block.astype(">i4").tobytes()


def _common(a: Int32Array, b: Int32Array) -> int:
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    first = int(differ.argmax()) if n else 0
    return first if n and differ[first] else n


class RadixIndex:
    """The tree of every namespace. `ghost_blocks` bounds how many evicted blocks are remembered to explain later misses."""

    unit = 1

    def __init__(self, pools: Sequence[BlockPool], windows: Sequence[int | None], block_size: int, ghost_blocks: int = 4096) -> None:
        self._pools = pools
        self._full = tuple(w is None for w in windows)
        self._size = block_size
        self._roots: dict[bytes, Node] = {}
        self._node: list[list[Node | None]] = [[None] * p.size for p in pools]
        self._position: list[list[int]] = [[0] * p.size for p in pools]
        self._ghosts = 0
        self._ghost_limit = ghost_blocks
        self._ghost_queue: deque[Node] = deque()

    @property
    def roots(self) -> Mapping[bytes, Node]:
        """The root of each namespace; roots hold no tokens."""
        return self._roots

    def match(self, space: bytes, tokens: Int32Array) -> Path:
        blocks: tuple[list[int], ...] = tuple([] for _ in self._pools)
        gone_at: list[float | None] = []
        node, at = self._roots.get(space), 0
        known = node is not None
        while node is not None:
            child, same = self._closest(node, tokens[at : at + self._size])
            if child is None:
                break
            if same == self._size:
                same = _common(child.tokens, tokens[at:])
            used = -(-same // self._size)
            for mine, theirs in zip(blocks, child.blocks, strict=True):
                mine.extend(theirs[:used])
            gone_at.extend(child.gone_at[:used])
            at += same
            node = child if same == len(child.tokens) and same % self._size == 0 else None
        return Path(at, blocks, gone_at, known)

    def _closest(self, node: Node, block: Int32Array) -> tuple[Node | None, int]:
        """The child that shares the most tokens of its first block with `block`, and how many (None, 0 if none shares any)."""
        if not node.keys or not len(block):
            return None, 0
        key = _key(block)
        exact = node.children.get(key)
        if exact is not None:
            return exact, len(block)
        at = bisect_left(node.keys, key)
        best: tuple[Node | None, int] = (None, 0)
        for neighbour in node.keys[max(0, at - 1) : at + 1]:
            child = node.children[neighbour]
            same = _common(child.tokens[: self._size], block)
            if same > best[1]:
                best = (child, same)
        return best

    def insert(self, space: bytes, tokens: Int32Array, table: Cursor, computed: int, *, tail: bool) -> None:
        whole = computed // self._size
        partial = tail and computed % self._size > 0
        if table.committed >= whole and not partial:
            return
        node = self._seek(space, tokens, table)
        while table.committed < whole:
            node = self._advance(node, tokens, table, whole)
        table.place = node
        if partial:
            self._insert_tail(node, tokens[whole * self._size : computed], table, whole)

    def _seek(self, space: bytes, tokens: Int32Array, table: Cursor) -> Node:
        """The node in or at the end of which the table's committed blocks end."""
        node = table.place
        if isinstance(node, Node) and node.alive and node.end >= table.committed:
            while table.committed < node.start or (table.committed == node.start and node.parent is not None):
                if node.parent is None:
                    raise InternalError("prefix tree: a path is longer than its parent's")
                node = node.parent
            return node
        node = self._roots.get(space)
        if node is None:
            empty = np.empty(0, np.int32)
            node = self._roots[space] = Node(None, 0, empty, [[] for _ in self._pools], [], space)
        committed, table.committed = table.committed, 0
        while table.committed < committed:
            off = table.committed - node.start
            if off < node.count:
                at = table.committed * self._size
                same = _common(node.tokens[off * self._size :], tokens[at : committed * self._size]) // self._size
                table.committed += same
                if not same:
                    break
            elif (child := node.children.get(_key(self._block(tokens, table.committed)))) is not None:
                node = child
            else:
                break
        return node

    def _block(self, tokens: Int32Array, index: int) -> Int32Array:
        return tokens[index * self._size : (index + 1) * self._size]

    def _advance(self, node: Node, tokens: Int32Array, table: Cursor, whole: int) -> Node:
        """Commit some more blocks of the table, at least one, or step to the node where that can be done."""
        size, done = self._size, table.committed
        off = done - node.start
        if off < node.count:
            same = _common(node.tokens[off * size :], tokens[done * size : whole * size]) // size
            if same:
                self._adopt(node, off, same, table)
                return node
            node = self._split(node, off)
        key = _key(self._block(tokens, done))
        child = node.children.get(key)
        if child is not None:
            return self._enter(child, tokens, table, whole)
        self._drop_covered(node, key)
        rest = tokens[done * size : whole * size]
        if node.parent is not None and not node.children:
            node.tokens = np.concatenate((node.tokens, rest))
        else:
            child = Node(node, done, rest.copy(), [[] for _ in self._pools], [], key)
            node.attach(child)
            node = child
        self._append(node, table, done, whole)
        table.committed = whole
        return node

    def _enter(self, child: Node, tokens: Int32Array, table: Cursor, whole: int) -> Node:
        size, done = self._size, table.committed
        self._adopt(child, 0, _common(child.tokens, tokens[done * size : whole * size]) // size, table)
        return child

    def _append(self, node: Node, table: Cursor, first: int, end: int) -> None:
        for index in range(first, end):
            lost = True
            for group, mine in enumerate(table.blocks):
                block = mine[index]
                node.blocks[group].append(block)
                if block != ABSENT:
                    lost = False
                    self._take(group, block, node, index)
            node.gone_at.append(self._pools[0].now if lost else None)
            if lost:
                self._ghosts += 1
                self._ghost_queue.append(node)

    def _take(self, group: int, block: int, node: Node, index: int) -> None:
        self._pools[group].hold(block)
        self._node[group][block] = node
        self._position[group][block] = index

    def _adopt(self, node: Node, off: int, count: int, table: Cursor) -> None:
        """The same tokens are in the tree already: use its blocks where it has them, give it ours where it lost its own."""
        for i in range(off, off + count):
            index = node.start + i
            was_ghost = node.ghost(i)
            for group, mine in enumerate(table.blocks):
                known, own = node.blocks[group][i], mine[index]
                if own in (known, ABSENT):
                    continue
                if known == ABSENT:
                    node.blocks[group][i] = own
                    self._take(group, own, node, index)
                else:
                    self._pools[group].ref(known)
                    table.replace(group, index, known)
                    self._pools[group].unref(own)
            if was_ghost and not node.ghost(i):
                self._ghosts -= 1
            if all(b[i] != ABSENT for b in node.blocks):
                node.gone_at[i] = None
        table.committed += count

    def _split(self, node: Node, off: int) -> Node:
        """Cut a node before its block `off`; the old object keeps the lower part, so that tables pointing to its end stay right."""
        upper = Node(node.parent, node.start, node.tokens[: off * self._size], [b[:off] for b in node.blocks], node.gone_at[:off], node.key)
        for group, blocks in enumerate(upper.blocks):
            for block in blocks:
                if block != ABSENT:
                    self._node[group][block] = upper
        if node.parent is not None:
            node.parent.attach(upper)
        node.parent = upper
        node.start += off
        node.tokens = node.tokens[off * self._size :]
        node.blocks = [b[off:] for b in node.blocks]
        node.gone_at = node.gone_at[off:]
        node.key = _key(node.tokens[: self._size])
        upper.attach(node)
        if any(upper.ghost(i) for i in range(upper.count)):
            self._ghost_queue.append(upper)
        return upper

    def _drop_covered(self, node: Node, key: bytes) -> None:
        """Remove the short leaf, if there is one, whose tokens the block `key` begins with: it can serve nothing that the block cannot."""
        at = bisect_left(node.keys, key)
        if at and key.startswith(node.keys[at - 1]):
            self._remove(node.children[node.keys[at - 1]])

    def _insert_tail(self, node: Node, rest: Int32Array, table: Cursor, index: int) -> None:
        if index < node.end:
            if len(rest) == _common(node.tokens[(index - node.start) * self._size :], rest):
                return
            node = self._split(node, index - node.start)
        key = _key(rest)
        at = bisect_left(node.keys, key)
        if at < len(node.keys) and node.keys[at].startswith(key):
            return
        self._drop_covered(node, key)
        leaf = Node(node, index, rest.copy(), [[] for _ in self._pools], [], key)
        node.attach(leaf)
        self._append(leaf, table, index, index + 1)

    def drop(self, group: int, block: int) -> None:
        node = self._node[group][block]
        if node is None:
            raise InternalError(f"block {block} of group {group} is not in the prefix tree")
        i = self._position[group][block] - node.start
        # Behind a lost block of full attention nothing can be hit: the windows' blocks there go with it.
        groups = range(len(self._pools)) if self._full[group] else (group,)
        for g in groups:
            self._forget(g, node, i)
        node.gone_at[i] = self._pools[group].now
        if node.ghost(i):
            self._ghosts += 1
            self._ghost_queue.append(node)
            self._prune()

    def _forget(self, group: int, node: Node, i: int) -> None:
        block = node.blocks[group][i]
        if block != ABSENT:
            node.blocks[group][i] = ABSENT
            self._node[group][block] = None
            self._pools[group].unhold(block)

    def _prune(self) -> None:
        """Forget the oldest evicted ends of paths while too many are remembered."""
        while self._ghosts > self._ghost_limit and self._ghost_queue:
            node = self._ghost_queue.popleft()
            if not node.alive or node.children or node.parent is None or not node.ghost(node.count - 1):
                continue
            keep = node.count
            while keep and node.ghost(keep - 1):
                keep -= 1
            if keep:
                self._split(node, keep)
            self._remove(node)
            self._close_empty_root(node.parent)

    def _close_empty_root(self, root: Node) -> None:
        if root.parent is None and not root.children:
            root.alive = False
            del self._roots[root.key]

    def _remove(self, leaf: Node) -> None:
        for i in range(leaf.count):
            self._ghosts -= leaf.ghost(i)
            for group in range(len(self._pools)):
                self._forget(group, leaf, i)
        parent = leaf.parent
        if parent is not None:
            parent.detach(leaf)
            if parent.count and not parent.children and parent.ghost(parent.count - 1):
                self._ghost_queue.append(parent)

    def held(self) -> Iterator[tuple[int, int]]:
        for node in self._nodes():
            for group, blocks in enumerate(node.blocks):
                yield from ((group, b) for b in blocks if b != ABSENT)

    def _nodes(self) -> Iterator[Node]:
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def check(self) -> None:
        ghosts = 0
        for node in self._nodes():
            fault = self._shape_fault(node) or self._block_fault(node)
            if fault:
                raise InternalError(f"prefix tree: {fault} (node at block {node.start})")
            ghosts += sum(max(blocks) == ABSENT for blocks in zip(*node.blocks, strict=True))
        if ghosts != self._ghosts:
            raise InternalError(f"prefix tree: {ghosts} remembered blocks, counted {self._ghosts}")

    def _shape_fault(self, node: Node) -> str | None:
        count, size = node.count, self._size
        short = count == 1 and len(node.tokens) < size
        if len(node.tokens) != count * size and not short:
            return "tokens and blocks differ in length"
        if not node.alive or any(len(b) != count for b in node.blocks):
            return "a dead node is linked, or groups differ in length"
        if node.parent is not None and node.key != _key(node.tokens[:size]):
            return "a key is not the first block"
        if not node.children:
            return None if not node.keys else "keys without children"
        keys = sorted(node.children)
        if short or keys != node.keys or any(b.startswith(a) for a, b in pairwise(keys)):
            return "a short leaf has children, the keys are not sorted, or a sibling is a prefix of another"
        if any(c.parent is not node or c.start != node.end or not c.count for c in node.children.values()):
            return "a child is misplaced"
        return None

    def _block_fault(self, node: Node) -> str | None:
        above = node.parent
        for group, blocks in enumerate(node.blocks):
            owner, position = self._node[group], self._position[group]
            last = above.blocks[group][-1] if above is not None and above.count else 0
            for i, block in enumerate(blocks, node.start):
                if block != ABSENT:
                    if last == ABSENT and self._full[group]:
                        return "full attention has a hole"
                    if owner[block] is not node or position[block] != i:
                        return "a block does not know its node"
                last = block
        return None
