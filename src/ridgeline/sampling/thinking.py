"""A guide for models that reason first: thinking may be bounded, and a grammar binds only what comes after it.

Knows tags as token ids and bytes; refuses to know text streams and templates (`text/reasoning` does). A reply that must follow a grammar
cannot end, and cannot be ended, inside the reasoning; when the budget is spent the closing tag is all that may be said.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ridgeline.errors import InternalError
from ridgeline.sampling.guide import Forcing, Guide, GuideState, Mask, allows, either, mask_of
from ridgeline.text.reasoning import Start, ThinkTags
from ridgeline.text.tokenizer import Tokenizer

_BLANK = b" \t\r\n"
_LATE = 4  # tokens past the budget that may finish a character


class ThinkMarks:
    """A model's reasoning tags as its tokenizer spells them. Made once per model; what takes time is made at its first use and kept."""

    def __init__(self, tokenizer: Tokenizer, tags: ThinkTags, end_ids: frozenset[int]) -> None:
        self.tokenizer, self.end_ids = tokenizer, end_ids
        self.open, self.close = tags.open.encode(), tags.close.encode()
        self.open_ids, self.close_ids = (tokenizer.encode(t, add_special=False, parse_special=True) for t in (tags.open, tags.close))

    @cached_property
    def no_end(self) -> Mask:
        """Every id but those that end a text."""
        return mask_of(np.arange(self.tokenizer.size), self.tokenizer.size) & ~self.only(self.end_ids)

    @cached_property
    def blanks(self) -> Mask:
        """Ids of white space and nothing else."""
        raws = ((id, self.tokenizer.token_bytes(id)) for id in range(self.tokenizer.size) if not self.tokenizer.is_special(id))
        return self.only([id for id, raw in raws if raw and not raw.strip(_BLANK)])

    @cached_property
    def _enders(self) -> list[tuple[int, bytes]]:
        """Tokens that hold the last byte of the closing tag."""
        last, raws = self.close[-1:], ((id, self.tokenizer.token_bytes(id)) for id in range(self.tokenizer.size))
        return [(id, raw) for id, raw in raws if last in raw]

    def only(self, ids: Iterable[int]) -> Mask:
        return mask_of(ids, self.tokenizer.size)

    def inside(self, tail: bytes) -> Mask:
        """While thinking before an answer that is bound: no end, and no token that closes the tag and says more than blanks after it."""
        over: list[int] = []
        for id, raw in self._enders:
            data = tail + raw
            at = data.find(self.close)
            if at >= 0 and data[at + len(self.close) :].strip(_BLANK):
                over.append(id)
        return self.no_end & ~self.only(over) if over else self.no_end


class ThinkingGuide:
    """A `Guide`: `answer` (a grammar, or None for free text) after reasoning of at most `budget` tokens (None: no bound).

    start: where the prompt leaves the reply, from `reasoning.start_of`.
    """

    def __init__(self, marks: ThinkMarks, start: Start, answer: Guide | None = None, budget: int | None = None) -> None:
        self._marks, self._start, self._answer, self._budget = marks, start, answer, budget

    def start(self) -> ThinkingState:
        answer = None if self._answer is None else self._answer.start()
        return ThinkingState(self._marks, self._start, answer, self._budget)


@dataclass(frozen=True, slots=True)
class _Place:
    """stage: first (a tag may come), inside, behind (blanks may come), answer. seen: bytes that may be part of a tag. forced: tokens of the
    closing tag already said by force, -1 when none is."""

    stage: str
    seen: bytes = b""
    count: int = 0
    forced: int = -1


