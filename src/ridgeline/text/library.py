"""Encoder on the `tokenizers` library, for `tokenizer.json` and for byte-level BPE from GGUF. Knows that library's quirks, not files.

Three views share one model: `full` matches every added token, `plain` leaves control tokens as text, `rest` is `plain` without the space
that Metaspace puts before the first word (for a piece in the middle of a sequence).
"""

from __future__ import annotations

import json
from typing import Any

from tokenizers import AddedToken, Tokenizer, pre_tokenizers

State = Any  # a piece of tokenizer.json


def state(component: Any) -> State:
    """The JSON of a normalizer, pre-tokenizer, decoder or post-processor; None when there is none."""
    return None if component is None else json.loads(component.__getstate__())


class LibraryEncoder:
    """Text -> ids by `tokenizers`. `control` are token texts that `plain` must treat as ordinary characters."""

    __slots__ = ("_full", "_plain", "_rest")

    def __init__(self, full: Tokenizer, control: frozenset[str]) -> None:
        full.no_truncation()
        full.no_padding()
        self._full = full
        self._plain = _twin(full, control)
        self._rest = self._plain
        cut = state(full.pre_tokenizer)
        if '"prepend_scheme": "first"' in json.dumps(cut):
            self._rest = _twin(full, control)
            replaced = pre_tokenizers.Sequence([])
            replaced.__setstate__(json.dumps(cut).replace('"prepend_scheme": "first"', '"prepend_scheme": "never"').encode())
            self._rest.pre_tokenizer = replaced

    def whole(self, text: str) -> list[int]:
        """Ids of a text in which control tokens count."""
        return list(self._full.encode(text, add_special_tokens=False).ids)

    def plain(self, text: str, first: bool = True) -> list[int]:
        """Ids of a text in which control tokens are ordinary characters. `first`: the text begins the sequence."""
        view = self._plain if first else self._rest
        return list(view.encode(text, add_special_tokens=False).ids)


def _twin(full: Tokenizer, control: frozenset[str]) -> Tokenizer:
    """A view of the same model that does not match control tokens. A full copy only when shared added tokens would get other ids."""
    added = full.get_added_tokens_decoder()
    twin = Tokenizer(full.model)
    twin.normalizer, twin.pre_tokenizer = full.normalizer, full.pre_tokenizer
    for _, token in sorted(added.items()):
        twin.add_tokens([token])
    if any(twin.token_to_id(token.content) != id for id, token in added.items()):
        twin = Tokenizer.from_str(full.to_str())
        twin.post_processor = None
    # Adding a known token again only marks it as special, which is what `encode_special_tokens` skips.
    twin.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    twin.encode_special_tokens = True
    return twin
