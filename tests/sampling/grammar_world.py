"""A small tokenizer with awkward tokens, and stub models that draw from a grammar's masks."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from tests.text.text_samples import byte_level, sentencepiece

from ridgeline.sampling.grammar import GrammarCompiler, GrammarSpec
from ridgeline.sampling.guide import Guide, GuideState, Mask
from ridgeline.text.from_gguf import tokenizer_from_gguf
from ridgeline.text.tokenizer import Tokenizer

# Tokens that cross the borders of JSON, of characters and of tags.
PIECES = (
    b'{"',
    b'":',
    b'": "',
    b'": ',
    b'",',
    b'", "',
    b'"}',
    b'"}\n',
    b"}}",
    b'":{"',
    b"[]",
    b"{}",
    b"true",
    b"null",
    b"false",
    b"\n\n",
    b"  ",
    b"        ",
    b"\n  ",
    b" " * 16,
    b" \n",
    b"12",
    b"300",
    b"\\u",
    b"\\ud8",
    b"\\q",
    b'\\"',
    b"\xf0\x9f",
    b"\x99\x82",
    b"\xe5\x8c",
    b"\x97\xe4",
    b"abc",
    b"name",
    b">{",
    b">\n",
    b"</",
    b"think",
    b"k>",
    b"k>{",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\x01\x02",
    b"number",
    b"1.5",
    b"-5",
    b"date",
    b"a" * 40,
    "北京".encode(),
    "Zürich".encode(),
    "на".encode(),
)


@cache
def tokenizer(kind: str = "bytes") -> Tokenizer:
    """259 + PIECES byte-level ids (control tokens first, then the 256 bytes), or a SentencePiece one."""
    if kind == "spm":
        return tokenizer_from_gguf(sentencepiece())
    plain = byte_level()
    tokens, types = plain["tokenizer.ggml.tokens"], plain["tokenizer.ggml.token_type"]
    from ridgeline.text.vocabulary import byte_to_char

    spell = byte_to_char()
    more = ["".join(spell[b] for b in piece) for piece in PIECES]
    fresh = [piece for piece in dict.fromkeys(more) if piece not in tokens]
    return tokenizer_from_gguf(
        byte_level(**{"tokenizer.ggml.tokens": [*tokens, *fresh], "tokenizer.ggml.token_type": [*types, *[1] * len(fresh)]})
    )


@cache
def compiler(kind: str = "bytes") -> GrammarCompiler:
    words = tokenizer(kind)
    return GrammarCompiler(words, words.eos_ids)


def compiled(spec: GrammarSpec, kind: str = "bytes") -> Guide:
    return compiler(kind).compile(spec)


def schema(value: Any, **more: Any) -> GrammarSpec:
    return GrammarSpec("json_schema", value, **more)


def bits(mask: Mask) -> np.ndarray[Any, Any]:
    """The ids that a mask allows, ascending."""
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))


def id_of(piece: bytes, kind: str = "bytes") -> int:
    words = tokenizer(kind)
    return next(i for i in range(words.size) if words.token_bytes(i) == piece and not words.is_special(i))


def ids_of(*pieces: bytes) -> list[int]:
    return [id_of(piece) for piece in pieces]


CLOSERS = (b'"', b"}", b"]", b'"}', b"}}", b"0", b"e")


@cache
def closing(kind: str) -> Mask:
    words = tokenizer(kind)
    return mask_of({*(id_of(c) for c in CLOSERS if kind == "bytes"), *words.eos_ids}, words.size)


def mask_of(ids: Iterable[int], vocab: int) -> Mask:
    mask = np.zeros((vocab + 31) // 32, np.uint32)
    for i in ids:
        mask[i >> 5] |= np.uint32(1 << (i & 31))
    return mask


def draw(
    state: GuideState, rng: random.Random, *, limit: int = 600, prefer: Sequence[int] = (), close: float = 0.3, kind: str = "bytes"
) -> tuple[list[int], str]:
    """A random model: any allowed id, but `prefer` whenever one is allowed, and often what closes something. (ids, "stop" or "length")"""
    vocab = tokenizer(kind).size
    every = mask_of(range(vocab), vocab)
    out: list[int] = []
    while len(out) < limit:
        mask = state.allowed()
        mask = every if mask is None else mask
        token = next((i for i in prefer if has(mask, i)), -1)
        if token < 0:
            near = mask & closing(kind) if rng.random() < close else None
            options = bits(near) if near is not None and near.any() else bits(mask)
            assert len(options), "an impossible mask"
            token = int(options[rng.randrange(len(options))])
        out.append(token)
        if state.accept(token):
            return out, "stop"
    return out, "length"


def has(mask: Mask, token: int) -> bool:
    return bool(mask[token >> 5] >> np.uint32(token & 31) & 1)


def text_of(ids: Sequence[int], kind: str = "bytes") -> str:
    """Strict: what is not UTF-8 raises."""
    words = tokenizer(kind)
    return b"".join(words.token_bytes(i) for i in ids if not words.is_special(i)).decode("utf-8")


def spellings(text: str, rng: random.Random, count: int = 4) -> Iterator[list[int]]:
    """The text as ids: byte by byte, as the tokenizer would, and cut at random among the tokens that fit."""
    words = tokenizer()
    raw = text.encode()
    yield [id_of(bytes([byte])) for byte in raw]
    yield words.encode(text, add_special=False, parse_special=False)
    pieces = {words.token_bytes(i): i for i in range(words.size) if not words.is_special(i) and words.token_bytes(i)}
    for _ in range(count):
        ids, at = [], 0
        while at < len(raw):
            size = rng.choice([n for n in range(1, 41) if raw[at : at + n] in pieces and at + n <= len(raw)])
            ids.append(pieces[raw[at : at + size]])
            at += size
        yield ids


def takes(guide: Guide, ids: Sequence[int]) -> bool:
    """Whether a sequence of these ids, and then its end, is within the masks."""
    state = guide.start()
    done = False
    for token in ids:
        mask = state.allowed()
        if done or (mask is not None and not has(mask, token)):
            return False
        done = state.accept(token)
    mask = state.allowed()
    return done or mask is None or has(mask, min(tokenizer().eos_ids))


def takes_text(guide: Guide, text: str, seed: int = 0) -> bool:
    """Whether a text is taken as the tokenizer spells it. In no spelling may a text be taken that is not taken so.

    The other way round it may be: what a grammar forces must be spelled as the tokenizer would.
    """
    usual = takes(guide, tokenizer().encode(text, add_special=False, parse_special=False))
    assert usual or not any(takes(guide, ids) for ids in spellings(text, random.Random(seed)))
    return usual


def loads(text: str) -> Any:
    """Strict JSON: no NaN, and no lone surrogate in any string."""
    value = json.loads(text, parse_constant=lambda word: 1 / 0, parse_int=lambda digits: int(digits[:4000]))
    json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value
