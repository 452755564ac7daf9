"""Models by name: the table of published shapes. Dense rows become the very graph that runs; the others are counted from their facts.

Knows the columns of `data/models.csv`. Families that have no graph here (latent and compressed attention, experts, recurrent layers)
say so in `ModelFacts.counted`: "config" where every parameter follows from the row, "cited" where the published total is taken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from ridgeline.graph.caches import Paged
from ridgeline.models.decoder import Layer, Sizes
from ridgeline.models.gemma import GemmaConfig
from ridgeline.models.llama import LlamaConfig
from ridgeline.models.registry import build
from ridgeline.models.rope import Rotary
from ridgeline.planner import formulas
from ridgeline.planner.facts import Kept, ModelFacts, Parts, from_graph
from ridgeline.planner.tables import Row, match, package_rows

_TERM = re.compile(
    r"(?P<layers>\d+)x(?P<heads>\d+):(?P<kv>\d+)x(?P<k>\d+)(?P<sign>[+=])(?P<v>\d+)(w(?P<w>\d+))?(/(?P<every>\d+))?(@(?P<top>\d+))?"
)


def models() -> dict[str, Row]:
    """Rows of the table by name."""
    return {row.text("model"): row for row in package_rows("models.csv", "model")}


def find_model(name: str, kv_heads: int | None = None) -> ModelFacts:
    """The model that is meant; `kv_heads` replaces its number of KV heads. Raises `UserError` with the candidates."""
    rows = models()
    return model_of(rows[match(name, rows, "model", "MODEL")], kv_heads)


def model_of(row: Row, kv_heads: int | None = None) -> ModelFacts:
    """Facts of one row."""
    if kv_heads is not None:
        if kv_heads < 1 or row.whole("n_heads") % kv_heads:
            raise row.bad("n_heads", f"a multiple of the KV heads that were asked for ({kv_heads})")
        row = replace(row, cells={**row.cells, "n_kv_heads": str(kv_heads)})
    source = f"models.csv: {row.text('source')} ({row.text('provenance')})"
    if row.text("graph_family"):
        graph = build(_config(row))
        facts = from_graph(
            graph, row.text("kind"), source, native=row.text("native_dtype"), max_context=row.whole("max_ctx"), notes=row.text("notes")
        )
        return replace(facts, name=row.text("model"), published=(row.number("params_total_B"), None))
    return _from_facts(row, source)


def _config(row: Row) -> LlamaConfig | GemmaConfig:
    family, head_dim, layers = row.text("graph_family"), row.whole("head_dim"), row.whole("layers")
    context = row.whole("max_ctx")
    # Frequencies change no count.
    rotary = Rotary(tuple(10000.0 ** (-2 * i / head_dim) for i in range(head_dim // 2)))
    sizes = Sizes(row.whole("vocab"), row.whole("d_model"), head_dim, head_dim, 1e-5, context, context)
    layer = Layer(row.whole("n_heads"), row.whole("n_kv_heads"), row.whole("ff_dense"), rotary)
    window = row.whole("sliding_window") or None
    local = replace(layer, window=window)
    tied = row.text("tied_emb") == "Y"
    if family.startswith("gemma"):
        every = 2 if family == "gemma2" else 6
        stack = tuple(layer if i % every == every - 1 else local for i in range(layers))
        return GemmaConfig(family, sizes, stack, tied, head_dim**-0.5, qk_norm=family == "gemma3")
    stack = (local if window else layer,) * layers
    if family == "smollm3":
        stack = tuple(replace(la, rotary=None) if i % 4 == 3 else la for i, la in enumerate(stack))
    return LlamaConfig(family, sizes, stack, tied, qkv_bias=family == "qwen2", qk_norm=family == "qwen3")


def _from_facts(row: Row, source: str) -> ModelFacts:
    layers, dim, kind = row.whole("layers"), row.whole("d_model"), row.text("kind")
    published = row.number("params_total_B"), row.number("params_active_B")
    parts, counted = _parts(row)
    formula = row.number("params_dense_formula_B")
    shape = (row.whole("vocab"), dim, row.whole("ff_dense"), layers, row.whole("n_heads"), row.whole("n_kv_heads"), row.whole("head_dim"))
    exact = formulas.dense_parameters(*shape, tied=row.text("tied_emb") == "Y") if formula is not None else None
    return ModelFacts(
        row.text("model"), kind, row.whole("vocab"), dim, layers, row.whole("n_heads"), row.whole("n_kv_heads"), row.whole("head_dim"),
        row.whole("ff_dense"), parts, kept_of(row), counted, source, row.text("native_dtype"), exact, row.whole("moe_experts"),
        row.whole("moe_topk"), row.whole("state_elems_per_seq"), row.whole("max_ctx"),
        bool(row.whole("layers_linear_or_ssm")) and row.number("state_elems_per_seq") is None, published, row.text("notes"),
        expert_layers=_expert_layers(row),
    )  # fmt: skip


def kept_of(row: Row) -> tuple[Kept, ...]:
    """Caches of a row: spelled out in `kv_layers`, or latent, or full and sliding layers of ordinary heads."""
    spelled = row.text("kv_layers")
    if spelled:
        return tuple(_term(row, text) for text in spelled.split(";"))
    layers, heads, latent = row.whole("layers_full_attn"), row.whole("n_heads"), row.whole("mla_kv_lora")
    if latent:
        return (Kept(Paged("", 1, latent + row.whole("mla_rope"), latent, v_aliases_k=True), layers, heads),)
    kv, dim = row.whole("n_kv_heads"), row.whole("head_dim")
    found = []
    if layers:
        found.append(Kept(Paged("", kv, dim, dim), layers, heads))
    if row.whole("layers_sliding"):
        found.append(Kept(Paged("", kv, dim, dim, row.whole("sliding_window") or None), row.whole("layers_sliding"), heads))
    return tuple(found)


def _term(row: Row, text: str) -> Kept:
    """LAYERSxHEADS:KVxK+V, or K=V when the value is the first V numbers of the key; wWINDOW, /TOKENS per entry, @ENTRIES read at most."""
    found = _TERM.fullmatch(text.strip())
    if found is None:
        raise row.bad("kv_layers", "terms like 61x128:1x576=512@2048, joined by ;")
    part: Mapping[str, str | None] = found.groupdict()
    number = {k: int(v) for k, v in part.items() if v is not None and v.isdigit()}
    cache = Paged("", number["kv"], number["k"], number["v"], number.get("w"), part["sign"] == "=")
    return Kept(cache, number["layers"], number["heads"], number.get("every", 1), number.get("top"))


def _parts(row: Row) -> tuple[Parts, str]:
    vocab, dim, layers, kind = row.whole("vocab"), row.whole("d_model"), row.whole("layers"), row.text("kind")
    embed, head, norms = vocab * dim, 0 if row.text("tied_emb") == "Y" else vocab * dim, (2 * layers + 1) * dim
    matrices, experts, wide = row.whole("ffn_matrices", 3), row.whole("moe_experts"), row.whole("moe_ff")
    first, moe_layers = row.whole("dense_first_layers"), _expert_layers(row)
    routed = moe_layers * experts * matrices * dim * wide
    if kind in ("moe", "moe-mla", "moe-mla-dsa", "moe-swa", "diffusion") and not (kind == "moe-swa" and row.text("kv_layers")):
        shared = moe_layers * (row.whole("moe_shared") * matrices * dim * wide + experts * dim)
        dense = (first if experts else layers) * matrices * dim * row.whole("ff_dense")
        return Parts(embed, head, layers * _attention(row) + shared + dense, norms, routed), "config"
    total = (row.number("params_total_B") or 0) * 1e9
    return Parts(embed, head, max(0.0, total - embed - head - norms - routed), norms, routed), "cited"


def _expert_layers(row: Row) -> int:
    """Layers that have experts: as the row says, else all but the first dense ones."""
    return row.whole("moe_layers", row.whole("layers") - row.whole("dense_first_layers")) if row.whole("moe_experts") else 0


def _attention(row: Row) -> int:
    """Parameters of one attention layer: ordinary heads, or latent (arXiv 2405.04434) with the sparse indexer of V3.2 where it has one."""
    dim, heads, latent = row.whole("d_model"), row.whole("n_heads"), row.whole("mla_kv_lora")
    if not latent:
        width = row.whole("head_dim")
        return 2 * dim * heads * width + 2 * dim * row.whole("n_kv_heads") * width
    rope, nope, values, q_latent = row.whole("mla_rope"), row.whole("mla_nope"), row.whole("mla_v"), row.whole("mla_q_lora")
    query = dim * q_latent + q_latent * heads * (nope + rope) if q_latent else dim * heads * (nope + rope)
    index = sum(q_latent * k.heads * k.cache.k_dim + dim * k.cache.k_dim + dim * k.heads for k in kept_of(row) if k.cache.v_dim == 0)
    return query + dim * (latent + rope) + latent * heads * (nope + values) + heads * values * dim + index