class ThinkingState:
    """One sequence's place. Cheap inside the reasoning; the answer's own state says how it goes on after it."""

    def __init__(self, marks: ThinkMarks, start: Start, answer: GuideState | None, budget: int | None) -> None:
        self._marks, self._answer, self._budget = marks, answer, budget
        first = {"open": "inside", "closed": "answer" if answer is not None else "first", "unknown": "first"}[start]
        self._place = self._bounded(_Place(first))
        self._trail: list[tuple[_Place, bool]] = []

    @property
    def done(self) -> bool:
        return self._answer is not None and self._answer.done

    @property
    def confines(self) -> bool:
        """A bound answer is still to come, or on its way."""
        return self._answer is not None

    @property
    def thinking(self) -> bool:
        """Inside the reasoning."""
        return self._place.stage == "inside"

    def allowed(self) -> Mask | None:
        place, marks, answer = self._place, self._marks, self._answer
        if place.forced >= 0:
            return marks.only([marks.close_ids[place.forced]])
        if place.stage == "inside":
            return None if answer is None else marks.inside(place.seen)
        if answer is None:
            return None
        if place.stage == "first":
            # The tag or the answer: once the tag has begun, it is all that may come.
            tag = marks.only([marks.open_ids[place.count]])
            return either(answer.allowed(), tag) if place.count == 0 else tag
        return either(answer.allowed(), marks.blanks) if place.stage == "behind" else answer.allowed()

    def accept(self, token: int) -> bool:
        place = self._place
        told = False
        if place.stage in ("answer", "behind"):
            told = self._answer is not None and (place.stage == "answer" or self._bound(token))
            # Two tokens of blanks are enough for any model's habit.
            following = _Place("behind", count=1) if place.stage == "behind" and not told and place.count == 0 else _Place("answer")
        elif place.stage == "first" and self._answer is not None and place.count == 0 and token != self._marks.open_ids[0]:
            told, following = True, _Place("answer")
        else:
            following = self._after(place, token)
        done = self._answer is not None and told and self._answer.accept(token)
        self._trail.append((place, told))
        self._place = self._bounded(following)
        return done

    def forced(self) -> list[int]:
        """The rest of a closing tag that is said by force, or what the answer's grammar forces (`guide.Forcing`)."""
        place, answer = self._place, self._answer
        if place.forced >= 0:
            return self._marks.close_ids[place.forced :]
        return answer.forced() if place.stage == "answer" and isinstance(answer, Forcing) else []

    def rollback(self, count: int) -> None:
        if count < 0 or count > len(self._trail):
            raise InternalError(f"cannot take back {count} of {len(self._trail)} tokens")
        told = 0
        for _ in range(count):
            self._place, was_told = self._trail.pop()
            told += was_told
        if self._answer is not None and told:
            self._answer.rollback(told)

    def _bound(self, token: int) -> bool:
        """Behind the reasoning: a token that the answer takes, not one of the blanks before it."""
        assert self._answer is not None
        return allows(self._answer.allowed(), token)

    def _after(self, place: _Place, token: int) -> _Place:
        """The place after a token of the tag or of the reasoning."""
        marks = self._marks
        data = place.seen + marks.tokenizer.token_bytes(token)
        if place.stage == "first":
            text = data.lstrip(_BLANK)
            if text.startswith(marks.open):
                return self._thinking(_Place("inside"), text[len(marks.open) :])
            return _Place("first", data, place.count + 1) if marks.open.startswith(text) else _Place("answer")
        return self._thinking(place, data)

    def _thinking(self, place: _Place, data: bytes) -> _Place:
        close = self._marks.close
        at = data.find(close)
        if at >= 0:
            return _Place("answer" if self._answer is None else "behind")
        forced = place.forced + 1 if place.forced >= 0 else -1
        return _Place("inside", data[-(len(close) - 1) :], place.count + 1, forced)

    def _bounded(self, place: _Place) -> _Place:
        """When the budget is spent the closing tag is forced, but not in the middle of a character."""
        if place.stage != "inside" or self._budget is None or place.count < self._budget or place.forced >= 0:
            return place
        if place.count < self._budget + _LATE and _cut(place.seen):
            return place
        return _Place("inside", place.seen, place.count, 0)


def _cut(raw: bytes) -> bool:
    """Whether the bytes end inside a character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(raw)
    return bool(decoder.getstate()[0])
