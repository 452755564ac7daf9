"""Answers bound by a grammar in the engine: whole under every parameter and schedule (case SO-05). Logits are a function of the tokens."""

from __future__ import annotations

import json
import threading
from functools import cache
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from tests.engine.fakes import EOS, FakeProgram, byte_tokenizer, hashed_logits
from tests.engine.running import make_core, run, submit

from ridgeline.engine.core import EngineCore
from ridgeline.engine.request import Limits, RequestState
from ridgeline.graph.step import Step
from ridgeline.kv.manager import CachePolicy
from ridgeline.sampling.grammar import Grammar, GrammarCompiler, GrammarSpec
from ridgeline.sampling.guide import Mask, mask_of
from ridgeline.scheduler.state import Faults
from ridgeline.types import SamplingParams

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
LIMITS = Limits(max_model_len=400, vocab=260, stop_ids=frozenset({EOS}))
PROMPT = list(range(30, 51))
CLOSERS = (ord('"'), ord("}"), ord(","))
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 2.0, "seed": 1},
    "three samples": {"temperature": 1.0, "seed": 2, "n": 3},
    "stop strings": {"temperature": 1.0, "seed": 3, "stop": ("}", '"', ":", "b")},
    "stop ids": {"temperature": 1.0, "seed": 4, "stop_token_ids": (ord("}"), ord('"'), ord("1"))},
    "min_tokens": {"temperature": 1.0, "seed": 5, "min_tokens": 200, "stop_token_ids": (ord("}"),)},
    "ignore_eos": {"temperature": 1.0, "seed": 6, "ignore_eos": True},
    "quotes disliked": {"temperature": 1.0, "seed": 7, "logit_bias": ((ord('"'), -4.0),)},
    "logprobs": {"temperature": 1.0, "seed": 8, "logprobs": 2, "prompt_logprobs": 1},
    "penalties": {"temperature": 1.0, "seed": 9, "frequency_penalty": 0.5, "presence_penalty": 0.2, "repetition_penalty": 1.1},
}


@cache
def compiled(kind: str = "json_schema", source: str = json.dumps(SCHEMA)) -> Grammar:
    return GrammarCompiler(byte_tokenizer(), frozenset({EOS})).compile(GrammarSpec(kind, source))  # type: ignore[arg-type]


def program(blocks: int = 900) -> FakeProgram:
    """Random logits that like to close what is open, so that answers end."""
    random = hashed_logits()

    def logits(history: list[int]) -> np.ndarray:
        row = random(history)
        row[list(CLOSERS)] += 5.0
        return row

    return FakeProgram(logits, blocks=(blocks,))


def params(kind: str) -> SamplingParams:
    return SamplingParams(max_tokens=300, **KINDS[kind])


def ask(core: EngineCore, kind: str, prompt: list[int] = PROMPT) -> RequestState:
    return submit(core, prompt, params(kind), grammar=compiled().start)


