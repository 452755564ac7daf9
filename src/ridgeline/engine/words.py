"""Text for the engine: prompts to ids, conversations to ids through the template, ids to streams of text. Thin: `text/` knows how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ridgeline.errors import TemplateError, UserError
from ridgeline.formats.checkpoint import Checkpoint
from ridgeline.text.stream import TextStream
from ridgeline.text.tokenizer import Tokenizer
from ridgeline.types import SamplingParams


class TextSource(Protocol):
    """What a request needs to know of text when it is prepared."""

    def out(self, params: SamplingParams) -> TextStream:
        """The text of one choice, stop strings included."""

    def spellings(self, words: Sequence[str]) -> list[tuple[int, ...]]:
        """All token sequences that spell these words, with and without a space before them."""


@dataclass(frozen=True, eq=False)
class Words:
    """A model's tokenizer and what its checkpoint says about ends and sampling. `stop_ids` end an answer unless ignored.

    sampling: what its makers recommend, under the names of `SamplingParams`; a server's defaults, never an offline run's.
    """

    tokenizer: Tokenizer
    stop_ids: frozenset[int]
    name: str
    sampling: Mapping[str, float | int] = field(default_factory=dict)

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.size

    def encode(self, text: str) -> list[int]:
        """Ids of a completion prompt: BOS where the tokenizer adds it, control tokens where the caller wrote them, nothing stripped."""
        from ridgeline.text.chat import encode_prompt

        return encode_prompt(self.tokenizer, text)

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None, add_generation_prompt: bool = True
    ) -> tuple[str, list[int]]:
        """(text, ids) of a conversation. Raises `TemplateError`; what a message says never becomes a control token."""
        from ridgeline.text.chat import encode_chat

        self.require_template()
        chat = encode_chat(self.tokenizer, messages, tools=tools, add_generation_prompt=add_generation_prompt)
        return chat.text, chat.ids

    def require_template(self) -> None:
        """Raises `TemplateError` with the remedy for a model that was not made for conversations."""
        if self.tokenizer.chat_template is None:
            raise TemplateError(
                f"{self.name} has no chat template, so it cannot hold a conversation", field="chat_template",
                remedy="continue a text instead: ridgeline run MODEL --raw \"...\"",
            )  # fmt: skip

    def spellings(self, words: Sequence[str]) -> list[tuple[int, ...]]:
        """As vLLM bans words: each as it continues a text, and after a space; what ends like the first needs no entry of its own."""
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            plain = tuple(self.tokenizer.encode_plain(word.lstrip() or word, first=False))
            spaced = tuple(self.tokenizer.encode_plain(" " + (word.lstrip() or word), first=False))
            found |= {ids: None for ids in (plain, spaced) if ids and (ids is plain or ids[-len(plain) :] != plain)}
        return list(found)

    def out(self, params: SamplingParams) -> TextStream:
        return TextStream(
            self.tokenizer, params.stop, include_stop=params.include_stop_str_in_output, skip_special=params.skip_special_tokens
        )


def open_words(checkpoint: Checkpoint) -> Words:
    """Raises `FileFormatError` or `UnsupportedError` for a tokenizer that is missing or not understood."""
    if checkpoint.kind == "gguf":
        from ridgeline.text.from_gguf import tokenizer_from_gguf

        tokenizer = tokenizer_from_gguf(checkpoint.metadata)
    else:
        from ridgeline.text.from_folder import tokenizer_from_folder

        tokenizer = tokenizer_from_folder(checkpoint.folder)
    return Words(tokenizer, tokenizer.eos_ids | _generation_ends(checkpoint), str(checkpoint.path.name), _recommended(checkpoint))


def _generation_ends(checkpoint: Checkpoint) -> frozenset[int]:
    """End ids that generation_config.json adds to the tokenizer's own."""
    ends = checkpoint.metadata.get("generation_config", {}).get("eos_token_id") if checkpoint.kind == "hf" else None
    return frozenset(i for i in (ends if isinstance(ends, list) else [ends]) if isinstance(i, int) and not isinstance(i, bool))


# Names in generation_config.json and in GGUF's general.sampling.
_SAMPLING = {
    "temperature": ("temperature", "temp"), "top_p": ("top_p", "top_p"), "top_k": ("top_k", "top_k"), "min_p": ("min_p", "min_p"),
    "repetition_penalty": ("repetition_penalty", "penalty_repeat"),
}  # fmt: skip


def _recommended(checkpoint: Checkpoint) -> dict[str, float | int]:
    """What the checkpoint says that `SamplingParams` takes; values it would refuse are passed over."""
    given: dict[str, float | int] = {}
    config = checkpoint.metadata.get("generation_config", {}) if checkpoint.kind == "hf" else {}
    for name, (hf, gguf) in _SAMPLING.items():
        value = config.get(hf) if checkpoint.kind == "hf" else checkpoint.metadata.get(f"general.sampling.{gguf}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        try:
            SamplingParams(**{name: int(value) if name == "top_k" else float(value)})  # type: ignore[arg-type]
        except UserError:
            continue
        given[name] = int(value) if name == "top_k" else float(value)
    return given
