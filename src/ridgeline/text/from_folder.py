"""Tokenizer from a Hugging Face folder: `tokenizer.json` and the config files beside it. Knows no model hub, runs no code of the folder.

The ids are those of `tokenizer.json` itself, whatever a Python class might change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from ridgeline.errors import FileFormatError, UnsupportedError
from ridgeline.text.library import LibraryEncoder, refusing, state
from ridgeline.text.matcher import TokenMatcher
from ridgeline.text.tokenizer import Tokenizer
from ridgeline.text.vocabulary import END_TEXTS, Kind, Spelling, Vocabulary, end_ids

_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MAX_JSON_BYTES = 1 << 28
_MAX_IDS = 1 << 24


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """The tokenizer of a model folder. Raises `FileFormatError` for missing or damaged files, `UnsupportedError` for unknown decoders."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise FileFormatError(
            f"{path}: not found", field=str(path), remedy="save the tokenizer in its fast form (tokenizer.json) beside config.json"
        )
    config = _json(folder / "tokenizer_config.json")
    with refusing(lambda error: FileFormatError(f"{path}: not a tokenizer.json that can be read ({error})", field=str(path))):
        full = Library.from_file(str(path))
    names = {name: text for name in _NAMES if (text := _content(config.get(name))) is not None}
    _add_named(full, config, names)
    decoder, added = state(full.decoder), full.get_added_tokens_decoder()
    spelling, strips = _spelling(path, decoder)
    named_ends = _named_ends(folder, full, names)
    always = END_TEXTS | set(names.values())
    control = {token.content: id for id, token in added.items() if token.special or id in named_ends or token.content in always}
    vocabulary = _vocabulary(path, full, added, control, names.get("unk_token"), spelling)
    flags = {name: frozenset(id for id, token in added.items() if getattr(token, name)) for name in ("lstrip", "rstrip")}
    with refusing(lambda error: FileFormatError(f"{path}: has a post-processor that does not work ({error})", field=str(path))):
        prefix, suffix = _around(full)
    return Tokenizer(
        vocabulary=vocabulary,
        encoder=LibraryEncoder(full, frozenset(control)),
        control=TokenMatcher(control, **flags),
        marks=TokenMatcher({token.content: id for id, token in added.items()}, **flags),
        bos_id=full.token_to_id(names["bos_token"]) if "bos_token" in names else None,
        eos_ids=end_ids(control, named_ends),
        prefix=prefix,
        suffix=suffix,
        strips_first_space=strips,
        chat_template=_template(folder, config),
        special_tokens=names,
        added={token.content: id for id, token in added.items() if token.content not in control},
    )


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ValueError(f"larger than {_MAX_JSON_BYTES} bytes")
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: not JSON that can be read ({error})", field=str(path)) from None
    if not isinstance(data, dict):
        raise FileFormatError(f"{path}: must hold a JSON object", field=str(path))
    return data


def _content(token: object) -> str | None:
    """Text of a token that is written as a string or as an AddedToken object."""
    text = token.get("content") if isinstance(token, Mapping) else token
    if not isinstance(text, str) or not text:
        return None
    return text.encode("utf-8", "replace").decode("utf-8")


