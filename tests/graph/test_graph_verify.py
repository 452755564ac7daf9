"""Legality: each rule broken once is refused with the op and the rule in the message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.models.tiny import FAMILIES, tiny

from ridgeline.graph.caches import Paged, State
from ridgeline.graph.graph import Graph
from ridgeline.graph.ops import (
    Activation,
    Add,
    AddNorm,
    Attend,
    CacheWrite,
    Embed,
    GatedActivation,
    Linear,
    LinearGroup,
    Mul,
    Op,
    RmsNorm,
    Rope,
    Scale,
    SelectRows,
    Softcap,
)
from ridgeline.graph.rewrite import fuse
from ridgeline.graph.verify import GraphError, selected_values, value_widths, verify, weight_names

CACHE = Paged("kv", 2, 4, 4)
GOOD: tuple[Op, ...] = (
    Embed("x", "embed", 10, 16),
    RmsNorm("h", "x", "norm", 16, 1e-5),
    Linear("q", "h", "wq", 16, 16),
    Linear("k", "h", "wk", 16, 8),
    Linear("v", "h", "wv", 16, 8, "bv"),
    Rope("qr", "q", 4, 4, (1.0, 0.1)),
    CacheWrite("kv", "k", "v"),
    Attend("a", "qr", "kv", 4, 0.5),
    Add("y", "x", "a"),
    Activation("z", "y", "relu"),
    GatedActivation("g", "z", "y", "silu"),
    Mul("m", "g", "z"),
    Scale("s", "m", 2.0),
    SelectRows("sel", "s"),
    Linear("lin", "sel", "head", 16, 10),
    Softcap("logits", "lin", 30.0),
)


def graph(ops: tuple[Op, ...] = GOOD, caches: tuple[Paged | State, ...] = (CACHE,), **more: object) -> Graph:
    return replace(Graph("test", ops, caches, {"logits": "logits"}, {"head": "embed"}), **more)


def changed(index: int, **fields: object) -> tuple[Op, ...]:
    return (*GOOD[:index], replace(GOOD[index], **fields), *GOOD[index + 1 :])


def test_a_legal_graph_and_its_widths() -> None:
    verify(graph())
    widths = value_widths(graph())
    assert (widths["x"], widths["k"], widths["a"], widths["logits"]) == (16, 8, 16, 10)
    assert selected_values(graph()) == {"sel", "lin", "logits"}
    assert weight_names(GOOD) == ("embed", "norm", "wq", "wk", "wv", "bv", "head")


BROKEN: dict[str, tuple[Callable[[], Graph], str]] = {
    "assigned twice": (lambda: graph(changed(9, out="x")), "x is assigned twice"),
    "used before made": (lambda: graph(changed(1, x="later")), "later is used before it is made"),
    "norm width": (lambda: graph(changed(1, dim=8)), "x is 16 wide, 8 needed"),
    "norm groups": (lambda: graph(changed(1, groups=2)), "x is 16 wide, 32 needed"),
    "norm eps": (lambda: graph(changed(1, eps=0.0)), "eps is 0.0"),
    "linear width": (lambda: graph(changed(2, in_dim=8)), "h is 16 wide, 8 needed"),
    "rope width": (lambda: graph(changed(5, heads=3)), "q is 16 wide, 12 needed"),
    "rope too many frequencies": (lambda: graph(changed(5, inv_freq=(1.0,) * 3)), "3 frequencies for a head of 4"),
    "rope nan": (lambda: graph(changed(5, inv_freq=(1.0, float("nan")))), "not finite"),
    "no such cache": (lambda: graph(changed(6, cache="other")), "no paged cache other"),
    "a state is no paged cache": (lambda: graph(caches=(State("kv", (1,)),)), "no paged cache kv"),
    "key width": (lambda: graph(changed(6, k="h")), "h is 16 wide, 8 needed"),
    "attend before write": (lambda: graph((*GOOD[:6], GOOD[7], GOOD[6], *GOOD[8:])), "read before this step's keys are written"),
    "written twice": (lambda: graph((*GOOD[:7], *GOOD[6:])), "written twice"),
    "heads do not divide": (lambda: graph(changed(7, heads=3)), "3 query heads cannot share 2 KV heads"),
    "query width": (lambda: graph(changed(7, heads=8)), "qr is 16 wide, 32 needed"),
    "cap": (lambda: graph(changed(7, softcap=-1.0)), "softcap is -1.0"),
    "add": (lambda: graph(changed(8, b="k")), "k is 8 wide, 16 needed"),
    "gate": (lambda: graph(changed(10, up="k")), "k is 8 wide, 16 needed"),
    "rows mixed": (lambda: graph((*GOOD[:14], Add("t", "sel", "y"), *GOOD[14:])), "selected rows meet unselected rows"),
    "selected twice": (lambda: graph((*GOOD[:14], SelectRows("again", "sel"), *GOOD[14:])), "sel was selected already"),
    "cache after select": (lambda: graph((GOOD[0], SelectRows("sel", "x"), CacheWrite("kv", "sel", "sel"))), "rows of all tokens"),
    "tap": (lambda: graph(outputs={"logits": "nothing"}), "tap logits shows nothing"),
    "tied to nothing": (lambda: graph(tied={"head": "other"}), "head is tied to other"),
    "tied in a chain": (lambda: graph(tied={"head": "wq", "wq": "embed"}), "head is tied to wq"),
    "tied but unused": (lambda: graph(tied={"other": "embed"}), "tied weight other is used by no op"),
    "two caches of one name": (lambda: graph(caches=(CACHE, CACHE)), "declared twice"),
    "idle cache": (lambda: graph(caches=(CACHE, Paged("idle", 1, 4, 4))), "cache idle is declared but not"),
    "window": (lambda: graph(caches=(replace(CACHE, window=0),)), "window 0"),
    "aliased values": (lambda: graph(caches=(replace(CACHE, v_dim=8, v_aliases_k=True),)), "do not fit in its keys"),
    "no KV heads": (lambda: graph(caches=(replace(CACHE, kv_heads=0),)), "kv_heads is 0"),
    "group of one": (lambda: graph((GOOD[0], LinearGroup(("q",), "x", ("wq",), 16, (16,), (None,)))), "a group needs two"),
    "add-norm": (lambda: graph((GOOD[0], AddNorm("t", "o", "x", "x", "n", 8, 1e-5))), "x is 16 wide, 8 needed"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_each_broken_rule_is_named(case: str) -> None:
    make, message = BROKEN[case]
    with pytest.raises(GraphError, match=message.replace("(", r"\(")):
        verify(make())


@pytest.mark.parametrize("family", FAMILIES)
def test_families_are_legal_before_and_after_fusing(family: str) -> None:
    made, _ = tiny(family)
    verify(made)
    verify(fuse(made))
