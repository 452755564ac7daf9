"""What each token id stands for: its text, its kind, its bytes. Knows how vocabularies spell bytes, not how text is cut."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Literal

Spelling = Literal["bytes", "spm"]
SPACE = "\u2581"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")

# Tokens that end a turn or a text wherever they are control tokens; the names are facts of the published vocabularies.
END_TEXTS = frozenset(
    {
        "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>", "<|end|>", "<|return|>", "<|call|>",
        "<EOT>", "[EOT]", "[EOS]", "<|eot|>", "<|end_of_turn|>", "<end_of_utterance>", "<turn|>", "<｜end▁of▁sentence｜>", "<|endofturn|>",
    }
)  # fmt: skip


class Kind(IntEnum):
    """The token types of the GGUF specification; MISSING marks an id that has no token."""

    MISSING = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@lru_cache(maxsize=1)
def byte_to_char() -> dict[int, str]:
    """GPT-2's spelling of bytes: printable Latin-1 characters stand for themselves, the other bytes for U+0100 and up, in order."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in kept}
    for byte in range(256):
        if byte not in table:
            table[byte] = chr(256 + len(table) - len(kept))
    return table


@lru_cache(maxsize=1)
def char_to_byte() -> dict[str, int]:
    return {char: byte for byte, char in byte_to_char().items()}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Text and kind of each id in [0, size). `text_of` gives None for an id without a token; `kinds` is one byte per id.

    `longest` is the length of the longest token, in characters.
    """

    size: int
    text_of: Callable[[int], str | None]
    kinds: bytes
    spelling: Spelling
    longest: int

    def kind(self, id: int) -> Kind:
        return Kind(self.kinds[id]) if 0 <= id < self.size else Kind.MISSING

    def text(self, id: int) -> str | None:
        return self.text_of(id) if 0 <= id < self.size else None

    def raw(self, id: int) -> bytes:
        """The bytes that a token adds to a text; b"" for an id without a token (a padded row of the output layer)."""
        text, kind = self.text(id), self.kind(id)
        if text is None or kind is Kind.MISSING:
            return b""
        if self.spelling == "spm":
            if kind is Kind.BYTE and (match := _BYTE_PIECE.fullmatch(text)) is not None:
                return bytes([int(match[1], 16)])
            return _utf8(text if kind in (Kind.CONTROL, Kind.UNKNOWN) else text.replace(SPACE, " "))
        if kind in (Kind.CONTROL, Kind.USER_DEFINED, Kind.UNKNOWN):
            return _utf8(text)
        table = char_to_byte()
        return bytes(table[char] for char in text) if all(char in table for char in text) else _utf8(text)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def end_ids(control: dict[str, int], named: set[int]) -> frozenset[int]:
    """Ids that end a generation: those the file names, and control tokens known by their text.

    In the harmony vocabularies (with `<|return|>` and `<|call|>`) `<|end|>` only closes a message, so it is left out.
    """
    found = {id for text, id in control.items() if text in END_TEXTS}
    if "<|return|>" in control and "<|call|>" in control and "<|end|>" in control:
        found.discard(control["<|end|>"])
    return frozenset(found | named)
