"""Cases SD-02, SO-05 and SC-03 with drafts: guesses that are always wrong, half right and always right leave no trace.

Every kind of request at once, with preemption, prefix hits, samples and grammars, equals what each gets alone without speculation: ids,
text, finish reasons, stop reasons, log-probabilities, usage. Logits are a function of the tokens that stand in the blocks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.fakes import EOS, FakeProgram, byte_tokenizer, hashed_logits
from tests.engine.running import make_core, run, submit
from tests.spec.guessing import Knowing

from ridgeline.engine.choice import Choice
from ridgeline.engine.core import EngineCore
from ridgeline.engine.masks import Bans
from ridgeline.engine.request import Limits, RequestState
from ridgeline.engine.speculate import Speculator
from ridgeline.engine.stream import joined
from ridgeline.engine.trace import Trace, replay
from ridgeline.graph.step import Step
from ridgeline.kv.manager import CachePolicy
from ridgeline.sampling.grammar import Grammar, GrammarCompiler, GrammarSpec
from ridgeline.scheduler.state import Faults
from ridgeline.spec.base import NOTHING, Asked, Proposal
from ridgeline.spec.ngram import NgramProposer
from ridgeline.types import CompletionOutput, RequestOutput, SamplingParams

LIMITS = Limits(max_model_len=300, vocab=260, stop_ids=frozenset({EOS}))
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a", "b"],
          "additionalProperties": False}  # fmt: skip
LETTERS = tuple(range(97, 107))
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "logprobs": 2},
    "sampled": {"temperature": 1.0, "seed": 1, "top_p": 0.9, "logprobs": 0},
    "penalties": {"temperature": 1.0, "seed": 2, "frequency_penalty": 0.9, "presence_penalty": 0.4, "repetition_penalty": 1.3},
    "three samples": {"temperature": 1.5, "seed": 3, "n": 3, "logprobs": 1},
    "stop string": {"temperature": 1.0, "seed": 4, "stop": ("ab", "cd", "ef"), "allowed_token_ids": LETTERS},
    "stop string, min_tokens": {"temperature": 1.0, "seed": 5, "stop": ("a",), "min_tokens": 9, "allowed_token_ids": LETTERS},
    "stop id": {"temperature": 1.0, "seed": 6, "stop_token_ids": (100, 101), "allowed_token_ids": LETTERS},
    "an end": {"temperature": 1.0, "seed": 7, "logit_bias": ((EOS, 9.0),), "min_tokens": 6},
    "ignore_eos": {"temperature": 1.0, "seed": 8, "logit_bias": ((EOS, 9.0),), "ignore_eos": True},
    "bad words": {"temperature": 1.0, "seed": 9, "bad_words": ("ab", "ba", "cca"), "allowed_token_ids": LETTERS},
    "one token": {"temperature": 0.0, "max_tokens": 1},
    "scored": {"temperature": 1.0, "seed": 10, "prompt_logprobs": 1, "logprobs": 1},
    "schema": {"temperature": 1.0, "seed": 11, "max_tokens": 120},
    "schema, samples": {"temperature": 2.0, "seed": 12, "n": 3, "max_tokens": 120, "stop": ("}", "b")},
    "schema, min_tokens": {"temperature": 1.0, "seed": 13, "min_tokens": 60, "max_tokens": 120},
}


@cache
def compiled() -> Grammar:
    return GrammarCompiler(byte_tokenizer(), frozenset({EOS})).compile(GrammarSpec("json_schema", json.dumps(SCHEMA)))


def program(blocks: int = 1500, windows: tuple[int | None, ...] = (None,)) -> FakeProgram:
    random = hashed_logits()

    def logits(history: list[int]) -> np.ndarray:
        row = random(history)
        row[[ord('"'), ord("}"), ord(",")]] += 5.0
        return row

    return FakeProgram(logits, blocks=(blocks,) * len(windows), windows=windows)


def prompt(kind: str) -> list[int]:
    return [int(t) for t in np.random.default_rng(3).integers(97, 120, 21)][: 14 + len(kind) % 7]


def ask(core: EngineCore, kind: str) -> RequestState:
    grammar = compiled().start if kind.startswith("schema") else None
    return submit(core, prompt(kind), SamplingParams(**{"max_tokens": 24, **KINDS[kind]}), grammar=grammar)


@cache
def alone(kind: str) -> RequestOutput:
    asked = ask(core := make_core(program(), chunk=512, policy="off", limits=LIMITS), kind)
    run(core, asked)
    return asked.output()


def guessing(core: EngineCore, asked: list[tuple[str, RequestState]], right: float, most: int, seed: int) -> Knowing:
    """Put a speculator into a core: it knows each answer, and is right with chance `right`."""
    answers = {one.id: (kind, one) for kind, one in asked}

    def answer(seq_id: int) -> list[int]:
        choice = core._choices[seq_id]
        kind, one = answers[choice.request_id]
        return [*one.prompt_ids, *alone(kind).outputs[choice.index].token_ids]

    proposer = Knowing(answer, right, 260, seed)
    core.speculator = Speculator(proposer, most)
    return proposer


def same(got: CompletionOutput, want: CompletionOutput) -> bool:
    plain = [(c.text, c.token_ids, c.finish_reason, c.stop_reason, c.cumulative_logprob, c.logprobs) for c in (got, want)]
    return plain[0] == plain[1]


ENGINES = [(40, 24, Faults()), (16, 8, Faults(preempt_every=9)), (90, 5, Faults(7, 5))]
QUICK = [("radix", 0.0, *ENGINES[0]), ("hash", 0.5, *ENGINES[1]), ("radix", 0.5, *ENGINES[2]), ("off", 1.0, *ENGINES[0])]
LONG = [(policy, right, *e) for policy in ("radix", "hash", "off") for right in (0.0, 0.5, 0.9, 1.0) for e in ENGINES]


@pytest.mark.parametrize(
    ("policy", "right", "chunk", "seqs", "faults"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.long) for case in LONG)]
)
def test_every_kind_at_once_equals_alone(policy: CachePolicy, right: float, chunk: int, seqs: int, faults: Faults) -> None:
    core = make_core(program(), chunk=chunk, seqs=seqs, policy=policy, limits=LIMITS)
    core.dial(faults)
    for turn in range(2):  # the second time as prefix hits: cached blocks hold verified tokens only
        asked = [(kind, ask(core, kind)) for kind in KINDS]
        proposer = guessing(core, asked, right, 1 + (turn + chunk) % 4 * 2, seed=chunk + turn)
        streamed: dict[str, RequestOutput] = {}
        while core.busy:
            touched = core.step()
            core.state.kv.check()
            for _, one in asked:
                mine = [c for c in touched if c.request_id == one.id]
                if mine:
                    news = one.news(mine)
                    streamed[one.id] = joined(streamed[one.id], news) if one.id in streamed else news
        for kind, one in asked:
            for got, want, news in zip(one.output().outputs, alone(kind).outputs, streamed[one.id].outputs, strict=True):
                assert same(got, want), kind
                assert (news.text, news.token_ids, news.logprobs) == (want.text, want.token_ids, want.logprobs), kind
                assert got.accepted_tokens <= got.drafted_tokens and got.accepted_tokens < len(got.token_ids)
            assert one.prompt_logprobs == alone(kind).prompt_logprobs
        assert len(set(proposer.forgotten)) == sum(len(one.choices) for _, one in asked) - 1  # the answer of one token was never asked for
    counts = core.metrics.counts
    drafted, accepted = counts["spec_decode_num_draft_tokens"], counts["spec_decode_num_accepted_tokens"]
    free = sum(c.accepted_tokens for kind, one in asked if not kind.startswith("schema") for c in one.output().outputs)
    assert drafted > 100 and (free == 0 if right == 0.0 else accepted > 0.2 * right * drafted)
    assert counts["generation_tokens"] == 2 * sum(len(c.token_ids) for kind in KINDS for c in alone(kind).outputs)
    assert accepted == sum(counts[f"spec_decode_num_accepted_tokens_per_pos_{p}"] for p in range(16))
    assert all(used == 0 for _, _, used in core.state.kv.usage())


@pytest.mark.parametrize("windows", [(None, 6), (5,)])
def test_windows_slide_past_rejected_drafts(windows: tuple[int | None, ...]) -> None:
    kinds = [k for k in KINDS if not k.startswith("schema")]
    plain = make_core(program(400, windows), limits=LIMITS)
    want = run(plain, *[ask(plain, k) for k in kinds])
    core = make_core(program(400, windows), limits=LIMITS)
    core.speculator = Speculator(NgramProposer(1, 4), 6)
    assert run(core, *[ask(core, k) for k in kinds]) == want
    assert core.metrics.counts["spec_decode_num_draft_tokens"] > core.metrics.counts["spec_decode_num_accepted_tokens"] > 0


def test_a_small_pool_preempts_and_ends_as_without() -> None:
    """SC-03: eight of 30 + 60 tokens on a pool for four; drafts take no more blocks than the room each sequence is counted with."""
    kinds = ["greedy", "sampled", "penalties", "stop string", "schema", "three samples", "ignore_eos", "scored"]
    core = make_core(program(blocks=45), limits=LIMITS, seqs=12, chunk=64)
    asked = [(k, ask(core, k)) for k in kinds]
    guessing(core, asked, 0.7, 4, 1)
    run(core, *[one for _, one in asked])
    assert all(same(a, b) for k, one in asked for a, b in zip(one.output().outputs, alone(k).outputs, strict=True))
    assert core.state.counts["preemptions"] > 0


def test_an_accepted_run_ends_where_the_answer_does() -> None:
    """EOS, a stop string and max_tokens inside a run of right guesses: nothing is given out behind them."""
    for kind in ("an end", "stop string", "greedy", "schema"):
        core = make_core(program(), limits=LIMITS)
        asked = ask(core, kind)
        guessing(core, [(kind, asked)], 1.0, 16, 5)
        run(core, asked)
        assert same(asked.output().outputs[0], alone(kind).outputs[0])
        assert core.metrics.counts["steps"] < len(asked.choices[0].token_ids)


def test_a_backend_fault_in_a_step_with_drafts_ends_who_was_in_it() -> None:
    core = make_core(program(), limits=LIMITS)
    asked = ask(core, "sampled")
    guessing(core, [("sampled", asked)], 1.0, 4, 1)
    forward = core.program.forward

    def failing(step: Step) -> None:
        if core.state.record.drafts:
            raise RuntimeError("broken")
        forward(step)

    core.program.forward = failing  # type: ignore[method-assign]
    run(core, asked)
    assert asked.choices[0].finish == "error" and core.metrics.counts["backend_faults"] == 1
    core.program.forward = forward  # type: ignore[method-assign]
    again = ask(core, "greedy")
    run(core, again)
    assert same(again.output().outputs[0], alone("greedy").outputs[0])


def _differs(broken: Callable[[], None], kinds: list[str]) -> bool:
    for kind in kinds:
        alone(kind)
    broken()
    core = make_core(program(), limits=LIMITS)
    asked = [(k, ask(core, k)) for k in kinds]
    guessing(core, asked, 0.6, 5, 2)
    while core.busy:
        core.step()
    return not all(same(a, b) for k, one in asked for a, b in zip(one.output().outputs, alone(k).outputs, strict=True))


def test_a_grammar_that_is_not_taken_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kept:
        def __init__(self, grammar: Any) -> None:
            self._grammar = grammar

        def __getattr__(self, name: str) -> Any:
            return (lambda count: None) if name == "rollback" else getattr(self._grammar, name)

    def broken() -> None:
        ahead = Bans.ahead

        def kept(self: Bans, output: list[int], drafts: list[int]) -> Any:
            self.grammar = Kept(self.grammar)  # type: ignore[assignment]
            return ahead(self, output, drafts)

        monkeypatch.setattr(Bans, "ahead", kept)

    assert _differs(broken, ["schema", "schema, samples"])


def test_min_tokens_that_do_not_count_drafts_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        monkeypatch.setattr(Choice, "_mask", lambda self, ahead: self._bans.next(self.token_ids))

    assert _differs(broken, ["an end", "bad words", "schema"])


class Silent:
    """A proposer that never guesses."""

    free = True

    def propose(self, asked: Sequence[Asked]) -> list[Proposal]:
        return [NOTHING for _ in asked]

    def forget(self, ids: Iterable[int]) -> None: ...


def test_what_a_grammar_forces_is_guessed_and_verified() -> None:
    """The keys of a schema cost no step of their own; the answer is the one without guesses."""
    core = make_core(program(), limits=LIMITS)
    core.speculator = Speculator(Silent(), 8)
    asked = [(kind, ask(core, kind)) for kind in KINDS]
    run(core, *[one for _, one in asked])
    assert all(same(a, b) for k, one in asked for a, b in zip(one.output().outputs, alone(k).outputs, strict=True))
    bound = [c for k, one in asked if k.startswith("schema") for c in one.output().outputs]
    free = [c for k, one in asked if not k.startswith("schema") for c in one.output().outputs]
    assert all(c.accepted_tokens == c.drafted_tokens > 1 for c in bound) and not any(c.drafted_tokens for c in free)


def test_a_trace_with_drafts_is_decided_again_and_shows_them(tmp_path: Path) -> None:
    core = make_core(program(), limits=LIMITS, chunk=40, seqs=9)
    core.trace = Trace()
    core.dial(Faults(preempt_every=11))
    asked = [(kind, ask(core, kind)) for kind in KINDS]
    guessing(core, asked, 0.6, 4, 3)
    run(core, *[one for _, one in asked])
    new = make_core(program(), limits=LIMITS)
    new.state.faults = Faults(preempt_every=11)
    pairs = list(replay(core.trace, new.state, core.budget))
    assert len(pairs) == core.metrics.counts["steps"] and all(recorded == decided for recorded, decided in pairs)
    core.trace.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    guessed = [e for e in events if e["name"] == "decode" and "drafts" in e["args"]]
    assert guessed and all(e["args"]["new"] == 1 + len(e["args"]["drafts"]) for e in guessed)
    assert any(isinstance(e["args"]["token"], list) and len(e["args"]["token"]) > 1 for e in guessed)


def test_a_crowd_is_not_guessed_for_but_now_and_then() -> None:
    """Where even a sure guess would not pay nobody is asked, until fewer answers run."""
    core = make_core(program(), limits=LIMITS, seqs=24, chunk=200)
    asked = [("greedy", ask(core, "greedy")) for _ in range(12)] + [("schema", ask(core, "schema"))]
    proposer = guessing(core, asked, 1.0, 4, 1)
    core.speculator = Speculator(proposer, 4, predict=lambda step: 1.0 + 0.3 * step.rows)
    steps = 0
    while len(core.state.running) > 3 or not steps:
        core.step()
        steps += 1
    crowded = proposer.asked
    run(core, *[one for _, one in asked])
    assert crowded <= 13 + 12 and proposer.asked > crowded + 5
    assert all(same(a, b) for k, one in asked for a, b in zip(one.output().outputs, alone(k).outputs, strict=True))
