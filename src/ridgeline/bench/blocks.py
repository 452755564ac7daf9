"""What the prefix cache does with a few prompts, one after the other: hits per policy, block tables, copies, the tree after each.

Runs the real `KvCache` without a model: tokens in, blocks out. Knows no terminal; texts are what the caller's tokenizer says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ridgeline.errors import UserError, one_of, within
from ridgeline.graph.step import Int32Array
from ridgeline.kv.index import ABSENT
from ridgeline.kv.manager import CachePolicy, KvCache, Table
from ridgeline.kv.radix import Node, RadixIndex

Spell = Callable[[Sequence[int]], str]
POLICIES: tuple[CachePolicy, ...] = ("radix", "hash")


@dataclass(frozen=True, slots=True)
class BlocksOptions:
    """blocks: of the pool, each of block_size tokens. n: samples of each prompt, gen: made-up tokens of each sample's answer."""

    block_size: int = 16
    blocks: int = 256
    n: int = 1
    gen: int = 0
    policies: tuple[CachePolicy, ...] = POLICIES

    def __post_init__(self) -> None:
        for name, low in (("block_size", 1), ("blocks", 1), ("n", 1), ("gen", 0)):
            within("--" + name.replace("_", "-"), getattr(self, name), low)
        for policy in self.policies:
            one_of("--policy", policy, POLICIES)


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt under one policy. hit: tokens not computed again; reason: why not more; differs_at: first token that was not found.

    tables: blocks of each sample; blocks_apart: what they would take without sharing; copies: blocks copied, because a hit ended inside
    one or a sample wrote into a shared one; empty_slots: of the last block of each table; evicted: blocks that had to go for it."""

    policy: str
    tokens: int
    hit: int
    reason: str
    differs_at: int | None
    tables: tuple[tuple[int, ...], ...]
    blocks_used: int
    blocks_apart: int
    copies: int
    empty_slots: tuple[int, ...]
    evicted: int
    tree: tuple[Leaf, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A node of the prefix tree. start, tokens: the run it holds; blocks: its blocks, -1 where evicted; text: what it says."""

    depth: int
    start: int
    tokens: int
    blocks: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class BlocksReport:
    """rows: by prompt, one per policy. texts: of the prompts' tokens, as the tokenizer cuts them."""

    options: BlocksOptions
    texts: tuple[tuple[str, ...], ...]
    rows: tuple[tuple[Row, ...], ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def run(prompts: Sequence[Sequence[int]], spell: Spell, options: BlocksOptions) -> BlocksReport:
    """Each prompt in turn: looked up, computed, answered, ended, its prefix kept. Raises `UserError` for one that cannot fit."""
    labs = [_Lab(policy, spell, options) for policy in options.policies]
    rows = []
    for prompt in prompts:
        if not len(prompt):
            raise UserError("a prompt has no tokens", field="PROMPT", value="", remedy="give at least one character")
        rows.append(tuple(lab.serve(np.asarray(prompt, np.int32)) for lab in labs))
    return BlocksReport(options, tuple(tuple(spell([t]) for t in p) for p in prompts), tuple(rows))


class _Lab:
    """Mutable: one cache, and how many answers were made up."""

    def __init__(self, policy: CachePolicy, spell: Spell, options: BlocksOptions) -> None:
        self.kv = KvCache((None,), (options.blocks,), options.block_size, policy)
        self.policy, self.spell, self.options = policy, spell, options
        self._answers = 0

    def serve(self, prompt: Int32Array) -> Row:
        kv, o = self.kv, self.options
        need = -(-(len(prompt) + o.gen) // o.block_size)
        if o.n * need + 1 > o.blocks:
            text = f"a prompt of {len(prompt)} tokens with {o.n} answers of {o.gen} may take {o.n * need + 1} blocks, there are {o.blocks}"
            raise UserError(text, field="--blocks", value=o.blocks, limit=o.n * need + 1, remedy=f"use --blocks {o.n * need + 1} or more")
        kv.now += 1.0
        evicted = kv.counts["evictions"]
        limit = len(prompt) - 1  # one token is always computed: its logits are what the answer begins with
        hit = kv.lookup(b"", prompt, limit)
        report = kv.report(prompt, hit, limit, salted=False)
        differs_at = None if report.divergent is None else report.matched
        table = kv.open(b"", hit)
        kv.grow(table, hit.tokens, len(prompt) - hit.tokens)
        copies = len(kv.copies)
        kv.settle()
        kv.commit(table, prompt, len(prompt))
        tables = [table, *(kv.fork(table) for _ in range(o.n - 1))]
        sequences = [self._answer(t, prompt) for t in tables]
        copies += kv.counts["copies_on_write"]
        kv.counts["copies_on_write"] = 0
        shown = tuple(tuple(int(b) for b in t.array(0)) for t in tables)
        used = sum(size for _, _, size in kv.usage())
        for t, tokens in zip(tables, sequences, strict=True):
            kv.close(t, tokens, len(tokens))
        kv.check()
        empty = tuple(len(blocks) * o.block_size - len(tokens) for blocks, tokens in zip(shown, sequences, strict=True))
        tree = tuple(self._tree())
        return Row(
            self.policy, len(prompt), hit.tokens, report.reason, differs_at, shown, used, o.n * need, copies, empty,
            kv.counts["evictions"] - evicted, tree,
        )  # fmt: skip

    def _answer(self, table: Table, prompt: Int32Array) -> Int32Array:
        """Prompt and an answer that no other sample gives. Answers are negative ids, which no tokenizer has."""
        made, size = prompt, self.options.block_size
        for i in range(self.options.gen):
            self.kv.grow(table, len(made), 1)
            self.kv.settle()
            made = np.append(made, np.int32(-1 - self._answers * 10_000 - i))
            if len(made) % size == 0:
                self.kv.commit(table, made, len(made))
        self._answers += 1
        return made

    def _tree(self) -> Iterator[Leaf]:
        if isinstance(self.kv.index, RadixIndex):
            for root in self.kv.index.roots.values():
                yield from self._leaves(root, 0)

    def _leaves(self, node: Node, depth: int) -> Iterator[Leaf]:
        for child in node.children.values():
            ids = child.tokens.tolist()
            real = [i for i in ids if i >= 0]
            text = self.spell(real) + (f" +{len(ids) - len(real)} answered" if len(real) < len(ids) else "")
            blocks = tuple(-1 if b == ABSENT else int(b) for b in child.blocks[0])
            yield Leaf(depth, child.start * self.kv.block_size, len(ids), blocks, text)
            yield from self._leaves(child, depth + 1)


def with_letter_changed(text: str, at: int) -> str:
    """The text with another letter at index `at`. Raises `UserError` for an index outside it."""
    if not 0 <= at < len(text):
        raise UserError(f"--change is {at}, the first prompt has {len(text)} characters", field="--change", value=at, limit=len(text) - 1)
    other = "x" if text[at] != "x" else "y"
    return text[:at] + (other.upper() if text[at].isupper() else other) + text[at + 1 :]


def render(report: BlocksReport, *, tree: bool) -> str:
    """The report for people."""
    lines = []
    for number, (texts, rows) in enumerate(zip(report.texts, report.rows, strict=True), 1):
        shown = "|".join(texts).replace("\n", "\\n")
        lines.append(f"prompt {number}: {len(texts)} tokens  {shown if len(shown) <= 160 else shown[:157] + '...'}")
        for row in rows:
            lines += _row_lines(row, texts, report.options)
        if tree:
            lines += [line for row in rows if row.policy == "radix" for line in _tree_lines(row)]
    return "\n".join(lines)


def _row_lines(row: Row, texts: Sequence[str], o: BlocksOptions) -> Iterator[str]:
    where = "" if row.differs_at is None else f", first other token is {row.differs_at} {texts[row.differs_at]!r}"
    yield f"  {row.policy:<6} {row.hit} of {row.tokens} tokens hit ({row.reason}{where}), {row.copies} blocks copied, {row.evicted} evicted"
    for i, table in enumerate(row.tables):
        who = f"  (sample {i})" if o.n > 1 else ""
        yield f"         blocks {' '.join(map(str, table))}{who}, {row.empty_slots[i]} of {o.block_size} slots of the last empty"
    if o.n > 1:
        yield f"         {row.blocks_used} blocks for {o.n} samples, {row.blocks_apart} if each had its own"


def _tree_lines(row: Row) -> Iterator[str]:
    yield "  tree:"
    for leaf in row.tree:
        blocks = " ".join("-" if b < 0 else str(b) for b in leaf.blocks)
        text = leaf.text.replace("\n", "\\n")
        text = text if len(text) <= 60 else text[:57] + "..."
        yield f"    {'  ' * leaf.depth}[{leaf.start}..{leaf.start + leaf.tokens}) blocks {blocks}  {text!r}"
