"""How many bytes weights take in a format, and which of them it touches. Knows no model and no kernel.

Quantizers differ in what they leave alone: GGUF files and fp8 count every weight, GPTQ, AWQ and NF4 leave embedding and head in 16 bits,
MXFP4 as gpt-oss ships it holds the experts only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ridgeline.encodings import ENCODINGS
from ridgeline.errors import UserError
from ridgeline.kv.layout import KV_FORMATS, KvFormat
from ridgeline.planner.hardware import MathType

Scope = Literal["all", "linear", "experts"]


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """bits per value, scales included, of the weights in scope; rest_bits of all others. math: what its products are made in."""

    name: str
    bits: float
    scope: Scope = "all"
    rest_bits: float = 16
    math: MathType = "bf16"


_PLAIN = (
    WeightFormat("fp32", 32), WeightFormat("bf16", 16), WeightFormat("fp16", 16),
    WeightFormat("fp8", 8, math="fp8"), WeightFormat("int8", 8),
    WeightFormat("int4", 4.15625, "linear"),  # groups of 128: a 16-bit scale and a 4-bit zero point
    WeightFormat("nf4", 4.5, "linear"),  # blocks of 64 with a 32-bit scale
    WeightFormat("nvfp4", 4.5, "linear"), WeightFormat("mxfp4", 4.25, "experts"),
    WeightFormat("fp8+fp4-experts", 4.25, "experts", 8, "fp8"), WeightFormat("int4-experts", 4.25, "experts"),
)  # fmt: skip
_GGUF = tuple(WeightFormat(e.name.lower(), e.bits_per_value) for e in ENCODINGS if not e.is_float and e.name != "MXFP4")
WEIGHT_FORMATS = {f.name: f for f in (*_PLAIN, *_GGUF)}
_ALIASES = {
    "f32": "fp32", "float32": "fp32", "f16": "fp16", "float16": "fp16", "bfloat16": "bf16", "fp8_e4m3": "fp8", "f8": "fp8",
    "gptq": "int4", "awq": "int4", "w4a16": "int4", "w8a16": "int8",
}  # fmt: skip
# Formats that only the planner knows: fp8 without scales (one per tensor), llama.cpp's q8_0 and q4_0 caches.
_KV = {f.name: f for f in (*KV_FORMATS.values(), KvFormat("fp8", 8), KvFormat("q8_0", 8, 2, 32), KvFormat("q4_0", 4, 2, 32))}
KV_NAMES = tuple(_KV)
_KV_ALIASES = {"fp32": "f32", "float32": "f32", "fp16": "f16", "float16": "f16", "bfloat16": "bf16", "fp8_e4m3": "fp8", "auto": "bf16"}


def weight_format(name: str) -> WeightFormat:
    """Raises `UserError` naming what exists."""
    folded = name.strip().casefold()
    found = WEIGHT_FORMATS.get(_ALIASES.get(folded, folded))
    if found is None:
        raise UserError(
            f"weight dtype {name!r} is not known", field="--weight-dtype", value=name, limit=tuple(WEIGHT_FORMATS),
            remedy=f"one of {', '.join(WEIGHT_FORMATS)}; or give the bytes with --weights-bytes",
        )  # fmt: skip
    return found


def native_format(described: str) -> WeightFormat:
    """The format a model is published in, from the words of the table (`native_dtype`)."""
    words = described.casefold()
    signs = {
        "mxfp4": "mxfp4",
        "fp4 experts": "fp8+fp4-experts",
        "int4 experts": "int4-experts",
        "bf16": "bf16",
        "fp16": "fp16",
        "fp8": "fp8",
    }
    for sign, name in signs.items():
        if sign in words:
            return WEIGHT_FORMATS[name]
    return WEIGHT_FORMATS["bf16"]


def kv_format_named(name: str) -> KvFormat:
    """A KV format of the engine, or one that others use; "int8/int4": of keys and of values, both of the engine's. Raises `UserError`
    naming what exists."""
    folded = name.strip().casefold()
    keys, slash, values = folded.partition("/")
    if slash:
        pair = [KV_FORMATS.get(_KV_ALIASES.get(part.strip(), part.strip())) for part in (keys, values)]
        if pair[0] is not None and pair[1] is not None:
            return pair[0] if pair[0] is pair[1] else KvFormat(f"{pair[0].name}/{pair[1].name}", max(pair[0].bits, pair[1].bits))
    found = _KV.get(_KV_ALIASES.get(folded, folded))
    if found is None:
        remedy = f"one of {', '.join(_KV)}"
        raise UserError(f"KV dtype {name!r} is not known", field="--kv-dtype", value=name, limit=tuple(_KV), remedy=remedy)
    return found
