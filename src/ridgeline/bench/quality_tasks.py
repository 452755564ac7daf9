"""Questions with one right answer, asked of a model through its logits alone: choices by likelihood, exact answers word by word.

Knows tasks and how they are scored. Any model is a function to logits beside its tokenizer; refuses to know engines.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ridgeline.bench.accuracy import Logits, log_softmax
from ridgeline.bench.runner import Array
from ridgeline.text.tokenizer import Tokenizer

CHUNK = 256
MOST_ANSWER_TOKENS = 12


@dataclass(frozen=True, slots=True)
class Item:
    """choices: ways to go on, the first being right; or answer: what a greedy continuation must begin with."""

    prompt: str
    choices: tuple[str, ...] = ()
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    name: str
    what: str
    kind: Literal["choice", "exact"]
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Answers:
    """What a model said to a task, item by item: the number of a choice, or a text; `right` in the same order."""

    task: str
    given: tuple[int | str, ...]
    right: tuple[bool, ...]

    @property
    def share(self) -> float:
        return sum(self.right) / max(1, len(self.right))


def shipped_tasks() -> tuple[Task, ...]:
    """The tasks beside this file."""
    document = json.loads((Path(__file__).parent / "data" / "quality_tasks.json").read_text("utf8"))
    return tuple(_task(t) for t in document["tasks"])


def _task(found: dict[str, Any]) -> Task:
    items = tuple(
        Item(i["prompt"], tuple(i.get("choices", ())), i.get("answer") if found["kind"] == "exact" else "") for i in found["items"]
    )
    return Task(found["name"], found["what"], found["kind"], items)


def lookup_task(items: int = 24, names: int = 6, seed: int = 0) -> Task:
    """Numbers beside names, and one of the names again: what attention over the cache is for."""
    rng = np.random.default_rng(seed)
    words = ("Anna", "Bruno", "Clara", "David", "Elena", "Felix", "Greta", "Hugo", "Ida", "Jonas", "Karla", "Leo", "Mina", "Nils", "Olga")
    made = []
    for _ in range(items):
        chosen = [str(w) for w in rng.choice(words, names, replace=False)]
        numbers = rng.integers(1000, 10_000, names)
        asked = int(rng.integers(0, names))
        lines = [f"{w}: {n}" for w, n in zip(chosen, numbers, strict=True)]
        made.append(Item("\n".join([*lines, f"{chosen[asked]}:"]), answer=str(numbers[asked])))
    return Task("lookup", f"the number beside a name, out of {names}", "exact", tuple(made))


class Asker:
    """One model under questions: `prefix` ids (BOS where it wants one) begin every context."""

    def __init__(self, logits: Logits, tokenizer: Tokenizer, prefix: Sequence[int] = ()) -> None:
        self._logits, self._tokenizer, self._prefix = logits, tokenizer, list(prefix)

    def answer(self, task: Task) -> Answers:
        given: list[int | str] = [self._choose(i) if task.kind == "choice" else self.go_on(i.prompt, i.answer) for i in task.items]
        right = [g == 0 if task.kind == "choice" else begins(str(g), i.answer) for g, i in zip(given, task.items, strict=True)]
        return Answers(task.name, tuple(given), tuple(right))

    def _choose(self, item: Item) -> int:
        """The choice with the greatest log-probability; of equal ones the first."""
        contexts = [self._ids(item.prompt + choice) for choice in item.choices]
        same = min(len(self._ids(item.prompt)), *(len(ids) - 1 for ids in contexts))
        while any(ids[:same] != contexts[0][:same] for ids in contexts):
            same -= 1  # a token that spans prompt and choice
        first = log_softmax(self._last(0, contexts[0][:same], 1)) if same else None
        scores = []
        for ids in contexts:
            score = 0.0 if first is None else float(first[0, ids[same]])  # nothing predicts the first token of all
            if len(ids) > same + 1:
                rows = log_softmax(self._last(same, ids[same:-1], len(ids) - same - 1))
                score += float(rows[np.arange(len(rows)), ids[same + 1 :]].sum())
            scores.append(score)
        return int(np.argmax(scores))

    def go_on(self, prompt: str, answer: str) -> str:
        """The greedy continuation, as long as it takes to know whether it begins with `answer`."""
        ids = self._ids(prompt)
        row = self._last(0, ids, 1)
        made: list[int] = []
        while len(made) < MOST_ANSWER_TOKENS:
            made.append(int(row[0].argmax()))
            text = self._tokenizer.decode(made, strip_first_space=False)
            if len(text.lstrip()) >= len(answer) or made[-1] in self._tokenizer.eos_ids:
                break
            row = self._last(len(ids) + len(made) - 1, made[-1:], 1)
        return self._tokenizer.decode(made, strip_first_space=False)

    def _ids(self, text: str) -> list[int]:
        return [*self._prefix, *self._tokenizer.encode_plain(text)]

    def _last(self, past: int, ids: Sequence[int], want: int) -> Array:
        """float32 [want, vocab] of the last `want` of `ids`, computed behind `past` tokens; all but the wanted ones in chunks."""
        at = 0
        while len(ids) - at > max(CHUNK, want):
            self._logits(past + at, np.asarray(ids[at : at + CHUNK], np.int32), 0)
            at += CHUNK
        return self._logits(past + at, np.asarray(ids[at:], np.int32), want)


def begins(text: str, answer: str) -> bool:
    """Blanks in front do not count."""
    return text.lstrip().startswith(answer)
