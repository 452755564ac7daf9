"""The lecture's formulas with a user's own numbers in them: what is computed, from what, and what it comes to.

Symbols as in `planner.formulas`. Shows; decides nothing. Where a published source is wrong, the line says so (contradictions C1-C40).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ridgeline.planner import formulas
from ridgeline.planner.deployment import Deployment
from ridgeline.planner.facts import ModelFacts

BASELINES, HEAD = (128, 32), 128  # ordinary heads that a latent cache is compared with, and their width


@dataclass(frozen=True, slots=True)
class Line:
    """what = formula = numbers = value."""

    what: str
    formula: str
    numbers: str
    value: str

    def __str__(self) -> str:
        return f"{self.what}: {self.formula} = {self.numbers} = {self.value}" if self.formula else f"{self.what}: {self.value}"


@dataclass(frozen=True, slots=True)
class Cell:
    """One of the four cells, per layer: intensity in FLOP/byte, both times in seconds, and which is longer."""

    name: str
    formula: str
    intensity: float
    memory_s: float
    math_s: float

    @property
    def bound(self) -> str:
        return "memory" if self.memory_s >= self.math_s else "compute"


def four_cells(d: Deployment, batch: int, context: int) -> tuple[Cell, ...]:
    """Prefill and generation, MLP and attention: BS, S/2, B, and below 1 (about G with grouped queries, more with latent ones)."""
    f, c = d.facts, d.ceilings
    mlp = f.ffn or f.dim

    def cell(name: str, formula: str, found: formulas.Formula, peak: float) -> Cell:
        return Cell(name, formula, found.intensity, found.bytes / c.bytes_per_s, found.flops / peak)

    def scores(new: int) -> formulas.Formula:
        latent = next((k for k in f.kept if k.cache.v_aliases_k), None)
        if latent is not None:
            one = formulas.latent_attention(context, latent.heads, latent.cache.v_dim, latent.cache.k_dim - latent.cache.v_dim)
            return formulas.Formula(batch * new * one.flops, batch * one.bytes)
        return formulas.attention(batch, context, new, f.heads, f.kv_heads, f.head_dim)

    found = [
        cell("prefill MLP", "-> BS", formulas.gated_mlp(batch, context, f.dim, mlp), c.linear_flops_per_s),
        cell("generation MLP", "-> B", formulas.gated_mlp(batch, 1, f.dim, mlp), c.linear_flops_per_s),
    ]
    if f.heads:
        latent = any(k.cache.v_aliases_k for k in f.kept)
        attention = "N(2c+r)/(c+r)" if latent else "S/(S+1)" if f.heads == f.kv_heads else "-> G = N/K"
        found.insert(1, cell("prefill attention", "no B in it" if latent else "S/(1 + 1/G)", scores(context), c.attention_flops_per_s))
        found.append(cell("generation attention", attention, scores(1), c.attention_flops_per_s))
    return tuple(found)


def explain(d: Deployment, batch: int, context: int) -> list[Line]:
    """Every number of a plan as symbols, substitution and value."""
    return [*_sizes(d, batch, context), *_times(d, batch, context), *(Line(*c) for c in conventions(d.facts)), *_latent(d.facts)]


def _sizes(d: Deployment, batch: int, context: int) -> Iterator[Line]:
    f = d.facts
    if f.formula_params is not None:
        tied = f.parts.head == 0
        yield Line(
            "parameters", f"{'' if tied else '2'}VD + 3DFL + (2DNH + 2DKH)L",
            f"{'' if tied else '2 x '}{f.vocab} x {f.dim} + 3 x {f.dim} x {f.ffn} x {f.layers} + "
            f"(2 x {f.dim} x {f.heads} x {f.head_dim} + 2 x {f.dim} x {f.kv_heads} x {f.head_dim}) x {f.layers}",
            f"{f.formula_params:,}" + ("" if d.ideal else f"; with norms and biases {f.params:,}"),
        )  # fmt: skip
    for k in f.kept:
        c = k.cache
        values = f"{c.k_dim} (latent, stored once)" if c.v_aliases_k else f"({c.k_dim} + {c.v_dim})"
        limit = f", window {c.window}" if c.window is not None else ""
        each = f", one entry per {k.every} tokens" if k.every > 1 else ""
        per = k.bytes_per_entry(d.kv) / k.every
        yield Line(
            "KV bytes per token", "2 b K H L" if not c.v_aliases_k else "b (c + r) L",
            f"{k.layers} layers x {c.kv_heads} x {values} in {d.kv.name}{each}{limit}", f"{per:,.0f} B = {per / 1024:,.1f} KiB",
        )  # fmt: skip
    held = d.sequence_bytes(context)
    memory = d.memory(batch, context)
    yield Line("KV per sequence", "bytes per token x S", f"S = {context}", f"{held:,} B")
    yield Line(
        "memory", "weights + B x KV + rest",
        f"{memory.weights / 1e9:.2f} + {batch} x {held / 1e9:.3f} + {(memory.activations + memory.overhead) / 1e9:.2f} GB",
        f"{memory.total / 1e9:.2f} GB of {memory.capacity / 1e9:.2f}",
    )  # fmt: skip


def _times(d: Deployment, batch: int, context: int) -> Iterator[Line]:
    t, c, e = d.decode(batch, context), d.ceilings, d.efficiency
    speed = f"{c.bytes_per_s / 1e9:g} GB/s" + ("" if e.memory == 1 else f" x {e.memory:g}")
    yield Line("ridge", "peak / bandwidth", f"{c.linear_flops_per_s / 1e12:g}e12 / {c.bytes_per_s / 1e12:g}e12",
               f"{formulas.ridge(c.linear_flops_per_s, c.bytes_per_s):.1f} FLOP/byte, decode batch {d.ridge_batch():.0f}")  # fmt: skip
    yield Line(
        "step", "max(weights / W, 2BP / C) + max(KV / W, scores / C) + rest",
        f"max({_ms(t.linear[0])}, {_ms(t.linear[1])}) + max({_ms(t.attention[0])}, {_ms(t.attention[1])}) + "
        f"{_ms(t.messages_s + t.overhead_s)} at {speed}", f"{_ms(t.seconds)} ({t.bound} bound)",
    )  # fmt: skip
    yield Line("throughput", "B / step", f"{batch} / {_ms(t.seconds)}", f"{d.throughput(batch, context):,.1f} tok/s a replica")
    ceiling = d.asymptote(context)
    if ceiling is not None:
        yield Line("asymptote", "W / KV per sequence", f"{speed} / {d.sequence_bytes(context):,} B", f"{ceiling:,.1f} tok/s")
    yield from _prompt(d, context)
    yield _matmul(d)
    yield from _terms(d.facts, batch, context)
    for cell in four_cells(d, batch, context):
        yield Line(
            cell.name, f"intensity {cell.formula}", f"memory {cell.memory_s * 1e6:,.1f} us, math {cell.math_s * 1e6:,.1f} us a layer",
            f"{cell.intensity:,.2f} FLOP/byte: {cell.bound} bound",
        )  # fmt: skip


def _matmul(d: Deployment) -> Line:
    """X[B, D] W[D, F] on the way from one row to many: the intensity is nearly B until B comes near D and F."""
    D, F = d.facts.dim, d.facts.ffn or d.facts.dim
    ridge = round(formulas.ridge(d.ceilings.linear_flops_per_s, d.ceilings.bytes_per_s))
    found = [f"{formulas.matmul(B, D, F).intensity:,.1f} at B = {B}" for B in sorted({1, 8, 64, ridge, 4096})]
    return Line("matmul intensity", "2BDF / (2BD + 2DF + 2BF) -> B", f"D = {D}, F = {F}", ", ".join(found))


def _terms(f: ModelFacts, B: int, S: int) -> Iterator[Line]:
    """What the intensities below are made of, for one layer in 16 bits: the lecture's symbols, then these numbers in them."""
    D, F, N, K, H = f.dim, f.ffn or f.dim, f.heads, f.kv_heads, f.head_dim
    for phase, T in (("prefill", S), ("generation", 1)):
        mlp = formulas.gated_mlp(B, T, D, F)
        yield Line(f"{phase} MLP FLOPs", "6BTDF", f"6 x {B} x {T} x {D} x {F}", f"{mlp.flops:,}")
        moved = f"4 x {B} x {T} x {D} + 4 x {B} x {T} x {F} + 6 x {D} x {F}"
        yield Line(f"{phase} MLP bytes", "4BTD + 4BTF + 6DF", moved, f"{mlp.bytes:,}")
        if N and not any(k.cache.v_aliases_k for k in f.kept):
            scores = formulas.attention(B, S, T, N, K, H)
            yield Line(f"{phase} attention FLOPs", "4BSTNH", f"4 x {B} x {S} x {T} x {N} x {H}", f"{scores.flops:,}")
            moved = f"4 x {B} x {S} x {K} x {H} + 4 x {B} x {T} x {N} x {H}"
            yield Line(f"{phase} attention bytes", "4BSKH + 4BTNH", moved, f"{scores.bytes:,}")


