"""How long what was read stays in the prefix cache, whichever protocol asks: seconds and a rank, both soft.

A sequence that runs takes any block it needs; these only say whose prefixes go first. Sources: OpenAI's `prompt_cache_retention`,
Anthropic's `cache_control`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ridgeline.errors import UserError, within
from ridgeline.server.schemas.messages import MessagesBody

MAX_TTL_S = 86_400.0
MAX_RANK = 100
_OPENAI = {"in_memory": 0.0, "in-memory": 0.0, "24h": MAX_TTL_S}
_ANTHROPIC = {"5m": 300.0, "1h": 3600.0}


@dataclass(frozen=True, slots=True)
class Retention:
    """ttl_s: seconds after the answer for which the prefix goes after all that have none; rank: higher ones go later, 0 is everybody's."""

    ttl_s: float = 0.0
    rank: int = 0


def asked(ttl_s: float | None, rank: int | None, openai: str | None = None) -> Retention:
    """From a body's own fields; openai: `prompt_cache_retention`, which cache_ttl_s overrides. Raises `UserError` naming the field."""
    if openai is not None and openai not in _OPENAI:
        text = f"prompt_cache_retention is {openai[:40]!r}, must be in_memory or 24h"
        raise UserError(text, field="prompt_cache_retention", value=openai[:40])
    if ttl_s is not None:
        within("cache_ttl_s", ttl_s, 0, MAX_TTL_S)
    if rank is not None:
        within("cache_rank", rank, -MAX_RANK, MAX_RANK)
    kept = 0.0 if openai is None else _OPENAI[openai]
    return Retention(kept if ttl_s is None else float(ttl_s), rank or 0)


def of_messages(body: MessagesBody) -> Retention:
    """The longest `cache_control.ttl` of an Anthropic body, five minutes where one gives none, unless the body says cache_ttl_s."""
    given = asked(body.cache_ttl_s, body.cache_rank)
    marks = [] if body.cache_ttl_s is not None else [_seconds(mark, where) for mark, where in _marks(body)]
    return Retention(max([given.ttl_s, *marks]), given.rank)


def _marks(body: MessagesBody) -> Iterator[tuple[dict[str, Any], str]]:
    """Every cache_control, with the path to it."""
    holders: list[tuple[Any, str]] = [({"cache_control": body.cache_control}, "")]
    for name, blocks in (("system", body.system), ("tools", body.tools)):
        holders += [(block, f"{name}[{i}].") for i, block in enumerate(blocks)] if isinstance(blocks, list) else []
    for i, message in enumerate(body.messages):
        content = message.get("content")
        holders += [(block, f"messages[{i}].content[{j}].") for j, block in enumerate(content)] if isinstance(content, list) else []
    for holder, where in holders:
        mark = holder.get("cache_control") if isinstance(holder, dict) else None
        if isinstance(mark, dict):
            yield mark, f"{where}cache_control.ttl"


def _seconds(mark: dict[str, Any], where: str) -> float:
    ttl = mark.get("ttl", "5m")
    if not isinstance(ttl, str) or ttl not in _ANTHROPIC:
        raise UserError(f"{where} is {str(ttl)[:40]!r}, must be 5m or 1h", field=where, value=str(ttl)[:40])
    return _ANTHROPIC[ttl]
