"""A model as its own draft: what it guesses without, found once by reading shipped text, and kept in the cache folder for that model.

Knows graphs, and programs that somebody loads for it. Refuses to know files, options and memory. Sources: Draft & Verify (2309.08168), a
draft is the model without some attentions and MLPs; ShortGPT (2403.03853), what turns the residual stream least is missed least.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline.backends.base import Program
from ridgeline.formats.kept import keep, read_kept
from ridgeline.graph.caches import cache_groups
from ridgeline.graph.graph import Graph
from ridgeline.graph.ops import Add
from ridgeline.graph.rewrite import residual_sums, without
from ridgeline.graph.step import Int32Array, Span, Step
from ridgeline.models import ModelSpec
from ridgeline.spec.adaptive import expected

KEPT = "self_drafts.json"
_VERSION = 1  # of the search: what another one found is not used
# Prose and code that are shipped, and that `bench spec` measures nothing with.
_TEXTS = tuple(Path(__file__).parents[1] / "bench" / "data" / name for name in ("prose.txt", "quality_code.txt"))
_TOKENS, _CONTEXT = 128, 32  # read of each text, and how many of them are only there to be read
_STEPS, _TRIED = 16, 12  # sixteenths of the half layers that are left out, up to three quarters
READINGS = 1 + _TRIED  # of the texts, at most
_MOST = 8  # guesses that a gain is reckoned for

# Loads a graph on the model's packed weights, with room for the texts, and with taps.
Load = Callable[[Graph, tuple[str, ...]], Program]
# Seconds of a step of a graph's.
Seconds = Callable[[Graph, Step], float]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """sums: the residual sums that the draft goes without, of `halves`; agreement: share of a text's tokens at which both find the same one
    likeliest; gain: tokens per second over those without guesses at the best number of them, by the cost model. Without sums: the model."""

    sums: tuple[str, ...] = ()
    halves: int = 0
    agreement: float = 1.0
    gain: float = 0.0

    def __str__(self) -> str:
        found = f"agrees with the whole on {self.agreement:.0%} of a text, {self.gain:.2f}x at best by the cost model"
        return f"itself without {len(self.sums)} of {self.halves} half layers ({found})" if self.sums else "itself"


def kept_for(spec: ModelSpec) -> LeftOut | None:
    """What was found for this model before, if anything usable was."""
    found: Any = read_kept(KEPT).get(_key(spec))
    sums = residual_sums(spec.graph)
    try:
        left = LeftOut(tuple(found["sums"]), len(sums), float(found["agreement"]), float(found["gain"]))
    except (TypeError, KeyError, ValueError):
        return None
    usable = 0.0 <= left.agreement <= 1.0 and left.sums and set(left.sums) < set(sums) and without(spec.graph, left.sums).caches
    return left if usable else None


def keep_for(spec: ModelSpec, left: LeftOut) -> None:
    keep(KEPT, _key(spec), asdict(left))


def shipped_texts(encode: Callable[[str], list[int]], longest: int) -> list[Int32Array]:
    """Prose and code, int32 [tokens]; `longest` tokens at most."""
    return [np.array(encode(path.read_text("utf8"))[: min(_TOKENS, longest)], np.int32) for path in _TEXTS]


def blocks_for(graph: Graph, texts: Sequence[Int32Array], block_size: int) -> tuple[int, ...]:
    """KV blocks of each cache group that a program for `search` needs."""
    return (sum(-(-len(text) // block_size) for text in texts),) * len(cache_groups(graph.caches))


def search(graph: Graph, texts: Sequence[Int32Array], block_size: int, load: Load, seconds: Seconds) -> LeftOut:
    """The half layers whose absence promises most. One reading of the texts ranks them by how little they turn the residual stream for the
    time that they take; then ever more of them are left out, a sixteenth at a time, and what agreement and cost come to is compared."""
    made = {op.out: op for op in graph.ops if isinstance(op, Add)}
    sums = residual_sums(graph)
    stream = (made[sums[0]].a, *sums)
    whole = load(replace(graph, outputs={**graph.outputs, **{value: value for value in stream}}), stream)
    said = _likeliest(whole, graph, texts, block_size)
    turned = [_turned(whole.tap(a), whole.tap(b)) for a, b in zip(stream, sums, strict=False)]
    plain, row = seconds(graph, _decode(1)), seconds(graph, _decode(2)) - seconds(graph, _decode(1))
    saved = [max(plain - seconds(without(graph, (s,)), _decode(1)), 1e-12) for s in sums]
    order = sorted(range(len(sums)), key=lambda i: turned[i] / saved[i])
    found = list[LeftOut]()
    for count in sorted({-(-len(sums) * step // _STEPS) for step in range(1, _TRIED + 1)}):
        left = tuple(s for i, s in enumerate(sums) if i in order[:count])
        draft = without(graph, left)
        if draft.caches:  # a draft that attends to nothing knows one token
            agreement = float((_likeliest(load(draft, ()), draft, texts, block_size) == said).mean())
            found.append(LeftOut(left, len(sums), agreement, gain(agreement, seconds(draft, _decode(1)) / plain, row / plain)))
    return max(found, key=lambda left: left.gain, default=LeftOut())


def gain(agreement: float, guess: float, row: float) -> float:
    """Tokens per second over those of plain steps, at the best number of guesses. guess, row: what a guess and the row that verifies it
    take, as shares of a plain step."""
    return max(expected(agreement, k) / (1 + k * (guess + row)) for k in range(1, _MOST + 1))


def _turned(before: npt.NDArray[np.float32], after: npt.NDArray[np.float32]) -> float:
    """1 - the mean cosine of rows before and after."""
    norms = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
    return 1.0 - float(np.mean(np.einsum("ij,ij->i", before, after) / np.maximum(norms, 1e-30)))


def _likeliest(program: Program, graph: Graph, texts: Sequence[Int32Array], block_size: int) -> npt.NDArray[np.intp]:
    """Ids at the texts' positions behind the context, read in one step."""
    spans = tuple(Span(i, 0, len(text), max(1, len(text) - _CONTEXT)) for i, text in enumerate(texts))
    first, tables = 0, list[Int32Array]()
    for text in texts:
        tables.append(np.arange(first, first - (-len(text) // block_size), dtype=np.int32))
        first += len(tables[-1])
    program.forward(Step(spans, np.concatenate(texts), (tuple(tables),) * len(cache_groups(graph.caches))))
    likeliest: npt.NDArray[np.intp] = program.logits().argmax(axis=1)
    return likeliest


def _decode(rows: int) -> Step:
    return Step((Span(0, _TOKENS, rows, rows),), np.zeros(rows, np.int32), ())


def _key(spec: ModelSpec) -> str:
    """Of the weights, wherever they lie: names, formats and a few bytes of each."""
    digest = hashlib.sha256(repr((_VERSION, _TOKENS, spec.graph.name)).encode())
    for name in sorted(spec.tensors):
        tensor = spec.tensors[name]
        digest.update(repr((name, tensor.shape, tensor.encoding.name)).encode() + tensor.data[:1].tobytes()[:64])
    return digest.hexdigest()[:24]
