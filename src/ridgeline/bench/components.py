"""Where a run's time and arithmetic go: norms, attention, FFN and the rest, with what no op accounts for. Measures nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

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
    Op,
    RmsNorm,
    Rope,
)
from ridgeline.planner.cost import GraphCost, Work

LAYERS = ("norms", "attention: projections", "attention: keys and values", "FFN", "residual sums")
OUTSIDE = ("embedding and first norm", "last norm and head", "outside the ops")
ATTENTION_WEIGHTS = frozenset({"q", "k", "v", "o"})


@dataclass(frozen=True, slots=True)
class Part:
    """One component in one phase. share: of the seconds that the phase took in all; flop_share: of the arithmetic of all ops, by
    `planner/cost`. "outside the ops" is the residue: planning the step, the draw, Python."""

    phase: str
    component: str
    seconds: float
    share: float
    flops: int
    flop_share: float


def component(op: Op) -> str:
    """Of LAYERS or OUTSIDE. Matrices are told apart by the names that `formats/names` gives them."""
    match op:
        case Embed():
            return "embedding and first norm"
        case Linear() | LinearGroup():
            name = (op.weight if isinstance(op, Linear) else op.weights[0]).rpartition(".")[2]
            return "last norm and head" if name == "head" else "attention: projections" if name in ATTENTION_WEIGHTS else "FFN"
        case RmsNorm() | AddNorm():
            return "last norm and head" if op.weight == "final_norm" else "norms"
        case Attend() | CacheWrite() | Rope():
            return "attention: keys and values"
        case Activation() | GatedActivation():
            return "FFN"
        case Add():
            return "residual sums"
        case _:
            return "last norm and head"


def added(works: Iterable[Work]) -> Work:
    """The work of several steps as one: FLOPs are linear in it, bytes are not (weights are read in every step)."""
    every = list(works)
    windows = every[0].pairs if every else ()
    pairs, keys = ({w: sum(getattr(work, name)[w] for work in every) for w in windows} for name in ("pairs", "keys"))
    return Work(sum(w.rows for w in every), sum(w.wanted for w in every), pairs, keys)


def flops_of(book: GraphCost, ops: Sequence[Op], work: Work) -> int:
    """Of one native instruction, which may do several ops of the graph."""
    return sum(book.op(op, work).flops for op in ops)


def parts(phase: str, times: Sequence[Any], book: GraphCost, work: Work, seconds: float) -> list[Part]:
    """times: the native account of every instruction of a run that took `seconds` and did `work` in all; an instruction counts where
    most of its arithmetic does, one that only readies rows (to integers) where they are used next, and the
    first norm with the embedding, as they are done in one go. What a model lacks is left out."""
    spent, done = dict.fromkeys((*LAYERS, *OUTSIDE), 0.0), dict.fromkeys((*LAYERS, *OUTSIDE), 0)
    name = OUTSIDE[-1]
    for t in reversed(times):
        if t.ops:
            main = t.ops[0] if isinstance(t.ops[0], Embed) else max(t.ops, key=lambda op: book.op(op, work).flops)
            name = component(main)
        spent[name] += t.seconds
        done[name] += flops_of(book, t.ops, work)
    spent["outside the ops"] = max(0.0, seconds - sum(spent.values()))
    flops, whole = sum(done.values()) or 1, sum(spent.values()) or 1.0
    found = (Part(phase, n, spent[n], spent[n] / whole, done[n], done[n] / flops) for n in spent)
    return [p for p in found if p.seconds or p.flops]


def layers_of(found: Sequence[Part], phase: str) -> Part:
    """All layers of a phase together."""
    inside = [p for p in found if p.phase == phase and p.component in LAYERS]
    sums = (sum(getattr(p, f.name) for p in inside) for f in fields(Part)[2:])
    return Part(phase, "transformer layers", *sums)


def render(found: Sequence[Part]) -> list[str]:
    """Lines for people: layers first, what they are made of below, then the rest."""
    if not found:
        return []
    lines = [f"  {'phase':<7}{'component':<32}{'ms':>10}{'time':>8}{'GFLOP':>10}{'FLOPs':>8}"]
    for phase in dict.fromkeys(p.phase for p in found):
        mine = [p for p in found if p.phase == phase]
        rows = [layers_of(found, phase), *(p for p in mine if p.component in LAYERS), *(p for p in mine if p.component not in LAYERS)]
        for p in rows:
            name = f"  {p.component}" if p.component in LAYERS else p.component
            shares = f"{p.seconds * 1e3:>10.2f}{p.share:>8.1%}{p.flops / 1e9:>10.3f}{p.flop_share:>8.1%}"
            lines.append(f"  {phase:<7}{name:<32}{shares}")
    return lines
