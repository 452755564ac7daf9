"""Grammars to masks: what a client asked for, compiled with llguidance for one tokenizer, and a state per sequence.

Knows a tokenizer's bytes and which ids end a text. Refuses to know requests, tools and logits. Everything here may take milliseconds
(the first compilation for a vocabulary up to seconds): a server calls `compile` off its event loop, and `warm` once in the background.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ridgeline.errors import InternalError, UserError
from ridgeline.sampling.deep import run_deep
from ridgeline.sampling.grammar_text import MAX_CALL_GRAMMAR_BYTES, lark_of_choice, lark_of_grammar, lark_of_regex
from ridgeline.sampling.guide import Mask, allows
from ridgeline.sampling.schema import BLANKS, prepare_schema
from ridgeline.text.tokenizer import Tokenizer
from ridgeline.text.vocabulary import Kind

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

GrammarKind = Literal["json_object", "json_schema", "regex", "choice", "grammar", "calls", "either"]
MAX_COMPILE_S = 5.0
_KEPT = 64
_SPECIAL = frozenset({Kind.CONTROL, Kind.UNKNOWN, Kind.UNUSED})


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """What was asked: its kind and source. json_schema: an object, a boolean or JSON text; choice: a list of texts; regex and grammar (Lark
    or GBNF): text; calls: Lark from a tool dialect; either: (such Lark, the spec of what may be said instead of calls). lenient: keywords
    that cannot be enforced are ignored instead of refused."""

    kind: GrammarKind
    source: Any = None
    lenient: bool = False


class GrammarTimes:
    """What grammars cost so far: how many were compiled and masks made, and the seconds of both. Threads may add."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.compiled = self.masks = 0
        self.compile_s = self.mask_s = 0.0

    def compile_took(self, seconds: float) -> None:
        with self._lock:
            self.compiled, self.compile_s = self.compiled + 1, self.compile_s + seconds

    def mask_took(self, seconds: float) -> None:
        with self._lock:
            self.masks, self.mask_s = self.masks + 1, self.mask_s + seconds


class GrammarCompiler:
    """Compiles for one tokenizer, `end_ids` being the ids that end a text. Threads may share it; equal requests share the result.

    The library's view of the vocabulary is made at the first use (0.2 s for 49k ids, 3 s for 262k) and kept.
    """

    def __init__(self, tokenizer: Tokenizer, end_ids: frozenset[int]) -> None:
        self._tokenizer, self._end_ids = tokenizer, end_ids
        self._lock, self._one_at_a_time = threading.Lock(), threading.Lock()
        self._vocabulary: LLTokenizer | None = None
        self._kept: OrderedDict[str, Grammar] = OrderedDict()
        self.times = GrammarTimes()

    def warm(self) -> None:
        """Do what the first request would wait for."""
        self._view()

    def compile(self, spec: GrammarSpec) -> Grammar:
        """Raises `UserError` with the reason: not valid, cannot be enforced, or over a limit."""
        source, remarks = _source(spec)
        with self._lock:
            kept = self._kept.get(source)
            if kept is not None:
                self._kept.move_to_end(source)
                return kept
        grammar = self._compiled(spec.kind, source, tuple(remarks))
        with self._lock:
            self._kept[source] = grammar
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return grammar

    def spell(self, marker: str) -> str:
        """A marker as a Lark grammar names it: by id where the tokenizer holds it as a control token, else as text."""
        id = self._tokenizer.control.ids.get(marker)
        return json.dumps(marker, ensure_ascii=False) if id is None else f"<[{id}]>"

    def _compiled(self, kind: str, source: str, remarks: tuple[str, ...]) -> Grammar:
        from llguidance import LLMatcher, LLParserLimits

        # Fuel bounds the time of a step to some 20 ms.
        limits = LLParserLimits(
            max_items_in_row=1000, initial_lexer_fuel=1_000_000, step_lexer_fuel=200_000, step_max_items=50_000, verbose_errors=False
        )
        view = self._view()

        def work() -> tuple[LLMatcher, str]:
            matcher = LLMatcher(view, source, log_level=0, limits=limits)
            # A first step shows what only appears when the grammar is used, before a reply has begun.
            return matcher, _first_step(matcher)

        with self._one_at_a_time:
            began = time.perf_counter()
            try:
                matcher, reason = run_deep(work)
            except (ValueError, TypeError) as error:
                raise _refused(kind, str(error)) from None
            spent = time.perf_counter() - began
            self.times.compile_took(spent)
        if reason:
            raise _refused(kind, reason)
        if spent > MAX_COMPILE_S:
            text = f"{kind} took {spent:.1f} s to compile, at most {MAX_COMPILE_S:g} are allowed"
            raise UserError(text, field=kind, value=spent, limit=MAX_COMPILE_S, remedy="make it simpler")
        return Grammar(matcher, self._tokenizer.size, self._end_ids, remarks, self.times)

    def _view(self) -> LLTokenizer:
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = _vocabulary(self._tokenizer, self._end_ids)
            return self._vocabulary


