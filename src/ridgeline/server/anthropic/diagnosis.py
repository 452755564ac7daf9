"""Why a prompt's prefix was not reused, in the shape of Anthropic's `diagnostics`: bodies compared, and what the cache itself reports.

Fingerprints of requests that asked for it are kept, the latest thousand; no text is.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.server.schemas.messages import CountBody
from ridgeline.types import CacheReport

_KEPT = 1024


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Digests of a body's parts; `chain[i]` covers messages 0 to i. prompt: its length in tokens."""

    model: str
    system: bytes
    tools: bytes
    chain: tuple[bytes, ...]
    prompt: int


def fingerprint(body: CountBody, model: str, prompt: int) -> Fingerprint:
    return Fingerprint(model, _digest(body.system), _digest(body.tools), tuple(_chain(body.messages)), prompt)


def _digest(value: Any) -> bytes:
    return hashlib.sha256(json.dumps(_bare(value), sort_keys=True).encode()).digest()[:16]


def _chain(messages: Iterable[Mapping[str, Any]]) -> Iterable[bytes]:
    link = b""
    for message in messages:
        link = hashlib.sha256(link + _digest(message)).digest()[:16]
        yield link


def _bare(value: Any) -> Any:
    """Without cache marks, which say nothing to the model."""
    if isinstance(value, Mapping):
        return {k: _bare(v) for k, v in value.items() if k != "cache_control"}
    return [_bare(v) for v in value] if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class _Kept:
    """Of the chain only its end is kept: a later body is compared at that length."""

    model: str
    system: bytes
    tools: bytes
    count: int
    last: bytes
    prompt: int


class Diagnoses:
    """Fingerprints by message id. One per server, used on the event loop only."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def remember(self, id: str, mark: Fingerprint) -> None:
        last = mark.chain[-1] if mark.chain else b""
        self._kept[id] = _Kept(mark.model, mark.system, mark.tools, len(mark.chain), last, mark.prompt)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)

    def explain(self, mark: Fingerprint, previous: str | None, report: CacheReport | None) -> dict[str, Any]:
        """The `diagnostics` of a reply. `previous`: the message id that the client named, if it did."""
        reason = None if previous is None else self._compare(mark, previous, 0 if report is None else report.tokens)
        document: dict[str, Any] = {"cache_miss_reason": reason}
        if report is not None:
            document["cache"] = cache_document(report)
        return document

    def _compare(self, mark: Fingerprint, previous: str, cached: int) -> dict[str, Any] | None:
        before = self._kept.get(previous)
        if before is None:
            return {"type": "previous_message_not_found"}
        missed = max(0, min(before.prompt, mark.prompt) - cached)
        for name in ("model", "system", "tools"):
            if getattr(before, name) != getattr(mark, name):
                return {"type": f"{name}_changed", "cache_missed_input_tokens": missed}
        if before.count > len(mark.chain) or (before.count and mark.chain[before.count - 1] != before.last):
            return {"type": "messages_changed", "cache_missed_input_tokens": missed}
        return None


def cache_document(report: CacheReport) -> dict[str, Any]:
    """What the cache did, from the cache itself. `first_divergent_token`: index of the first one that nothing seen continues with."""
    return {
        "reason": report.reason, "prompt_tokens": report.prompt, "cached_tokens": report.tokens, "matched_tokens": report.matched,
        "first_divergent_token": report.divergent, "evicted_at": report.evicted_at, "unit_tokens": report.unit,
    }  # fmt: skip
