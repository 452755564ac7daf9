"""From a config's RoPE keys to frequencies: the Hugging Face spelling (old and new) and the GGUF one. Unknown rules are refused."""

from __future__ import annotations

import numpy as np

import ridgeline.models.rope as rope
from ridgeline.formats.names import GGUF_ROPE_FACTORS
from ridgeline.models.facts import Facts
from ridgeline.models.rope import Floats, Rotary
from ridgeline.models.store import Store

HF_RULES = ("default", "linear", "llama3", "yarn", "longrope", "su", "dynamic")
# "su" and "yarn" are what the first Phi-3 files call LongRoPE; transformers reads them so.
PHI3_RULES = ("default", "longrope", "su", "yarn")
GGUF_RULES = ("none", "linear", "yarn", "longrope")


def hf_reach(facts: Facts, trained: int) -> int:
    """Positions up to which a config's scaling is meant to work; the trained length where it says nothing."""
    section = facts.section("rope_scaling") or facts.section("rope_parameters")
    rule = None if section is None else section.get("rope_type") or section.get("type")
    if section is None or rule not in ("linear", "dynamic", "yarn"):
        return trained
    start = section.whole("original_max_position_embeddings", trained) if rule == "yarn" else trained
    return max(trained, int(start * section.real("factor", 1.0)))


def gguf_reach(facts: Facts, trained: int) -> int:
    """As `hf_reach`, from GGUF keys."""
    factor = facts.real("rope.scaling.factor", facts.real("rope.scale_linear", 1.0))
    return max(trained, int(facts.whole("rope.scaling.original_context_length", trained) * factor))


def hf_rotary(
    facts: Facts, dims: int, trained: int, length: int, theta: float = 10000.0, rules: tuple[str, ...] = HF_RULES, partial: bool = False
) -> Rotary:
    """Frequencies of `dims` rotated dimensions. `trained` is max_position_embeddings, `length` the maximum model length.

    Reads rope_theta, rope_scaling or rope_parameters, original_max_position_embeddings. Rules are `transformers`' `rope_type`.
    """
    theta = facts.real("rope_theta", theta)
    original = facts.whole("original_max_position_embeddings", trained)
    # `rope_scaling` is the older key; where both are present transformers takes it.
    section = facts.section("rope_scaling") or facts.section("rope_parameters")
    facts.ignore(("rope_scaling", "rope_parameters"))
    if section is None:
        return rope.rotary(rope.frequencies(dims, theta))
    explicit_original = facts.has("original_max_position_embeddings")
    if partial:
        section.ignore(("partial_rotary_factor",))  # the caller counted it into `dims`
    found = hf_section(section, dims, trained, original, length, theta, rules, explicit_original)
    section.finish()
    return found


def hf_section(
    section: Facts, dims: int, trained: int, original: int, length: int, theta: float, rules: tuple[str, ...], outer_original: bool = False
) -> Rotary:
    """One RoPE object of a config. `outer_original`: the config itself names the original length, which then wins."""
    theta = section.real("rope_theta", theta)
    if not section.was_read("partial_rotary_factor"):
        section.must_be("partial_rotary_factor", 1.0)
    key = "rope_type" if section.has("rope_type") else "type"
    rule = section.word(key, rules, "default")
    rule = "longrope" if rules is PHI3_RULES and rule in ("su", "yarn") else rule
    section.ignore(("rope_type", "type"))
    inner = section.whole("original_max_position_embeddings", original)
    original = original if outer_original else inner
    base = rope.frequencies(dims, theta)
    match rule:
        case "default":
            return rope.rotary(base)
        case "linear":
            return rope.rotary(base / section.real("factor"))
        case "dynamic":
            return rope.rotary(rope.dynamic(dims, theta, section.real("factor"), trained, length))
        case "llama3":
            low, high = section.real("low_freq_factor"), section.real("high_freq_factor")
            if high <= low:
                raise section.bad("high_freq_factor", high, f"above low_freq_factor ({low:g})")
            return rope.rotary(rope.llama3(base, section.real("factor"), low, high, original))
        case "yarn":
            return _hf_yarn(section, base, theta, trained, original)
        case _:
            return _hf_longrope(section, base, trained, original, length)


def _hf_yarn(section: Facts, base: Floats, theta: float, trained: int, original: int) -> Rotary:
    factor = section.real("factor", trained / original)
    mscale, mscale_all = section.real("mscale", 1.0), section.real("mscale_all_dim", 1.0)
    scale = rope.yarn_scale(factor)
    if section.has("mscale") and section.has("mscale_all_dim"):
        scale = rope.yarn_scale(factor, mscale) / rope.yarn_scale(factor, mscale_all)
    fast, slow = section.real("beta_fast", 32.0), section.real("beta_slow", 1.0)
    turned = rope.yarn(base, theta, factor, original, fast, slow, section.flag("truncate", True))
    return rope.rotary(turned, section.real("attention_factor", scale))


def _hf_longrope(section: Facts, base: Floats, trained: int, original: int, length: int) -> Rotary:
    long, short = section.reals("long_factor", len(base)), section.reals("short_factor", len(base))
    factor = section.real("factor", trained / original)
    scale = section.real("attention_factor", rope.longrope_scale(factor, original))
    return rope.rotary(base / np.asarray(long if length > original else short), scale)


def gguf_rotary(facts: Facts, store: Store, dims: int, trained: int, length: int, theta: float = 10000.0) -> Rotary:
    """Frequencies of `dims` rotated dimensions from `rope.*` keys and the factor tensors, which are consumed.

    Tensor factors divide the frequencies: `rope_freqs` always, `rope_factors_long` / `_short` by the maximum model length.
    """
    theta = facts.real("rope.freq_base", theta)
    factor = facts.real("rope.scaling.factor", facts.real("rope.scale_linear", 1.0))
    # A factor without a type is linear: files from before the type was written.
    rule = facts.word("rope.scaling.type", GGUF_RULES, "linear")
    original = facts.whole("rope.scaling.original_context_length", trained)
    facts.ignore(("rope.scaling.finetuned",))
    scale = facts.real("rope.scaling.attn_factor", 1.0)
    base = rope.frequencies(dims, theta)
    if rule == "linear":
        base = base / factor
    elif rule == "yarn":
        facts.must_be("rope.scaling.yarn_ext_factor", 1.0)
        facts.must_be("rope.scaling.yarn_log_multiplier", 0.0)
        fast, slow = facts.real("rope.scaling.yarn_beta_fast", 32.0), facts.real("rope.scaling.yarn_beta_slow", 1.0)
        base = rope.yarn(base, theta, factor, original, fast, slow)
        scale *= facts.real("rope.scaling.yarn_attn_factor", rope.yarn_scale(factor))
    for kind, wanted in (("plain", True), ("long", length > original), ("short", length <= original)):
        name = GGUF_ROPE_FACTORS[kind]
        if store.has(name):
            factors = store.vector(name, dims // 2)
            base = base / factors if wanted else base
    return rope.rotary(base, scale)