def _prompt(d: Deployment, context: int) -> Iterator[Line]:
    """What share of the peak a prompt gets as it is timed, and what it costs to compute it on one replica and answer on another."""
    seconds, flops, peak = d.ttft(context), d.prompt_flops(context), d.ceilings.linear_flops_per_s * d.layout.tp * d.layout.ep
    share = f"S = {context}: {flops / 1e12:.4g}e12 / ({peak / 1e12:.4g}e12 x {flops / peak / seconds:.2f})"
    yield Line("TTFT", "prompt FLOPs / (peak x MFU)", share, f"{_ms(seconds)} without queueing")
    link, held, links = d.ceilings.link_bytes_per_s, d.sequence_bytes(context), d.layout.kv_shards(d.facts, 1) * d.layout.pp
    if link:
        numbers = f"{held:,} B / ({links} x {link / 1e9:g} GB/s)"
        yield Line("hand-over to a replica that decodes", "KV per sequence / links", numbers, f"{_ms(held / link / links)} beside the TTFT")


def conventions(f: ModelFacts) -> list[tuple[str, str, str, str]]:
    """Which of the lecture's conventions (F = 4D, D = NH, N = KG) a model breaks."""
    broken = []
    if f.ffn and f.ffn != 4 * f.dim:
        broken.append(f"F = {f.ffn} is {f.ffn / f.dim:.2f} D, not 4D")
    if f.heads and f.heads * f.head_dim != f.dim:
        broken.append(f"N H = {f.heads * f.head_dim} is not D = {f.dim}")
    if f.kv_heads and f.heads % f.kv_heads:
        broken.append(f"N = {f.heads} is not a multiple of K = {f.kv_heads}")
    return [("conventions broken", "", "", "; ".join(broken) or "none")]


def _latent(f: ModelFacts) -> Iterator[Line]:
    """C12: against which heads is a latent cache small? Layers cancel."""
    for k in f.kept:
        c = k.cache
        if not c.v_aliases_k or k.every > 1 or k.cache.window is not None:
            continue
        ratios = [f"{formulas.latent_ratio(n, HEAD, c.k_dim):.3g}x against {n} heads" for n in BASELINES]
        ratios.append(f"{formulas.latent_ratio(8, HEAD, c.k_dim):.3g}x against 8 groups; layers cancel")
        yield Line("latent cache", "2 N H / (c + r)", f"H = {HEAD}, c + r = {c.k_dim}", ", ".join(ratios))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"
