"""Encoder on the `tokenizers` library, for `tokenizer.json` and for byte-level BPE from GGUF. Knows that library's quirks, not files.

Several views share one model: `full` matches every added token, `plain` leaves control tokens as text, `bare` all of them; the latter two
exist once more without the space that Metaspace puts before the first word, for a piece in the middle of a sequence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tokenizers import AddedToken, Tokenizer, pre_tokenizers

State = Any  # a piece of tokenizer.json
_LONG_TEXT = 8192  # characters: some milliseconds of encoding


def state(component: Any) -> State:
    """The JSON of a normalizer, pre-tokenizer, decoder or post-processor; None when there is none."""
    return None if component is None else json.loads(component.__getstate__())


@contextmanager
def refusing(make: Callable[[str], Exception]) -> Iterator[None]:
    """Turn whatever the library raises into `make(one line)`. Its panics are no `Exception`, so those are caught by name."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise make(" ".join(str(error).split())[:300]) from None


class LibraryEncoder:
    """Text -> ids by `tokenizers`. `control` are token texts that `plain` must treat as ordinary characters."""

    __slots__ = ("_bare", "_full", "_plain")

    def __init__(self, full: Tokenizer, control: frozenset[str]) -> None:
        full.no_truncation()
        full.no_padding()
        self._full = full
        self._plain = _views(full, control)
        self._bare: tuple[Tokenizer, Tokenizer] | None = None

    def whole(self, text: str) -> list[int]:
        """Ids of a text in which control tokens count."""
        return _ids(self._full, text)

    def plain(self, text: str, first: bool = True) -> list[int]:
        """Ids of a text in which control tokens are ordinary characters. `first`: the text begins the sequence."""
        return _ids(self._plain[not first], text)

    def bare(self, text: str, first: bool = True) -> list[int]:
        """Ids of a text in which every added token is ordinary characters."""
        if self._bare is None:
            self._bare = _views(self._full, frozenset(token.content for token in self._full.get_added_tokens_decoder().values()))
        return _ids(self._bare[not first], text)


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The library keeps the interpreter's lock through `encode`, so that a long text would hold up every other thread: engine, event
    loop. Its batch form lets go of the lock and gives the same ids."""
    if len(text) < _LONG_TEXT:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)
    return list(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)


def _views(full: Tokenizer, ignored: frozenset[str]) -> tuple[Tokenizer, Tokenizer]:
    """Views that do not match `ignored` tokens: for the start of a sequence, and for its middle."""
    start = middle = _twin(full, ignored)
    cut = json.dumps(state(full.pre_tokenizer))
    if '"prepend_scheme": "first"' in cut:
        middle = _twin(full, ignored)
        replaced = pre_tokenizers.Sequence([])
        replaced.__setstate__(cut.replace('"prepend_scheme": "first"', '"prepend_scheme": "never"').encode())
        middle.pre_tokenizer = replaced
    return start, middle


def _twin(full: Tokenizer, ignored: frozenset[str]) -> Tokenizer:
    """A view of the same model that does not match `ignored` tokens. A full copy only when shared added tokens would get other ids."""
    added = full.get_added_tokens_decoder()
    twin = Tokenizer(full.model)
    twin.normalizer, twin.pre_tokenizer = full.normalizer, full.pre_tokenizer
    for _, token in sorted(added.items()):
        twin.add_tokens([token])
    if any(twin.token_to_id(token.content) != id for id, token in added.items()):
        twin = Tokenizer.from_str(full.to_str())
        twin.post_processor = None
    # Adding a known token again only marks it as special, which is what `encode_special_tokens` skips.
    twin.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in ignored])
    twin.encode_special_tokens = True
    return twin