@cache
def alone(kind: str) -> list[list[int]]:
    core = make_core(program(), chunk=512, policy="off", limits=LIMITS)
    return run(core, ask(core, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_what_ends_with_stop_is_whole(kind: str) -> None:
    core = make_core(program(), limits=LIMITS)
    asked = ask(core, kind)
    shown = [""] * len(asked.choices)
    while core.busy:
        for choice in core.step():
            shown[choice.index] += choice.delta
    assert [c.finish for c in asked.choices] == ["stop"] * len(asked.choices)
    for text, choice in zip(shown, asked.choices, strict=True):
        assert text == choice.text and choice.stop_reason is None
        Draft202012Validator(SCHEMA).validate(json.loads(text))


@pytest.mark.parametrize("policy", ["radix", "hash", "off"])
@pytest.mark.parametrize(("chunk", "seqs", "faults"), [(16, 8, Faults()), (40, 4, Faults(preempt_every=25)), (400, 20, Faults(9, 7))])
def test_preemption_prefix_hits_and_samples_keep_each_grammar_where_it_is(
    policy: CachePolicy, chunk: int, seqs: int, faults: Faults
) -> None:
    """All kinds at once and twice, the second time as prefix hits; grammar states outlive preemptions, each choice has its own."""
    core = make_core(program(), chunk=chunk, seqs=seqs, policy=policy, limits=LIMITS)
    core.dial(faults)
    expected = [tokens for kind in KINDS for tokens in alone(kind)]
    for _ in range(2):
        assert run(core, *[ask(core, kind) for kind in KINDS]) == expected
    assert core.state.counts["forks"] >= 2 and (core.state.counts["preemptions"] > 0) == (faults.preempt_every > 0)
    assert (core.state.counts["prefix_tokens_hit"] > 0) == (policy != "off")


def test_too_few_blocks_preempt_and_change_nothing() -> None:
    core = make_core(program(blocks=40), limits=LIMITS, seqs=12)
    assert run(core, *[ask(core, kind) for kind in KINDS]) == [tokens for kind in KINDS for tokens in alone(kind)]
    assert core.state.counts["preemptions"] > 0


@pytest.mark.parametrize("banned", [{"allowed_token_ids": tuple(range(65, 91))}, {"bad_words": ("{",)}])
def test_a_mask_that_leaves_nothing_ends_with_an_error(banned: dict[str, Any]) -> None:
    core = make_core(program(), limits=LIMITS)
    asked = submit(core, PROMPT, SamplingParams(max_tokens=300, seed=1, **banned), grammar=compiled().start)
    run(core, asked)
    choice = asked.choices[0]
    assert choice.finish == "error" and "no token is allowed" in str(choice.stop_reason) and choice.token_ids == []


def test_a_bias_against_a_quote_only_delays_it() -> None:
    """Where the grammar demands one it is drawn; where letters may follow too, the text goes on to its length."""
    core = make_core(program(), limits=LIMITS)
    asked = submit(core, PROMPT, SamplingParams(max_tokens=100, seed=1, logit_bias=((ord('"'), -100.0),)), grammar=compiled().start)
    run(core, asked)
    text = asked.choices[0].text
    assert asked.choices[0].finish == "length" and '"a"' in text and '"b"' in text and text.count('"') == 5


def test_cut_by_max_tokens_is_length() -> None:
    core = make_core(program(), limits=LIMITS)
    asked = submit(core, PROMPT, SamplingParams(max_tokens=3, seed=1, stop=("}",)), grammar=compiled().start)
    run(core, asked)
    assert asked.choices[0].finish == "length" and len(asked.choices[0].token_ids) == 3


def test_min_tokens_takes_the_longer_way_while_there_is_one() -> None:
    """`a+` may end after each letter: the end waits for min_tokens; `a{2}` has no other way, so it ends."""
    core = make_core(program(), limits=LIMITS)
    wanted = SamplingParams(max_tokens=50, temperature=0, min_tokens=20, logit_bias=((EOS, 50.0),))
    long, short = (submit(core, PROMPT, wanted, grammar=compiled("regex", pattern).start) for pattern in ("a+", "a{2}"))
    run(core, long, short)
    assert (long.choices[0].text, long.choices[0].finish) == ("a" * 20, "stop")
    assert (short.choices[0].text, short.choices[0].finish) == ("aa", "stop")


def test_masks_are_made_while_the_backend_runs() -> None:
    """The backend waits in each forward until the masks of its draws are there: they cannot come from the thread it holds up."""
    made: dict[int, threading.Event] = {}

    class Watched:
        confines, done = True, False

        def __init__(self) -> None:
            self.seen = 0
            self.event = made[id(self)] = threading.Event()

        def allowed(self) -> Mask:
            self.event.set()
            return mask_of([65 + self.seen], 260)

        def accept(self, token: int) -> bool:
            assert token == 65 + self.seen
            self.seen, _ = self.seen + 1, self.event.clear()
            return self.seen == 4

        def rollback(self, count: int) -> None: ...

    class Waiting(FakeProgram):
        waited = 0

        def forward(self, step: Step) -> None:
            super().forward(step)
            if any(span.want for span in step.spans):
                assert all(event.wait(20.0) for event in made.values())
                self.waited += 1

    program = Waiting(hashed_logits())
    core = make_core(program, limits=LIMITS, chunk=64)
    asked = submit(core, [1, 2], SamplingParams(max_tokens=9, n=3, seed=1), grammar=Watched)
    run(core, asked)
    assert [c.text for c in asked.choices] == ["ABCD"] * 3 and program.waited == 4


def test_stop_strings_still_cut_free_text() -> None:
    core = make_core(program(), limits=LIMITS)
    free = submit(core, PROMPT, SamplingParams(max_tokens=300, temperature=0, stop=('"',)))
    bound = ask(core, "stop strings")
    run(core, free, bound)
    assert free.choices[0].stop_reason == '"' and '"' in bound.choices[0].text
