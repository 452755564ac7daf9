"""Reasoning and answer told apart: `<think>` and its like. Knows tags, a prompt's end and text; not how long thinking may last
(`sampling/thinking`), nor any protocol.

Whether a reply starts inside reasoning is read off the prompt: a template may open the tag itself, or open and close it (thinking off).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ridgeline.errors import UserError
from ridgeline.text.matcher import begun

BLANK = " \t\r\n"
Start = Literal["open", "closed", "unknown"]


@dataclass(frozen=True, slots=True)
class ThinkTags:
    """How a family of models marks reasoning. label: a word that follows the opening tag and is no reasoning."""

    name: str
    open: str
    close: str
    aliases: tuple[str, ...] = ()
    label: str = ""


TAGS = (
    ThinkTags("think", "<think>", "</think>", ("deepseek_r1", "deepseek_v3", "qwen3", "smollm3", "glm45", "olmo3", "minimax_m2")),
    ThinkTags("mistral", "[THINK]", "[/THINK]", ("magistral",)),
    ThinkTags("gemma4", "<|channel>", "<channel|>", label="thought\n"),
    ThinkTags("seed_oss", "<seed:think>", "</seed:think>"),
    ThinkTags("reasoning", "<reasoning>", "</reasoning>"),
)


def choose_tags(template: str | None, name: str | None = None) -> ThinkTags | None:
    """The tags called `name` (or by an alias), else those the template's source holds; None for a model that does not reason, or "none".

    Raises `UserError` for a name nobody has.
    """
    if name == "none":
        return None
    if name is not None and name != "auto":
        for tags in TAGS:
            if name in (tags.name, *tags.aliases):
                return tags
        known = ", ".join(tags.name for tags in TAGS)
        raise UserError(f"reasoning-parser {name!r} is not known", field="reasoning-parser", value=name, limit=known, remedy=f"use {known}")
    return next((tags for tags in TAGS if tags.close in (template or "")), None)


def start_of(tags: ThinkTags, prompt: str) -> Start:
    """Where a reply to `prompt` (rendered text) starts: inside reasoning, behind it, or as the model likes."""
    tail = prompt.rstrip(BLANK)
    if tail.endswith(tags.open) or (tags.label and tail.endswith(tags.open + tags.label.strip())):
        return "open"
    return "closed" if tail.endswith(tags.close) else "unknown"


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of a reply: new reasoning and new answer text, either may be empty."""

    reasoning: str = ""
    content: str = ""


class ReasoningStream:
    """Splits one reply. The joined pieces are the same for every way to cut the text; white space around the tags belongs to neither side.

    Unless started "open", reasoning must be the first thing said, or all is answer; a reply that is cut inside reasoning has no answer.
    """

    __slots__ = ("_buffer", "_gap", "_label", "_said", "_stage", "_tags")

    def __init__(self, tags: ThinkTags, start: Start) -> None:
        self._tags = tags
        self._stage = "inside" if start == "open" else "first"
        self._label = bool(tags.label)
        self._buffer = self._gap = ""
        self._said = False

    @property
    def inside(self) -> bool:
        """The reasoning has begun and not ended."""
        return self._stage == "inside"

    def push(self, text: str) -> Thought:
        self._buffer += text
        reasoning: list[str] = []
        content: list[str] = []
        while self._buffer and self._advance(reasoning, content):
            pass
        return Thought("".join(reasoning), "".join(content))

    def finish(self) -> Thought:
        """What was held back."""
        text, self._buffer = self._gap + self._buffer, ""
        gap, self._gap = self._gap, ""
        if self._stage == "inside":
            return Thought(reasoning=text if text.strip(BLANK) and text != gap else "")
        return Thought(content=text if self._stage == "first" else "")

    def _advance(self, reasoning: list[str], content: list[str]) -> bool:
        if self._stage == "first":
            return self._first()
        if self._stage == "inside":
            return self._inside(reasoning)
        if self._stage == "behind":
            self._buffer = self._buffer.lstrip(BLANK)
            if self._buffer:
                self._stage = "answer"
            return bool(self._buffer)
        content.append(self._buffer)
        self._buffer = ""
        return False

    def _first(self) -> bool:
        """Nothing but white space so far: is the opening tag coming?"""
        text = self._buffer.lstrip(BLANK)
        if text.startswith(self._tags.open):
            self._stage, self._buffer = "inside", text[len(self._tags.open) :]
            return True
        if self._tags.open.startswith(text):
            return False
        self._stage = "answer"
        return True

    def _inside(self, reasoning: list[str]) -> bool:
        if self._label:
            if self._buffer != self._tags.label and self._tags.label.startswith(self._buffer):
                return False
            self._buffer, self._label = self._buffer.removeprefix(self._tags.label), False
            return True
        if not self._said:
            self._buffer = self._buffer.lstrip(BLANK)
            if not self._buffer:
                return False
        at = self._buffer.find(self._tags.close)
        if at >= 0:
            self._think(self._buffer[:at], reasoning)
            self._gap, self._buffer, self._stage = "", self._buffer[at + len(self._tags.close) :], "behind"
            return True
        whole = len(self._buffer) - begun(self._buffer, self._tags.close)
        self._think(self._buffer[:whole], reasoning)
        self._buffer = self._buffer[whole:]
        return False

    def _think(self, text: str, reasoning: list[str]) -> None:
        body = text.rstrip(BLANK)
        if body:
            self._said = True
            reasoning.append(self._gap + body)
            self._gap = text[len(body) :]
        else:
            self._gap += text
