"""Tokenizer from GGUF metadata (`tokenizer.ggml.*`). Knows the keys, not the file format: any mapping with sequences will do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline.errors import FileFormatError, UnsupportedError
from ridgeline.text.matcher import TokenMatcher
from ridgeline.text.pretokenizers import Recipe, build, recipe
from ridgeline.text.spm import Prefix, SpmEncoder
from ridgeline.text.tokenizer import Encoder, Tokenizer
from ridgeline.text.vocabulary import END_TEXTS, SPACE, Kind, Vocabulary, byte_to_char, char_to_byte, end_ids

MODELS = ("gpt2", "llama")
_NAMED_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
_NAMES = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "unk_token": "unknown_token_id", "pad_token": "padding_token_id"}


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a GGUF file describes.

    Raises `FileFormatError` for missing or contradictory keys, `UnsupportedError` for a tokenizer model or pre-tokenizer we lack.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model is None:
        raise _broken("model", None, "the file has no tokenizer", "use a file that was converted with its vocabulary")
    if model not in MODELS:
        known = "gpt2 (byte-level BPE), llama (SentencePiece BPE)"
        message = f"tokenizer.ggml.model is {model!r}, a tokenizer that is not supported; supported: {known}"
        raise UnsupportedError(message, field="tokenizer.ggml.model", value=model, limit=known)
    texts = _texts(metadata, "tokens")
    if not texts:
        raise _broken("tokens", None, "is empty")
    kinds = _kinds(metadata, texts)
    named = {name: _id(metadata, key, len(texts)) for name, key in _NAMES.items()}
    ends = {id for key in _NAMED_ENDS if (id := _id(metadata, key, len(texts))) is not None}
    for id in (*ends, named["bos_token"]):
        if id is not None:
            kinds[id] = Kind.CONTROL
    # GGUF writes Gemma's runs of spaces as user-defined tokens; they are pieces that merge before all others.
    runs = _space_runs(texts, kinds) if model == "llama" else {}
    control = {texts[id]: id for id in sorted(_ids(kinds, Kind.CONTROL) + _ids(kinds, Kind.UNKNOWN))}
    added = {texts[id]: id for id in _ids(kinds, Kind.USER_DEFINED) if id not in runs.values()}
    # Phi-3's tokenizer.json lets its turn marks swallow white space after them; GGUF has no field for that.
    phi3 = model == "llama" and metadata.get("general.architecture") == "phi3"
    swallow = frozenset(id for text, id in control.items() if phi3 and text not in ("<unk>", "<s>", "<|endoftext|>"))
    marks = TokenMatcher({**added, **control}, rstrip=swallow)
    encoder: Encoder
    if model == "gpt2":
        cut = recipe(str(metadata.get("tokenizer.ggml.pre", "default")))
        encoder, default_bos = _byte_level(metadata, texts, kinds, cut, list(control)), cut.adds_bos
    else:
        encoder, default_bos = _sentencepiece(metadata, texts, kinds, runs, TokenMatcher(added), marks), True
    bos, eos = named["bos_token"], named["eos_token"]
    strips = model == "llama" and bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    return Tokenizer(
        vocabulary=Vocabulary(len(texts), texts.__getitem__, kinds.tobytes(), "bytes" if model == "gpt2" else "spm", max(map(len, texts))),
        encoder=encoder,
        control=TokenMatcher(control, rstrip=swallow),
        marks=marks,
        bos_id=bos,
        eos_ids=end_ids(control, ends),
        prefix=(bos,) if bos is not None and metadata.get("tokenizer.ggml.add_bos_token", default_bos) else (),
        suffix=(eos,) if eos is not None and metadata.get("tokenizer.ggml.add_eos_token", False) else (),
        strips_first_space=strips,
        chat_template=_template(metadata),
        special_tokens={name: texts[id] for name, id in named.items() if id is not None},
        added=added,
    )


def _broken(key: str, value: object, what: str, remedy: str | None = None) -> FileFormatError:
    return FileFormatError(f"tokenizer.ggml.{key}: {what}", field=f"tokenizer.ggml.{key}", value=value, remedy=remedy)


def _ids(kinds: npt.NDArray[np.uint8], kind: Kind) -> list[int]:
    return [int(id) for id in np.flatnonzero(kinds == kind)]


def _list(values: Sequence[Any]) -> list[Any]:
    tolist = getattr(values, "tolist", None)
    return list(values) if tolist is None else list(tolist())


def _texts(metadata: Mapping[str, Any], key: str) -> list[str]:
    values = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise _broken(key, None, "is missing or no list")
    texts = _list(values)
    if set(map(type, texts)) - {str}:
        raise _broken(key, None, "holds something that is not text")
    return texts


def _numbers(metadata: Mapping[str, Any], key: str, dtype: type, count: int) -> npt.NDArray[Any] | None:
    values = metadata.get(f"tokenizer.ggml.{key}")
    if values is None:
        return None
    try:
        array: npt.NDArray[Any] = np.array(values.numpy() if hasattr(values, "numpy") else _list(values), dtype=dtype)
    except (TypeError, ValueError, OverflowError):
        raise _broken(key, None, "is not a list of numbers") from None
    if array.shape != (count,):
        raise _broken(key, array.size, f"has {array.size} entries, the vocabulary has {count}")
    return array


def _kinds(metadata: Mapping[str, Any], texts: list[str]) -> npt.NDArray[np.uint8]:
    types = _numbers(metadata, "token_type", np.int64, len(texts))
    if types is None:
        return np.full(len(texts), Kind.NORMAL, np.uint8)
    if types.min() < 0 or types.max() > Kind.BYTE:
        wrong = int(types.max() if types.max() > Kind.BYTE else types.min())
        raise _broken("token_type", wrong, f"holds {wrong}, known are 0 to {int(Kind.BYTE)}")
    kinds = types.astype(np.uint8)
    # Converters sometimes mark turn ends as user-defined; they must act as control tokens all the same.
    for id in _ids(kinds, Kind.USER_DEFINED):
        if texts[id] in END_TEXTS:
            kinds[id] = Kind.CONTROL
    return kinds


def _id(metadata: Mapping[str, Any], key: str, count: int) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
        raise _broken(key, value, f"is {value}, must be a token id below {count}")
    return value


def _template(metadata: Mapping[str, Any]) -> str | None:
    template = metadata.get("tokenizer.chat_template")
    return template if isinstance(template, str) and template else None


def _byte_level(
    metadata: Mapping[str, Any], texts: list[str], kinds: npt.NDArray[np.uint8], cut: Recipe, control: list[str]
) -> Encoder:
    # The library takes 30 ms to import; a SentencePiece model does without it.
    from tokenizers import AddedToken, normalizers
    from tokenizers import Tokenizer as Library
    from tokenizers.models import BPE

    from ridgeline.text.library import LibraryEncoder, refusing

    alphabet, spell = char_to_byte().keys(), byte_to_char()
    vocab = dict(zip(texts, range(len(texts)), strict=True))
    # A normal token with other characters is one whose text was written as it is; seldom, so the whole list is tested at once.
    if not alphabet >= set("".join(texts)):
        for id in np.flatnonzero((kinds == Kind.NORMAL) | (kinds == Kind.UNUSED)).tolist():
            if not alphabet >= set(texts[id]):
                vocab["".join(spell[byte] for byte in texts[id].encode())] = vocab.pop(texts[id], id)
    pairs: list[Any] = [tuple(merge.split(" ")) for merge in _texts(metadata, "merges")]
    if set(map(len, pairs)) - {2}:
        raise _broken("merges", None, "holds an entry that is not two pieces with a space between")
    with refusing(lambda error: _broken("merges", None, f"does not fit the vocabulary ({error})")):
        full = Library(BPE(vocab=vocab, merges=pairs, ignore_merges=cut.whole_words))
    full.pre_tokenizer = build(cut)
    if cut.nfc:
        full.normalizer = normalizers.NFC()
    full.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    full.add_tokens([AddedToken(texts[id], special=False, normalized=False) for id in _ids(kinds, Kind.USER_DEFINED)])
    return LibraryEncoder(full, frozenset(control))


def _space_runs(texts: list[str], kinds: npt.NDArray[np.uint8]) -> dict[str, int]:
    """User-defined runs of spaces as pieces: marks -> id."""
    ids = _ids(kinds, Kind.USER_DEFINED)
    return {SPACE * len(texts[id]): id for id in ids if len(texts[id]) > 1 and not texts[id].strip(f" {SPACE}")}


def _sentencepiece(
    metadata: Mapping[str, Any],
    texts: list[str],
    kinds: npt.NDArray[np.uint8],
    runs: Mapping[str, int],
    added: TokenMatcher,
    marks: TokenMatcher,
) -> Encoder:
    scores = _numbers(metadata, "scores", np.float64, len(texts))
    if scores is None or not np.isfinite(scores).all():
        raise _broken("scores", None, "is missing or not finite, a SentencePiece tokenizer needs it")
    pieces = dict(zip(texts, range(len(texts)), strict=True))
    for id in np.flatnonzero(kinds != Kind.NORMAL).tolist():
        if pieces.get(texts[id]) == id:
            del pieces[texts[id]]
    pieces |= runs
    normal = np.flatnonzero(kinds == Kind.NORMAL)
    first = list(runs.values())
    rank: list[int] | None = None
    if (np.diff(scores[normal]) >= 0).any() or (first and max(first) > normal.min(initial=len(texts))):
        # Equal scores share a rank; among them the piece with the longer left part merges first, then the leftmost.
        keys = -scores
        keys[first] = keys.min() - len(first) + np.arange(len(first))
        rank = np.unique(keys, return_inverse=True)[1].tolist()
    prefix: Prefix = "never"
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        prefix = "always" if metadata.get("general.architecture") == "phi3" else "first"
    unknown = _id(metadata, "unknown_token_id", len(texts))
    return SpmEncoder(pieces, rank, _byte_ids(texts, kinds), unknown, prefix, added, marks)


def _byte_ids(texts: list[str], kinds: npt.NDArray[np.uint8]) -> list[int] | None:
    """The id of each byte's token, or None when the vocabulary does not have all 256."""
    found = {texts[id].lower(): id for id in _ids(kinds, Kind.BYTE)}
    ids = [found.get(f"<0x{byte:02x}>") for byte in range(256)]
    return None if None in ids else [id for id in ids if id is not None]
