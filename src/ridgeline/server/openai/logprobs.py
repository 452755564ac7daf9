"""Log-probabilities in OpenAI's two shapes. Values are raw log-softmax, whatever the sampling settings.

A listed position maps token id -> value with the sampled token first, as `CompletionOutput.logprobs` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ridgeline.text.tokenizer import Tokenizer

Position = dict[int, float]
LEAST = -9999.0  # JSON has no infinity; a masked-out token's value is never listed, a true underflow may be.


class Spelling:
    """How the tokens of one reply are shown: their text, or `token_id:N` where asked (vLLM's return_tokens_as_token_ids)."""

    def __init__(self, tokenizer: Tokenizer, as_ids: bool = False) -> None:
        self.tokenizer, self._as_ids = tokenizer, as_ids
        self._known: dict[int, str] = {}

    def text(self, id: int) -> str:
        found = self._known.get(id)
        if found is None:
            found = f"token_id:{id}" if self._as_ids else self.tokenizer.token_bytes(id).decode("utf-8", "replace")
            self._known[id] = found
        return found

    def raw(self, id: int) -> list[int]:
        return list(self.tokenizer.token_bytes(id))


def _value(value: float) -> float:
    return max(value, LEAST)


def likeliest(position: Position, k: int) -> list[tuple[int, float]]:
    """The k likeliest of a position; ties go to the lower id, as everywhere."""
    return sorted(position.items(), key=lambda item: (-item[1], item[0]))[:k]


def chat_logprobs(ids: Sequence[int], positions: Sequence[Position], k: int, spell: Spelling) -> dict[str, Any]:
    """`{"content": [...]}` with `k` alternatives per token; 0 gives an empty list of them."""

    def entry(id: int, value: float) -> dict[str, Any]:
        return {"token": spell.text(id), "logprob": _value(value), "bytes": spell.raw(id)}

    content = [
        {**entry(id, position[id]), "top_logprobs": [entry(i, v) for i, v in likeliest(position, k)]}
        for id, position in zip(ids, positions, strict=False)
    ]
    return {"content": content}


def completion_logprobs(
    ids: Sequence[int], positions: Sequence[Position | None], k: int, spell: Spelling, offset: int
) -> tuple[dict[str, Any], int]:
    """The completions shape, and the text offset after it. A position of None (a first prompt token) has no value.

    The sampled token is listed even when it is not among the k likeliest.
    """
    shown: dict[str, list[Any]] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
    for id, position in zip(ids, positions, strict=False):
        text = spell.text(id)
        shown["text_offset"].append(offset)
        offset += len(text)
        shown["tokens"].append(text)
        if position is None:
            shown["token_logprobs"].append(None)
            shown["top_logprobs"].append(None)
            continue
        shown["token_logprobs"].append(_value(position[id]))
        top = {spell.text(i): _value(v) for i, v in likeliest(position, k)}
        shown["top_logprobs"].append({**top, text: _value(position[id])} if k else None)
    return shown, offset


def prompt_logprobs(positions: Sequence[Position | None] | None, spell: Spelling) -> list[Any] | None:
    """vLLM's `prompt_logprobs`: per prompt token a mapping from id to value, rank and text."""
    if positions is None:
        return None
    rows: list[Any] = []
    for position in positions:
        if position is None:
            rows.append(None)
            continue
        # The prompt's own token comes first; its rank is known only among those listed.
        ranked = {id: rank for rank, (id, _) in enumerate(likeliest(position, len(position)), 1)}
        rows.append({str(id): {"logprob": _value(v), "rank": ranked[id], "decoded_token": spell.text(id)} for id, v in position.items()})
    return rows
