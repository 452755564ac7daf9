"""What the two prefix indexes have in common: the interface, namespaces, how much of a match is usable, and why a prefix missed.

Refuses to know pools and sequences. Times are passed in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ridgeline.graph.step import Int32Array
from ridgeline.kv.layout import first_needed
from ridgeline.types import CacheReport, MissReason

ABSENT = -1  # the block id of a position whose block is gone (evicted, or behind a window)


def namespace(*, tenant: str = "", adapter: str = "", model: str = "", kv_dtype: str = "", salt: str = "") -> bytes:
    """A key under which prefixes are shared; other keys never see them. Parts are tagged and length-framed, so none can pose as two."""
    parts = (b"T", tenant), (b"A", adapter), (b"M", model), (b"K", kv_dtype), (b"S", salt)
    framed = [(tag, text.encode("utf-8", "surrogatepass")) for tag, text in parts]
    return b"".join(tag + len(raw).to_bytes(4, "big") + raw for tag, raw in framed)


@dataclass(frozen=True, slots=True)
class Path:
    """The longest known prefix of some tokens. blocks[g][j]: block of positions j*B .. (j+1)*B-1 in group g, or ABSENT.

    `tokens` really compared equal; `gone_at[j]` is when block j lost a block (None: never); `known_space`: the namespace holds anything.
    """

    tokens: int
    blocks: tuple[list[int], ...]
    gone_at: list[float | None]
    known_space: bool


class Cursor(Protocol):
    """What an index reads and changes in a sequence's table (`kv.manager.Table`)."""

    blocks: tuple[list[int], ...]
    committed: int
    place: object | None

    def replace(self, group: int, index: int, block: int) -> None: ...


class PrefixIndex(Protocol):
    """Both policies. Blocks are held and dropped through the pools that the index was given."""

    unit: int

    def match(self, space: bytes, tokens: Int32Array) -> Path:
        """The longest known prefix; changes nothing."""

    def insert(self, space: bytes, tokens: Int32Array, table: Cursor, computed: int, *, tail: bool) -> None:
        """Keep the table's whole blocks up to `computed`, its partial last one too if `tail`; duplicates are swapped for the known ones."""

    def drop(self, group: int, block: int) -> None:
        """Forget a block and unhold it (it is being evicted)."""

    def held(self) -> Iterator[tuple[int, int]]:
        """Every (group, block) that is held, each once."""

    def check(self) -> None:
        """Recompute every invariant from scratch; raises `InternalError`."""


def usable(path: Path, windows: Sequence[int | None], block_size: int, limit: int) -> int:
    """The longest n <= limit for which [0, n) is there in full groups, [n-W+1, n) in groups of window W, and the block it ends inside."""
    n = min(path.tokens, limit)
    for window, blocks in zip(windows, path.blocks, strict=True):
        if window is None and ABSENT in blocks:
            n = min(n, blocks.index(ABSENT) * block_size)
    starts = [(w, _run_starts(b)) for w, b in zip(windows, path.blocks, strict=True) if w is not None and ABSENT in b]
    while n > 0 and any(start[(n - 1) // block_size] > first_needed(w, n) // block_size for w, start in starts):
        # A smaller n in the same block needs still earlier keys, so the next candidate is the end of the block before.
        n = (n - 1) // block_size * block_size
    return n


def _run_starts(blocks: list[int]) -> list[int]:
    """For each position the first position of the unbroken run that ends there (past it where the block itself is gone)."""
    starts, start = [], 0
    for i, block in enumerate(blocks):
        if block == ABSENT:
            start = i + 1
        starts.append(start)
    return starts


def explain(path: Path, tokens: Int32Array, hit: int, limit: int, *, unit: int, salted: bool) -> CacheReport:
    """Why the hit is not longer. "salted" says only that the request's own namespace is new, never what another one holds."""
    prompt = len(tokens)
    divergent = int(tokens[path.tokens]) if path.tokens < prompt else None
    evicted = next((t for t in path.gone_at if t is not None), None) if hit < min(path.tokens, limit) else None
    reason: MissReason = "never_seen"
    if limit <= 0 or prompt < unit:
        reason = "too_short"
    elif hit >= limit // unit * unit:
        reason = "complete"
    elif evicted is not None:
        reason = "evicted"
    elif not path.known_space and salted:
        reason = "salted"
    return CacheReport(prompt, hit, path.tokens, reason, divergent, evicted, unit)
