"""What may be drawn next, as the engine sees it: masks of ids, a `Guide` per request, a `GuideState` per sequence.
Knows no grammar and no tokenizer.

How an engine uses one (calls for one state never overlap, except that a `MaskPool` may be making its mask):

    state = guide.start()                       # per sequence: n choices have n states; a state is kept over preemption
    row = SampleRow(..., allowed=state.allowed())
    if state.accept(token): finish = "stop"     # every drawn token in order, the ending EOS too; True: nothing may follow,
                                                # whatever min_tokens and ignore_eos say
    pool.prepare([state, ...])                  # before each native forward: the masks of its draws are made while that runs

While `state.confines` is True, a text ends by `accept` or by length only: stop strings and stop token ids are not looked for,
so that what ends with "stop" is whole. A mask without any bit means that nothing can follow: end the sequence with an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

_FEW = 64  # ids that are set faster one by one
Mask = npt.NDArray[np.uint32]  # [ceil(vocab / 32)], bit i of word i // 32 set: id i may be drawn


class GuideState(Protocol):
    """One sequence's place in what it may say. An exception out of it ends that sequence alone."""

    @property
    def done(self) -> bool:
        """Nothing more may be said."""

    @property
    def confines(self) -> bool:
        """The next token is bound by a grammar."""

    def allowed(self) -> Mask | None:
        """What the next token may be; None: anything. Not to be written to. Raises `UserError` when a grammar went over its limits."""

    def accept(self, token: int) -> bool:
        """The token that was drawn. True when nothing may follow. Raises `UserError` for a token that was not allowed."""

    def rollback(self, count: int) -> None:
        """Forget the last `count` accepted tokens (rejected drafts)."""


@runtime_checkable
class Forcing(Protocol):
    """A state that can say what must come next: such tokens are the best guesses there are. They are verified like any guess."""

    def forced(self) -> list[int]:
        """Tokens that spell the only text that may follow, as far as there is only one; other spellings may be allowed."""


class Guide(Protocol):
    """What one request asked for; compiled once, shared by its sequences."""

    def start(self) -> GuideState: ...


class MaskPool:
    """Makes masks on a thread of its own while the native step runs; the grammar library lets go of the interpreter lock meanwhile."""

    def __init__(self, threads: int = 1) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="ridgeline-mask")

    def prepare(self, states: Iterable[GuideState]) -> Future[None]:
        """Begin. `allowed()` of a state whose mask is in the making waits for it; the future, which never raises, need not be looked at."""
        todo = tuple(states)
        return self._pool.submit(_make, todo)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def _make(states: tuple[GuideState, ...]) -> None:
    for state in states:
        with contextlib.suppress(Exception):  # whoever asks for the mask gets the same error again
            state.allowed()


def mask_of(ids: Iterable[int], vocab: int) -> Mask:
    """Only these ids may be drawn."""
    words, listed = (vocab + 31) // 32, ids if isinstance(ids, np.ndarray) else list(ids)
    if len(listed) > _FEW:
        bits = np.zeros(32 * words, np.uint8)
        bits[listed] = 1
        return np.packbits(bits, bitorder="little").view(np.uint32)
    mask = np.zeros(words, np.uint32)
    for id in listed:
        mask[id >> 5] |= np.uint32(1 << (id & 31))
    return mask


def allows(mask: Mask | None, token: int) -> bool:
    """Whether the id may be drawn."""
    return mask is None or (token >> 5 < len(mask) and bool(mask[token >> 5] >> np.uint32(token & 31) & 1))


def either(first: Mask | None, second: Mask) -> Mask | None:
    """The ids that one of the masks allows; None stands for every id."""
    return None if first is None else first | second


def both(first: Mask | None, second: Mask | None) -> Mask | None:
    """The ids that both masks allow; None stands for every id."""
    if first is None or second is None:
        return second if first is None else first
    return first & second