class Grammar:
    """A compiled grammar (a `Guide`). Immutable and shared: `start` gives each sequence a state of its own.

    remarks: what was ignored, for the client to read.
    """

    __slots__ = ("_end_ids", "_lock", "_matcher", "_times", "_vocab", "remarks")

    def __init__(self, matcher: LLMatcher, vocab: int, end_ids: frozenset[int], remarks: tuple[str, ...], times: GrammarTimes) -> None:
        self._matcher, self._vocab, self._end_ids, self.remarks, self._times = matcher, vocab, end_ids, remarks, times
        self._lock = threading.Lock()

    def start(self) -> GrammarState:
        with self._lock:
            return GrammarState(self._matcher.deep_copy(), self._vocab, self._end_ids, self._times)


class GrammarState:
    """Where one sequence stands in a grammar (a `GuideState`). A mask is made once per place.

    Threads may share it: a `MaskPool` makes the mask that the engine's thread then takes, or waits for."""

    __slots__ = ("_end_ids", "_lock", "_mask", "_matcher", "_times", "_trail", "_vocab")

    def __init__(self, matcher: LLMatcher, vocab: int, end_ids: frozenset[int], times: GrammarTimes) -> None:
        self._matcher, self._vocab, self._end_ids, self._times = matcher, vocab, end_ids, times
        self._lock = threading.Lock()
        self._mask: Mask | None = None
        self._trail = 0

    @property
    def done(self) -> bool:
        """Nothing may follow but the end."""
        with self._lock:
            return bool(self._matcher.is_stopped())

    @property
    def confines(self) -> bool:
        return True

    def allowed(self) -> Mask:
        """uint32 [ceil(vocab / 32)]; the ending ids are set where the text may end. Raises `UserError` past a limit."""
        with self._lock:
            if self._mask is None:
                began = time.perf_counter()
                mask = np.zeros((self._vocab + 31) // 32, np.uint32)
                self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
                self._check()
                if self._vocab % 32:
                    mask[-1] &= np.uint32((1 << (self._vocab % 32)) - 1)
                self._mask = mask
                self._times.mask_took(time.perf_counter() - began)
            return self._mask

    def accept(self, token: int) -> bool:
        """True when nothing may follow."""
        with self._lock:
            if self._matcher.is_stopped() and token in self._end_ids:
                return True
            if not self._matcher.consume_token(token):
                if self._mask is not None and allows(self._mask, token):
                    self._check()  # it was allowed: the library gave up on it
                raise InternalError(f"token {token} does not fit the grammar")
            self._mask = None
            self._trail += 1
            return bool(self._matcher.is_stopped())

    def forced(self) -> list[int]:
        """Tokens that spell what must follow (`guide.Forcing`)."""
        with self._lock:
            return [] if self._matcher.is_stopped() else [int(t) for t in self._matcher.compute_ff_tokens()]

    def rollback(self, count: int) -> None:
        with self._lock:
            if count < 0 or count > self._trail or not self._matcher.rollback(count):
                raise InternalError(f"cannot take back {count} of {self._trail} tokens of a grammar")
            self._trail -= count
            self._mask = None

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = _plain(self._matcher.get_error())
            raise UserError(f"the grammar went over its limits: {reason}", field="grammar", remedy="make it simpler")


def _source(spec: GrammarSpec) -> tuple[str, list[str]]:
    """(the library's form of the grammar, remarks)."""
    from llguidance import LLMatcher

    if spec.kind == "regex":
        return LLMatcher.grammar_from_lark(lark_of_regex(spec.source)), []
    if spec.kind == "choice":
        return LLMatcher.grammar_from_lark(lark_of_choice(spec.source)), []
    if spec.kind == "grammar":
        return LLMatcher.grammar_from_lark(lark_of_grammar(spec.source)), []
    if spec.kind == "calls":
        if len(spec.source) > MAX_CALL_GRAMMAR_BYTES:
            text = f"the tools' schemas have more than {MAX_CALL_GRAMMAR_BYTES} bytes"
            raise UserError(text, field="tools", value=len(spec.source), limit=MAX_CALL_GRAMMAR_BYTES)
        return LLMatcher.grammar_from_lark(spec.source), []
    if spec.kind == "either":
        return _either(*spec.source)
    schema, remarks = prepare_schema({"type": "object"} if spec.kind == "json_object" else spec.source)
    try:
        return LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": BLANKS, "lenient": spec.lenient}), remarks
    except (ValueError, UnicodeEncodeError) as error:
        raise _refused(spec.kind, str(error)) from None


def _either(calls: str, answer: GrammarSpec) -> tuple[str, list[str]]:
    """The library's form of two grammars of which a text follows one."""
    main, _ = _source(GrammarSpec("calls", "start: calls | @answer\ncalls:" + calls.removeprefix("start:")))
    other, remarks = _source(answer)
    first, second = (json.loads(text)["grammars"][0] if text.startswith("{") else {"lark_grammar": text} for text in (main, other))
    return json.dumps({"grammars": [{**first, "name": "main"}, {**second, "name": "answer"}]}, ensure_ascii=False), remarks


def _first_step(matcher: LLMatcher) -> str:
    """What goes wrong at the first mask and the first token, "" for nothing."""
    if matcher.is_error():
        return str(matcher.get_error())
    trial = matcher.deep_copy()
    first = np.frombuffer(trial.compute_bitmask(), np.uint8)
    allowed = np.flatnonzero(np.unpackbits(first, bitorder="little"))
    if len(allowed):
        trial.consume_token(int(allowed[0]))
    return str(trial.get_error())


def _refused(kind: str, reason: str) -> UserError:
    return UserError(f"{kind} cannot be used: {_plain(reason)}", field=kind)


def _plain(reason: str) -> str:
    """The library's words on one line, without its state."""
    return " ".join(reason.split("<state>")[0].replace("<non-verbose/>", "").split())[:400]


def _vocabulary(tokenizer: Tokenizer, end_ids: frozenset[int]) -> LLTokenizer:
    from llguidance import LLTokenizer

    return LLTokenizer(_Bytes(tokenizer, end_ids), n_vocab=tokenizer.size, eos_token=sorted(end_ids))  # type: ignore[arg-type]


class _Bytes:
    """A tokenizer in the shape that the library reads: attributes of these names, and a call that encodes text."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer, end_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        kinds = tokenizer.vocabulary.kinds
        self.eos_token_id = min(end_ids)
        self.bos_token_id = tokenizer.bos_id
        self.tokens = [tokenizer.token_bytes(id) for id in range(tokenizer.size)]
        self.special_token_ids = [id for id in range(tokenizer.size) if kinds[id] in _SPECIAL or id in end_ids]

    def __call__(self, text: str | bytes) -> list[int]:
        plain = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        # Text in the middle of another: no BOS, and no space in front.
        return self._tokenizer.encode_plain(plain, first=False)