def _add_named(full: Library, config: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Special tokens that only `tokenizer_config.json` knows become added tokens, as in `transformers`."""
    present = {token.content for token in full.get_added_tokens_decoder().values()}
    declared = config.get("added_tokens_decoder")
    by_id = {int(id): token for id, token in declared.items() if id.isdecimal()} if isinstance(declared, Mapping) else {}
    for _, token in sorted(by_id.items()):
        text = _content(token)
        if text is not None and text not in present:
            keys = ("single_word", "lstrip", "rstrip", "normalized", "special")
            flags = token if isinstance(token, Mapping) else {}
            full.add_tokens([AddedToken(text, **{key: bool(flags.get(key, False)) for key in keys})])
            present.add(text)
    extra = config.get("additional_special_tokens") or config.get("extra_special_tokens")
    tokens = extra.values() if isinstance(extra, Mapping) else extra if isinstance(extra, list) else ()
    listed = [text for token in tokens if (text := _content(token)) is not None]
    missing = [text for text in (*names.values(), *listed) if text not in present]
    full.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in dict.fromkeys(missing)])


def _steps(component: Any) -> list[dict[str, Any]]:
    if component is None:
        return []
    for key in ("decoders", "pretokenizers", "normalizers", "processors"):
        if key in component:
            return [step for inner in component[key] for step in _steps(inner)]
    return [component]


def _spelling(path: Path, decoder: Any) -> tuple[Spelling, bool]:
    """How tokens spell bytes, and whether decoding drops the first space."""
    steps = _steps(decoder)
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        return "bytes", False
    if kinds & {"ByteFallback", "Metaspace"}:
        strip = any(step.get("type") == "Strip" and step.get("start") == 1 and step.get("content") == " " for step in steps)
        mark = any(step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never" for step in steps)
        return "spm", strip or mark
    found = ", ".join(sorted(str(kind) for kind in kinds)) or "none"
    raise UnsupportedError(
        f"{path}: decoder {found} is not supported; supported: ByteLevel, ByteFallback, Metaspace", field=str(path), value=found
    )


def _named_ends(folder: Path, full: Library, names: Mapping[str, str]) -> set[int]:
    """EOS of the tokenizer and the end ids of `generation_config.json` and `config.json`."""
    ends = {full.token_to_id(names["eos_token"])} if "eos_token" in names else set()
    size = full.get_vocab_size(with_added_tokens=True)
    for name in ("generation_config.json", "config.json"):
        value = _json(folder / name).get("eos_token_id")
        for id in value if isinstance(value, list) else [value]:
            if isinstance(id, int) and not isinstance(id, bool) and 0 <= id < size:
                ends.add(id)
    return {id for id in ends if id is not None}


def _vocabulary(
    path: Path, full: Library, added: Mapping[int, AddedToken], control: Mapping[str, int], unknown: str | None, spelling: Spelling
) -> Vocabulary:
    ids = full.get_vocab(with_added_tokens=True)
    size = max(ids.values(), default=0) + 1
    if size > _MAX_IDS:
        message = f"{path}: holds token id {size - 1}, must be below {_MAX_IDS}"
        raise FileFormatError(message, field=str(path), value=size - 1, limit=_MAX_IDS)
    kinds = bytearray([Kind.NORMAL]) * size
    for id in added:
        kinds[id] = Kind.USER_DEFINED
    for id in control.values():
        kinds[id] = Kind.CONTROL
    # Plain text may give the unknown token, never a control token: the kind tells them apart.
    unknown_id = full.token_to_id(unknown) if unknown is not None else None
    if unknown_id is not None and spelling == "spm":
        kinds[unknown_id] = Kind.UNKNOWN
    if spelling == "spm":
        for byte in range(256):
            piece = full.token_to_id(f"<0x{byte:02X}>")
            if piece is not None and kinds[piece] == Kind.NORMAL:
                kinds[piece] = Kind.BYTE
    return Vocabulary(size, full.id_to_token, bytes(kinds), spelling, max(map(len, ids), default=1))


def _around(full: Library) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the post-processor puts before and after a text."""
    bare, dressed = full.encode("a", add_special_tokens=False).ids, full.encode("a", add_special_tokens=True).ids
    for start in range(len(dressed) - len(bare) + 1):
        if dressed[start : start + len(bare)] == bare:
            return tuple(dressed[:start]), tuple(dressed[start + len(bare) :])
    return (), ()


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """`chat_template.jinja` wins; a list of named templates gives the one named default."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise FileFormatError(f"{path}: cannot be read ({error})", field=str(path)) from None
    template = config.get("chat_template")
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, Mapping) and entry.get("name") == "default"]
        template = named[0].get("template") if named else None
    return template if isinstance(template, str) and template else None
