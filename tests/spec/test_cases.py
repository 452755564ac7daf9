"""Cases SC-03 and SO-05 to the letter, with drafts of which half come true: what preemption, samples, grammars and reasoning keep."""

from __future__ import annotations

import json
from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from tests.engine.fakes import EOS, FakeProgram, byte_tokenizer
from tests.engine.running import make_core, submit
from tests.spec.guessing import Knowing
from tests.spec.test_rollback import LETTERS, LIMITS, SCHEMA, compiled, program

from ridgeline.engine.core import EngineCore
from ridgeline.engine.request import Limits, RequestState
from ridgeline.engine.speculate import Speculator
from ridgeline.engine.stream import joined
from ridgeline.sampling.thinking import ThinkingGuide, ThinkMarks
from ridgeline.scheduler.state import Faults
from ridgeline.text.reasoning import ReasoningStream, ThinkTags
from ridgeline.types import RequestOutput, SamplingParams

PROMPTS = np.random.default_rng(11).integers(97, 120, (8, 30)).tolist()
ASKED: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 1.0, "seed": 2, "frequency_penalty": 0.9},
    {"temperature": 1.0, "seed": 3},  # bound by the schema
    {"temperature": 1.0, "seed": 4, "stop": ("ab", "cd", "ef"), "allowed_token_ids": LETTERS},
    {"temperature": 1.0, "seed": 5, "logprobs": 2, "prompt_logprobs": 1},
    {"temperature": 1.0, "seed": 6, "logit_bias": ((EOS, 9.0),), "min_tokens": 40},
    {"temperature": 1.0, "seed": 7, "n": 2},
]


def guess_half(core: EngineCore, asked: list[RequestState], cold: list[RequestOutput]) -> None:
    answers = {one.id: (one.prompt_ids, want) for one, want in zip(asked, cold, strict=True)}

    def answer(seq_id: int) -> list[int]:
        choice = core._choices[seq_id]
        prompt, want = answers[choice.request_id]
        return [*prompt, *want.outputs[choice.index].token_ids]

    core.speculator = Speculator(Knowing(answer, 0.5, 260, 3), 4)


def play(core: EngineCore, asked: list[RequestState]) -> dict[str, RequestOutput]:
    """What each request's deltas come to."""
    streamed: dict[str, RequestOutput] = {}
    while core.busy:
        touched = core.step()
        core.state.kv.check()
        for one in asked:
            mine = [c for c in touched if c.request_id == one.id]
            if mine:
                news = one.news(mine)
                streamed[one.id] = joined(streamed[one.id], news) if one.id in streamed else news
    return streamed


def test_sc_03_eight_requests_on_room_for_four() -> None:
    """30 prompt and 60 answer tokens each; 23 blocks of 4 hold one of them."""

    def submit_all(core: EngineCore, numbers: range) -> list[RequestState]:
        grammars = [compiled().start if i == 3 else None for i in range(8)]
        return [submit(core, PROMPTS[i], SamplingParams(max_tokens=60, **ASKED[i]), f"q{i}", grammar=grammars[i]) for i in numbers]

    cold = []
    for i in range(8):
        core = make_core(program(), chunk=512, policy="off", limits=LIMITS)
        (one,) = submit_all(core, range(i, i + 1))
        play(core, [one])
        cold.append(one.output())
    core = make_core(program(blocks=4 * 23), limits=LIMITS, seqs=12, chunk=64)
    asked = submit_all(core, range(8))
    guess_half(core, asked, cold)
    streamed = play(core, asked)
    assert core.state.counts["preemptions"] > 0 and core.metrics.counts["spec_decode_num_accepted_tokens"] > 20
    for one, want in zip(asked, cold, strict=True):
        got, news = one.output(), streamed[one.id]
        assert got.prompt_token_ids == want.prompt_token_ids and got.prompt_logprobs == want.prompt_logprobs == news.prompt_logprobs
        for a, b, c in zip(got.outputs, want.outputs, news.outputs, strict=True):
            assert (a.text, a.token_ids, a.finish_reason, a.stop_reason, a.logprobs) == (
                b.text, b.token_ids, b.finish_reason, b.stop_reason, b.logprobs,
            )  # fmt: skip
            assert (c.text, c.token_ids, c.logprobs) == (b.text, b.token_ids, b.logprobs), "a delta was repeated or lost"


