"""Test helpers: a backend whose logits are a function of the tokens it finds in its blocks, and a byte tokenizer. No model needed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.cli.tiny_gguf import END_ID, metadata

from ridgeline.backends.base import LoadPlan
from ridgeline.engine.loader import LoadedModel
from ridgeline.engine.request import Limits
from ridgeline.graph.caches import Paged, cache_groups
from ridgeline.graph.graph import Graph
from ridgeline.graph.step import Step
from ridgeline.options import Plan
from ridgeline.sampling.plan import Sampled, SamplePlan
from ridgeline.sampling.transforms import sample_rows
from ridgeline.text.from_gguf import tokenizer_from_gguf
from ridgeline.text.stream import TextStream
from ridgeline.text.tokenizer import Tokenizer
from ridgeline.types import SamplingParams

LogitsOf = Callable[[list[int]], npt.NDArray[np.float32]]
VOCAB = 260
EOS = END_ID


def hashed_logits(vocab: int = VOCAB) -> LogitsOf:
    """Logits that depend on every token before, so that a wrong block or position changes what follows."""

    def logits(history: list[int]) -> npt.NDArray[np.float32]:
        digest = hashlib.sha256(repr(history).encode()).digest()
        row = np.random.default_rng(int.from_bytes(digest[:8], "little")).normal(size=vocab).astype(np.float32)
        row[EOS] = -8.0
        return row

    return logits


def scripted(answer: Sequence[int], prompt_len: int, vocab: int = VOCAB) -> LogitsOf:
    """Logits under which greedy decoding says `answer` (then EOS) after any prompt of `prompt_len` tokens."""

    def logits(history: list[int]) -> npt.NDArray[np.float32]:
        made = len(history) - prompt_len
        row = np.zeros(vocab, np.float32)
        row[answer[made] if 0 <= made < len(answer) else EOS] = 10.0
        return row

    return logits


class FakeProgram:
    """A `Program` that stores token ids where keys would be. Slots start as -9, so reading what was never written shows."""

    def __init__(
        self, logits_of: LogitsOf, *, blocks: tuple[int, ...] = (64,), block_size: int = 4, windows: tuple[int | None, ...] = (None,)
    ) -> None:
        caches = tuple(Paged(f"c{i}", 1, 8, 8, w) for i, w in enumerate(windows))
        self.graph = Graph("fake", (), caches, {})
        self.plan = LoadPlan(blocks, block_size)
        self._groups = cache_groups(caches)
        self._logits_of = logits_of
        self.pool = [np.full((n, block_size), -9, np.int64) for n in blocks]
        self.steps: list[Step] = []
        self._rows = np.zeros((0, 0), np.float32)

    def forward(self, step: Step) -> None:
        self.steps.append(step)
        bs, rows, start = self.plan.block_size, [], 0
        for copy in step.copies:
            self.pool[copy.group][copy.dst] = self.pool[copy.group][copy.src]
        for i, span in enumerate(step.spans):
            for t in range(span.new):
                position = span.past + t
                for g, pool in enumerate(self.pool):
                    block = step.tables[g][i][position // bs]
                    assert block >= 0
                    pool[block, position % bs] = step.tokens[start + t]
                if t >= span.new - span.want:
                    rows.append(self._logits_of(self._history(step, i, position)))
            start += span.new
        self._rows = np.stack(rows) if rows else np.zeros((0, VOCAB), np.float32)

    def _history(self, step: Step, i: int, position: int) -> list[int]:
        """Tokens 0..position as the first group (the widest window) sees them; the other groups must agree where they look."""
        seen: dict[int, int] = {}
        for g, group in enumerate(self._groups):
            first = 0 if group.window is None else max(0, position - group.window + 1)
            for p in range(first, position + 1):
                token = int(self.pool[g][step.tables[g][i][p // self.plan.block_size], p % self.plan.block_size])
                assert token >= 0 and seen.setdefault(p, token) == token
        return [seen[p] for p in sorted(seen)]

    def logits(self) -> npt.NDArray[np.float32]:
        return self._rows

    def tap(self, name: str) -> npt.NDArray[np.float32]:
        raise KeyError(name)

    def sample(self, plan: SamplePlan) -> Sampled:
        return sample_rows(self._rows, plan)


@cache
def byte_tokenizer() -> Tokenizer:
    """Ids 0..255 are the bytes, 256..258 control tokens, 259 is "ab"."""
    return tokenizer_from_gguf(metadata())


def byte_text(params: SamplingParams) -> TextStream:
    return TextStream(byte_tokenizer(), params.stop, include_stop=params.include_stop_str_in_output)


class ByteWords:
    """A tokenizer and a chat template for tests: one id per byte, "<role>text\\n" per message."""

    tokenizer = None
    vocab_size = VOCAB
    stop_ids = frozenset({EOS})

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def render(self, messages: Sequence[dict[str, str]], tools: object = None, add_generation_prompt: bool = True) -> tuple[str, list[int]]:
        text = "".join(f"<{m['role']}>{m['content']}\n" for m in messages) + ("<assistant>" if add_generation_prompt else "")
        return text, self.encode(text)

    def require_template(self) -> None:
        return None

    def out(self, params: SamplingParams) -> TextStream:
        return byte_text(params)

    def spellings(self, words: Sequence[str]) -> list[tuple[int, ...]]:
        return [tuple(word.encode()) for word in words]


def loaded(logits_of: LogitsOf, *, max_model_len: int = 64, max_num_seqs: int = 8) -> LoadedModel:
    """A `LoadedModel` on the fake program."""
    program = FakeProgram(logits_of, blocks=(256,))
    plan = Plan("fake", "/fake", "reference", "auto", max_model_len, 1, "f32", 4, (256,), 0, max_num_seqs, 16)
    words: Any = ByteWords()
    return LoadedModel(plan, program, {}, words, Limits(max_model_len, VOCAB, frozenset({EOS})), 0.0)
