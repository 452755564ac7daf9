"""`Tokenizer`: text to ids and back. Knows control tokens and byte spellings; refuses to know files, chat roles or sampling.

Control tokens (turn marks, BOS, EOS) come out of `encode` only with `parse_special=True`; user text is encoded without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ridgeline.text.matcher import TokenMatcher
from ridgeline.text.vocabulary import Kind, Vocabulary


class Encoder(Protocol):
    """Three ways to cut a text into ids. `first`: the text begins the sequence."""

    def whole(self, text: str) -> list[int]:
        """All added tokens are matched, control tokens too."""

    def plain(self, text: str, first: bool = True) -> list[int]:
        """Control tokens are ordinary characters; other added tokens are matched."""

    def bare(self, text: str, first: bool = True) -> list[int]:
        """All added tokens are ordinary characters."""


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A tokenizer as its checkpoint defines it. Immutable; threads may share it.

    `bos_id` may be None. `eos_ids` hold EOS and the end-of-turn ids. `prefix` and `suffix` are what `add_special=True` puts around a text.
    `control` finds the control tokens, `marks` those and the other added tokens, `added` are the others (text -> id).
    `chat_template` is Jinja source or None; `special_tokens` are the names a template may use (bos_token, ...) with their text.
    """

    vocabulary: Vocabulary = field(repr=False)
    encoder: Encoder = field(repr=False)
    control: TokenMatcher = field(repr=False)
    marks: TokenMatcher = field(repr=False)
    bos_id: int | None
    eos_ids: frozenset[int]
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    strips_first_space: bool = False
    chat_template: str | None = field(default=None, repr=False)
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, int] = field(default_factory=dict, repr=False)

    @property
    def size(self) -> int:
        """Number of ids. Ids from here on (rows that pad the output layer) have no text and must not be sampled."""
        return self.vocabulary.size

    @property
    def adds_bos(self) -> bool:
        """Whether a text gets a BOS in front."""
        return self.bos_id is not None and self.bos_id in self.prefix

    @property
    def special_ids(self) -> frozenset[int]:
        """The control ids (and the unknown token): never named by user text, left out of decoded text."""
        return frozenset(self.control.ids.values())

    def is_special(self, id: int) -> bool:
        return self.vocabulary.kind(id) in (Kind.CONTROL, Kind.UNKNOWN)

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Ids of `text`. `add_special` puts BOS/EOS around it where the model wants them; `parse_special` lets it name control tokens.

        Without `parse_special` no control id comes out, whatever the text says. A lone surrogate is encoded as U+FFFD.
        A text that already begins with BOS gets a second one (as in `transformers`); `chat.encode_prompt` avoids that.
        """
        text = _well_formed(text)
        ids = self.encoder.whole(text) if parse_special else self.encode_plain(text)
        return [*self.prefix, *ids, *self.suffix] if add_special else ids

    def least_ids(self, text: str) -> int:
        """A lower bound for the number of ids of `text`, found without encoding it: refuse a hopelessly long prompt by this.

        Normalizers may join up to four characters into one, which the bound allows for.
        """
        return -(-len(text) // (4 * self.vocabulary.longest))

    def encode_plain(self, text: str, first: bool = True) -> list[int]:
        """Ids of ordinary text, at the start of a sequence (`first`) or in its middle; never a control id."""
        return self._without_control(self.encoder.plain, _well_formed(text), first)

    def _is_control(self, id: int) -> bool:
        return self.vocabulary.kinds[id] == Kind.CONTROL

    def _without_control(self, encode: Callable[[str, bool], list[int]], text: str, first: bool) -> list[int]:
        """Where merges can spell a control token (a rare vocabulary), the text is encoded character by character instead."""
        ids = encode(text, first)
        if not any(self._is_control(id) for id in set(ids)):
            return ids
        singles = (encode(char, first and index == 0) for index, char in enumerate(text))
        return [id for found in singles for id in found if not self._is_control(id)]

    def encode_mixed(self, text: str, tainted: Iterable[int]) -> list[int]:
        """As `encode(text, add_special=False, parse_special=True)`, but an added token that covers a tainted position stays plain text.

        `tainted` are offsets into `text`, in order: characters that came from a user.
        """
        marks = sorted(set(tainted))
        if not marks:
            return self.encode(text, add_special=False, parse_special=True)
        ids: list[int] = []
        position, at = 0, 0
        for match in self.marks.find(text):
            while at < len(marks) and marks[at] < match.start:
                at += 1
            if at < len(marks) and marks[at] < match.end:
                continue
            if match.start > position:
                ids.extend(self._without_control(self.encoder.bare, text[position : match.start], position == 0))
            ids.append(match.id)
            position = match.end
        if position < len(text):
            ids.extend(self._without_control(self.encoder.bare, text[position:], position == 0))
        return ids

    def token_bytes(self, id: int) -> bytes:
        """The bytes that a token adds to a text (control tokens: their name); b"" for an id without a token."""
        return self.vocabulary.raw(id)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, strip_first_space: bool = True) -> str:
        """The text of `ids`. Bytes that are not UTF-8 become U+FFFD; ids without a token give nothing.

        `strip_first_space=False` keeps the space that a SentencePiece text begins with: use it where `ids` continue another text.
        """
        raw = b"".join(self.vocabulary.raw(id) for id in ids if not (skip_special and self.is_special(id)))
        if strip_first_space and self.strips_first_space:
            raw = raw.removeprefix(b" ")
        return raw.decode("utf-8", "replace")


def _well_formed(text: str) -> str:
    """Lone surrogates (from JSON escapes) replaced by U+FFFD, pairs joined; other text as it is."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