TAGS = ThinkTags("spelled", "<t>", "</t>")
LONG = Limits(max_model_len=700, vocab=260, stop_ids=frozenset({EOS}))


def thinking_program(blocks: int = 4000) -> FakeProgram:
    """As `program`, and fond of the reasoning's end."""
    plain = program(blocks)
    logits_of = plain._logits_of

    def logits(history: list[int]) -> np.ndarray:
        row = logits_of(history)
        ended = bytes(t for t in history if t < 256)
        for i, byte in enumerate(b"</t>"):
            if ended.endswith(b"</t>"[:i]) and b"</t>" not in ended:
                row[byte] += 4.0 + 4.0 * i
        return row

    plain._logits_of = logits
    return plain


def test_so_05_all_combinations_with_drafts() -> None:
    """Schema, k = 4 and half of the guesses right, forced preemption, temperature 2; n = 3, stop, min_tokens 200, no quotes, reasoning.

    Every text with finish_reason "stop" parses and validates, and each is what it is without drafts and preemption."""
    marks, validator = ThinkMarks(byte_tokenizer(), TAGS, frozenset({EOS})), Draft202012Validator(SCHEMA)
    combos = list(product((1, 3), ((), ("}",)), (0, 200), ((), ((ord('"'), -100.0),)), (False, True)))

    def submit_all(core: EngineCore) -> list[RequestState]:
        found = []
        for i, (n, stop, least, bias, thinks) in enumerate(combos):
            guide = ThinkingGuide(marks, "open", compiled(), 30).start if thinks else compiled().start
            params = SamplingParams(max_tokens=260, temperature=2.0, seed=i, n=n, stop=stop, min_tokens=least, logit_bias=bias)
            found.append(submit(core, PROMPTS[i % 8], params, f"c{i}", grammar=guide))
        return found

    plain = make_core(thinking_program(), limits=LONG, seqs=100, chunk=2000)
    cold = submit_all(plain)
    play(plain, cold)
    core = make_core(thinking_program(), limits=LONG, seqs=30, chunk=90)
    core.dial(Faults(preempt_every=9))
    asked = submit_all(core)
    guess_half(core, asked, [one.output() for one in cold])
    play(core, asked)
    assert core.state.counts["preemptions"] > 20
    drafted, accepted = (core.metrics.counts[f"spec_decode_num_{what}_tokens"] for what in ("draft", "accepted"))
    assert drafted > accepted > 500
    ends: Counter[str | None] = Counter()
    for combo, one, want in zip(combos, asked, cold, strict=True):
        for a, b in zip(one.output().outputs, want.output().outputs, strict=True):
            assert (a.token_ids, a.text, a.finish_reason) == (b.token_ids, b.text, b.finish_reason), combo
            ends[a.finish_reason] += 1
            if a.finish_reason != "stop":
                continue
            stream = ReasoningStream(TAGS, "open" if combo[-1] else "closed")
            content = stream.push(a.text).content + stream.finish().content
            assert validator.is_valid(json.loads(content)), (combo, a.text)
    assert ends["stop"] > 8 and set(ends) <= {"stop", "length"}


@pytest.mark.parametrize("right", [0.0, 1.0])
def test_so_05_an_impossible_mask_ends_with_an_error(right: float) -> None:
    core = make_core(program(), limits=LIMITS)
    asked = submit(core, PROMPTS[0], SamplingParams(max_tokens=60, seed=1, allowed_token_ids=(65, 66)), grammar=compiled().start)
    core.speculator = Speculator(Knowing(lambda seq_id: [*PROMPTS[0], *b'{"a":1'], right, 260, 1), 4)
    play(core, [asked])
    assert asked.choices[0].finish == "error" and "no token is allowed" in str(asked.choices[0].stop_reason)
